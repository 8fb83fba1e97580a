"""Absolute positions, added to the embedded words (Vaswani et al. 2017, section 3.5)."""
import math

import tensorflow.compat.v1 as tf

from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, check_length
from rpr.utils.interfaces import HParams


def sinusoid(positions: tf.Tensor, channels: int) -> tf.Tensor:
    """Sines, then cosines, of wavelengths from 2 pi to 10,000 * 2 pi in geometric progression.

    These are T2T's rates: 10000 ** (-c / (channels / 2 - 1)) for c = 0, 1, ..., channels / 2 - 1.
    Vaswani et al. 2017, section 3.5, writes 10000 ** (-2 c / channels) and alternates sines and
    cosines. From positions of any shape to float32 [..., channels]; if the number of channels is
    odd, the last one is zero.
    """
    timescales = channels // 2
    step = math.log(1e4) / max(timescales - 1, 1)
    rates = tf.exp(tf.cast(tf.range(timescales), tf.float32) * -step)
    angles = tf.cast(positions, tf.float32)[..., None] * rates
    odd = tf.zeros_like(angles[..., :channels % 2])
    return tf.concat([tf.sin(angles), tf.cos(angles), odd], axis=-1)


def learned(positions: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Rows of a learned table [max_length, channels], by positions of any shape: [..., channels].

    At run time, a position beyond the table raises tf.errors.InvalidArgumentError.
    """
    rows = table.shape.as_list()[0]
    with check_length(tf.reduce_max(positions) + 1, rows, "learned"):
        return tf.gather(table, positions)


@register("none")
class NoPosition(Scheme):
    """No position information at all: the encoder sees a bag of words."""


@register("sinusoid")
class Sinusoid(Scheme):
    """Fixed sines and cosines added to the embedded words (Vaswani et al. 2017)."""
    sides = ("inputs", "targets")

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        return x + tf.cast(sinusoid(positions, x.shape.as_list()[-1]), x.dtype)


@register("scaled_sinusoid")
class ScaledSinusoid(Scheme):
    """Sinusoids times a learned scalar per side, initially 1, added to the embedded words."""
    sides = ("inputs", "targets")

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        scale = tf.get_variable(f"{self.side}_sinusoid_scale", [], x.dtype, tf.ones_initializer())
        return x + scale * tf.cast(sinusoid(positions, x.shape.as_list()[-1]), x.dtype)


@register("learned")
class Learned(Scheme):
    """One learned vector per position, max_length of them, added to the embedded words."""
    sides = ("inputs", "targets")

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._length = self.longest = hparams.max_length
        self._name = f"{side}_positional_embedding"          # T2T's variable name
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=learned needs a maximum length, "
                             "an integer of 1 or more")

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        if not positions.dtype.is_integer:
            raise ValueError("position=learned: it has no rows for positions that are not whole")
        table = tf.get_variable(self._name, [self._length, x.shape.as_list()[-1]], dtype=x.dtype)
        return x + learned(positions, table)
