"""The checks of `rpr check-scheme`: each returns nothing, or the smallest counter-example."""
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr import positions
from rpr.conformance.layer import ALPHA, VOCABULARY, AttentionLayer, searched, teacher_forced
from rpr.models import declarations
from rpr.utils.errors import own_code_error
from rpr.utils.interfaces import HParams

HPARAMS_SET = "rpr_tiny"
SIDES = {"inputs": "encoder", "targets": "decoder"}
_WORDS, _HEADS, _HIDDEN = 6, 2, 16
# float64 layers whose angles or sinusoids are float32, as in the models.
_TOLERANCE = 1e-4
_LONG = 300
_LENGTHS = (1, 2, 3, 7, 64, _LONG)
_COST_SHAPE = (8, 128)

PairLogit = Callable[[np.ndarray, np.ndarray, int, int, int, bool, dict[str, np.ndarray]], float]


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of one check.

    Attributes:
      check: what was checked.
      side: `encoder`, `decoder`, or `cross` for the attention to the encoder.
      problem: the counter-example; empty: none was found.
      note: a measurement, for checks that cannot fail.
    """
    check: str
    side: str
    problem: str = ""
    note: str = ""


class Subject:
    """A scheme on one side, with its layer in float64."""

    def __init__(self, hparams: HParams, side: str) -> None:
        self.hparams, self.side = hparams, side
        self.layer = AttentionLayer(hparams, side)
        self.random = np.random.RandomState(0)
        self.layer.set_weights([                             # biases that are not all 0
            value + 0.1 * self.random.randn(*value.shape) for value in self.layer.weights()])

    def words(self, batch: int, length: int) -> np.ndarray:
        """Random inputs, float64 [batch, length, hidden]."""
        return self.random.randn(batch, length, _HIDDEN)


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
    weights = layer.weights()
    given = layer.gradients(x, dy)

    def loss() -> float:
        return float((layer(values[0]) * dy).sum())

    for index, name in enumerate(["the input", *layer.variables]):
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
    inputs = (subject.words(2, length) for length in range(1, _WORDS + 1))
    return _first(difference(subject.layer.cached(x), subject.layer(x), "with a cache")
                  for x in inputs)


def future(subject: Subject) -> str:
    """Later words change nothing."""
    x = subject.words(1, _WORDS)
    y = subject.layer(x)

    def compare(length: int) -> str:
        changed = x.copy()
        changed[:, length:] = subject.words(1, _WORDS - length)
        return (difference(subject.layer(changed)[:, :length], y[:, :length],
                           f"with other words from {length + 1} on", 1e-9)
                or difference(subject.layer(x[:, :length]), y[:, :length],
                              f"with only {length} words"))

    return _first(map(compare, range(1, _WORDS)))


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
    longest = positions.build(subject.hparams, subject.side).longest or _LONG
    x = subject.words(1, min(longest, _LONG))                # integers are exact up to 256 only
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
    """A sum with any other scheme is refused with a reason, or works with padding and a cache."""
    for name in positions.SCHEMES:
        hparams = _changed(subject.hparams, f"{subject.hparams.position}+{name}")
        try:
            positions.build(hparams, subject.side)
        except ValueError:
            continue
        total = Subject(hparams, subject.side)
        x = total.words(1, 4)
        y = total.layer(x)
        problem = "" if np.isfinite(y).all() else "the output has a value that is not finite"
        problem = problem or padding(total)
        if subject.side == "targets":
            problem = problem or difference(total.layer.cached(x), y, "with a cache")
        if problem:
            return f"position={hparams.position}: {problem}"
    return ""


def decoding(subject: Subject) -> str:
    """Greedy and beam search find hypotheses with the probability that the whole model gives."""
    hparams = _changed(subject.hparams, "none")
    hparams.decoder_position = subject.hparams.position
    return compare_search(hparams)


def compare_search(hparams: HParams) -> str:
    """`decoding` for a model with random weights."""
    inputs = np.random.RandomState(0).randint(2, VOCABULARY, [8, 5, 1, 1]).astype(np.int32)
    for beams in (1, 3):
        hypotheses, scores, weights = searched(hparams, inputs, beams)
        log_probs = teacher_forced(hparams, inputs.repeat(beams, axis=0), hypotheses, weights)
        for row, ids, score in zip(log_probs, hypotheses, scores, strict=True):
            if score < -1e6:                                 # fewer were found
                continue
            # All sentences have one length: a hypothesis that does not end has the most words.
            length = list(ids).index(1) + 1 if 1 in ids else len(ids)
            if 1 in ids and beams > 1:
                score *= ((5 + length) / 6) ** ALPHA
            total = float(sum(row[t, ids[t]] for t in range(length)))
            if abs(total - score) > 1e-3 * max(1.0, abs(total)):
                return (f"beam {beams}: a hypothesis of {length} words has the log probability "
                        f"{score:.4f} in the search and {total:.4f} in the whole model")
    return ""


def cost(subject: Subject) -> str:
    """Parameters, and time and memory of a layer forward and backward, against no positions."""
    plain = AttentionLayer(_changed(subject.hparams, "none"), subject.side, tf.float32)
    own = AttentionLayer(subject.hparams, subject.side, tf.float32)
    longest = positions.build(subject.hparams, subject.side).longest or _COST_SHAPE[1]
    shape = _COST_SHAPE[0], min(longest, _COST_SHAPE[1]), _HIDDEN
    x = np.random.RandomState(0).randn(*shape).astype(np.float32)
    times: dict[AttentionLayer, list[float]] = {plain: [], own: []}
    for layer in itertools.islice(itertools.cycle((plain, own)), 16):
        start = time.perf_counter()
        layer.gradients(x, x)
        times[layer].append(time.perf_counter() - start)
    first, second = (statistics.median(times[layer][2:]) for layer in (plain, own))
    more = (sum(value.size for value in own.weights())
            - sum(value.size for value in plain.weights()))
    allocated = [layer.allocated_bytes(x) for layer in (plain, own)]
    return (f"{more:+,} parameters, {second / first:.2f} times the time, "
            f"{allocated[1] / allocated[0]:.2f} times the memory")


CHECKS: dict[str, Callable[[Subject], str]] = {
    "finite at lengths 1 to 300": finite,
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
    weights = dict(zip(subject.layer.variables, subject.layer.weights(), strict=True))
    q, k, v = (np.stack(np.split(x[0] @ weights[f"multihead_attention/{name}/kernel"], _HEADS, 1))
               for name in "qkv")
    own = {name.removeprefix("multihead_attention/"): value for name, value in weights.items()}
    z, depth, is_causal = np.zeros_like(x), q.shape[2], subject.side == "targets"
    for h, i in itertools.product(range(_HEADS), range(x.shape[1])):
        seen = i + 1 if is_causal else x.shape[1]
        logits = np.array([logit(q[h, i] * depth ** -0.5, k[h, j], i, j, h, is_causal, own)
                           for j in range(seen)])
        share = np.exp(logits - logits.max())
        z[0, i, h * depth:(h + 1) * depth] = share / share.sum() @ v[h, :seen]
    expected = z @ weights["multihead_attention/output_transform/kernel"]
    return difference(subject.layer(x), expected, "by the author's formula")


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
      ValueError: the position names an unknown scheme, or an hparam is out of range.
    """
    values = registry.hparams(HPARAMS_SET)
    values.parse(f"hidden_size={_HIDDEN},num_heads={_HEADS},num_hidden_layers=1,filter_size=16")
    values = _changed(values, position)
    values.parse(hparams)
    declarations.check_ranges(values)
    sides = []
    for side in SIDES:
        try:
            positions.build(values, side)
            sides.append(side)
        except ValueError:
            if side == "targets" and not sides:
                raise
    for side in sides:
        try:
            subject = Subject(values, side)
        except Exception as error:                           # of a user's code
            yield Result("the layer is built", SIDES[side], _described(error))
            continue
        checks = CHECKS | (DECODER_CHECKS if side == "targets" else {})
        if logit is not None:
            checks["the author's formula"] = lambda subject: formula(subject, logit)
        for name, check in checks.items():
            yield Result(name, SIDES[side], _problem(check, subject))
        yield Result("cost", SIDES[side], note=cost(subject))
    cross = _changed(values, "none")
    cross.set_hparam("cross_position", position)
    try:
        positions.build(cross, "cross")
    except ValueError:
        return
    for name, of_model in CROSS_CHECKS.items():
        yield Result(name, "cross", _problem(of_model, cross))


def _problem(check: Callable[[Any], str], subject: Any) -> str:
    try:
        return check(subject)
    except Exception as error:                               # of a user's code
        return _described(error)


def _changed(hparams: HParams, position: str) -> HParams:
    values = registry.hparams(HPARAMS_SET)
    values.override_from_dict({name: value for name, value in hparams.values().items()
                               if name in values})
    values.position = position
    return values


def _described(error: Exception) -> str:
    """The error in one line, with the file and line of the user's code if it comes from there."""
    text = str(error).strip().splitlines()
    return own_code_error(error) or f"{type(error).__name__}: {text[0] if text else ''}"
