"""Reading and writing bands of neighbouring diagonals of attention matrices.

Diagonal d contains the pairs of query i and key j with j - i = d.

The number of queries is an argument, though it is the third axis of x: TensorFlow then computes the
shapes once for all layers.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, shape_list


def add_band(x: tf.Tensor, band: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
             queries: int | tf.Tensor) -> tf.Tensor:
    """Adds to neighbouring diagonals of x and leaves the rest unchanged.

    The gradient needs no tensor of the forward pass: it is dy for x and the band of dy for band.

    Args:
      x: [batch, heads, queries, keys].
      band: [batch, heads, highest - lowest + 1, queries], from the highest diagonal to the lowest.
        Entries beyond the first or last key are ignored.
      lowest: the lowest diagonal, an int or an int32 scalar, above -queries.
      highest: the highest diagonal, an int or an int32 scalar, from 0 to keys - 1. At least one of
        the diagonals has an entry for every query.
      queries: an int or an int32 scalar.

    Returns:
      [batch, heads, queries, keys].
    """
    @tf.custom_gradient
    def forward(x: tf.Tensor, band: tf.Tensor) -> WithGradient:
        taken = _take_band(x, lowest, highest, queries)
        return (set_band(x, taken + band, lowest, highest, queries),
                lambda dy: (dy, take_band(dy, lowest, highest, queries)))
    return forward(x, band)


def take_band(x: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
              queries: int | tf.Tensor) -> tf.Tensor:
    """The diagonals of x in the layout of `add_band`, zero beyond the first and last key.

    Args are those of `add_band`; the result has the shape of its `band`.
    """
    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        return (_take_band(x, lowest, highest, queries),
                lambda dy: add_band(tf.zeros_like(x), dy, lowest, highest, queries))
    return forward(x)


def _take_band(x: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
               queries: int | tf.Tensor) -> tf.Tensor:
    y = tf.linalg.diag_part(x, k=tf.stack([lowest, highest]), align="LEFT_RIGHT")
    return tf.reshape(y, [-1, shape_list(x)[1], highest - lowest + 1, queries])


def set_band(x: tf.Tensor, band: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
             queries: int | tf.Tensor) -> tf.Tensor:
    """Replaces diagonals of x; in place if nothing else needs x. Args are those of `add_band`."""
    # TensorFlow has no axis of diagonals where there is only one.
    count, shape = highest - lowest + 1, [-1, shape_list(x)[1]]
    if isinstance(count, int):
        shape += [count, queries] if count > 1 else [queries]
    else:
        count = tf.fill([tf.cast(count > 1, tf.int32)], count)
        shape = tf.concat([shape, count, [queries]], axis=0)
    y = tf.linalg.set_diag(x, tf.reshape(band, shape), k=tf.stack([lowest, highest]),
                           align="LEFT_RIGHT")
    y.set_shape(x.shape)
    return y
