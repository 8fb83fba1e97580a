"""Projections (dense layers without bias), and the division of their channels among the heads."""
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, shape_list


def split_heads(x: tf.Tensor, heads: int) -> tf.Tensor:
    """[batch, length, channels] -> [batch, heads, length, channels / heads]."""
    batch, length, channels = shape_list(x)
    return tf.transpose(tf.reshape(x, [batch, length, heads, channels // heads]), [0, 2, 1, 3])


def combine_heads(x: tf.Tensor) -> tf.Tensor:
    """[batch, heads, length, depth] -> [batch, length, heads * depth]."""
    batch, heads, length, depth = shape_list(x)
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [batch, length, heads * depth])


def project(x: tf.Tensor, channels: int, name: str) -> tf.Tensor:
    """The product of x with the variable `name/kernel`, named and initialised as in T2T.

    [batch, length, depth] -> [batch, length, channels] of the dtype of x. The initializer is that
    of the enclosing scope.
    """
    batch, length, depth = shape_list(x)
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [depth, channels], dtype=x.dtype)
    return tf.reshape(_matmul(tf.reshape(x, [-1, depth]), kernel), [batch, length, channels])


def _matmul(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """The product of [words, depth] and [depth, channels]."""
    depth, channels = kernel.shape.as_list()
    if not depth <= 512 <= channels:
        return tf.matmul(x, kernel)

    @tf.custom_gradient
    def forward(x: tf.Tensor, kernel: tf.Tensor) -> WithGradient:
        # For these shapes, with a transposed matrix and several threads, oneDNN multiplies a batch
        # of one faster than two matrices; see docs/performance.md.
        return tf.matmul(x, kernel), lambda dy: (
            tf.matmul(dy[None], kernel[None], transpose_b=True)[0],
            tf.matmul(x, dy, transpose_a=True))

    return forward(x, kernel)


def mlp(x: tf.Tensor, width: int, channels: int, activation: Callable[[tf.Tensor], tf.Tensor]
        ) -> tf.Tensor:
    """Two dense layers, `hidden` (of `width`) and `output`: [..., depth] -> [..., channels]."""
    return dense(activation(dense(x, width, "hidden")), channels, "output")


def dense(x: tf.Tensor, channels: int, name: str) -> tf.Tensor:
    """`project` with a bias, for any number of axes: [..., depth] -> [..., channels]."""
    *outer, depth = shape_list(x)
    y = project(tf.reshape(x, [1, -1, depth]), channels, name)
    y += tf.get_variable(f"{name}/bias", [channels], x.dtype, tf.zeros_initializer())
    return tf.reshape(y, [*outer, channels])
