"""rpr.nn.diagonals"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list


def add_band(x, band, lowest, highest):
    """Adds to neighbouring diagonals of x, and leaves the rest as it is.

    Diagonal d holds the pairs with j - i = d. Saves nothing for its gradient, which is dy by x and
    the band of dy by the band.

    Args:
      x: [batch, heads, queries, keys].
      band: [batch, heads, highest - lowest + 1, queries], from the highest diagonal to the lowest.
        What stands beyond the first or the last key is left out.
      lowest: the lowest diagonal, an int or an int32 scalar, above -queries.
      highest: the highest, likewise, not below 0, and below keys; one diagonal at least can be
        seen by all the queries.

    Returns:
      [batch, heads, queries, keys].
    """
    @tf.custom_gradient
    def function(x, band):
        return (set_band(x, _take_band(x, lowest, highest) + band, lowest, highest),
                lambda dy: (dy, take_band(dy, lowest, highest)))
    return function(x, band)


def take_band(x, lowest, highest):
    """The diagonals of x as `add_band` takes them, zero beyond the first and the last key.

    Args and the shape of what it returns are those of `add_band`.
    """
    @tf.custom_gradient
    def function(x):
        return (_take_band(x, lowest, highest),
                lambda dy: add_band(tf.zeros_like(x), dy, lowest, highest))
    return function(x)


def _take_band(x, lowest, highest):
    batch, heads, queries, _ = shape_list(x)
    y = tf.linalg.diag_part(x, k=tf.stack([lowest, highest]), align="LEFT_RIGHT")
    return tf.reshape(y, [batch, heads, highest - lowest + 1, queries])


def set_band(x, band, lowest, highest):
    """x with other diagonals, as `add_band` takes them; in place where nothing else needs x."""
    # One diagonal alone has no axis of its own in TensorFlow.
    shape = batch, heads, count, queries = shape_list(band)
    if isinstance(count, int):
        shape = shape if count > 1 else [batch, heads, queries]
    else:
        count = tf.fill([tf.cast(count > 1, tf.int32)], count)
        shape = tf.concat([[batch, heads], count, [queries]], axis=0)
    y = tf.linalg.set_diag(x, tf.reshape(band, shape), k=tf.stack([lowest, highest]),
                           align="LEFT_RIGHT")
    return tf.reshape(y, shape_list(x))
