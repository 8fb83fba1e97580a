"""Scores of systems on one test set, with signatures and a paired test between the systems.

The references of a test set are those that sacreBLEU chooses for its name: `wmt21` with en-de is
scored against reference A alone, `wmt21/C` against C, and `wmt21/AC` against both.

sacreBLEU's `PairedTest` holds all draws and all resampled statistics: 7 GB for 100,000 sentences
and one metric. Here only their sums are kept. The same seed gives the same draws and, to rounding,
the same scores and p-values.
"""
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rpr.evaluation import significance
from rpr.evaluation.metrics import METRICS, Metric
from rpr.evaluation.ratio_metrics import loss_counts, make_metric, make_metrics
from rpr.evaluation.test_sets import digest
from rpr.utils.console import Task
from rpr.utils.errors import InvalidValue, UserError

TESTS = {"jackknife": "paired jackknife t-test",      # ours, then sacreBLEU's by their own names
         "bootstrap": "sacreBLEU's paired bootstrap",
         "randomization": "sacreBLEU's paired approximate randomization"}
SAMPLES = {"bootstrap": 1000, "randomization": 10000}  # sacreBLEU's defaults
SEED = 12345                                          # sacreBLEU's default
MOST_TER_WORDS = 1000                                 # TER takes time cubic in a line's length
TOKENIZED_LINES = 100                                 # so many look tokenized: worth a warning
_LOOKED_AT = 1000                                     # lines
BLOCK_LINES = 500
BLOCK_HYPOTHESES = 5000                               # of all systems
# Trials of the randomization that are drawn together. NumPy takes 32 random bits from one word, so
# these blocks continue the sequence of sacreBLEU, which draws all at once.
_BLOCK_TRIALS = 32
TIE = 1e-9                                            # in p-values, such a difference is none
# Thai, Lao, Burmese, Khmer, Japanese and Chinese.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one system; what a paired test adds is None without it."""
    score: float                                      # 0 to 100; losses, TER, edits may be larger
    signature: str                                    # sacreBLEU's, or in its form
    details: str                                      # sacreBLEU's line, of BLEU with precisions
    # With sacreBLEU's bootstrap: the resampled scores.
    mean: float | None = None
    interval: float | None = None                     # half the width of their central 95%
    # With the jackknife test: the difference from the baseline, and its 95% interval over test
    # sentences, or over documents where they are known; None if there is a single one.
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None                      # of the paired test against the baseline
    p_holm: float | None = None                       # jackknife: over all systems and metrics


@dataclasses.dataclass(frozen=True)
class System:
    """The scores of one system."""
    name: str
    lines: int                                        # number of test sentences
    # Percentage of lines that equal one of their references, ignoring outer spaces; None for a
    # language model.
    exact: float | None
    scores: dict[str, Score]                          # {"bleu": ...}
    # How many the jackknife test left out one by one; None if it took sentences.
    documents: int | None = None
    references: str | None = None                     # their `digest`; None for a language model

    def as_dict(self) -> dict[str, Any]:
        """For JSON; attributes that are None are left out."""
        fields = {"documents": self.documents, "references_sha256": self.references,
                  "exact": self.exact}
        return {"system": self.name, "lines": self.lines, **{
            name: value for name, value in fields.items() if value is not None}, **{
            name: {key: value for key, value in dataclasses.asdict(score).items()
                   if value is not None}
            for name, score in self.scores.items()}}


def score(systems: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]],
          metrics: Sequence[str] = tuple(METRICS), *, tokenize: str | None = None,
          test_set: str | None = None, language_pair: str | None = None, test: str | None = None,
          samples: int | None = None, seed: int = SEED,
          documents: Sequence[str] | None = None) -> list[System]:
    """Scores systems against the same references.

    Args:
      systems: {name: lines}; the first is the baseline of a paired test.
      references: {name: lines} of the same sentences; all are used.
      metrics: of `rpr.evaluation.ALL_METRICS`, without `LOSS_METRICS`.
      tokenize: sacreBLEU's tokenizer for BLEU; None: chosen by the target language, mostly 13a.
      test_set, language_pair: where the references come from, for the signature; the target
        language also chooses the tokenizer.
      test: a key of `TESTS`, or None.
      samples: resamples or trials of sacreBLEU's tests; None: its defaults, 1,000 and 10,000.
      seed: seed of sacreBLEU's tests.
      documents: name of each sentence's document, for the jackknife test.

    Returns:
      the systems in the order given.

    Raises:
      UserError: unknown metric, tokenizer or test, a tokenizer without BLEU, no system or
        reference, a system without lines, different numbers of lines (also of `documents`), a
        paired test of one system.
    """
    if test is not None and test not in TESTS:
        raise InvalidValue("test", test, f"must be one of {', '.join(TESTS)}")
    if not systems or not references:
        raise UserError("at least one system and one reference are needed")
    check_lengths(systems, references)
    if documents is not None:
        check_lengths(systems, {"documents": documents})
    if test and len(systems) < 2:
        raise UserError("a paired test needs two or more systems, the baseline first")
    expected = list(references.values())
    made = make_metrics(metrics, len(expected), tokenize, language_pair)
    statistics = sentence_statistics(made, systems, expected)
    source = {"test": test_set, "lang": test_set and language_pair}
    scores = _corpus_scores(systems, made, statistics, source)
    if test == "jackknife":
        _add_jackknife(scores, made, statistics, documents)
    elif test:
        _add_sacrebleu_test(scores, made, statistics, test, samples or SAMPLES[test], seed, source)
    count = len(set(documents)) if documents is not None and test == "jackknife" else None
    hashed = digest(expected)
    return [System(name, len(lines), _exact(lines, expected), scores[name], count, hashed)
            for name, lines in systems.items()]


