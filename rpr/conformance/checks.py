"""The checks of `rpr check-scheme`: each returns nothing, or the smallest counter-example."""
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr import positions
from rpr.conformance.layer import (
    HPARAMS_SET,
    AttentionLayer,
    Subject,
    changed,
    compare_search,
    cost,
    override,
)
from rpr.models import declarations
from rpr.positions.registry import names_in, works_in
from rpr.positions.scheme import HOOKS
from rpr.utils.errors import own_code_error
from rpr.utils.interfaces import HParams

SIDES = {"inputs": "encoder", "targets": "decoder"}
_WORDS, _LEAST_POSITIONS = 6, 7                       # 7: of the check with padding
_MORE_WORDS = 70                                      # beyond tables of 64, blocks, windows
# float64 layers whose angles or sinusoids are float32, as in the models.
_TOLERANCE = 1e-4
_LONG = 300
_LENGTHS = (1, 2, 3, 7, 64, _LONG)

PairLogit = Callable[[np.ndarray, np.ndarray, int, int, int, bool, dict[str, np.ndarray]], float]


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of one check."""
    check: str                                        # what was checked
    side: str                                         # encoder, decoder, or cross, between them
    problem: str = ""                                 # the counter-example; empty: none was found
    note: str = ""                                    # a measurement, for checks that cannot fail


def difference(got: np.ndarray, expected: np.ndarray, what: str, tolerance: float = _TOLERANCE
               ) -> str:
    """The first word whose output differs, in words; empty if none does.

    Args:
      got, expected: [batch, length, ...].
      what: what `got` is, compared with `expected`.
      tolerance: relative to the largest expected value, and at least 1.
    """
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    wrong = ~(np.abs(got - expected) <= tolerance * scale)             # NaN is wrong
    if not wrong.any():
        return ""
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (f"{what}: sentence {place[0] + 1}, word {place[1] + 1} of {got.shape[1]} is "
            f"{got[place]:.4g} and not {expected[place]:.4g}")


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")


def effect(subject: Subject) -> str:
    """The scheme does something; one that gives positions may do it through others of a sum."""
    if subject.hparams.position == "none" or positions.build(
            subject.hparams, subject.side).uses("place"):
        return ""
    plain = AttentionLayer(changed(subject.hparams, "none"), subject.side)
    weights = subject.weights()
    plain.set_weights([weights[name] for name in plain.variables])
    x = subject.words(1, subject.longest(_LONG))             # blocks may have many words
    if difference(subject.layer(x), plain(x), "", 1e-9):
        return ""
    return ("the output is that of position=none: is the name of each method one of "
            f"{', '.join(HOOKS)}?")


def finite(subject: Subject) -> str:
    """Outputs of all lengths are finite; a scheme with a limit refuses what is beyond it."""
    scheme = positions.build(subject.hparams, subject.side)
    longest = scheme.longest
    for length in _LENGTHS:
        try:
            y = subject.layer(subject.words(1, length))
        except tf.errors.InvalidArgumentError as error:
            if longest is None or length <= longest:
                return f"length {length}: {error.message.splitlines()[0]}"
            continue
        if longest is not None and length > longest and not scheme.uses("place"):
            return f"length {length} is not refused, though the scheme has {longest} positions"
        if not np.isfinite(y).all():
            return f"length {length}: the output has a value that is not finite"
    return ""


def gradients(subject: Subject) -> str:
    """Gradients by the input and the variables are those of finite differences."""
    x = subject.words(1, 4)
    dy, layer, step = subject.words(1, 4), subject.layer, 1e-4
    if lost := layer.out_of_reach():
        return f"no gradient reaches {lost[0]}, so it would not be trained"
    weights = layer.weights()
    given = layer.gradients(x, dy)

    def loss() -> float:
        return float((layer(values[0]) * dy).sum())

    for index, name in enumerate(["the input", *layer.variables]):
        if index and name not in layer.trained:
            continue
        values = [x.copy(), *map(np.array, weights)]         # also arrays of scalars
        target = values[index]
        places = list(np.ndindex(*target.shape))
        for place in (places[i] for i in subject.random.permutation(len(places))[:6]):
            both = []
            for sign in (1, -1):
                target[place] += sign * step
                layer.set_weights(values[1:])
                both.append(loss())
                target[place] -= sign * step
            expected = (both[0] - both[1]) / (2 * step)
            got = float(np.broadcast_to(given[index], target.shape)[place])
            # A clipped value changes nothing; its gradient may lead back to the border (kerple).
            if both[0] != both[1] and abs(got - expected) > 2e-3 * max(1.0, abs(expected)):
                layer.set_weights(weights)
                return (f"by {name}{list(place)}: {got:.5g}, and by finite differences "
                        f"{expected:.5g}")
    layer.set_weights(weights)
    return ""


def cached(subject: Subject) -> str:
    """Word by word with a cache, the output is that of the whole sentence."""
    lengths = (*range(1, _WORDS + 1), subject.longest(_MORE_WORDS))
    inputs = (subject.words(2, length) for length in lengths)
    return _first(difference(subject.layer.cached(x), subject.layer(x), "with a cache")
                  for x in inputs)


def future(subject: Subject) -> str:
    """Later words change nothing, also in training."""
    def compare(x: np.ndarray, length: int) -> str:
        y = subject.layer(x)[:, :length]
        return (difference(subject.layer(_with_other_end(subject, x, length))[:, :length], y,
                           f"with other words from {length + 1} on", 1e-9)
                or difference(subject.layer(x[:, :length]), y, f"with only {length} words"))

    x, longer = subject.words(1, _WORDS), subject.words(1, subject.longest(_MORE_WORDS))
    half = _WORDS // 2
    trained, other = (_in_training(subject, words)[:, :half] for words in (
        x, _with_other_end(subject, x, half)))
    return (_first(compare(x, length) for length in range(1, _WORDS))
            or compare(longer, longer.shape[1] // 2)
            or difference(other, trained, f"in training, with other words from {half + 1} on",
                          1e-9))


def _with_other_end(subject: Subject, x: np.ndarray, length: int) -> np.ndarray:
    return np.concatenate([x[:, :length], subject.words(1, x.shape[1] - length)], axis=1)


def _in_training(subject: Subject, x: np.ndarray) -> np.ndarray:
    """The output in training. Each call draws the same random numbers."""
    layer = AttentionLayer(subject.hparams, subject.side, training=True)
    layer.set_weights(subject.layer.weights())
    return layer(x)


def in_training(subject: Subject) -> str:
    """Whether the scheme does the same in training as in evaluation and decoding."""
    x = subject.words(1, _WORDS)
    found = difference(_in_training(subject, x), subject.layer(x), "")
    return found and f"other output than in evaluation{found}"


def padding(subject: Subject) -> str:
    """Padding after a sentence changes nothing."""
    def compare(length: int, more: int) -> str:
        x = subject.words(1, length)
        padded = np.concatenate([x, subject.words(1, more)], axis=1)
        is_padding = np.arange(length + more)[None] >= length
        y = subject.layer(padded, subject.layer.mask(padded.shape[:2], is_padding))
        return difference(y[:, :length], subject.layer(x), f"with padding of {more}")

    return compare(1, 1) or compare(4, 3)


def batches(subject: Subject) -> str:
    """A sentence's output does not depend on the others of its batch, nor on their order."""
    x = subject.words(3, 5)
    y = subject.layer(x)
    alone = np.concatenate([subject.layer(x[index:index + 1]) for index in range(3)])
    order = np.array([2, 0, 1])
    return (difference(y, alone, "in a batch of 3")
            or difference(subject.layer(x[order]), y[order], "in another order of the batch"))


