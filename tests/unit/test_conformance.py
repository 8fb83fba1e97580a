"""The conformance kit finds the faults of bad schemes, and none in good ones."""
import re
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.conformance import checks
from rpr.utils.errors import InvalidValue


class Leaking(positions.Scheme):
    """Positions from the number of queries, and a look at the words to the right."""

    def bias(self, layout, dtype):
        places = tf.cast(tf.range(layout.queries), dtype)
        return -tf.abs(places[:, None] - tf.cast(tf.range(layout.keys), dtype))[None, None]


class Looking(positions.Scheme):
    """The mean of all words changes the logits of the first key."""

    def bias(self, layout, dtype):
        mean = tf.reduce_mean(layout.x, axis=[1, 2])[:, None, None, None]
        return tf.cast(mean, dtype) * tf.one_hot(tf.zeros([1, 1, layout.queries], tf.int32),
                                                 layout.keys, dtype=dtype)


class WrongShape(positions.Scheme):
    def bias(self, layout, dtype):
        return layout.relative_positions()[0]


class Nothing(positions.Scheme):
    def logits(self, q, k, layout, product):
        product(q, k)


class NotANumber(positions.Scheme):
    def bias(self, layout, dtype):
        return tf.math.log(tf.cast(layout.relative_positions() + 3, dtype))


class Raising(positions.Scheme):
    def bias(self, layout, dtype):
        return layout.no_such_thing


class OfTheBatch(positions.Scheme):
    def logits(self, q, k, layout, product):
        return product(q - tf.reduce_mean(q, axis=0, keepdims=True), k)


class StoppedGradient(positions.Scheme):
    def logits(self, q, k, layout, product):
        return product(q, k) + product(q, tf.stop_gradient(k))


class AcrossSegments(positions.Scheme):
    """Counts the words before a word, also those of another sentence of the row."""

    def bias(self, layout, dtype):
        counts = tf.cumsum(tf.ones_like(layout.x[:, :, 0]), axis=1)
        return tf.cast(tf.sqrt(counts)[:, None, None], dtype) * tf.ones(
            [1, 1, layout.queries, 1], dtype)


class FromTheEnd(positions.Scheme):
    """Positions that are counted from the end of the row."""
    sides = ("inputs", "targets")

    def place(self, layout):
        return (layout.queries - tf.range(layout.queries))[None]

    def bias(self, layout, dtype):
        return tf.cast(layout.key_positions(), dtype)[:, None, None] ** 2


class PlacesInHalf(positions.Scheme):
    """Positions in the precision of the activations: bfloat16 has no 257."""

    def bias(self, layout, dtype):
        keys, queries = layout.key_positions(), layout.query_positions()
        return -tf.abs(tf.cast(keys, dtype)[:, None, None]
                       - tf.cast(queries, dtype)[:, None, :, None])


class NotASoftmax(positions.Scheme):
    """Weights that change with a constant of a query, though it says that they do not."""
    ignores_constants = True

    def normalize(self, logits, layout):
        return tf.sigmoid(logits)


class Silent(positions.Scheme):
    """A misspelt hook, which nobody calls."""

    def biases(self, layout, dtype):
        return -tf.cast(tf.abs(layout.relative_positions()), dtype)


class RoundedSlope(positions.Scheme):
    """A learned parameter that no gradient reaches."""

    def bias(self, layout, dtype):
        slope = tf.get_variable("slope", [], initializer=tf.ones_initializer())
        slope = tf.round(tf.cast(slope, dtype))
        return -slope * tf.cast(tf.abs(layout.relative_positions()), dtype)


class SixteenSteps(positions.Scheme):
    """Blocks of 16 words; with a cache a query stays in the first one."""

    def bias(self, layout, dtype):
        keys, queries = layout.key_positions() // 16, layout.query_positions() // 16
        if layout.cache is not None:
            queries *= 0
        return -tf.cast(tf.abs(keys[:, None, None] - queries[:, None, :, None]), dtype)


class LateLooking(positions.Scheme):
    """From word 20 on, words see later ones."""

    def logits(self, q, k, layout, product):
        late = tf.cast(layout.query_positions() >= 20, q.dtype)[:, None, :, None]
        return product(q, k) + late * tf.reduce_sum(k, axis=[2, 3])[:, :, None, None] * tf.cast(
            tf.equal(layout.relative_positions(), 0), q.dtype)


class TrainedAhead(positions.Scheme):
    """In training a word sees later ones."""

    def bias(self, layout, dtype):
        if not layout.training:
            return None
        return tf.cast(tf.reduce_mean(layout.x, axis=2)[:, None, None] * tf.cast(
            tf.range(layout.keys), layout.x.dtype) * tf.reduce_mean(layout.x), dtype)


class HalvesOfAdjust(positions.Scheme):
    """The biases of other schemes of a sum are lost."""

    def adjust(self, logits, bias, layout):
        return logits * 2


