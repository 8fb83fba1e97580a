"""Absolute positions, added to the embedded words (Vaswani et al. 2017, section 3.5)."""
import math

import tensorflow.compat.v1 as tf

from rpr.positions.scheme import Scheme, within


def sinusoid(positions, channels):
    """Sines, then cosines, of wavelengths from 2 pi to 10,000 * 2 pi in a geometric progression.

    Vaswani et al. 2017, section 3.5, in T2T's order: sines in the first half of the channels,
    cosines in the second (in the paper's formula they alternate: a permutation of the channels).

    Args:
      positions: integers of any shape.
      channels: an int; where it is odd the last channel is zero.

    Returns:
      float32 [..., channels].
    """
    timescales = channels // 2
    step = math.log(1e4) / max(timescales - 1, 1)
    rates = tf.exp(tf.cast(tf.range(timescales), tf.float32) * -step)
    angles = tf.cast(positions, tf.float32)[..., None] * rates
    odd = tf.zeros_like(angles[..., :channels % 2])
    return tf.concat([tf.sin(angles), tf.cos(angles), odd], axis=-1)


def learned(positions, table):
    """Rows of a learned table.

    Args:
      positions: integers of any shape.
      table: [max_length, channels].

    Returns:
      [..., channels] of the table's dtype.

    Raises:
      tf.errors.InvalidArgumentError: when it runs, a position lies beyond the table.
    """
    rows = table.shape.as_list()[0]
    with within(tf.reduce_max(positions) + 1, rows, "learned"):
        return tf.gather(table, positions)


class NoPosition(Scheme):
    """No position information at all: the encoder sees a bag of words."""
    additive = True


class Sinusoid(Scheme):
    """Fixed sines and cosines added to the embedded words (Vaswani et al. 2017)."""
    additive = True

    def embed(self, x, positions):
        return x + tf.cast(sinusoid(positions, x.shape.as_list()[-1]), x.dtype)


class ScaledSinusoid(Scheme):
    """Sinusoids times a learned number per language, 1 at first, added to the embedded words."""
    additive = True

    def __init__(self, hparams, side):
        self._name = f"{side}_sinusoid_scale"

    def embed(self, x, positions):
        scale = tf.get_variable(self._name, [], dtype=x.dtype, initializer=tf.ones_initializer())
        return x + scale * tf.cast(sinusoid(positions, x.shape.as_list()[-1]), x.dtype)


class Learned(Scheme):
    """One learned vector per position, max_length of them, added to the embedded words."""
    additive = True

    def __init__(self, hparams, side):
        self._length = hparams.max_length
        self._name = f"{side}_positional_embedding"          # the name that T2T gives it
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=learned needs a largest length, "
                             "an integer of 1 or more")

    def embed(self, x, positions):
        table = tf.get_variable(self._name, [self._length, x.shape.as_list()[-1]], dtype=x.dtype)
        return x + learned(positions, table)
