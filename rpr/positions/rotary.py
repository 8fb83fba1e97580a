"""Queries and keys rotated by angles in proportion to their positions (Su et al. 2021)."""

import tensorflow.compat.v1 as tf

from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def angles(positions: tf.Tensor, channels: int,
           base: float = 10000.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Cosines and sines of position * base ** (-2 i / channels) for the i-th pair of channels.

    Args:
      positions: numbers of any shape.
      channels: number of channels that are rotated, even.
      base: base of the wavelengths.

    Returns:
      two float32 tensors [..., channels / 2].
    """
    rates = tf.pow(base, tf.range(0, channels, 2, dtype=tf.float32) / -channels)
    radians = tf.cast(positions, tf.float32)[..., None] * rates
    return tf.cos(radians), tf.sin(radians)


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """Equation (34) of Su et al. 2021. Channel i is paired with channel i + pairs.

    (The paper pairs neighbouring channels, which is a permutation of the channels.)

    Args:
      x: [batch, heads, length, depth].
      cosines: [(batch|1, 1,) length, pairs], 2 * pairs <= depth. Further channels are not rotated.
      sines: of the same shape.

    Returns:
      [batch, heads, length, depth] of the dtype of x.
    """
    x = tf.convert_to_tensor(x)
    pairs, depth = cosines.shape.as_list()[-1], x.shape.as_list()[-1]
    cosines, sines = tf.cast(cosines, x.dtype), tf.cast(sines, x.dtype)
    fixed = tf.zeros_like(cosines[..., :1]) + tf.zeros([depth - 2 * pairs], x.dtype)
    cosines = tf.concat([cosines, cosines, fixed + 1], axis=-1)            # [..., length, depth]
    sines = tf.concat([-sines, sines, fixed], axis=-1)
    first, second, rest = tf.split(x, [pairs, pairs, depth - 2 * pairs], axis=-1)
    return x * cosines + tf.concat([second, first, rest], axis=-1) * sines


@register("rotary")
class Rotary(Scheme):
    """Queries and keys rotated by angles in proportion to their positions (Su et al. 2021)."""
    settings = (
        Setting("rotary_base", 10000.0, "base of the rotary wavelengths", above=1,
                after_training=True),
        Setting("rotary_fraction", 1.0, "fraction of each head's channels that are rotated",
                above=0, maximum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        depth = (hparams.attention_key_channels or hparams.hidden_size) // hparams.num_heads
        self._base, fraction = hparams.rotary_base, hparams.rotary_fraction
        self._channels = int(depth * fraction + 1e-6) // 2 * 2       # 0.58 * 100 < 58
        if not self._channels:
            raise ValueError(f"rotary_fraction={fraction}: this rotates fewer than 2 of the "
                             f"{depth} channels of a head")

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        # Queries and keys of all layers have the same positions, except to the encoder.
        turns = self.shared_by_layers(positions.ref(), layout, lambda: angles(
            positions[:, None], self._channels, self._base))
        return rotate(x, *turns)
