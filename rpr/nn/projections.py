"""Products with learned matrices, and the heads that their channels are divided among."""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import reshape, shape_list, transpose


def split_heads(x, heads):
    """[batch, length, channels] -> [batch, heads, length, channels / heads]."""
    batch, length, channels = shape_list(x)
    if isinstance(length, int) and length == 1:              # in a step of decoding, say
        return reshape(x, [batch, heads, 1, channels // heads])
    return transpose(reshape(x, [batch, length, heads, channels // heads]), [0, 2, 1, 3])


def combine_heads(x):
    """[batch, heads, length, depth] -> [batch, length, heads * depth]."""
    batch, heads, length, depth = shape_list(x)
    if not (isinstance(length, int) and length == 1):
        x = transpose(x, [0, 2, 1, 3])
    return reshape(x, [batch, length, heads * depth])


def project(x, channels, name):
    """A product with the variable `name/kernel`, as T2T names and initialises it.

    Args:
      x: [batch, length, depth].
      channels: depth of the result.
      name: scope of the variable; its initializer is that of the enclosing scope.

    Returns:
      [batch, length, channels] of the dtype of x.
    """
    batch, length, depth = shape_list(x)
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [depth, channels], dtype=x.dtype)
    return reshape(_product(tf.reshape(x, [-1, depth]), kernel), [batch, length, channels])


def _product(x, kernel):
    """The product of [words, depth] and [depth, channels]."""
    depth, channels = kernel.shape.as_list()
    if not depth <= 512 <= channels:
        return tf.matmul(x, kernel)

    @tf.custom_gradient
    def function(x, kernel):
        # As one of a batch: oneDNN has another way for those, which takes 0.6 to 0.9 of the time
        # for these shapes, transposed, and as little as 0.3 of it for a few dozen words.
        return tf.matmul(x, kernel), lambda dy: (
            tf.matmul(dy[None], kernel[None], transpose_b=True)[0],
            tf.matmul(x, dy, transpose_a=True))

    return function(x, kernel)
