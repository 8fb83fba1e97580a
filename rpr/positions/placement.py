"""Positions other than 0, 1, 2, ...: drawn at random."""
import tensorflow.compat.v1 as tf

from rpr.nn.dropout import random_integers, stable_hash
from rpr.nn.ops import shape_list
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, check_length
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def ascending_subsets(draws: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Subsets of 0, 1, ..., n - 1, ascending: uniform among those of their length.

    Args:
      draws: independent draws, uint32 [batch, n].
      length: size of a subset, at most n.

    Returns:
      int32 [batch, length].
    """
    return tf.sort(tf.nn.top_k(tf.cast(draws, tf.int64), length, sorted=False)[1], axis=1)


@register("randomized")
class Randomized(Scheme):
    """Random ascending positions in training, for the other schemes of a sum (Ruoss et al. 2023).

    Drawn once per pass through a stack, in training. In evaluation and decoding positions are
    consecutive, unless `randomized_evaluation` is True.
    """
    sides = ("inputs", "targets")
    settings = (
        Setting("randomized_length", 512, "positions among which position=randomized draws",
                minimum=1),
        Setting("randomized_per_example", True, "draw positions for each sentence alone"),
        Setting("randomized_evaluation", False, "draw positions in evaluation too (encoder)"),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        self._length, self._side = hparams.get("randomized_length"), side
        self._per_example = hparams.get("randomized_per_example")
        self._in_evaluation = hparams.get("randomized_evaluation")
        if self._in_evaluation and side != "inputs":
            raise ValueError("randomized_evaluation=True: a decoder does not know the length of "
                             "its sentence; use position=randomized in the encoder only")

    def place(self, layout: Layout) -> tf.Tensor | None:
        if not (layout.training or self._in_evaluation):
            return None
        batch = shape_list(layout.x)[0] if self._per_example else 1
        shape = [batch, self._length]
        if layout.training:
            draws = random_integers(shape, tf.uint32)
        else:                                                # the same in each evaluation
            draws = tf.bitcast(tf.random.stateless_uniform(
                shape, [stable_hash(self._side) >> 1, 0], tf.int32.min, tf.int32.max, tf.int32),
                tf.uint32)
        with check_length(layout.queries, self._length, "randomized", "randomized_length"):
            return ascending_subsets(draws, layout.queries)
