"""Positions that come from the symbols: digits of numbers (abacus, coupling), segments (BiPE)."""
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import random_integers
from rpr.positions import absolute
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, check_length
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def symbol_ranges(text: str, setting: str) -> list[tuple[int, int]]:
    """The first and last symbols of ranges such as 2-11 or 2-11;20.

    Raises:
      ValueError: the text is not of this form.
    """
    matches = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in text.split(";")]
    ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
    if len(ranges) < len(matches) or any(first > last for first, last in ranges):
        raise ValueError(f"{setting}={text}: must be symbols and ranges of them, such as 2-11;20")
    return ranges


def is_among(ids: tf.Tensor, ranges: Sequence[tuple[int, int]]) -> tf.Tensor:
    """Whether symbols are in one of the ranges: bool of the shape of `ids`."""
    found = tf.zeros_like(ids, tf.bool)
    for first, last in ranges:
        found |= (ids >= first) & (ids <= last)
    return found


def latest(values: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
    """The largest value so far, among the words that are marked; 0 before the first of them.

    Args:
      values: float [batch, length], 0 or more.
      at: bool [batch, length].

    Returns:
      float [batch, length].
    """
    marked = (values * tf.cast(at, values.dtype))[:, None]
    so_far = tf.linalg.band_part(tf.ones_like(marked) * tf.ones_like(values)[:, :, None], -1, 0)
    return tf.reduce_max(marked * so_far, axis=2)


def count_since(reset: tf.Tensor) -> tf.Tensor:
    """How many words there are after the latest marked one, up to each word: float as `reset`."""
    count = tf.cumsum(tf.ones_like(reset, tf.float32), axis=1)
    return count - latest(count, reset)


class _TokenPositions(Scheme):
    """What the schemes of this module share: the symbols that they look for."""
    sides = ("inputs", "targets")
    symbols_setting = ""

    def __init__(self, hparams: HParams, side: str) -> None:
        self._ranges = symbol_ranges(hparams.get(self.symbols_setting), self.symbols_setting)

    def _found(self, layout: Layout) -> tf.Tensor:
        """bool [batch, queries]: whether the word is one of the symbols."""
        if layout.ids is None:
            raise ValueError(f"position={self.label} reads the symbols of a sentence. They are not "
                             "known for inputs other than text, nor in decoding with a prompt")
        return is_among(layout.ids, self._ranges)


class _DigitPlaces(_TokenPositions):
    """Counts the digits of each number; 0 for other words."""

    def states(self) -> dict[str, Sequence[int]]:
        return {"place": [1, 1]}

    def _places(self, layout: Layout, from_right: bool = False) -> tf.Tensor:
        """int32 [batch, queries]: 1, 2, ... for the digits of a number."""
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
    written with the lowest digit first. In training a random number, the same for the batch, is
    added to the places of digits. The other schemes of a sum keep the ordinary positions.
    """
    symbols_setting = "abacus_symbols"
    settings = (
        Setting("abacus_symbols", "2-11", "symbols of digits for position=abacus, such as 2-11;20"),
        Setting("abacus_length", 128, "places that position=abacus has vectors for", minimum=2),
        Setting("abacus_shift", 0, "largest random number that is added to places in training",
                minimum=0),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._length, self._shift = hparams.get("abacus_length"), hparams.get("abacus_shift")
        self._name = f"{side}_abacus"
        self._at: tf.Tensor | None = None
        if self._shift > self._length - 2:
            raise ValueError(f"abacus_shift={self._shift}: leaves no place of abacus_length="
                             f"{self._length} for a digit")

    def place(self, layout: Layout) -> None:
        places = self._places(layout)
        if layout.training and self._shift:
            draw = tf.cast(random_integers([1], tf.uint32), tf.int64) % (self._shift + 1)
            places += tf.cast(draw, tf.int32) * tf.cast(places > 0, tf.int32)
        self._at = places

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        table = tf.get_variable(self._name, [self._length, x.shape.as_list()[-1]], x.dtype)
        if self._at is None:                                 # a layer without symbols
            return x
        with check_length(tf.reduce_max(self._at) + 1, self._length, "abacus", "abacus_length"):
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

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._from_right = side == "inputs" and not hparams.get("coupling_lowest_first")

    def place(self, layout: Layout) -> tf.Tensor:
        return self._places(layout, self._from_right)


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

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._within: tf.Tensor | None = None

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
            first = tf.ones_like(ends[:, :1])                # of a sentence
            if layout.segments is not None:
                changes = tf.not_equal(layout.segments[:, 1:], layout.segments[:, :-1])
                first = tf.concat([first, changes], axis=1)
            else:
                first = tf.concat([first, tf.zeros_like(ends[:, 1:])], axis=1)
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