class NumbersOfNumPy(positions.Scheme):
    """float64 whatever is asked for, as NumPy's numbers are; only the encoder's layers show it."""
    sides = ("inputs",)

    def bias(self, layout, dtype):
        return -tf.cast(tf.abs(layout.relative_positions()), tf.float64)


class NoWeights(positions.Scheme):
    def normalize(self, logits, layout):
        layout.softmax(logits)


class Singles(positions.Scheme):
    def adjust(self, logits, bias, layout):
        return tf.cast(logits, tf.float32) * 2


class FlatPlaces(positions.Scheme):
    sides = ("inputs", "targets")

    def place(self, layout):
        return tf.range(layout.queries)[None, None]


FAULTS = {
    Silent: ("encoder", "changes the output", "the output is that of position=none"),
    RoundedSlope: ("encoder", "gradients", "no gradient reaches multihead_attention/slope"),
    SixteenSteps: ("decoder", "cached = whole", "with a cache: sentence 1, word 17 of 70 is"),
    LateLooking: ("decoder", "the future is not seen", "from 36 on: sentence 1, word 21 of 35"),
    TrainedAhead: ("decoder", "the future is not seen", "in training, with other words from 4 on"),
    HalvesOfAdjust: ("encoder", "sums with other schemes", r"position=bad\+(alibi|sandwich): \1 "
                     "changes nothing"),
    NumbersOfNumPy: ("encoder", "cost", r"bias\(\) returned float64 .* not float32"),
    NoWeights: ("encoder", "finite at lengths 1 to 300", r"normalize\(\) returned NoneType None"),
    Singles: ("encoder", "finite at lengths 1 to 300", r"adjust\(\) returned float32 .*float64"),
    FlatPlaces: ("encoder", "finite at lengths 1 to 300", r"place\(\) returned int32 \(1, 1, "),
    PlacesInHalf: ("decoder", "bfloat16", "in bfloat16: sentence 1, word 25[0-9] of 300 is"),
    FromTheEnd: ("decoder", "the future is not seen", "with only 2 words: sentence 1, word 2"),
    Leaking: ("decoder", "cached = whole", "with a cache: sentence 1, word 2 of 2 is"),
    Looking: ("decoder", "the future is not seen", "from 3 on: sentence 1, word 2"),
    WrongShape: ("encoder", "finite at lengths 1 to 300", r"bias\(\) returned int64 \(1, .*not "
                 r"float64 \(\?, \?, .*test_conformance.py:\d+\)"),
    Nothing: ("encoder", "finite at lengths 1 to 300", r"logits\(\) returned NoneType None, not"),
    NotANumber: ("encoder", "finite at lengths 1 to 300", "length 7: .* not finite"),
    Raising: ("encoder", "finite at lengths 1 to 300",
              r"test_conformance.py, line \d+: AttributeError: .*no_such_thing"),
    OfTheBatch: ("encoder", "order and composition of batches", "in a batch of 3: sentence 1"),
    StoppedGradient: ("encoder", "gradients", "by finite differences"),
    AcrossSegments: ("decoder", "packed sentences", "packed with another sentence"),
}


@pytest.fixture
def registered(monkeypatch):
    def register(scheme):
        monkeypatch.setitem(positions.SCHEMES, "bad", scheme)
    return register


@pytest.fixture
def keep(monkeypatch):
    """Leaves only the checks with these names."""
    def keep(*names):
        for table in ("CHECKS", "DECODER_CHECKS", "CROSS_CHECKS"):
            monkeypatch.setattr(checks, table, {
                name: check for name, check in getattr(checks, table).items() if name in names})
        if "cost" not in names:
            monkeypatch.setattr(checks, "cost", lambda subject: "")
    return keep


@pytest.mark.parametrize("scheme", FAULTS)
def test_the_kit_finds_the_fault(scheme, registered, keep):
    registered(scheme)
    side, check, problem = FAULTS[scheme]
    keep(check)
    found = [result for result in checks.check_scheme("bad") if result.side == side]
    assert any(re.search(problem, result.problem) for result in found), found


class Frozen(positions.Scheme):
    """Random slopes that are not trained, and others in training."""

    def bias(self, layout, dtype):
        slopes = tf.get_variable("slopes", [1, 2, 1, 1], trainable=False)
        numbers = tf.get_variable("numbers", [1, 2, 1, 1], tf.int32, trainable=False,
                                  initializer=tf.ones_initializer())
        slope = tf.cast(slopes, dtype) + tf.cast(numbers, dtype) * (1 + layout.training)
        return -tf.cast(tf.abs(layout.relative_positions()), dtype) * slope


def test_weights_that_are_not_trained_are_weights(registered, keep):
    registered(Frozen)
    keep(*{*checks.CHECKS, *checks.DECODER_CHECKS} - {"sums with other schemes", "bfloat16"})
    results = list(checks.check_scheme("bad"))
    assert not [result for result in results if result.problem]
    notes = [result.note for result in results if result.check == "in training"]
    assert [note.split(": ")[0] for note in notes] == ["other output than in evaluation"] * 2


