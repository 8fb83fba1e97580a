"""Biases of the logits by head and distance: T5, ALiBi, Sandwich, KERPLE and FIRE.

Most of the cost of such a bias is expanding it to all pairs of query and key, so layers that share
a bias expand it once.
"""
import math
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from rpr.nn.ops import accumulator_dtype, gather_rows, within
from rpr.nn.projections import mlp
from rpr.positions.layout import Layout, t5_buckets, whole
from rpr.positions.pairs import skew
from rpr.positions.registry import register
from rpr.positions.rotary import AXIAL_WIDTH, row_and_column
from rpr.positions.scheme import Scheme
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def t5_bias(table: tf.Tensor, layout: Layout, max_distance: int) -> tf.Tensor:
    """One learned bias per head and bucket of distance (Raffel et al. 2020, section 2.1).

    The table is [buckets, heads], the result [batch|1, heads, queries, keys]. In a causal layout
    all buckets are for keys to the left; otherwise each direction has half of them.
    """
    num_buckets = table.shape.as_list()[0]
    if not layout.unit_steps:
        distances = tf.cast(whole(layout.relative_positions())[:, 0], tf.int32)
        labels = t5_buckets(distances, num_buckets, max_distance, layout.causal)
        return tf.transpose(gather_rows(table, labels), [0, 3, 1, 2])
    labels = t5_buckets(layout.distances(), num_buckets, max_distance, layout.causal)
    one_hot = tf.one_hot(labels, num_buckets, dtype=table.dtype.base_dtype)
    by_distance = tf.matmul(table, one_hot, transpose_a=True, transpose_b=True)
    return skew(by_distance[None, :, None], layout)          # from [1, heads, 1, distances]


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of Press et al. 2022, section 3; for other numbers of heads those of their code.

    `heads` floats: 2 ** (-8 / heads), its square, and so on. If heads is not a power of 2: the
    slopes for the next lower power of 2, then every second slope for the next higher one.
    """
    lower = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    return slopes + [2 ** (-4 * i / lower) for i in range(1, 2 * lower + 1, 2)][:heads - lower]


def by_distance(layout: Layout, dtype: tf.DType, function: Callable[[tf.Tensor], tf.Tensor]
                ) -> tf.Tensor:
    """A function of the distance, computed once per distance where that is enough.

    It goes from distances, position of the key minus that of the query, [batch|1, 1, queries|1,
    keys], to values [batch|1, heads, queries|1, keys]. Returns [batch|1, heads, queries, keys].
    """
    if not layout.unit_steps:
        return function(tf.cast(layout.relative_positions(), dtype))
    return skew(function(tf.cast(layout.distances()[None, None, None], dtype)), layout)


def alibi(heads: int, layout: Layout, dtype: tf.DType = tf.float32, factor: float = 1.0
          ) -> tf.Tensor:
    """-slope * |i - j|: linear biases (Press et al. 2022), the same on both sides of the query.

    The slopes are multiplied by `factor`. The result is [batch|1, heads, queries, keys].
    """
    slopes = factor * np.array(alibi_slopes(heads))[:, None, None]
    slopes = slopes.astype(tf.as_dtype(dtype).as_numpy_dtype)
    return by_distance(layout, dtype, lambda distances: -tf.abs(distances) * slopes)


@register("t5_bias")
class T5Bias(Scheme):
    """A learned bias per head and bucket of distance, added to the logits (Raffel et al. 2020)."""
    settings: tuple[Setting, ...] = (
        Setting("t5_num_buckets", 32, "buckets of T5's relative bias, an even number", minimum=4),
        Setting("t5_max_distance", 128, "distance from which T5 uses one bucket", minimum=1),
        Setting("t5_share_layers", True, "one table of T5 biases for all layers of a stack"),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._heads, self._num_buckets = hparams.num_heads, hparams.t5_num_buckets
        self._max_distance, self._share = hparams.t5_max_distance, hparams.t5_share_layers
        if self._num_buckets % 2:
            raise ValueError(f"t5_num_buckets={self._num_buckets}: must be an even number")
        if self._max_distance <= self._num_buckets // 2:
            raise ValueError(
                f"t5_max_distance={self._max_distance}: must be larger than the distances that "
                f"have a bucket each, t5_num_buckets / 2 = {self._num_buckets // 2}")

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        if not self._share:
            return self._of_layer(layout, dtype)
        return self.shared_by_layers("biases", layout, lambda: self._of_layer(layout, dtype))

    def _of_layer(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        return t5_bias(self._table("t5_bias", dtype), layout, self._max_distance)

    def _table(self, scope: str, dtype: tf.DType) -> tf.Tensor:
        with tf.variable_scope(scope):
            return tf.get_variable("embeddings", [self._num_buckets, self._heads], dtype)


@register("axial_t5_bias")
class AxialT5Bias(T5Bias):
    """T5's biases by the distance in rows plus those by the distance in columns (Xu et al. 2021).

    Both have buckets for both directions, also in a decoder, as in LayoutLMv2.
    """
    settings = (*T5Bias.settings, AXIAL_WIDTH)

    def _of_layer(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        queries, keys = (row_and_column(at, self.hparams.get("axial_width")) for at in (
            layout.query_positions(), layout.key_positions()))
        total = 0.0
        for name, of_queries, of_keys in zip(("rows", "columns"), queries, keys, strict=True):
            table = self._table(f"axial_t5_bias/{name}", dtype)
            distances = tf.round(of_keys[:, None] - of_queries[:, :, None])
            labels = t5_buckets(tf.cast(distances, tf.int64), self._num_buckets,
                                self._max_distance, causal=False)
            total += tf.transpose(gather_rows(table, labels), [0, 3, 1, 2])
        return total


@register("alibi")
class Alibi(Scheme):
    """Fixed biases in proportion to the distance, one slope per head (Press et al. 2022).

    In an encoder the two directions may differ. `shifted`: keys to the left are half a word nearer
    (code of Ruoss et al. 2023). `heads`: the first half of the heads sees no key to the right, the
    other half none to the left (Press 2021, issue 5 of ALiBi's repository). `learned`: a slope for
    each head and direction, the sigmoid of a variable (ibid.).
    """
    settings = (
        Setting("alibi_factor", 1.0, "factor of ALiBi's slopes", minimum=0, after_training=True),
        Setting("alibi_directions", "same", "how keys to the left and to the right differ in the "
                "encoder", choices=("same", "shifted", "heads", "learned")),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._heads, self._factor = hparams.num_heads, hparams.get("alibi_factor")
        self._directions = hparams.get("alibi_directions") if side == "inputs" else "same"
        self.masks = self._directions == "heads"
        if self._directions == "heads" and self._heads % 2:
            raise ValueError(f"alibi_directions=heads divides the heads into halves: {self._heads} "
                             "must be an even number")

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        return self.shared_by_layers("alibi", layout, lambda: (
            alibi(self._heads, layout, dtype, self._factor) if self._directions == "same"
            else by_distance(layout, dtype, self._directed)))

    def _directed(self, distances: tf.Tensor) -> tf.Tensor:
        heads, dtype = self._heads, distances.dtype
        slopes = (2 * alibi_slopes(heads // 2) if self._directions == "heads" else
                  [1.0] * heads if self._directions == "learned" else alibi_slopes(heads))
        factors = (np.array(slopes)[:, None, None] * self._factor).astype(dtype.as_numpy_dtype)
        if self._directions == "shifted":
            return factors * (tf.cast(distances < 0, dtype) / 2 - tf.abs(distances))
        if self._directions == "heads":
            side = np.repeat([-1, 1], heads // 2)[:, None, None].astype(factors.dtype)
            return tf.where_v2(distances * side < 0, tf.constant(max(-1e9, dtype.min / 2), dtype),
                               -tf.abs(distances) * factors)
        left, right = (factors * tf.sigmoid(tf.get_variable(
            f"alibi/{name}", [heads, 1, 1], dtype, tf.random_normal_initializer(-2, 1)))
            for name in ("left", "right"))
        return tf.minimum(distances, 0) * left - tf.maximum(distances, 0) * right


@register("sandwich")
class Sandwich(Scheme):
    """Fixed biases from the product of two sinusoidal positions (Chi et al. 2023).

    sum_c cos((i - j) / 10000^(2c/d)) / r_h with c from 0 to d/2 - 1, and r_h = 8h / heads for head
    h from 1. Where weights are a softmax, the value at i = j, d/2 / r_h, is subtracted: a constant
    cancels, but costs precision.
    """
    settings = (
        Setting("sandwich_channels", 128, "channels of Sandwich's sinusoids, an even number",
                minimum=2),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._heads, self._channels = hparams.num_heads, hparams.get("sandwich_channels")
        if self._channels % 2:
            raise ValueError(f"sandwich_channels={self._channels}: must be an even number")

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        exact, half = accumulator_dtype(tf.as_dtype(dtype)), self._channels // 2
        rates = 10000.0 ** (-2 * np.arange(half) / self._channels)

        def signal(positions: tf.Tensor) -> tf.Tensor:
            radians = tf.cast(positions, exact)[..., None] * tf.constant(rates, exact)
            return tf.concat([tf.sin(radians), tf.cos(radians)], axis=-1)

        def make() -> tf.Tensor:
            product = tf.matmul(signal(layout.query_positions()), signal(layout.key_positions()),
                                transpose_b=True)
            if self.constants_cancel():
                product -= half
            ratios = 8 * np.arange(1, self._heads + 1)[:, None, None] / self._heads
            return tf.cast(product[:, None] / tf.constant(ratios, exact), dtype)

        return self.shared_by_layers("sandwich", layout, make)


@register("fire")
class Fire(Scheme):
    """A learned function of the distance relative to the query's position (Li et al. 2024).

    f(psi(|i - j|) / psi(max(i, L))) with psi(x) = log(1 + |c| x) (equation 5). i is the query's
    position, which the bias depends on beyond L.
    """
    settings = (
        Setting("fire_width", 32, "width of the hidden layer of FIRE's function", minimum=1),
        Setting("fire_c", 0.1, "initial c of FIRE's log(1 + c x)", above=0),
        Setting("fire_threshold", 512.0, "threshold L of FIRE, times a learned factor",
                above=0, after_training=True),
    )

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        def scalar(name: str, value: float) -> tf.Tensor:
            return tf.get_variable(name, [], dtype, tf.constant_initializer(value))

        def psi(x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(1 + tf.abs(c) * x)

        with tf.variable_scope("fire"):
            c = scalar("c", self.hparams.get("fire_c"))
            threshold = (tf.abs(scalar("threshold_factor", 1.0))
                         * self.hparams.get("fire_threshold"))
            distances = tf.cast(tf.abs(layout.relative_positions()), dtype)[:, 0]
            furthest = tf.maximum(tf.cast(layout.query_positions(), dtype), threshold)[:, :, None]
            ratio = psi(distances) / (psi(furthest) + 1e-6)          # [batch|1, queries, keys]
            y = mlp(ratio[..., None], self.hparams.get("fire_width"), self.hparams.num_heads,
                    tf.nn.relu)
        return tf.transpose(y, [0, 3, 1, 2])


@register("kerple")
class Kerple(Scheme):
    """A learned logarithmic penalty of the distance for each head (Chi et al. 2022).

    -r_1 log(1 + r_2 |i - j|) with r_1 and r_2 above 0 (equation 5). The authors clip the stored
    values, so that every step starts at 0.01 or above.
    """

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        def positive(name: str, most: float) -> tf.Tensor:
            x = tf.get_variable(name, [self.hparams.num_heads], dtype,
                                tf.random_uniform_initializer(0, most))
            return within(x, 0.01)[:, None, None]

        with tf.variable_scope("kerple"):
            amplitude, rate = positive("amplitude", 2.0), positive("rate", 1.0)
        return by_distance(layout, dtype, lambda distances: (
            -amplitude * tf.math.log(1 + rate * tf.abs(distances))))