def packed(subject: Subject) -> str:
    """Sentences that are packed into one row do not see each other."""
    parts = [subject.words(1, length) for length in (3, 4)]
    segments = np.array([[1] * 3 + [2] * 4])
    places = np.array([[0, 1, 2, 0, 1, 2, 3]])
    x = np.concatenate(parts, axis=1)
    y = subject.layer(x, subject.layer.mask(x.shape[:2], None, segments), places)
    return difference(y, np.concatenate([subject.layer(part) for part in parts], axis=1),
                      "packed with another sentence")


def half_precision(subject: Subject) -> str:
    """In bfloat16 the output is that of float64, to rounding."""
    x = subject.words(1, subject.longest(_LONG))           # integers are exact up to 256 only
    half = AttentionLayer(subject.hparams, subject.side, tf.bfloat16)
    half.set_weights([value.astype(np.float32) for value in subject.layer.weights()])
    return difference(half(x.astype(np.float32)), subject.layer(x), "in bfloat16", 0.08)


def moved(subject: Subject) -> str:
    """A second model with the weights of the first gives the same output."""
    x = subject.words(1, 4)
    other = AttentionLayer(subject.hparams, subject.side, seed=1)
    if other.variables != subject.layer.variables:
        return (f"a second model has the variables {other.variables} and not "
                f"{subject.layer.variables}")
    other.set_weights(subject.layer.weights())
    return difference(other(x), subject.layer(x), "with the same weights", 0.0)


