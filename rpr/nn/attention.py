"""Multi-head attention: a pure function of tensors, and the layer with its projections.

Both are independent of the position scheme: the layer passes the scheme's methods to the function.
The compatibility of query and key is a product, or additive.
"""
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import dropout
from rpr.nn.ops import HALF_PRECISION, WithGradient, accumulator_dtype, shape_list
from rpr.nn.projections import combine_heads, project, split_heads

MASK_BIAS = -1e9                                      # T2T's bias of masked pairs


def attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, bias: tf.Tensor | None = None,
              scores: Callable[..., tf.Tensor] | None = None,
              weighted_values: Callable[..., tf.Tensor] | None = None,
              normalize: Callable[[tf.Tensor], tf.Tensor] = tf.nn.softmax,
              dropout: Callable[[tf.Tensor], tf.Tensor] | None = None,
              on_weights: Callable[[tf.Tensor, tf.Tensor], None] | None = None,
              scale: float | None = None) -> tf.Tensor:
    """Scaled dot-product attention, with or without terms of a position scheme.

    Shaw et al. 2018, equations (2) to (4): the logits are (q_i . k_j + q_i . a^K_ij) / sqrt(depth),
    the output is sum_j alpha_ij (v_j + a^V_ij). If the inputs are in half precision, the softmax is
    computed in float32. The result is [batch, heads, queries, depth_v] of the dtype of q.

    Args:
      q: [batch, heads, queries, depth].
      k: [batch, heads, keys, depth].
      v: [batch, heads, keys, depth_v].
      bias: broadcastable to [batch, heads, queries, keys]: 0, and about -1e9 for masked pairs.
      scores: called with the scaled q and with k, returns the logits [batch, heads, queries, keys];
        None: the products q_i . k_j. A per-query constant may be left out if it cancels in
        `normalize`, as in a softmax.
      weighted_values: called with the weights and v, returns [batch, heads, queries, depth_v];
        None: the weighted sums of v.
      normalize: makes weights of logits, in float32 if the inputs are in half precision.
      dropout: applied to the weights.
      on_weights: called with the weights, before dropout, and the logits.
      scale: factor of q; None: depth ** -0.5.
    """
    q = q * (q.shape.as_list()[-1] ** -0.5 if scale is None else scale)
    logits = scores(q, k) if scores else tf.matmul(q, k, transpose_b=True)
    if q.dtype in HALF_PRECISION:
        logits = tf.cast(logits, tf.float32)
    if bias is not None:
        # Not logits + bias: in a graph without gradients TensorFlow and oneDNN make one operation
        # of the product and such a sum, and it is slow; see docs/performance.md.
        logits -= -1.0 * tf.cast(bias, logits.dtype)
    weights = tf.cast(normalize(logits), q.dtype)
    if on_weights:
        on_weights(weights, logits)
    if dropout:
        weights = dropout(weights)
    return weighted_values(weights, v) if weighted_values else tf.matmul(weights, v)


def masked_softmax(logits: tf.Tensor, unmasked: tf.Tensor) -> tf.Tensor:
    """The softmax over unmasked keys only.

    Masked keys get exactly 0, also as gradient, and so do all keys of a query without any unmasked
    key. (A softmax with a large negative bias gives such a query the mean of all values.) The
    logits, float [..., keys], may be anything but NaN at masked keys; `unmasked` is bool,
    broadcastable to them.
    """
    unmasked = tf.logical_and(unmasked, tf.ones_like(logits, tf.bool))
    maximum = tf.reduce_max(
        tf.where_v2(unmasked, logits, logits.dtype.min), axis=-1, keepdims=True)
    # Masked logits become 0 before the exponential; else the gradient has 0 * infinity.
    exponentials = tf.exp(tf.where_v2(unmasked, logits - tf.stop_gradient(maximum), 0))
    exponentials = tf.where_v2(unmasked, exponentials, 0)
    return tf.math.divide_no_nan(
        exponentials, tf.reduce_sum(exponentials, axis=-1, keepdims=True))


def additive_logits(q: tf.Tensor, k: tf.Tensor, vector: tf.Tensor,
                    pair_vectors: tf.Tensor | None = None) -> tf.Tensor:
    """Additive compatibility: the sum over channels of vector * tanh(q_i + k_j + a_ij).

    Bahdanau et al. 2015; Shaw et al. 2018, section 5, suggests nonlinear compatibility functions
    with relations as future work. The logits are computed for one query at a time, and again for
    the gradient, so that [batch, heads, queries, keys, depth] never exists.

    q is [batch, heads, queries, depth], k [batch, heads, keys, depth], the vector [heads, depth].
    The pair vectors a are [queries, keys, depth], or that with [heads] or [batch, heads|1] in
    front; None: 0. The logits are [batch, heads, queries, keys].
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

    logits = tf.map_fn(                                      # [queries, batch, heads, keys]
        lambda query_and_a: tf.matmul(hidden(*query_and_a), vector[:, :, None])[..., 0], by_query,
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


def project_memory(memory: tf.Tensor, key_channels: int, value_channels: int,
                   heads: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Keys and values of the sequence that is attended to, `memory` [batch, keys, hidden].

    They are [batch, heads, keys, key_channels / heads] and [batch, heads, keys, value_channels /
    heads].
    """
    return (split_heads(project(memory, key_channels, "k"), heads),
            split_heads(project(memory, value_channels, "v"), heads))


