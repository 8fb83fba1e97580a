"""Additive compatibility of query and key: v . tanh(q_i + k_j + a_ij)."""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, accumulator_dtype, shape_list


def additive_logits(q: tf.Tensor, k: tf.Tensor, vector: tf.Tensor,
                    pair_vectors: tf.Tensor | None = None) -> tf.Tensor:
    """Additive compatibility: the sum over channels of vector * tanh(q_i + k_j + a_ij).

    Bahdanau et al. 2015; Shaw et al. 2018, section 5, suggests nonlinear compatibility functions
    with relations as future work. The logits are computed for one query at a time, and again for
    the gradient, so that [batch, heads, queries, keys, depth] never exists.

    Args:
      q: [batch, heads, queries, depth].
      k: [batch, heads, keys, depth].
      vector: [heads, depth].
      pair_vectors: a, [queries, keys, depth], or that with [heads] or [batch, heads|1] in front;
        None: 0.

    Returns:
      the logits [batch, heads, queries, keys] of the dtype of q.
    """
    a = tf.zeros([1, 1, 1], q.dtype) if pair_vectors is None else pair_vectors
    a = a[(None,) * (5 - a.shape.rank)]                      # [batch|1, heads|1, queries|1, ...]
    a = tf.broadcast_to(a, [*shape_list(a)[:2], shape_list(q)[2], *shape_list(a)[3:]])
    return _logits(q, k, vector, a)


@tf.custom_gradient
def _logits(q: tf.Tensor, k: tf.Tensor, vector: tf.Tensor, a: tf.Tensor) -> WithGradient:
    length = shape_list(q)[2]
    by_query = (tf.transpose(q, [2, 0, 1, 3]), tf.transpose(a, [2, 0, 1, 3, 4]))

    def hidden(query: tf.Tensor, a: tf.Tensor) -> tf.Tensor:     # [batch, heads, keys, depth]
        return tf.tanh(query[:, :, None] + k + a)

    def project(x: tf.Tensor) -> tf.Tensor:                  # [batch, heads, keys]
        return tf.matmul(x, vector[:, :, None])[..., 0]

    logits = tf.map_fn(lambda query_and_a: project(hidden(*query_and_a)), by_query,
                       fn_output_signature=q.dtype, parallel_iterations=1)

    def gradient(dlogits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        dlogits, dtype = tf.transpose(dlogits, [2, 0, 1, 3]), accumulator_dtype(q.dtype)

        def step(i: tf.Tensor, dk: tf.Tensor, dvector: tf.Tensor, dqueries: tf.TensorArray,
                 da: tf.TensorArray) -> tuple[Any, ...]:
            x = hidden(by_query[0][i], by_query[1][i])
            dlogit = dlogits[i]                              # [batch, heads, keys]
            dvector += tf.cast(tf.reduce_sum(tf.matmul(dlogit[:, :, None], x), axis=[0, 2]), dtype)
            dx = tf.raw_ops.TanhGrad(y=x, dy=dlogit[..., None] * vector[:, None])
            da_i = _sum_to(dx, shape_list(a)[:2] + shape_list(a)[3:])
            return (i + 1, dk + tf.cast(dx, dtype), dvector,
                    dqueries.write(i, tf.reduce_sum(dx, axis=2)), da.write(i, da_i))

        _, dk, dvector, dqueries, da = tf.while_loop(
            lambda i, *_: i < length, step,
            (0, tf.zeros_like(k, dtype), tf.zeros_like(vector, dtype),
             tf.TensorArray(q.dtype, length), tf.TensorArray(q.dtype, length)),
            parallel_iterations=1)
        return (tf.transpose(dqueries.stack(), [1, 2, 0, 3]), tf.cast(dk, k.dtype),
                tf.cast(dvector, vector.dtype), tf.transpose(da.stack(), [1, 2, 0, 3, 4]))

    return tf.transpose(logits, [1, 2, 0, 3]), gradient


def _sum_to(x: tf.Tensor, sizes: list) -> tf.Tensor:
    """The transpose of broadcasting: sums x along the axes that are statically 1 in `sizes`."""
    axes = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    return tf.reduce_sum(x, axis=axes, keepdims=True) if axes else x