def score_losses(systems: Mapping[str, Sequence[np.ndarray]], metrics: Sequence[str]
                 ) -> list[System]:
    """Scores language models by the losses of the same tokens; refuses unequal numbers of them.

    `systems` are {name: losses of each text, float [tokens]}. The first is the baseline of the
    jackknife test, if there are several. `metrics` are of `LOSS_METRICS`.
    """
    (first, losses), *others = systems.items()
    for name, rows in others:
        if list(map(len, rows)) != list(map(len, losses)):
            raise UserError(f"{name} and {first} have different tokens: their losses cannot be "
                            "compared")
    made = [make_metric(name) for name in metrics]
    counts = {name: loss_counts(rows) for name, rows in systems.items()}
    statistics = {metric.name: counts for metric in made}
    scores = _corpus_scores(systems, made, statistics, {})
    if others:
        _add_jackknife(scores, made, statistics, None)
    return [System(name, len(losses), None, scores[name]) for name in systems]


def _corpus_scores(systems: Iterable[str], made: Sequence[Metric],
                   statistics: Mapping[str, Mapping[str, np.ndarray]],
                   source: Mapping[str, str | None]) -> dict[str, dict[str, Score]]:
    scores: dict[str, dict[str, Score]] = {name: {} for name in systems}
    for metric in made:
        for name in systems:
            value, details = metric.corpus_score(statistics[metric.name][name])
            scores[name][metric.name] = Score(value, metric.signature(**source), details)
    return scores


