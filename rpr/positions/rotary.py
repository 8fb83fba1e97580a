"""Queries and keys rotated by angles in proportion to their positions, on one axis or on two."""
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from rpr.nn.ops import accumulator_dtype, within
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, head_depth
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

SCALINGS = ("none", "linear", "ntk", "yarn", "llama3", "longrope")


def angles(positions: tf.Tensor, channels: int, base: float = 10000.0,
           factors: np.ndarray | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Cosines and sines of position * base ** (-2 i / channels) for the i-th pair of channels.

    From positions of any shape to two float32 tensors [..., channels / 2]. The frequencies are
    multiplied by `factors`, [channels / 2], see `frequency_factors`; None: by 1.
    """
    rates = tf.pow(base, tf.range(0, channels, 2, dtype=tf.float32) / -channels)
    if factors is not None:
        rates *= factors.astype(np.float32)
    radians = tf.cast(positions, tf.float32)[..., None] * rates
    return tf.cos(radians), tf.sin(radians)


def frequency_factors(channels: int, base: float, scaling: str, factor: float, length: float
                      ) -> np.ndarray:
    """What the frequencies are multiplied by, so that a model reads longer texts than in training.

    `linear` (position interpolation; Chen et al. 2023) divides all frequencies by the factor. `ntk`
    (bloc97 2023) divides the lowest one by it and leaves the highest one. `yarn` (Peng et al. 2024,
    section 3.2) divides frequencies that turn less than once in the training length, leaves those
    that turn more than 32 times, and interpolates between them by the index of the pair. `llama3`
    (Grattafiori et al. 2024) does so by the wavelength, between 1 and 4 turns. `factor` is by how
    much longer the texts are, `length` that of the training's texts. The result is [channels / 2].
    """
    pairs = np.arange(channels // 2)
    if scaling == "linear":
        return np.full(len(pairs), 1 / factor)
    if scaling == "ntk":
        return factor ** (-2.0 * pairs / max(channels - 2, 1))
    if scaling == "none":
        return np.ones(len(pairs))
    turns = length * base ** (-2.0 * pairs / channels) / (2 * math.pi)
    if scaling == "llama3":
        kept = np.clip((turns - 1) / (4 - 1), 0, 1)
    else:
        def pair_that_turns(times: float) -> float:
            return channels * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair_that_turns(32)), 0)
        high = min(math.ceil(pair_that_turns(1)), channels - 1)
        kept = 1 - np.clip((pairs - low) / max(high - low, 0.001), 0, 1)
    return kept + (1 - kept) / factor


def long_factors(text: str, pairs: int) -> np.ndarray:
    """LongRoPE's factors, from text: what the frequency of each pair of channels is divided by.

    Ding et al. 2024 search for them. They are published with models, as `long_factor`.
    """
    try:
        factors = np.array([float(number) for number in text.split(";")])
    except ValueError:
        factors = np.zeros(0)
    if len(factors) != pairs or not (factors >= 1).all():
        raise ValueError(f"rotary_long_factors={text}: rotary_scaling=longrope needs {pairs} "
                         "numbers of 1 or more, one for each pair of channels, such as 1;1.5;4")
    return factors


def temperature(scaling: str, factor: float, length: float) -> float:
    """The factor of queries and of keys.

    In YaRN 0.1 ln(s) + 1 (Peng et al. 2024, equation 15); in LongRoPE sqrt(1 + ln(s) / ln(L))
    (Ding et al. 2024, as in the code of Phi-3), for a factor s and a training length L. As in the
    papers it scales whole logits, also of channels that `rotary_fraction` leaves. The authors' code
    multiplies cosines and sines, which those channels do not have.
    """
    if scaling == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(length))
    return 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1.0


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """Equation (34) of Su et al. 2021. Channel i is paired with channel i + pairs.

    (The paper pairs neighbouring channels, which is a permutation of the channels.) x and the
    result are [batch, heads, length, depth]. Cosines and sines are [(batch|1, 1,) length, pairs],
    2 * pairs <= depth; further channels are not rotated.
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
        Setting("rotary_frequencies", 1.0, "fraction of the frequencies that turn, the highest "
                "(p-RoPE)", minimum=0, maximum=1),
        Setting("rotary_scaling", "none", "how frequencies change for longer texts",
                choices=SCALINGS, after_training=True),
        Setting("rotary_scaling_factor", 1.0, "by how much longer the texts are", minimum=1,
                after_training=True),
        Setting("rotary_trained_length", 512, "length of the training's texts, for yarn, llama3 "
                "and longrope", minimum=2, after_training=True),
        Setting("rotary_long_factors", "", "what longrope divides each frequency by, such as "
                "1;1.5;4", after_training=True),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        depth = head_depth(hparams)
        self._base, fraction = hparams.rotary_base, hparams.rotary_fraction
        self._channels = int(depth * fraction + 1e-6) // 2 * 2       # 0.58 * 100 < 58
        if not self._channels:
            raise ValueError(f"rotary_fraction={fraction}: this rotates fewer than 2 of the "
                             f"{depth} channels of a head")
        scaling, factor = hparams.get("rotary_scaling"), hparams.get("rotary_scaling_factor")
        if scaling == "none" and factor != 1:
            raise ValueError(f"rotary_scaling_factor={factor}: rotary_scaling=none has no factor; "
                             f"set rotary_scaling to one of {', '.join(SCALINGS[1:])}")
        pairs = self._channels // 2
        turning = np.arange(pairs) < hparams.get("rotary_frequencies") * pairs - 1e-6   # as above
        length = hparams.get("rotary_trained_length")
        if scaling == "longrope":
            scaled = 1 / long_factors(hparams.get("rotary_long_factors"), pairs)
        else:
            scaled = frequency_factors(self._channels, self._base, scaling, factor, length)
        factors = turning * scaled
        self._factors = None if (factors == 1).all() else factors
        self._temperature = temperature(scaling, factor, length)

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        # Queries and keys of all layers have the same positions, except to the encoder.
        turns = self.shared_by_layers(positions.ref(), layout, lambda: angles(
            positions[:, None], self._channels, self._base, self._factors))
        x = rotate(x, *turns)
        return x if self._temperature == 1 else x * self._temperature


@register("xpos")
class XPos(Rotary):
    """Rotary positions whose pairs also decay with the distance (Sun et al. 2023).

    Queries at position i are multiplied by zeta ** (i / 512), keys at j by zeta ** (-j / 512), from
    position 0 on. (The authors' code centres the exponents on the batch's length, so that a cached
    step differs from the whole sentence.)
    """
    sides = ("targets",)

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        pairs = self._channels // 2
        zeta = (np.arange(pairs) / pairs + 0.4) / 1.4        # section 3.2, gamma = 0.4
        powers = tf.cast(positions, tf.float32)[:, None, :, None] / 512 * np.tile(np.log(zeta), 2)
        scale = tf.cast(tf.exp(powers if role == "query" else -powers), x.dtype)
        y = super().rotate(x, positions, layout, role)
        return tf.concat([y[..., :2 * pairs] * scale, y[..., 2 * pairs:]], axis=-1)


@register("pope")
class Pope(Scheme):
    """Polar coordinates: lengths from the words, angles from the positions (Gopalakrishnan 2025).

    Channel c of a query at i is softplus(q_c) at the angle i theta_c, and that of a key at j is
    softplus(k_c) at the angle j theta_c + delta_c, with theta_c = base ** (-c / depth) and a
    learned delta_c of each head, from -2 pi to 0. The logit is the sum of
    softplus(q_c) softplus(k_c) cos((j - i) theta_c + delta_c) over the channels. Keys have twice
    the depth.
    """
    depth_factor = 2
    settings = (
        Setting("pope_base", 10000.0, "base of PoPE's wavelengths", above=1, after_training=True),
        Setting("pope_random_phases", False, "delta is initially random, not 0"),
    )

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        _, heads, _, depth = x.shape.as_list()
        cosines, sines = self.shared_by_layers(positions.ref(), layout, lambda: angles(
            positions[:, None], 2 * depth, self.hparams.get("pope_base")))
        if role == "key":
            first = -2 * math.pi if self.hparams.get("pope_random_phases") else 0.0
            delta = tf.get_variable("pope/phase", [heads, 1, depth], x.dtype,
                                    tf.random_uniform_initializer(first, 0))
            delta = within(tf.cast(delta, tf.float32), -2 * math.pi, 0)
            cosines, sines = (cosines * tf.cos(delta) - sines * tf.sin(delta),
                              sines * tf.cos(delta) + cosines * tf.sin(delta))
        size = tf.nn.softplus(tf.cast(x, accumulator_dtype(x.dtype)))    # else no GPU kernel
        size = tf.cast(size, x.dtype)
        return tf.concat([size * tf.cast(turn, x.dtype) for turn in (cosines, sines)], axis=3)


AXIAL_WIDTH = Setting("axial_width", 16, "words of a line, for axial_rotary, mixed_rotary and "
                      "axial_t5_bias", minimum=1)


def row_and_column(positions: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The line and the place in it, from 0: two float32 tensors of the shape of the positions."""
    positions = tf.cast(positions, tf.float32)
    # Integers: Grappler and XLA replace x / width by x * (1 / width), and 41 * (1 / 41) is below 1.
    rows = tf.cast(tf.cast(tf.floor(positions), tf.int64) // width, tf.float32)
    return rows, positions - width * rows


def depth_of_two_axes(hparams: HParams, scheme: str) -> int:
    """The depth of a head; raises ValueError if its pairs cannot be halved."""
    depth = head_depth(hparams)
    if depth % 4:
        raise ValueError(f"position={scheme} needs heads whose depth is a multiple of 4; here it "
                         f"is {depth}")
    return depth


@register("axial_rotary")
class AxialRotary(Scheme):
    """Rotary positions whose pairs turn with the column or with the row (Heo et al. 2024).

    Half of the pairs are for each axis. Pair i of an axis turns by its position times
    base ** (-4 i / depth), the paper's axial form.
    """
    settings = (
        AXIAL_WIDTH,
        Setting("axial_base", 100.0, "base of the wavelengths of axial_rotary", above=1,
                after_training=True),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._depth = depth_of_two_axes(hparams, "axial_rotary")
        self._width, self._base = hparams.get("axial_width"), hparams.get("axial_base")

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        def turns() -> list[tf.Tensor]:
            rows, columns = row_and_column(positions[:, None], self._width)
            both = [angles(at, self._depth // 2, self._base) for at in (columns, rows)]
            return [tf.concat(parts, axis=-1) for parts in zip(*both, strict=True)]
        return rotate(x, *self.shared_by_layers(positions.ref(), layout, turns))


@register("mixed_rotary")
class MixedRotary(Scheme):
    """Rotary positions whose pairs turn with column and row, by learned rates (Heo et al. 2024).

    Pair c of a head turns by x_c * column + y_c * row. Each layer has a variable of its rates,
    [2, heads, 1, pairs], x before y. `RandomDirections` gives the initial values.
    """
    settings = (
        AXIAL_WIDTH,
        Setting("mixed_rotary_base", 10.0, "base of the initial wavelengths of mixed_rotary",
                above=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        depth_of_two_axes(hparams, "mixed_rotary")

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        _, heads, _, depth = x.shape.as_list()

        def turns() -> tuple[tf.Tensor, tf.Tensor]:
            # Queries and keys of a layer have the same rates, also where they have other positions.
            with tf.variable_scope("mixed_rotary", reuse=tf.AUTO_REUSE):
                # float32: they are multiplied by positions. (T2T rounds all to float16, if to any.)
                dtype = accumulator_dtype(x.dtype)
                rates = tf.get_variable("rates", [2, heads, 1, depth // 2], dtype,
                                        RandomDirections(self.hparams.get("mixed_rotary_base")))
            of_column, of_row = tf.unstack(tf.cast(rates, tf.float32))
            row, column = row_and_column(positions[:, None, :, None],
                                         self.hparams.get("axial_width"))
            radians = column * of_column + row * of_row      # [batch|1, heads, length, pairs]
            return tf.cos(radians), tf.sin(radians)

        name = tf.get_variable_scope().name, positions.ref()
        return rotate(x, *self.shared_by_layers(name, layout, turns))


class RandomDirections:
    """Initial rates of `MixedRotary`: each head has a random direction a, from 0 to 2 pi.

    Pair i of the first half has the rates (cos a, sin a) * base ** (-2 i / pairs). Pair i of the
    second half has the same length and turns in the direction a + pi / 2.
    """

    def __init__(self, base: float) -> None:
        self._base = base
        self.seed: int | None = None                         # set by rpr.training.seeding

    def __call__(self, shape: Sequence[int], dtype: tf.DType = tf.float32,
                 partition_info: Any = None) -> tf.Tensor:
        _, heads, _, pairs = shape
        half = np.arange(pairs) // (pairs // 2)              # 0 or 1
        sizes = self._base ** (-2.0 * (np.arange(pairs) % (pairs // 2)) / pairs)
        directions = tf.random_uniform([heads, 1, 1], 0, 2 * math.pi, seed=self.seed)
        directions += (half * math.pi / 2).astype(np.float32)
        return tf.cast(tf.stack([tf.cos(directions), tf.sin(directions)])
                       * sizes.astype(np.float32), dtype)