def seeds(subject: Subject) -> str:
    """The same seed gives the same weights and output, bit for bit."""
    x = subject.words(1, 4)
    first, second = (AttentionLayer(subject.hparams, subject.side, seed=7) for _ in range(2))
    for name, a, b in zip(first.variables, first.weights(), second.weights(), strict=True):
        if not np.array_equal(a, b):
            return f"the variable {name} starts with other values"
    return difference(first(x), second(x), "the same input again", 0.0)


def sums(subject: Subject) -> str:
    """A sum with any other scheme is refused, or works with padding and a cache, and adds to it."""
    for name in positions.SCHEMES:
        hparams = changed(subject.hparams, f"{subject.hparams.position}+{name}")
        try:
            scheme = positions.build(hparams, subject.side)
        except ValueError:
            continue
        total = Subject(hparams, subject.side)
        shapes, own_shapes = ({variable: value.shape for variable, value in each.weights().items()}
                              for each in (total, subject))
        # Other positions alone change nothing; they may be the same for all words.
        is_comparable = shapes == own_shapes and not scheme.uses("place")
        if is_comparable:
            total.layer.set_weights(subject.layer.weights())
        x = total.words(1, 4)
        y = total.layer(x)
        problem = "" if np.isfinite(y).all() else "the output has a value that is not finite"
        problem = problem or padding(total)
        if is_comparable and not problem:
            longer = total.words(1, total.longest(_LONG))
            if not difference(total.layer(longer), subject.layer(longer), "", 1e-9):
                problem = f"{name} changes nothing"
        if subject.side == "targets":
            problem = problem or difference(total.layer.cached(x), y, "with a cache")
        if problem:
            return f"position={hparams.position}: {problem}"
    return ""


def decoding(subject: Subject) -> str:
    """Greedy and beam search find hypotheses with the probability that the whole model gives."""
    hparams = changed(subject.hparams, "none")
    hparams.decoder_position = subject.hparams.position
    return compare_search(hparams)


CHECKS: dict[str, Callable[[Subject], str]] = {
    "finite at lengths 1 to 300": finite,
    "changes the output": effect,
    "gradients": gradients,
    "padding": padding,
    "order and composition of batches": batches,
    "packed sentences": packed,
    "bfloat16": half_precision,
    "weights in a second model": moved,
    "same seed, same bits": seeds,
    "sums with other schemes": sums,
}
# Those of a decoder alone.
DECODER_CHECKS: dict[str, Callable[[Subject], str]] = {
    "cached = whole": cached,
    "greedy and beam search": decoding,
    "the future is not seen": future,
}
# Those of the attention to the encoder, with the hparams of a model.
CROSS_CHECKS: dict[str, Callable[[HParams], str]] = {"greedy and beam search": compare_search}


