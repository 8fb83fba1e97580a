"""rpr.nn.ops"""
import tensorflow.compat.v1 as tf


def shape_list(x):
    """The shape of `x` as a list: an int where it is static, an int32 scalar where it is not."""
    dynamic = None
    sizes = x.shape.as_list()
    for axis, size in enumerate(sizes):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            sizes[axis] = dynamic[axis]
    return sizes


def reshape(x, sizes):
    """`tf.reshape` to ints and scalars, where one scalar alone need not be computed, nor given."""
    if sum(not isinstance(size, int) for size in sizes) == 1:
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return tf.reshape(x, sizes)


def transpose(x, order):
    """`tf.transpose`, faster on CPU where the last axis stays the last.

    Floats are moved as bits then: oneDNN, which would move floats, takes up to twice as long, and
    nine times for the few words of a step of decoding.
    """
    if x.dtype.base_dtype != tf.float32 or order[-1] != len(order) - 1:
        return tf.transpose(x, order)

    @tf.custom_gradient
    def move(x):
        y = tf.bitcast(tf.transpose(tf.bitcast(x, tf.int32), order), tf.float32)
        return y, lambda dy: transpose(dy, [order.index(axis) for axis in range(len(order))])

    return move(x)


def can_choose():
    """Whether `choose` serves here: not in a while_loop, where a Switch's gradient is that of the
    loop's own, nor where there is nothing but functions."""
    context = tf.get_default_graph()._get_control_flow_context()
    return not (tf.control_flow_v2_enabled() or context and context.GetWhileContext())


def choose(which, one, other, *given):
    """One function of what is given, or another, as it turns out when the graph runs.

    `tf.cond` would hand each tensor to either branch by itself, each with a gradient that is made
    of zeros where the other branch was taken, and add those up: a tenth of an attention layer.

    Args:
      which: a bool scalar, whether it is the first.
      one, other: functions of the tensors, sizes and whatever else is given; each returns a tensor,
        alike in shape and dtype. They must not take tensors from elsewhere that have gradients.
      given: what they are called with.

    Returns:
      the tensor.
    """
    def switch(x):
        if not tf.is_tensor(x):
            return x, x
        found = tf.raw_ops.Switch(data=x, pred=which)
        # Grappler takes one output for the other where it rewrites n + n.
        return tf.identity(found.output_true), tf.identity(found.output_false)

    for_one, for_other = zip(*(switch(x) for x in given), strict=True)
    return tf.raw_ops.Merge(inputs=[one(*for_one), other(*for_other)]).output


def sum_rows(x, places, count):
    """Adds rows up at their places: the transpose of `tf.gather`.

    Args:
      x: [rows, width]; sums of half precision are kept in float32, and returned as halves.
      places: int32 [rows], each in 0..count - 1.
      count: how many places there are.

    Returns:
      [count, width] of the dtype of x, 0 where no row came.
    """
    kind = tf.float32 if x.dtype in (tf.float16, tf.bfloat16) else x.dtype
    return tf.cast(tf.math.unsorted_segment_sum(tf.cast(x, kind), places, count), x.dtype)


def smaller(*sizes):
    """The least of some ints and int32 scalars: an int where all are, else a scalar."""
    known = [size for size in sizes if isinstance(size, int)]
    least = [min(known)] if known else []
    for size in sizes:
        if not isinstance(size, int):
            least = [tf.minimum(least[0], size) if least else size]
    return least[0]


def larger(*sizes):
    """The greatest of some ints and int32 scalars: an int where all are, else a scalar."""
    return -smaller(*[-size for size in sizes])


def dropout(x, rate, broadcast_dims=()):
    """Dropout whose decisions are shared along some axes, and else independent.

    Args:
      x: a float tensor.
      rate: the share that is dropped, in 0..1 without 1; taken to the nearest 1 / 65,536, and what
        is kept is scaled by that share's inverse, so that the mean stays what it is.
      broadcast_dims: axes along which one decision holds for all.

    Returns:
      a tensor of the same shape and dtype.
    """
    dropped = min(round(rate * 2 ** 16), 2 ** 16 - 1)
    if not dropped:
        return x
    shape = shape_list(x)
    for axis in broadcast_dims:
        shape[axis] = 1
    kept = _bits(shape) >= tf.constant(dropped, tf.uint16)
    return tf.where_v2(kept, x * tf.constant(2 ** 16 / (2 ** 16 - dropped), x.dtype),
                       tf.zeros([], x.dtype))


def _bits(shape):
    """Independent uint16 of this shape, uniform, four of each number of a counter's cipher.

    The key is drawn anew at each step, from TensorFlow's seeds.
    """
    count = tf.reduce_prod(shape)
    key = tf.random.uniform([1], tf.int64.min, tf.int64.max, tf.int64)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[(count + 3) // 4], key=tf.bitcast(key, tf.uint64), counter=tf.zeros([2], tf.uint64),
        alg=1, dtype=tf.uint64)                              # 1: Philox
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count], shape)
