"""Queries and keys turned by angles in proportion to their positions (Su et al. 2021)."""
import tensorflow.compat.v1 as tf

from rpr.positions import distances
from rpr.positions.scheme import Scheme


def turns(positions, channels, base=10000.0):
    """Cosines and sines of the angles, position * base ** (-2 i / channels) for the i-th pair.

    Args:
      positions: integers [length].
      channels: how many channels turn, an even number.
      base: of the wavelengths.

    Returns:
      two float32 [length, channels / 2].
    """
    rates = tf.pow(base, tf.range(0, channels, 2, dtype=tf.float32) / -channels)
    angles = tf.cast(positions, tf.float32)[:, None] * rates
    return tf.cos(angles), tf.sin(angles)


def rotate(x, cosines, sines):
    """Equation (34) of Su et al. 2021; what is paired is the first and the second half of the
    channels that turn (in the paper neighbours: a permutation of the channels).

    Args:
      x: [batch, heads, length, depth].
      cosines: [length, pairs], where 2 * pairs is depth at most; further channels do not turn.
      sines: likewise.

    Returns:
      [batch, heads, length, depth] of the dtype of x.
    """
    x = tf.convert_to_tensor(x)
    pairs, depth = cosines.shape.as_list()[-1], x.shape.as_list()[-1]
    cosines, sines = tf.cast(cosines, x.dtype), tf.cast(sines, x.dtype)
    still = tf.zeros_like(cosines[:, :1]) + tf.zeros([depth - 2 * pairs], x.dtype)
    cosines = tf.concat([cosines, cosines, still + 1], axis=-1)            # [length, depth]
    sines = tf.concat([-sines, sines, still], axis=-1)
    sizes = [pairs, pairs, depth - 2 * pairs]

    @tf.custom_gradient
    def turn(x, sines):
        first, second, rest = tf.split(x, sizes, axis=-1)
        y = x * cosines + tf.concat([second, first, rest], axis=-1) * sines
        return y, lambda dy: (turn(dy, -sines), None)        # turned back

    return turn(x, tf.stop_gradient(sines))


class Rotary(Scheme):
    """Queries and keys turned by angles in proportion to their positions (Su et al. 2021)."""
    product = "turns"

    def __init__(self, hparams, side):
        depth = (hparams.attention_key_channels or hparams.hidden_size) // hparams.num_heads
        self._base, fraction = hparams.rotary_base, hparams.rotary_fraction
        if not 0 < fraction <= 1:
            raise ValueError(f"rotary_fraction={fraction}: the share of each head's channels that "
                             "turns is above 0 and at most 1")
        self._channels = int(depth * fraction) // 2 * 2
        if not self._channels:
            raise ValueError(f"rotary_fraction={fraction}: of the {depth} channels of a head not "
                             "two would turn")
        if self._base <= 1:
            raise ValueError(f"rotary_base={self._base}: the base of the wavelengths is above 1")

    def rotate(self, q, k, relation):
        cosines, sines = self.once(relation, lambda: turns(
            distances.positions(relation), self._channels, self._base))
        return rotate(q, cosines, sines), rotate(k, cosines, sines)
