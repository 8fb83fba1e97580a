"""Tensor operations that TensorFlow lacks, or that are faster on CPU than TensorFlow's own."""
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

HALF_PRECISION = (tf.float16, tf.bfloat16)


def shape_list(x: tf.Tensor) -> list:
    """The shape of `x` as a list: an int where it is static, an int32 scalar where it is not."""
    dynamic = None
    sizes = x.shape.as_list()
    for axis, size in enumerate(sizes):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            sizes[axis] = dynamic[axis]
    return sizes


def reshape(x: tf.Tensor, sizes: Sequence) -> tf.Tensor:
    """`tf.reshape` to ints and scalars; a single scalar is replaced by -1, so it is not computed."""
    if sum(not isinstance(size, int) for size in sizes) == 1:
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return tf.reshape(x, sizes)


def transpose(x: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
    """`tf.transpose`, faster on CPU where the last axis stays the last.

    TensorFlow transposes float32 with oneDNN, which takes up to twice as long (nine times for the
    few words of a decoding step) as its own kernel. That one is used for integers, so the floats
    are moved as int32.
    """
    if x.dtype.base_dtype != tf.float32 or order[-1] != len(order) - 1:
        return tf.transpose(x, order)

    @tf.custom_gradient
    def forward(x):
        y = tf.bitcast(tf.transpose(tf.bitcast(x, tf.int32), order), tf.float32)
        return y, lambda dy: transpose(dy, [order.index(axis) for axis in range(len(order))])

    return forward(x)


def matmul_shared(x: tf.Tensor, matrix: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
    """Multiplies every head by one shared matrix, or each head by its own.

    Args:
      x: [batch, heads, length, channels].
      matrix: [channels, columns] shared by the heads, or [heads, channels, columns].
      transpose_b: whether the last two axes of the matrix are swapped.

    Returns:
      [batch, heads, length, columns] of the dtype of x.
    """
    if matrix.shape.rank == 3:
        return tf.matmul(x, matrix[None], transpose_b=transpose_b)
    *outer, channels = shape_list(x)
    y = tf.matmul(tf.reshape(x, [-1, channels]), matrix, transpose_b=transpose_b)
    return reshape(y, [*outer, shape_list(y)[1]])


def can_use_raw_cond() -> bool:
    """Whether `raw_cond` works here: only in a version 1 graph, outside a while_loop."""
    context = tf.get_default_graph()._get_control_flow_context()
    return not (tf.control_flow_v2_enabled() or context and context.GetWhileContext())


def raw_cond(condition: tf.Tensor, if_true: Callable[..., tf.Tensor],
             if_false: Callable[..., tf.Tensor], *inputs) -> tf.Tensor:
    """Calls one of two functions, depending on a condition that is known when the graph runs.

    It uses Switch and Merge directly. `tf.cond` adds up a gradient for each input from both
    branches, zeros from the branch not taken; that costs a tenth of an attention layer.

    Args:
      condition: a bool scalar.
      if_true: called with the inputs; returns one tensor. It must not capture tensors that need
        gradients.
      if_false: likewise; its result has the same shape and dtype.
      *inputs: tensors, which get gradients, and other values, which are passed on.

    Returns:
      the result of the function that was chosen.
    """
    def switch(x):
        if not tf.is_tensor(x):
            return x, x
        switched = tf.raw_ops.Switch(data=x, pred=condition)
        # Without the identities Grappler confuses the outputs where it rewrites n + n.
        return tf.identity(switched.output_true), tf.identity(switched.output_false)

    true_inputs, false_inputs = zip(*(switch(x) for x in inputs), strict=True)
    return tf.raw_ops.Merge(inputs=[if_true(*true_inputs), if_false(*false_inputs)]).output


def sum_rows(x: tf.Tensor, indices: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Sums rows that have the same index: the transpose of `tf.gather`.

    Args:
      x: [rows, width]; half precision is summed in float32.
      indices: int32 [rows], each in 0..count - 1.
      count: number of rows of the result.

    Returns:
      [count, width] of the dtype of x, 0 where no row has that index.
    """
    dtype = tf.float32 if x.dtype in HALF_PRECISION else x.dtype
    return tf.cast(tf.math.unsorted_segment_sum(tf.cast(x, dtype), indices, count), x.dtype)


def static_min(*sizes: int | tf.Tensor) -> int | tf.Tensor:
    """The minimum of ints and int32 scalars: an int if all are ints, otherwise a scalar."""
    ints = [size for size in sizes if isinstance(size, int)]
    minimum = [min(ints)] if ints else []
    for size in sizes:
        if not isinstance(size, int):
            minimum = [tf.minimum(minimum[0], size) if minimum else size]
    return minimum[0]


def static_max(*sizes: int | tf.Tensor) -> int | tf.Tensor:
    """The maximum of ints and int32 scalars: an int if all are ints, otherwise a scalar."""
    return -static_min(*[-size for size in sizes])
