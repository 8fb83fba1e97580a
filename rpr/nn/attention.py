"""Multi-head attention: a pure function of tensors, and the layer that makes its variables.

Neither asks which position scheme it serves: the layer hands the scheme's `scores` and `outputs` to
the function.
"""
import functools

import tensorflow.compat.v1 as tf

from rpr.nn.ops import dropout, shape_list
from rpr.nn.projections import combine_heads, project, split_heads

FORBIDDEN = -1e9                                      # T2T's bias of what may not be seen


def attention(q, k, v, bias=None, scores=None, outputs=None, dropout=None, weights_to=None,
              scale=None, masked=False):
    """Scaled dot-product attention, with or without what relates query and key.

    Shaw et al. 2018, equations (2) to (4): the logits are (q_i . k_j + q_i . a^K_ij) / sqrt(depth),
    the output is sum_j alpha_ij (v_j + a^V_ij). The softmax is float32 where the inputs are half.

    Args:
      q: [batch, heads, len_q, depth].
      k: [batch, heads, len_k, depth].
      v: [batch, heads, len_k, depth_v].
      bias: broadcastable to [batch, heads, len_q, len_k], 0 where a query may look and about -1e9
        where it may not, or None.
      scores: a function of the scaled q and of k that gives [batch, heads, len_q, len_k], the
        products q_i . k_j with what a relation adds, or None for the products alone. What is the
        same for all keys of a query may be missing: no weight depends on it.
      outputs: a function of the weights and of v that gives [batch, heads, len_q, depth_v], the
        weighted sums with what a relation adds, or None for the sums alone.
      dropout: a function applied to the weights, or None.
      weights_to: a function called with the weights, before dropout, and the logits, or None.
      scale: what q is multiplied by; None: depth ** -0.5.
      masked: whether the weights are those of `masked_softmax`, over the keys that the bias leaves.

    Returns:
      [batch, heads, len_q, depth_v] of the dtype of q.
    """
    q = q * (q.shape.as_list()[-1] ** -0.5 if scale is None else scale)
    logits = scores(q, k) if scores else tf.matmul(q, k, transpose_b=True)
    if q.dtype in (tf.float16, tf.bfloat16):
        logits = tf.cast(logits, tf.float32)
    if bias is not None:
        logits += tf.cast(bias, logits.dtype)
    if masked and bias is not None:
        weights = masked_softmax(logits, bias > FORBIDDEN / 2)
    else:
        weights = tf.nn.softmax(logits)
    weights = tf.cast(weights, q.dtype)
    if weights_to:
        weights_to(weights, logits)
    if dropout:
        weights = dropout(weights)
    return outputs(weights, v) if outputs else tf.matmul(weights, v)


def masked_softmax(logits, defined):
    """The softmax over the defined keys alone.

    It is exactly 0 elsewhere, and where no key is defined; so is its gradient. A softmax of logits
    with a large negative bias is so only as far as its exponentials vanish, and gives a query
    without any key the mean over all of them.

    Args:
      logits: float [..., keys]; of a key that is not defined, any number that is not NaN.
      defined: bool, broadcastable to the logits.

    Returns:
      a tensor of the logits' shape and dtype.
    """
    defined = tf.logical_and(defined, tf.ones_like(logits, tf.bool))
    highest = tf.reduce_max(
        tf.where_v2(defined, logits, logits.dtype.min), axis=-1, keepdims=True)
    # What is not defined goes to 0 before the exponential: else 0 * infinity in the gradient.
    powers = tf.exp(tf.where_v2(defined, logits - tf.stop_gradient(highest), 0))
    powers = tf.where_v2(defined, powers, 0)
    return tf.math.divide_no_nan(powers, tf.reduce_sum(powers, axis=-1, keepdims=True))


def additive(q, k, vector, edges=None):
    """Additive compatibility: sum over channels of vector * tanh(q_i + k_j + a_ij).

    Bahdanau et al. 2015, and what Shaw et al. 2018, section 5, leave open: a nonlinear
    compatibility with relations. One query at a time is computed, and again for the gradient, so
    that [batch, heads, len_q, len_k, depth] never exists.

    Args:
      q: [batch, heads, len_q, depth].
      k: [batch, heads, len_k, depth].
      vector: [heads, depth].
      edges: a, [len_q, len_k, depth] with [heads] or [batch, heads|1] before it, or None.

    Returns:
      the logits [batch, heads, len_q, len_k] of the dtype of q.
    """
    edges = tf.zeros([1, 1, 1], q.dtype) if edges is None else edges
    edges = edges[(None,) * (5 - edges.shape.rank)]          # [batch|1, heads|1, len_q|1, ...]
    edges = tf.broadcast_to(edges, [*shape_list(edges)[:2], shape_list(q)[2],
                                    *shape_list(edges)[3:]])
    return _additive(q, k, vector, edges)