def multihead_attention(x: tf.Tensor, memory: tf.Tensor | None, bias: tf.Tensor | None,
                        key_channels: int, value_channels: int, output_channels: int, heads: int,
                        scheme: Any, layout: Any, compatibility: str = "dot_product",
                        dropout_rate: float = 0.0, dropout_broadcast_dims: Sequence[int] = (),
                        cache: dict | None = None, save_weights_to: dict | None = None,
                        masked: bool = False) -> tf.Tensor:
    """Multi-head attention with its projections, in the variable scope `multihead_attention`.

    The result is [batch, queries, output_channels].

    Args:
      x: [batch, queries, hidden], the input of the queries.
      memory: [batch, keys, hidden], the input of keys and values; None: x (self-attention).
      bias: broadcastable to [batch, heads, queries, keys].
      key_channels, value_channels: of the queries or keys, and of the values, of all heads
        together.
      output_channels: channels of the result.
      heads: number of heads, which must divide the channels of keys and values (else ValueError).
      scheme: a `rpr.positions.Scheme`.
      layout: a `rpr.positions.Layout`, passed on to the scheme with x, bias and cache.
      compatibility: `dot_product`, or `additive` (see `additive_logits`).
      dropout_rate: dropout of the weights.
      dropout_broadcast_dims: axes that share dropout decisions, see `dropout`.
      cache: None, or a dict for one step of decoding. In self-attention its `k` and `v`
        [batch, heads, steps so far, depth] grow by this step; with a memory its `k_encdec` and
        `v_encdec` are used instead of projections of the memory.
      save_weights_to: a dict that gets weights and logits under T2T's names, or None.
      masked: whether to use `masked_softmax` over the keys that the bias does not mask.
    """
    for name, channels in (("attention_key_channels", key_channels),
                           ("attention_value_channels", value_channels)):
        if channels % heads:
            raise ValueError(f"{name}: {channels} channels cannot be divided among "
                             f"num_heads={heads}")
    with tf.variable_scope("multihead_attention") as scope:
        q = split_heads(project(x, key_channels, "q"), heads)
        if memory is not None and cache is not None:
            k, v = cache["k_encdec"], cache["v_encdec"]
        else:
            k, v = project_memory(
                x if memory is None else memory, key_channels, value_channels, heads)
        softmax = tf.nn.softmax
        if masked and bias is not None:
            softmax = functools.partial(masked_softmax, unmasked=bias > MASK_BIAS / 2)
        layout = layout.replace(x=x, mask=bias, cache=cache, softmax=softmax)
        if cache is not None and memory is None:
            q = tf.ensure_shape(q, [None, heads, 1, None])
        scale = (key_channels // heads) ** -0.5              # `rotate` may change the depth
        if scheme.uses("rotate"):
            q, k = _rotate(q, k, scheme, layout, memory is not None, cache is not None)
        scores = functools.partial(scheme.scores, layout=layout)
        if compatibility == "additive":
            scale, scores = 1.0, functools.partial(_additive_scores, scheme, layout)
        if memory is None and cache is not None:
            k = cache["k"] = tf.concat([cache["k"], k], axis=2)
            v = cache["v"] = tf.concat([cache["v"], v], axis=2)

        def save(weights: tf.Tensor, logits: tf.Tensor) -> None:
            if save_weights_to is not None:
                save_weights_to[f"{scope.name}/dot_product_attention"] = weights
                save_weights_to[f"{scope.name}/dot_product_attention/logits"] = logits

        z = attention(
            q, k, v, bias, scores, functools.partial(scheme.weighted_values, layout=layout),
            functools.partial(scheme.normalize, layout=layout),
            lambda weights: dropout(weights, dropout_rate, dropout_broadcast_dims),
            save, scale)
        return project(combine_heads(z), output_channels, "output_transform")


def _rotate(q: tf.Tensor, k: tf.Tensor, scheme: Any, layout: Any, has_memory: bool, cached: bool
            ) -> tuple[tf.Tensor, tf.Tensor]:
    """Queries and keys at their positions; those are the same tensors in all layers of a pass."""
    shared = layout.shared
    if "queries" not in shared:
        shared["queries"] = layout.query_positions()
        shared["keys"] = layout.key_positions() if has_memory else shared["queries"]
    q = scheme.rotate(q, shared["queries"], layout, "query")
    if not (has_memory and cached):                          # those keys were rotated already
        k = scheme.rotate(k, shared["keys"], layout, "key")
    return q, k


def _additive_scores(scheme: Any, layout: Any, q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    _, heads, _, depth = q.shape.as_list()
    vector = tf.get_variable("additive/vector", [heads, depth], dtype=q.dtype)
    logits = additive_logits(q, k, vector, scheme.pair_vectors(layout, q.dtype))
    return scheme.adjust(logits, scheme.bias(layout, q.dtype), layout)
