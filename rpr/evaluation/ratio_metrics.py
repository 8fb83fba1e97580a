"""Metrics that are the ratio of two sums over examples; docs/report.md says what they count.

Accuracy, token accuracy and edit distance are for tasks with one right answer. Their tokens are
words, separated by white space. Of several references the one that gives an example the best ratio
counts. The others are for language models: `token_loss` is the mean of the losses of a text's
tokens, `perplexity` its exponential, of at most 100 nats. Files of losses have a JSON list for each
text, with the loss of each token.
"""
import json
import math
from collections.abc import Sequence

import numpy as np

from rpr.evaluation import ALL_METRICS, LOSS_METRICS, LOWER_IS_BETTER
from rpr.evaluation.metrics import METRICS, Metric
from rpr.evaluation.ter import edit_distances
from rpr.evaluation.test_sets import read_lines
from rpr.utils import schema
from rpr.utils.errors import InvalidPath, InvalidValue

MOST_NATS = 100                                       # the variance of a perplexity stays finite
LARGEST_LOSS = 1e39                                   # float32 has no larger ones


def make_metric(name: str, references: int = 1, tokenize: str | None = None,
                language_pair: str | None = "") -> Metric:
    """The metric of a name in `ALL_METRICS`; the other arguments are those of `Metric`.

    Those of this module have words as tokens. Refuses an unknown metric or tokenizer.
    """
    if name not in ALL_METRICS:
        raise InvalidValue("metrics", name, f"one of {', '.join(ALL_METRICS)}")
    if name not in METRICS:
        return RatioMetric(name, references)
    return Metric(name, references, tokenize if name == "bleu" else None, language_pair)


def make_metrics(names: Sequence[str], references: int, tokenize: str | None,
                 language_pair: str | None) -> list[Metric]:
    """The metrics of text with these names; refuses a tokenizer without BLEU."""
    for name in names:
        if name in LOSS_METRICS:
            raise InvalidValue("metrics", name, "is of losses, not of text")
    if tokenize is not None and "bleu" not in names:
        raise InvalidValue("tokenize", tokenize, "is for bleu alone, and the metrics are "
                           f"{', '.join(names)}")
    return [make_metric(name, references, tokenize, language_pair) for name in names]


class RatioMetric(Metric):
    """A metric of this module, with the methods of `Metric`.

    Scores are percentages, but for `LOSS_METRICS`, whose counts are those of `loss_counts`.
    """

    def __init__(self, name: str, references: int = 1) -> None:
        self.name, self._references = name, references

    def sentence_statistics(self, systems: Sequence[Sequence[str]],
                            references: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Numerator and denominator of every example: for each system [examples, 2], float64."""
        expected = [[line.split() for line in lines] for lines in references]
        return [self._best([self._count([line.split() for line in lines], words)
                            for words in expected]) for lines in systems]

    def _count(self, hypotheses: Sequence[list[str]], references: Sequence[list[str]]
               ) -> np.ndarray:
        pairs = list(zip(hypotheses, references, strict=True))
        if self.name == "accuracy":
            counts = [(int(words == expected), 1) for words, expected in pairs]
        elif self.name == "token_accuracy":
            counts = [(sum(map(str.__eq__, words, expected)), max(len(words), len(expected)))
                      for words, expected in pairs]
        else:
            counts = [(edits, len(expected)) for edits, (_, expected)
                      in zip(count_edits(pairs), pairs, strict=True)]
        return np.array(counts, np.float64)

    def _best(self, counts: Sequence[np.ndarray]) -> np.ndarray:
        """The counts of the best reference of each example."""
        ratios = np.array([self.scores(of_reference) for of_reference in counts])
        best = ratios.argmin(axis=0) if self.name in LOWER_IS_BETTER else ratios.argmax(axis=0)
        return np.stack(counts)[best, np.arange(len(best))]

    def corpus_score(self, statistics: np.ndarray) -> tuple[float, str]:
        """The score of [examples, 2], and a line with its sums."""
        sums = statistics.sum(axis=0)
        score = float(self.scores(sums))
        if self.name in LOSS_METRICS:
            return score, f"{ALL_METRICS[self.name]} = {score:.4f} ({sums[1]:,.0f} tokens)"
        return score, f"{ALL_METRICS[self.name]} = {score:.2f}% ({sums[0]:,.0f} of {sums[1]:,.0f})"

    def scores(self, sums: np.ndarray) -> np.ndarray:
        """Scores of sums: [..., 2] -> [...]. An empty answer to an empty reference is right."""
        numerator, denominator = sums[..., 0], sums[..., 1]
        if self.name in LOSS_METRICS:
            means = numerator / np.maximum(denominator, 1)
            return np.exp(np.minimum(means, MOST_NATS)) if self.name == "perplexity" else means
        empty = np.minimum(numerator, 1) if self.name in LOWER_IS_BETTER else 1.0
        return 100 * np.where(denominator > 0, numerator / np.maximum(denominator, 1), empty)

    def signature(self, **fields: object) -> str:
        """In the form of sacreBLEU's signatures."""
        own = ({"tok": "model"} if self.name in LOSS_METRICS
               else {"nrefs": self._references, "tok": "words"})
        parts = {**own, **fields}
        return "|".join(f"{name}:{value}" for name, value in parts.items()
                        if value not in (None, ""))


def loss_counts(losses: Sequence[np.ndarray], low: int = 1, high: int | None = None) -> np.ndarray:
    """Sum and number of the losses of each text, float64 [texts, 2].

    Only positions from `low` to `high` count; the first is 1.
    """
    chosen = [row[low - 1:high] for row in losses]
    return np.array([(row.sum(dtype=np.float64), len(row)) for row in chosen], np.float64)


def losses_to_json(losses: Sequence[np.ndarray]) -> str:
    """The text of a file of losses."""
    return "".join(json.dumps([round(float(loss), 5) for loss in row]) + "\n" for row in losses)


def read_losses(path: str) -> list[np.ndarray]:
    """The losses in a file of `losses_to_json`: float64 [tokens] for each text."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = np.array(schema.convert(schema.parse(line), [float]), np.float64)
            if np.abs(row).max(initial=0) > LARGEST_LOSS:
                raise ValueError(f"they are from {-LARGEST_LOSS:g} to {LARGEST_LOSS:g}")
            rows.append(row)
        except ValueError as error:
            raise InvalidPath(path, f"line {number} is not a list of losses: {error}") from None
    if not any(map(len, rows)):
        raise InvalidPath(path, "has no losses")
    return rows


def count_edits(pairs: Sequence[tuple[list[str], list[str]]]) -> np.ndarray:
    """The edit distance of each pair of token sequences, int64 [pairs]."""
    ids: dict[str, int] = {}

    def coded(tokens: list[str]) -> list[int]:
        return [ids.setdefault(token, len(ids)) for token in tokens]

    edits = np.array([max(map(len, pair)) for pair in pairs], np.int64)
    indices = [index for index, pair in enumerate(pairs) if all(pair)]
    edits[indices] = edit_distances(
        [(coded(pairs[index][0]), coded(pairs[index][1])) for index in indices], beam=math.inf)
    return edits
