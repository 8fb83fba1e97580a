"""Tensor operations that TensorFlow lacks, or that are faster on CPU than TensorFlow's own."""
import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

HALF_PRECISION = (tf.float16, tf.bfloat16)
# What a function of `tf.custom_gradient` returns: its value and its gradient.
WithGradient = tuple[tf.Tensor, Callable[..., Any]]


def shape_list(x: tf.Tensor) -> list:
    """The shape of `x` as a list: an int where it is static, an int32 scalar where it is not."""
    dynamic = None
    sizes = x.shape.as_list()
    for axis, size in enumerate(sizes):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            sizes[axis] = dynamic[axis]
    return sizes


def matmul_shared(x: tf.Tensor, matrix: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
    """Multiplies every head by one shared matrix, or each head by its own.

    From [batch, heads, length, channels] to [batch, heads, length, columns] by [channels, columns],
    or [heads, channels, columns]; with `transpose_b` these last two axes are swapped.
    """
    if matrix.shape.rank == 3:
        return tf.matmul(x, matrix[None], transpose_b=transpose_b)
    *outer, channels = shape_list(x)
    y = tf.matmul(tf.reshape(x, [-1, channels]), matrix, transpose_b=transpose_b)
    return tf.reshape(y, [*outer, shape_list(y)[1]])


def gather_rows(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Rows of a table, with a dense gradient that is accurate in half precision, see `sum_rows`.

    From x, [(heads,) rows, width], and integers of any shape to [(heads,) ..., width].
    """
    if x.shape.rank == 3:
        heads, rows, width = shape_list(x)
        first = tf.cast(tf.range(heads) * rows, indices.dtype)
        first = tf.reshape(first, [heads] + [1] * indices.shape.rank)
        return gather_rows(tf.reshape(x, [heads * rows, width]), first + indices)

    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            count, width = shape_list(x)
            return sum_rows(tf.reshape(dy, [-1, width]), tf.reshape(indices, [-1]), count)
        return tf.gather(x, indices), gradient

    return forward(x)


def sum_rows(x: tf.Tensor, indices: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Sums rows that have the same index: the transpose of `gather_rows`.

    From [rows, width] and indices [rows], each in 0..count - 1, to [count, width], 0 where no row
    has that index. Half precision is summed in float32.
    """
    x_sum = tf.math.unsorted_segment_sum(tf.cast(x, accumulator_dtype(x.dtype)), indices, count)
    return tf.cast(x_sum, x.dtype)


def accumulator_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype to sum many values in: float32 for half precision."""
    return tf.float32 if dtype in HALF_PRECISION else dtype


def static_min(a: int | tf.Tensor, b: int | tf.Tensor) -> int | tf.Tensor:
    """The minimum of two ints or int32 scalars: an int if both are ints, otherwise a scalar."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tf.minimum(a, b)


def static_max(a: int | tf.Tensor, b: int | tf.Tensor) -> int | tf.Tensor:
    """The maximum of two ints or int32 scalars: an int if both are ints, otherwise a scalar."""
    return -static_min(-a, -b)


def within(x: tf.Tensor, low: float = -math.inf, high: float = math.inf) -> tf.Tensor:
    """min(max(x, low), high), for a parameter that goes on learning where it is outside.

    The gradient of such a value is 0 only where a step would lead it further away. That of
    tf.clip_by_value is 0 for good. Shape and dtype are those of x.
    """
    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        return tf.clip_by_value(x, low, high), lambda dy: tf.where_v2(
            ((x >= low) | (dy < 0)) & ((x <= high) | (dy > 0)), dy, tf.zeros_like(dy))

    return forward(tf.convert_to_tensor(x))