def test_the_kit_compares_cached_steps_of_sums(registered):
    registered(NotASoftmax)
    subject = checks.Subject(tiny_models.hparams(
        position="bad", hidden_size=16, num_heads=2, max_relative_position=2), "targets")
    with mock.patch.dict(positions.SCHEMES, {
            name: positions.SCHEMES[name] for name in ("bad", "alibi", "relative")}, clear=True):
        assert re.match(r"position=bad\+relative: with a cache: sentence 1, word ",
                        checks.sums(subject))


def test_the_kit_checks_the_attention_to_the_encoder(registered, keep):
    registered(Leaking)
    keep(*checks.CROSS_CHECKS)
    *_, last = checks.check_scheme("bad")
    assert last.side == "cross" and last.problem.startswith("beam 1: a hypothesis of ")


def test_the_kit_compares_the_search_with_the_whole_model(registered):
    registered(Leaking)
    problem = checks.compare_search(
        tiny_models.hparams(decoder_position="bad", num_hidden_layers=1))
    assert re.fullmatch(r"beam 1: a hypothesis of [3-9] words has the log probability .* in the "
                        "search and .* in the whole model", problem)


@pytest.mark.parametrize("position", [
    *positions.SCHEMES, "rotary@heads1:dape+fire", "coupling+learned", "bipe+rotary"])
def test_every_scheme_passes(position, keep):
    schemes = dict(positions.SCHEMES)
    if "dape+" in position:                                  # sums with some others are enough
        schemes = {name: schemes[name] for name in ("none", "rotary", "dape", "fire", "cope")}
    else:                                                    # the others are slow
        keep(*{*checks.CHECKS, *checks.DECODER_CHECKS} - {
            "sums with other schemes", "bfloat16", "same seed, same bits",
            "greedy and beam search"})
    with mock.patch.dict(positions.SCHEMES, schemes, clear=True):
        results = list(checks.check_scheme(position, "max_length=40"))
    assert not [result for result in results if result.problem]
    assert {result.side for result in results} - {"cross"} == (
        {checks.SIDES[side] for side in checks.SIDES if position not in positions.SCHEMES
         or side in positions.SCHEMES[position].sides})


@pytest.mark.parametrize("position, keys, values", [("relative", 8, 24), ("rotary", 32, 0)])
def test_heads_may_have_other_widths_than_the_model(position, keys, values, keep):
    keep("finite at lengths 1 to 300", "cached = whole", "greedy and beam search")
    results = list(checks.check_scheme(
        position, f"attention_key_channels={keys},attention_value_channels={values}"))
    assert {result.side for result in results} == {"encoder", "decoder", "cross"}
    assert not [result for result in results if result.problem]


def test_a_side_that_the_model_refuses_is_not_skipped(keep):
    keep("padding")
    results = list(checks.check_scheme("alibi", "num_heads=1,alibi_directions=heads"))
    assert (results[0].side, results[0].check) == ("encoder", "the layer is built")
    assert results[0].problem == ("ValueError: alibi_directions=heads divides the heads into "
                                  "halves: 1 must be an even number")
    assert not [result for result in results[1:] if result.problem or result.side == "encoder"]
    for position in ("xpos", "rotary"):                      # on all of its sides
        with pytest.raises(ValueError, match="^rotary_fraction=0.1: .* of the 8 channels"):
            list(checks.check_scheme(position, "rotary_fraction=0.1"))


@pytest.mark.parametrize("hparams, says", [
    ("position=rotary", "position must be 'alibi' here"),
    ("encoder_position=rotary,decoder_position=rotary", "encoder_position must be '' here"),
    ("decoder_position=rotary", "decoder_position must be '' here"),
    ("alibi_facto=2", "Unknown hyperparameter")])
def test_another_scheme_than_the_one_that_is_named_is_refused(hparams, says):
    with pytest.raises(InvalidValue, match=f"^hparams={hparams}: {says}"):
        next(checks.check_scheme("alibi", hparams))


def test_a_scheme_with_too_few_positions_for_the_checks_is_not_blamed():
    with pytest.raises(ValueError, match="position=learned: has 4 positions; the checks need 7"):
        list(checks.check_scheme("learned", "max_length=4"))


def test_the_authors_formula_is_compared(keep):
    keep()

    def linear(slope, base=16):
        return lambda q, k, i, j, head, causal, get: q @ k - slope * abs(i - j) / base ** (head + 1)

    def problems(logit, hparams=""):
        return [result.problem for result in checks.check_scheme("alibi", hparams, logit)
                if result.check == "the author's formula"]

    assert problems(linear(1.0)) == ["", ""]
    assert problems(linear(1.0, 4), "num_heads=4,hidden_size=32") == ["", ""]
    assert problems(linear(1.0), "attention_key_channels=8,attention_value_channels=24") == ["", ""]
    assert ["formula: sentence 1, word" in line for line in problems(linear(2.0))] == [True] * 2
