"""Positions on two axes, row and column, for inputs that are read line by line, such as images."""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows
from rpr.positions import rotary
from rpr.positions.bias import T5Bias
from rpr.positions.layout import Layout, t5_buckets
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

WIDTH = Setting("axial_width", 16, "words of a line, for axial_rotary and axial_t5_bias", minimum=1)


def row_and_column(positions: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The line and the place in it, from 0: two float32 tensors of the shape of the positions."""
    positions = tf.cast(positions, tf.float32)
    rows = tf.floor(positions / width)
    return rows, positions - width * rows


@register("axial_rotary")
class AxialRotary(Scheme):
    """Rotary positions whose pairs turn with the column or with the row (Heo et al. 2024).

    Half of the pairs are for each axis. Pair i of an axis turns by its position times
    base ** (-4 i / depth), the paper's axial form.
    """
    settings = (
        WIDTH,
        Setting("axial_base", 100.0, "base of the wavelengths of axial_rotary", above=1,
                after_training=True),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        self._depth = (hparams.attention_key_channels or hparams.hidden_size) // hparams.num_heads
        self._width, self._base = hparams.get("axial_width"), hparams.get("axial_base")
        if self._depth % 4:
            raise ValueError("position=axial_rotary needs heads whose depth is a multiple of 4; "
                             f"here it is {self._depth}")

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        def turns() -> list[tf.Tensor]:
            rows, columns = row_and_column(positions[:, None], self._width)
            both = [rotary.angles(at, self._depth // 2, self._base) for at in (columns, rows)]
            return [tf.concat(parts, axis=-1) for parts in zip(*both, strict=True)]
        return rotary.rotate(x, *self.shared_by_layers(positions.ref(), layout, turns))


@register("axial_t5_bias")
class AxialT5Bias(T5Bias):
    """T5's biases by the distance in rows plus those by the distance in columns (Xu et al. 2021).

    Both have buckets for both directions, also in a decoder, as in LayoutLMv2.
    """
    settings = (*T5Bias.settings, WIDTH)

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._width = hparams.get("axial_width")

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        def make() -> tf.Tensor:
            queries, keys = (row_and_column(at, self._width) for at in (
                layout.query_positions(), layout.key_positions()))
            total = 0.0
            for name, of_queries, of_keys in zip(("rows", "columns"), queries, keys, strict=True):
                with tf.variable_scope(f"axial_t5_bias/{name}"):
                    table = tf.get_variable("embeddings", [self._num_buckets, self._heads], dtype)
                distances = tf.round(of_keys[:, None] - of_queries[:, :, None])
                labels = t5_buckets(tf.cast(distances, tf.int64), self._num_buckets,
                                    self._max_distance, causal=False)
                total += tf.transpose(gather_rows(table, labels), [0, 3, 1, 2])
            return total
        return self.shared_by_layers("axial_t5_bias", layout, make) if self._share else make()