@tf.custom_gradient
def _additive(q, k, vector, edges):
    length = shape_list(q)[2]
    by_query = (tf.transpose(q, [2, 0, 1, 3]), tf.transpose(edges, [2, 0, 1, 3, 4]))

    def hidden(query, edge):                                 # [batch, heads, len_k, depth]
        return tf.tanh(query[:, :, None] + k + edge)

    def weigh(x):                                            # [batch, heads, len_k]
        return tf.matmul(x, vector[:, :, None])[..., 0]

    logits = tf.map_fn(lambda at: weigh(hidden(*at)), by_query,
                       fn_output_signature=q.dtype, parallel_iterations=1)

    def gradient(dlogits):
        dlogits = tf.transpose(dlogits, [2, 0, 1, 3])

        def step(i, dk, dvector, dqueries, dedges):
            x = hidden(by_query[0][i], by_query[1][i])
            by_key = dlogits[i]                              # [batch, heads, len_k]
            dvector += tf.reduce_sum(tf.matmul(by_key[:, :, None], x), axis=[0, 2])
            dx = tf.raw_ops.TanhGrad(y=x, dy=by_key[..., None] * vector[:, None])
            dedge = _sum_to(dx, shape_list(edges)[:2] + shape_list(edges)[3:])
            return (i + 1, dk + dx, dvector, dqueries.write(i, tf.reduce_sum(dx, axis=2)),
                    dedges.write(i, dedge))

        _, dk, dvector, dqueries, dedges = tf.while_loop(
            lambda i, *_: i < length, step,
            (0, tf.zeros_like(k), tf.zeros_like(vector), tf.TensorArray(q.dtype, length),
             tf.TensorArray(q.dtype, length)), parallel_iterations=1)
        return (tf.transpose(dqueries.stack(), [1, 2, 0, 3]), dk, dvector,
                tf.transpose(dedges.stack(), [1, 2, 0, 3, 4]))

    return tf.transpose(logits, [1, 2, 0, 3]), gradient


def _sum_to(x, sizes):
    """The transpose of broadcasting: x summed along the axes that are 1 in `sizes`."""
    axes = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    return tf.reduce_sum(x, axis=axes, keepdims=True) if axes else x


def project_memory(memory, key_channels, value_channels, heads):
    """Keys and values of what is attended to.

    Args:
      memory: [batch, len_k, hidden].
      key_channels: channels of all keys together.
      value_channels: channels of all values together.
      heads: number of heads.

    Returns:
      k [batch, heads, len_k, key_channels / heads],
      v [batch, heads, len_k, value_channels / heads].
    """
    return (split_heads(project(memory, key_channels, "k"), heads),
            split_heads(project(memory, value_channels, "v"), heads))


def multihead_attention(x, memory, bias, key_channels, value_channels, output_channels, heads,
                        scheme=None, relation=None, compatibility="dot_product", dropout_rate=0.0,
                        dropout_broadcast_dims=(), cache=None, save_weights_to=None, masked=False):
    """Multi-head attention with its projections, in the variable scope `multihead_attention`.

    Args:
      x: [batch, len_q, hidden], the queries come from here.
      memory: [batch, len_k, hidden], keys and values come from here; None: from x (self-attention).
      bias: broadcastable to [batch, heads, len_q, len_k].
      key_channels: channels of all queries, and of all keys, together.
      value_channels: channels of all values together.
      output_channels: channels of the result.
      heads: number of heads.
      scheme: a `rpr.positions.Scheme` where positions matter, else None.
      relation: which query meets which key, see `rpr.positions.distances`: for the scheme, unread here.
      compatibility: `dot_product`, or `additive` (see there), which needs a scheme.
      dropout_rate: dropout of the weights.
      dropout_broadcast_dims: see `dropout`.
      cache: a dict for one step of decoding, or None. In self-attention `k` and `v`
        [batch, heads, steps so far, depth] grow by this step; with a memory, `k_encdec` and
        `v_encdec` are taken in place of it.
      save_weights_to: a dict that gets the weights and the logits under T2T's names, or None.
      masked: see `attention`.

    Returns:
      [batch, len_q, output_channels].

    Raises:
      ValueError: the heads do not divide the channels.
    """
    for name, channels in (("attention_key_channels", key_channels),
                           ("attention_value_channels", value_channels)):
        if channels % heads:
            raise ValueError(f"{name}: {channels} channels do not divide among num_heads={heads}")
    with tf.variable_scope("multihead_attention") as scope:
        q = split_heads(project(x, key_channels, "q"), heads)
        if memory is not None and cache is not None:
            k, v = cache["k_encdec"], cache["v_encdec"]
        else:
            k, v = project_memory(
                x if memory is None else memory, key_channels, value_channels, heads)
        scores = outputs = scale = None
        if scheme is not None:
            if cache is not None:
                q = tf.ensure_shape(q, [None, heads, 1, None])
            q, k = scheme.rotate(q, k, relation)
            scores = functools.partial(scheme.scores, relation=relation)
            if compatibility == "additive":
                vector = tf.get_variable(
                    "additive/vector", [heads, key_channels // heads], dtype=q.dtype)
                scale = 1.0

                def scores(q, k):
                    logits = additive(q, k, vector, scheme.vectors(relation, q.dtype))
                    term = scheme.bias(relation, q.dtype)
                    return logits if term is None else logits + term
            outputs = functools.partial(scheme.outputs, relation=relation)
        if memory is None and cache is not None:
            k = cache["k"] = tf.concat([cache["k"], k], axis=2)
            v = cache["v"] = tf.concat([cache["v"], v], axis=2)

        def keep(weights, logits):
            save_weights_to[f"{scope.name}/dot_product_attention"] = weights
            save_weights_to[f"{scope.name}/dot_product_attention/logits"] = logits

        y = attention(
            q, k, v, bias, scores, outputs,
            dropout=lambda weights: dropout(weights, dropout_rate, dropout_broadcast_dims),
            weights_to=None if save_weights_to is None else keep, scale=scale, masked=masked)
        return project(combine_heads(y), output_channels, "output_transform")