def longest_line(lines: Sequence[str]) -> tuple[int, int]:
    """Number (from 1) and words of the line with the most words."""
    words = [len(line.split()) for line in lines]
    longest = max(range(len(lines)), key=words.__getitem__)
    return longest + 1, words[longest]


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Whether 100 lines end in a separate full stop, as tokenized text does (sacreBLEU's rule)."""
    return sum(line.endswith(" .") for line in lines) >= TOKENIZED_LINES


def looks_unspaced(lines: Sequence[str]) -> bool:
    """Whether most letters of the first lines belong to scripts without spaces between words."""
    text = "".join(lines[:_LOOKED_AT])
    return len(_UNSPACED.findall(text)) > 0.5 * sum(map(str.isalpha, text))


def check_lengths(systems: Mapping[str, Sequence[str]], references: Mapping[str, Sequence[str]]
                  ) -> None:
    """Refuses a system without lines, or with another number of lines than a reference."""
    for name, lines in systems.items():
        if not lines:
            raise UserError(f"{name}: it is empty")
        for reference, expected in references.items():
            if len(lines) != len(expected):
                raise UserError(f"{name} has {len(lines):,} lines, {reference} has "
                                f"{len(expected):,}")


def _add_jackknife(scores: dict[str, dict[str, Score]], metrics: Sequence[Metric],
                   statistics: Mapping[str, Mapping[str, np.ndarray]],
                   documents: Sequence[str] | None) -> None:
    """Adds differences from the first system with their intervals and p-values."""
    baseline, *others = scores
    runs = {(name, metric.name): significance.run_scores(
        metric, statistics[metric.name][name], documents=documents)
        for metric in metrics for name in scores}
    keys = [(name, metric.name) for name in others for metric in metrics]
    comparisons = significance.correct(
        [significance.compare_outputs(runs[baseline, metric], runs[name, metric])
         for name, metric in keys])
    for (name, metric), found in zip(keys, comparisons, strict=True):
        scores[name][metric] = dataclasses.replace(
            scores[name][metric], difference=found.difference, low=found.low, high=found.high,
            p_value=found.p, p_holm=found.p_holm)


def _add_sacrebleu_test(scores: dict[str, dict[str, Score]], metrics: Sequence[Metric],
                        statistics: Mapping[str, Mapping[str, np.ndarray]], test: str,
                        samples: int, seed: int, source: Mapping[str, str | None]) -> None:
    """Adds the p-values of sacreBLEU's tests; with the bootstrap also means and intervals."""
    baseline, *others = scores
    for metric in metrics:
        counts = statistics[metric.name]
        if test == "bootstrap":
            drawn = {"bs": samples}
            added = paired_bootstrap(metric, [counts[name] for name in scores], samples, seed)
        else:
            drawn = {"ar": samples}
            added = [{}, *({"p_value": paired_randomization(
                metric, counts[baseline], counts[name], samples, seed)} for name in others)]
        signature = metric.signature(**source, seed=seed, **drawn)
        for name, fields in zip(scores, added, strict=True):
            if name != baseline and np.array_equal(counts[name], counts[baseline]):
                fields["p_value"] = 1.0               # sacreBLEU gives the smallest p there is
            scores[name][metric.name] = dataclasses.replace(
                scores[name][metric.name], **fields, signature=signature)


def _exact(lines: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    equal = sum(line.strip() in (text.strip() for text in expected)
                for line, *expected in zip(lines, *references, strict=True))
    return 100 * equal / len(lines)


def sentence_statistics(metrics: Sequence[Metric], systems: Mapping[str, Sequence[str]],
                        references: Sequence[Sequence[str]]) -> dict[str, dict[str, np.ndarray]]:
    """Sufficient statistics: {metric's name: {system's name: [sentences, counts], float64}}.

    `systems` are {name: lines} of the same sentences, `references` the lines of each reference.
    """
    size = max(1, min(BLOCK_LINES, BLOCK_HYPOTHESES // len(systems)))
    starts = range(0, len(references[0]), size)       # blocks keep memory small
    results = {}
    with Task("scoring", len(metrics) * len(starts), "blocks of lines") as task:
        for done, metric in enumerate(metrics):
            blocks: list[list[np.ndarray]] = []
            for start in starts:
                task.update(done * len(starts) + len(blocks))
                blocks.append(metric.sentence_statistics(
                    [lines[start:start + size] for lines in systems.values()],
                    [lines[start:start + size] for lines in references]))
            results[metric.name] = {name: np.concatenate(parts) for name, parts
                                    in zip(systems, zip(*blocks, strict=True), strict=True)}
        task.update(len(metrics) * len(starts))
    return results


def paired_bootstrap(metric: Metric, systems: Sequence[np.ndarray], samples: int, seed: int
                     ) -> list[dict[str, Any]]:
    """Paired bootstrap resampling (Koehn 2004) as sacreBLEU does it: fields of `Score`.

    p takes absolute differences before it centres them, and is about half of a two-sided p-value.
    `systems` are arrays [sentences, counts], the first of which is the baseline's.
    """
    sentences = len(systems[0])
    columns = np.concatenate(systems, axis=1)
    random = np.random.default_rng(seed)
    sums = np.array([np.bincount(random.choice(sentences, sentences), minlength=sentences) @ columns
                     for _ in range(samples)])
    scores = metric.scores(sums.reshape(samples, len(systems), -1)).T    # [systems, samples]
    cut = samples // 40                               # sacreBLEU's `estimate_ci` drops each end
    results: list[dict[str, Any]] = []
    for array, drawn in zip(systems, scores, strict=True):
        sizes = np.abs(drawn - scores[0])
        above = int(np.sum(sizes - sizes.mean() > _observed(metric, systems[0], array)))
        low, high = np.sort(drawn)[[cut, samples - cut - 1]]
        results.append({"mean": float(drawn.mean()), "interval": float(0.5 * (high - low)),
                        "p_value": (above + 1) / (samples + 1)})
    results[0]["p_value"] = None                      # of the baseline
    return results


def paired_randomization(metric: Metric, baseline: np.ndarray, system: np.ndarray, trials: int,
                         seed: int) -> float:
    """A two-sided p by sacreBLEU's approximate randomization (Riezler and Maxwell 2005).

    In each trial the outputs for half of the sentences, [sentences, counts], are exchanged.
    sacreBLEU counts only differences above the observed one. A metric that it does not have often
    gives the observed difference again, which has to count as well.
    """
    random = np.random.default_rng(seed)
    exchanged = np.concatenate([
        random.integers(2, size=(min(_BLOCK_TRIALS, trials - start), len(baseline)), dtype=bool)
        @ (baseline - system) for start in range(0, trials, _BLOCK_TRIALS)]) + system.sum(axis=0)
    rest = baseline.sum(axis=0) + system.sum(axis=0) - exchanged
    sizes = np.abs(metric.scores(exchanged) - metric.scores(rest))
    tie = TIE if metric.name in METRICS else -TIE
    above = int(np.sum(sizes > _observed(metric, baseline, system) + tie))
    return (above + 1) / (trials + 1)


def _observed(metric: Metric, first: np.ndarray, second: np.ndarray) -> float:
    """The absolute difference of two systems' scores."""
    return abs(float(metric.scores(first.sum(axis=0)) - metric.scores(second.sum(axis=0))))
