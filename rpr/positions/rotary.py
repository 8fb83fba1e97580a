"""Queries and keys rotated by angles in proportion to their positions (Su et al. 2021)."""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme


def angles(positions: tf.Tensor, channels: int,
           base: float = 10000.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Cosines and sines of position * base ** (-2 i / channels) for the i-th pair of channels.

    Args:
      positions: integers [length].
      channels: number of channels that are rotated, even.
      base: base of the wavelengths.

    Returns:
      two float32 tensors [length, channels / 2].
    """
    rates = tf.pow(base, tf.range(0, channels, 2, dtype=tf.float32) / -channels)
    radians = tf.cast(positions, tf.float32)[:, None] * rates
    return tf.cos(radians), tf.sin(radians)


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """Equation (34) of Su et al. 2021. Channel i is paired with channel i + pairs.

    (The paper pairs neighbouring channels, which is a permutation of the channels.)

    Args:
      x: [batch, heads, length, depth].
      cosines: [length, pairs], 2 * pairs <= depth. Further channels are not rotated.
      sines: [length, pairs].

    Returns:
      [batch, heads, length, depth] of the dtype of x.
    """
    x = tf.convert_to_tensor(x)
    pairs, depth = cosines.shape.as_list()[-1], x.shape.as_list()[-1]
    cosines, sines = tf.cast(cosines, x.dtype), tf.cast(sines, x.dtype)
    fixed = tf.zeros_like(cosines[:, :1]) + tf.zeros([depth - 2 * pairs], x.dtype)
    cosines = tf.concat([cosines, cosines, fixed + 1], axis=-1)            # [length, depth]
    sines = tf.concat([-sines, sines, fixed], axis=-1)
    sizes = [pairs, pairs, depth - 2 * pairs]

    @tf.custom_gradient
    def forward(x, sines):
        first, second, rest = tf.split(x, sizes, axis=-1)
        y = x * cosines + tf.concat([second, first, rest], axis=-1) * sines
        return y, lambda dy: (forward(dy, -sines), None)     # the inverse rotation

    return forward(x, tf.stop_gradient(sines))


@register("rotary")
class Rotary(Scheme):
    """Queries and keys rotated by angles in proportion to their positions (Su et al. 2021)."""
    query_key_method = "rotate"

    def __init__(self, hparams: Any, side: str) -> None:
        depth = (hparams.attention_key_channels or hparams.hidden_size) // hparams.num_heads
        self._base, fraction = hparams.rotary_base, hparams.rotary_fraction
        if not 0 < fraction <= 1:
            raise ValueError(f"rotary_fraction={fraction}: the fraction of the channels of a head "
                             "that are rotated is above 0 and at most 1")
        self._channels = int(depth * fraction) // 2 * 2
        if not self._channels:
            raise ValueError(f"rotary_fraction={fraction}: this rotates fewer than 2 of the "
                             f"{depth} channels of a head")
        if self._base <= 1:
            raise ValueError(f"rotary_base={self._base}: the base of the wavelengths is above 1")

    def rotate(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        cosines, sines = self.shared_by_layers(layout, lambda: angles(
            layout.query_positions(), self._channels, self._base))
        return rotate(q, cosines, sines), rotate(k, cosines, sines)