def formula(subject: Subject, logit: PairLogit) -> str:
    """The layer's output is that of logits computed pair by pair with the author's function."""
    x = subject.words(1, 5)
    weights = subject.weights()
    heads = subject.hparams.num_heads
    q, k, v = (np.stack(np.split(x[0] @ weights[f"multihead_attention/{name}/kernel"], heads, 1))
               for name in "qkv")
    own = {name.removeprefix("multihead_attention/"): value for name, value in weights.items()}
    z, depth, is_causal = np.zeros_like(v), q.shape[2], subject.side == "targets"
    for h, i in itertools.product(range(heads), range(x.shape[1])):
        seen = i + 1 if is_causal else x.shape[1]
        logits = np.array([logit(q[h, i] * depth ** -0.5, k[h, j], i, j, h, is_causal, own)
                           for j in range(seen)])
        share = np.exp(logits - logits.max())
        z[h, i] = share / share.sum() @ v[h, :seen]
    expected = np.concatenate(z, axis=1) @ weights["multihead_attention/output_transform/kernel"]
    return difference(subject.layer(x), expected[None], "by the author's formula")


def check_scheme(position: str, hparams: str = "", logit: PairLogit | None = None
                 ) -> Iterator[Result]:
    """Checks a registered scheme, or a sum, on each side where it can be used.

    Args:
      position: a value of the hparam `position`.
      hparams: overrides, "name=value,...".
      logit: the logit of a pair by the author's own formula, for positions that change logits only:
        called with q_i / sqrt(depth), k_j, i, j, the head, whether the layer is causal, and
        {name: value} of the variables. None: not compared.

    Yields:
      one result after the other, since they take seconds.

    Raises:
      InvalidValue: an override is not known, or names another scheme.
      ValueError: the position names an unknown scheme or has fewer than 7 positions, or an hparam
        is out of range.
    """
    values = registry.hparams(HPARAMS_SET)
    values.parse("hidden_size=16,num_heads=2,num_hidden_layers=1,filter_size=16")
    values = changed(values, position)
    override(values, hparams, {"position": position, "encoder_position": "",
                               "decoder_position": ""})
    declarations.check_ranges(values)
    errors: dict[str, ValueError] = {}
    for side in SIDES:
        try:
            positions.build(values, side)
        except ValueError as error:
            errors[side] = error
    sides = [side for side in SIDES if _works_in(values, side)]
    if errors.keys() >= {*(sides or SIDES)}:
        raise errors[(sides or [*SIDES])[-1]]
    for side in sides:
        if side in errors:
            yield Result("the layer is built", SIDES[side], _described(errors[side]))
            continue
        try:
            subject = Subject(values, side)
        except Exception as error:                           # of a user's code
            yield Result("the layer is built", SIDES[side], _described(error))
            continue
        if (longest := subject.longest(_LEAST_POSITIONS)) < _LEAST_POSITIONS:
            raise ValueError(f"position={position}: has {longest} positions; the checks need "
                             f"{_LEAST_POSITIONS}")
        checks = CHECKS | (DECODER_CHECKS if side == "targets" else {})
        if logit is not None:
            checks["the author's formula"] = lambda subject: formula(subject, logit)
        for name, check in checks.items():
            yield _result(name, SIDES[side], check, subject)
        for name, measure in (("in training", in_training), ("cost", cost)):
            yield _result(name, SIDES[side], measure, subject, is_note=True)
    if not _works_in(values, "cross"):
        return
    cross = changed(values, "none")
    cross.set_hparam("cross_position", position)
    for name, of_model in CROSS_CHECKS.items():
        yield _result(name, "cross", of_model, cross)


def _works_in(hparams: HParams, side: str) -> bool:
    return all(works_in(name, hparams, side) for name in names_in(hparams.position)
               if name in positions.SCHEMES)


def _result(name: str, side: str, check: Callable[[Any], str], subject: Any,
            is_note: bool = False) -> Result:
    try:
        text = check(subject)
    except Exception as error:                               # of a user's code
        return Result(name, side, _described(error))
    return Result(name, side, note=text) if is_note else Result(name, side, text)


def _described(error: Exception) -> str:
    """The error in one line, with the file and line of the user's code if it comes from there."""
    text = str(error).strip().splitlines()
    return own_code_error(error) or f"{type(error).__name__}: {text[0] if text else ''}"
