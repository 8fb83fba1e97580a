"""Positions other than 0, 1, 2, ...: drawn at random (randomized), or from the symbols.

The latter count digits of numbers (abacus, coupling) or segments (BiPE).
"""
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import random_integers, stable_hash
from rpr.nn.ops import shape_list
from rpr.positions import absolute
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, check_length
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def ascending_subsets(draws: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Subsets of 0, 1, ..., n - 1, ascending: int32 [batch, length], uniform among those.

    `draws` are independent, uint32 [batch, n].
    """
    return tf.sort(tf.nn.top_k(tf.cast(draws, tf.int64), length, sorted=False)[1], axis=1)


@register("randomized")
class Randomized(Scheme):
    """Random ascending positions in training, for the other schemes of a sum (Ruoss et al. 2023).

    Drawn once per pass through a stack, in training. In evaluation and decoding positions are
    consecutive, unless `randomized_evaluation` is True.
    """
    sides = ("inputs", "targets")
    draws_among = "randomized_length"
    settings = (
        Setting("randomized_length", 512, "positions among which position=randomized draws",
                minimum=1),
        Setting("randomized_per_example", True, "draw positions for each sentence alone"),
        Setting("randomized_evaluation", False, "draw positions in evaluation too (encoder)"),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        if hparams.get("randomized_evaluation") and side != "inputs":
            raise ValueError("randomized_evaluation=True: a decoder does not know the length of "
                             "its sentence; use position=randomized in the encoder only")

    def place(self, layout: Layout) -> tf.Tensor | None:
        if not (layout.training or self.hparams.get("randomized_evaluation")):
            return None
        batch = shape_list(layout.x)[0] if self.hparams.get("randomized_per_example") else 1
        length = self.hparams.get("randomized_length")
        shape = [batch, length]
        if layout.training:
            draws = random_integers(shape, tf.uint32)
        else:                                                # the same in each evaluation
            draws = tf.bitcast(tf.random.stateless_uniform(
                shape, [stable_hash(self.side) >> 1, 0], tf.int32.min, tf.int32.max, tf.int32),
                tf.uint32)
        with check_length(layout.queries, length, "randomized", "randomized_length",
                          "a sentence of this batch"):
            return ascending_subsets(draws, layout.queries)


def latest(values: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
    """The largest value so far among the words that are marked by `at`; 0 before the first of them.

    Values and result are float [batch, length], 0 or more.
    """
    marked = (values * tf.cast(at, values.dtype))[:, None]
    so_far = tf.linalg.band_part(tf.ones_like(marked) * tf.ones_like(values)[:, :, None], -1, 0)
    return tf.reduce_max(marked * so_far, axis=2)


def count_since(reset: tf.Tensor) -> tf.Tensor:
    """How many words there are after the latest marked one, up to each word: float as `reset`."""
    count = tf.cumsum(tf.ones_like(reset, tf.float32), axis=1)
    return count - latest(count, reset)


class _TokenPositions(Scheme):
    """Schemes that look for symbols, given by a setting as ranges such as 2-11;20."""
    sides = ("inputs", "targets")
    symbols_setting = ""

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        text = hparams.get(self.symbols_setting)
        matches = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in text.split(";")]
        self._ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
        if len(self._ranges) < len(matches) or any(first > last for first, last in self._ranges):
            raise ValueError(f"{self.symbols_setting}={text}: must be symbols and ranges of them, "
                             "such as 2-11;20")

    def _found(self, layout: Layout) -> tf.Tensor:
        """bool [batch, queries]: whether the word is one of the symbols."""
        if layout.ids is None:
            raise UserError(f"position={self.label} reads the symbols of a sentence. They are not "
                            "known for inputs other than text, nor in decoding with a prompt or "
                            "with a sampling_method other than argmax")
        found = tf.zeros_like(layout.ids, tf.bool)
        for first, last in self._ranges:
            found |= (layout.ids >= first) & (layout.ids <= last)
        return found


class _DigitPlaces(_TokenPositions):
    """Schemes that count the digits of each number."""

    def states(self) -> dict[str, Sequence[int]]:
        return {"place": [1, 1]}

    def _places(self, layout: Layout, from_right: bool = False) -> tf.Tensor:
        """int32 [batch, queries]: 1, 2, ... for the digits of a number; 0 for other words."""
        digits = self._found(layout)
        if layout.cache is not None:
            before = layout.cache[self.state_name("place")][:, :, 0]
            places = (before + 1) * tf.cast(digits, tf.float32)
            layout.cache[self.state_name("place")] = places[..., None]
        elif from_right:
            places = tf.reverse(count_since(~tf.reverse(digits, [1])), [1])
        else:
            places = count_since(~digits)
        return tf.cast(places, tf.int32)


@register("abacus")
class Abacus(_DigitPlaces):
    """A learned vector for each digit's place in its number, added to it (McLeish et al. 2024).

    The first digit of a number has place 1, and all other words have place 0; numbers should be
    written with the lowest digit first. In training a random number, the same for the batch and for
    both sides, is added to the places of digits. The other schemes of a sum keep the ordinary
    positions.
    """
    symbols_setting = "abacus_symbols"
    settings = (
        Setting("abacus_symbols", "2-11", "symbols of digits for position=abacus, such as 2-11;20"),
        Setting("abacus_length", 128, "places that position=abacus has vectors for", minimum=2),
        Setting("abacus_shift", 0, "largest random number that is added to places in training",
                minimum=0),
    )
    _at: tf.Tensor | None = None

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._length, self._shift = hparams.get("abacus_length"), hparams.get("abacus_shift")
        if self._shift > self._length - 2:
            raise ValueError(f"abacus_shift={self._shift}: leaves no place of abacus_length="
                             f"{self._length} for a digit")

    def place(self, layout: Layout) -> None:
        places = self._places(layout)
        if layout.cache is not None:                         # hypotheses have numbers of any length
            places = tf.minimum(places, self._length - 1)
        if layout.training and self._shift:
            draw = random_integers([1], tf.uint32, "abacus")  # the same for encoder and decoder
            draw = tf.cast(draw, tf.int64) % (self._shift + 1)
            places += tf.cast(draw, tf.int32) * tf.cast(places > 0, tf.int32)
        self._at = places

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        shape = [self._length, x.shape.as_list()[-1]]
        table = tf.get_variable(f"{self.side}_abacus", shape, x.dtype)
        if self._at is None:                                 # a layer without symbols
            return x
        with check_length(tf.reduce_max(self._at) + 1, self._length, "abacus", "abacus_length",
                          "the digits of a number" + " and abacus_shift" * bool(self._shift)):
            return x + tf.gather(table, self._at)


@register("coupling")
class PositionCoupling(_DigitPlaces):
    """One position for all digits of the same significance (Cho et al. 2024).

    The lowest digit of each number is at position 1, the next one at 2, and so on; other words are
    at 0. (Cho et al. count downwards, from a random position.) The other schemes of a sum read
    these positions. In a decoder the lowest digit must come first, as the length of a number is
    not known before its end.
    """
    symbols_setting = "coupling_symbols"
    settings = (
        Setting("coupling_symbols", "2-11", "symbols of digits for position=coupling"),
        Setting("coupling_lowest_first", False, "whether numbers of the encoder begin with the "
                "lowest digit"),
    )

    def place(self, layout: Layout) -> tf.Tensor:
        lowest_first = self.side != "inputs" or self.hparams.get("coupling_lowest_first")
        return self._places(layout, from_right=not lowest_first)


@register("bipe")
class BilevelPositions(_TokenPositions):
    """A position within each segment and one of the segment (He et al. 2024).

    A segment ends with a separator. The place of a word in its segment is added to the word as a
    sinusoid; the other schemes of a sum read the number of the segment, as in bipe+rotary or
    bipe+alibi.
    """
    symbols_setting = "bipe_separators"
    settings = (
        Setting("bipe_separators", "1", "symbols that end a segment for position=bipe, such as "
                "5;17; 1 is the end of the sentence"),
    )

    _within: tf.Tensor | None = None

    def states(self) -> dict[str, Sequence[int]]:
        return {"next": [1, 2]}

    def place(self, layout: Layout) -> tf.Tensor:
        ends = self._found(layout)
        if layout.cache is not None:
            state = layout.cache[self.state_name("next")]
            within, segment = state[:, :, 0], state[:, :, 1]
            ended = tf.cast(ends, tf.float32)
            layout.cache[self.state_name("next")] = tf.stack(
                [(within + 1) * (1 - ended), segment + ended], axis=2)
        else:
            changes = tf.zeros_like(ends[:, 1:])             # of the sentence
            if layout.segments is not None:
                changes = tf.not_equal(layout.segments[:, 1:], layout.segments[:, :-1])
            first = tf.concat([tf.ones_like(ends[:, :1]), changes], axis=1)
            ended = tf.concat([tf.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)
            within = count_since(first | ended)
            count = tf.cumsum(tf.cast(ended, tf.float32), axis=1)
            segment = count - latest(count, first)
        self._within = within
        return tf.cast(segment, tf.int32)

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        if self._within is None:                             # a layer without symbols
            return x
        return x + tf.cast(absolute.sinusoid(self._within, x.shape.as_list()[-1]), x.dtype)
