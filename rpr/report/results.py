"""The results of a study as data classes: `StudyResults` holds `ArmResult`s and those `RunResult`s.

`study_reader` fills in what the run directories contain, `comparison` adds scores and significance.
Tables, figures and pages only read these classes, so they can also be made from a results.json.
"""
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rpr.evaluation import ALL_METRICS, DIGITS, LOSS_METRICS, LOWER_IS_BETTER, length_warnings
from rpr.evaluation.significance import ArmScore, Comparison
from rpr.utils import files
from rpr.utils.errors import UserError

RECORD_FILE = "results.json"
DEFAULT_METRICS = ("bleu", "chrf")                    # where run.metrics is empty
BEYOND = "beyond"                                     # first metric, sources beyond training
MIN_SENTENCES = 10                                    # of each bucket, and beyond training
MIN_SHARE = 0.02                                      # of each bucket, besides MIN_SENTENCES
BUCKET_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
MAX_BUCKETS = 8                                       # of the most common lengths


@dataclass
class Bucket:
    """Sentences with sources of `low` to `high` units; of language models, tokens there."""
    low: int
    high: int
    sentences: int

    def contains(self, lengths: np.ndarray) -> np.ndarray:
        """bool [sentences]: which of the int [sentences] lengths fall into this bucket."""
        return (lengths >= self.low) & (lengths <= self.high)


def make_buckets(lengths: np.ndarray, ends: Sequence[int] = ()) -> list[Bucket]:
    """Divides int [sentences] lengths into buckets of a round width; merges those with few.

    The last bucket ends with the longest sentence.

    `ends` are the longest lengths of each bucket, if given; longer ones are one more. Buckets are
    in ascending order, and each sentence falls into exactly one.
    """
    if ends:
        lows = [min(1, int(lengths.min())), *(end + 1 for end in ends)]
        longest = int(lengths.max())
        chosen = [_bucket(low, min(high, longest), lengths)
                  for low, high in zip(lows, [*ends, longest], strict=True)]
        return [bucket for bucket in chosen if bucket.sentences]
    common = np.quantile(lengths, 0.98) - lengths.min()
    width = next((width for width in BUCKET_WIDTHS if common <= width * MAX_BUCKETS),
                 BUCKET_WIDTHS[-1])
    least = max(MIN_SENTENCES, MIN_SHARE * len(lengths))
    edges = range(int(lengths.min() - 1) // width * width, int(lengths.max()) + width, width)
    buckets: list[Bucket] = []
    low = max(edges[0] + 1, 0)
    for high in edges[1:]:
        bucket = _bucket(low, high, lengths)
        if bucket.sentences >= least:
            buckets.append(bucket)
            low = high + 1
    if low <= lengths.max():                          # too few are left for a bucket of their own
        first = buckets.pop().low if buckets else low
        buckets.append(_bucket(first, edges[-1], lengths))
    buckets[-1].high = int(lengths.max())
    return buckets


def _bucket(low: int, high: int, lengths: np.ndarray) -> Bucket:
    return Bucket(low, high, int(Bucket(low, high, 0).contains(lengths).sum()))


@dataclass
class RunResult:
    """One training run. A value that is not known (yet) is None."""
    path: str                                         # directory, relative to the study's
    seed: int
    state: str                                        # "done", "running", "failed" or "waiting"
    note: str = ""                                    # progress, or why it failed
    parameters: int | None = None                     # that are trained
    steps: int | None = None                          # of the decoded checkpoint
    # Medians over the training records, without evaluations and checkpoints; `mfu` is the share of
    # the GPUs' peak.
    steps_per_second: float | None = None
    model_tflops: float | None = None
    mfu: float | None = None
    train_minutes: float | None = None
    # {stage: wall time of its last attempt}; training includes earlier attempts, each up to the
    # checkpoint from which the next one went on.
    seconds: dict[str, float] = field(default_factory=dict)
    environment: int | None = None                    # index into `StudyResults.environments`
    # {metric: score on the test set}, and of `BEYOND`; only finished runs have scores.
    scores: dict[str, float] = field(default_factory=dict)
    by_length: list[float] = field(default_factory=list)    # first metric, for each length bucket
    exact: float | None = None                        # percentage that equal their reference
    empty: int | None = None                          # hypotheses without a word
    short: int | None = None                          # others, of less than half their reference
    cut: int | None = None                            # hypotheses that reached the length limit
    brevity_penalty: float | None = None              # BLEU's, 0 to 1
    # On the development set at the last evaluation, nats per token; None if not finite.
    loss: float | None = None
    # [[step, value], ...], thinned out; `dev_bleu` is of checkpoints (run.bleu_frequency).
    train_losses: list[list[float]] = field(default_factory=list)
    dev_losses: list[list[float]] = field(default_factory=list)
    dev_bleu: list[list[float]] = field(default_factory=list)
    tuned: dict[str, Any] = field(default_factory=dict)    # what it tries of `study.tune`

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or is done without a finite loss to choose its setting by."""
        return self.state == "failed" or (self.state == "done" and self.loss is None)


@dataclass
class ArmResult:
    """Runs that differ only in their seed, with means over the finished ones.

    Fields with names of `RunResult` have the same units.
    """
    name: str
    # {name: value} of the settings that differ between arms; None where the arm's position scheme
    # does not use the setting. Empty outside a study.
    settings: dict[str, Any]
    paper_bleu: float | None                          # as published
    runs: list[RunResult]                             # one per seed
    parameters: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    model_tflops: float | None = None
    mfu: float | None = None
    # `steps_per_second` divided by the baseline's; None if its machines differ.
    relative_speed: float | None = None
    train_minutes: float | None = None
    # {metric: ...}, and of `BEYOND`; empty while no run is done, and for the baseline itself.
    scores: dict[str, ArmScore] = field(default_factory=dict)
    differences: dict[str, Comparison] = field(default_factory=dict)
    # Arms that share a letter do not differ significantly; empty where nothing was tested.
    letters: str = ""
    # With study.looks, the seeds per arm at its last look, and whether it differs from the baseline
    # by more than the margin: "yes", "no" or "open". 0 and "" before a look.
    looked: int = 0
    answer: str = ""
    # {name: value} of the settings in which the runs of some arms differ.
    configuration: dict[str, Any] = field(default_factory=dict)
    exact: float | None = None
    loss: float | None = None
    by_length: list[float] = field(default_factory=list)    # some records lack those of the runs
    # [low, high] over each bucket's sentences, 95%; None where there is a single one.
    interval_by_length: list[list[float | None]] = field(default_factory=list)
    # Score in the first metric of each of several test sets judged together.
    by_test_set: dict[str, float] = field(default_factory=dict)
    # With `study.tune`, the runs that do not count: of other settings than the chosen one, and of
    # seeds that some setting lacks.
    others: list[RunResult] = field(default_factory=list)

    @property
    def done(self) -> list[RunResult]:
        """The finished runs."""
        return [run for run in self.runs if run.state == "done"]

    def choose_setting(self) -> None:
        """With `study.tune`, keeps the runs of the setting with the least development loss.

        A setting with a run that `has_failed` cannot be chosen. The seeds that count are those that
        all other settings have.
        """
        if not any(run.tuned for run in self.runs):
            return
        candidates = [group for group in _by_setting(self.runs)
                      if not any(run.has_failed for run in group)]
        done = [{run.seed: run.loss for run in group
                 if run.state == "done" and run.loss is not None} for group in candidates]
        seeds = [seed for seed in dict.fromkeys(run.seed for run in self.runs)
                 if done and all(seed in losses for losses in done)]
        kept: list[RunResult] = []
        if seeds:
            means = [statistics.fmean(losses[seed] for seed in seeds) for losses in done]
            chosen = candidates[means.index(min(means))]
            kept = [run for run in chosen if run.seed in seeds]
        self.runs, self.others = kept, [run for run in self.runs if run not in kept]

    @property
    def all_runs(self) -> list[RunResult]:
        """Its runs, and those that `study.tune` added."""
        return self.runs + self.others

    @property
    def tried(self) -> list[list[RunResult]]:
        """With `study.tune`, the finished runs of each setting with the seeds that count.

        The chosen setting comes first. Settings with a failed run are left out.
        """
        seeds = [run.seed for run in self.runs]
        failed = [run.tuned for run in self.others if run.has_failed]
        groups = _by_setting([run for run in self.all_runs if self.others and run.seed in seeds
                              and run.tuned not in failed])
        return [sorted(group, key=lambda run: seeds.index(run.seed)) for group in groups]


def _by_setting(runs: Iterable[RunResult]) -> list[list[RunResult]]:
    """The runs of each setting of `study.tune`."""
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(repr(run.tuned), []).append(run)
    return list(groups.values())


@dataclass
class Sample:
    """One test sentence with the translations of some arms (their first finished run)."""
    source: str
    reference: str
    hypotheses: dict[str, str]


@dataclass
class ArmPair:
    """How two arms differ in the first metric, second minus first; Holm covers all pairs."""
    first: str
    second: str
    comparison: Comparison


@dataclass
class StudyResults:
    """Everything that a report shows."""
    title: str                                        # name of the study's directory
    baseline: str                                     # arm that the others are compared with
    date: str = ""                                    # of the last score, YYYY-MM-DD (UTC)
    problem: str = ""                                 # T2T problem, if all runs share it
    # {"train source": {"path", "lines", "sha256"}}: the files that the data was made from.
    corpus: dict[str, dict[str, Any]] = field(default_factory=dict)
    environments: list[dict[str, Any]] = field(default_factory=list)    # that differ
    study_gin: str = ""                               # text of the study's gin file
    sentences: int = 0                                # of the test set; language models: texts
    documents: int = 0                                # of the test set, where they are known
    # Of `evaluation.ALL_METRICS`; arms are ranked by the first.
    metrics: list[str] = field(default_factory=lambda: list(DEFAULT_METRICS))
    signatures: dict[str, str] = field(default_factory=dict)    # {"BLEU": ...}
    length_unit: str = ""                             # of `buckets`: words, tokens or sub-words
    length_buckets: list[int] = field(default_factory=list)    # study.length_buckets
    buckets: list[Bucket] = field(default_factory=list)
    trained_length: int | None = None                 # longest source in training, if known
    # What `designs.seeds_needed` gives for the pairs, and for the 10% and 90% quantiles of the
    # variance over seeds; None: more than `designs.MOST_SEEDS`.
    seeds_needed: int | None = None
    seeds_range: list[int | None] = field(default_factory=list)
    pairs: list[ArmPair] = field(default_factory=list)    # all that were tested for the ranking
    looks: list[int] = field(default_factory=list)    # study.looks
    margin: float = 0.0                               # study.margin
    samples: list[Sample] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)    # that all runs share
    # `rpr.conformance.checks.Result`s of the baseline's scheme, from `rpr benchmark`.
    checks: list[dict[str, str]] = field(default_factory=list)
    arms: list[ArmResult] = field(default_factory=list)

    @property
    def baseline_arm(self) -> ArmResult:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.name == self.baseline)

    @property
    def done(self) -> list[RunResult]:
        """The finished runs of all arms."""
        return [run for arm in self.arms for run in arm.done]

    @property
    def all_runs(self) -> list[RunResult]:
        """The runs of all arms, and those that `study.tune` added."""
        return [run for arm in self.arms for run in arm.all_runs]

    @property
    def setting_names(self) -> list[str]:
        """The settings that differ between arms."""
        return list(dict.fromkeys(name for arm in self.arms for name in arm.settings))

    @property
    def metric(self) -> str:
        """The metric by which the arms are compared."""
        return self.metrics[0]

    @property
    def axis(self) -> str:
        """What the buckets are about."""
        name = "position in the text" if self.metric in LOSS_METRICS else "source length"
        return f"{name} ({self.length_unit})"

    @property
    def digits(self) -> int:
        """Digits after the decimal point of scores in the first metric."""
        return DIGITS.get(self.metric, 1)

    @property
    def ranked(self) -> dict[str, float]:
        """{arm: its mean in the first metric, negative if low is good} of `pairs`, best first."""
        tested = {name for pair in self.pairs for name in (pair.first, pair.second)}
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        means = {arm.name: sign * score.mean for arm in self.arms
                 if arm.name in tested and (score := arm.scores.get(self.metric))}
        return dict(sorted(means.items(), key=lambda item: -item[1]))

    def featured(self, most: int) -> list[ArmResult]:
        """At most so many arms with finished runs: the baseline and the best, in their order."""
        sign = 1 if self.metric in LOWER_IS_BETTER else -1

        def place(arm: ArmResult) -> tuple[bool, float]:
            scores = [run.scores[self.metric] for run in arm.done if self.metric in run.scores]
            return (arm.name != self.baseline,
                    sign * statistics.fmean(scores) if scores else math.inf)

        done = [arm for arm in self.arms if arm.done]
        best = [id(arm) for arm in sorted(done, key=place)[:most]]
        return [arm for arm in done if id(arm) in best]

    @property
    def unfinished(self) -> list[str]:
        """A line for each run that is not done."""
        return [f"{run.path}: {run.state}" + (f" ({run.note})" if run.note else "")
                for run in self.all_runs if run.state != "done"]

    @property
    def warnings(self) -> list[str]:
        """A line for each finished run whose translations are empty, cut off or too short."""
        return [f"{run.path}: {', '.join(problems)}" for run in self.done
                if (problems := length_warnings(self.sentences, run.empty, run.cut,
                                                run.brevity_penalty, run.short))]


def load_record(path: str) -> StudyResults:
    """The results in PATH/results.json; refuses a damaged file, or one of another version."""
    file = os.path.join(path, RECORD_FILE)
    remedy = "or it is of another version: make the report again"
    results = files.read_json(file, StudyResults, remedy)
    try:
        _check_references(results)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}; {remedy}") from None
    return results


def unique(names: Iterable[str], what: str) -> set[str]:
    """The names; raises ValueError if one occurs twice, with a message that begins with `what`."""
    found: set[str] = set()
    for name in names:
        if name in found:
            raise ValueError(f"{what} {name!r} occurs twice")
        found.add(name)
    return found


def _check_references(results: StudyResults) -> None:
    """Names of arms, indices and points that a report follows."""
    names = unique((arm.name for arm in results.arms), "the arm name")
    compared = {name for pair in results.pairs for name in (pair.first, pair.second)}
    if not results.metrics or not set(results.metrics) <= set(ALL_METRICS):
        raise ValueError(f"metrics are {results.metrics}")
    unique((run.path for run in results.all_runs), "the run directory")
    for name in (results.baseline, *compared):
        if name not in names:
            raise ValueError(f"no arm is called {name!r}")
    for name in compared - results.ranked.keys():
        raise ValueError(f"{name} is compared and has no score")
    if len(results.seeds_range) not in (0, 2):
        raise ValueError(f"seeds_range has {len(results.seeds_range)} values")
    buckets = len(results.buckets)
    for name, scores in (*((arm.name, arm.by_length) for arm in results.arms),
                         *((run.path, run.by_length) for run in results.all_runs)):
        if len(scores) not in (0, buckets):
            raise ValueError(f"{name}: scores of {len(scores)} lengths, there are {buckets} "
                             "buckets")
    for arm in results.arms:
        if [len(interval) for interval in arm.interval_by_length] not in ([], [2] * buckets):
            raise ValueError(f"{arm.name}: an interval has two ends")
        for name, score in arm.scores.items():
            if any(name not in run.scores for run in arm.done):
                raise ValueError(f"{arm.name}: a finished run has no {name}")
            low, high = (score.mean if end is None else end for end in (score.low, score.high))
            if not low <= score.mean <= high or (score.deviation or 0) < 0:
                raise ValueError(f"{arm.name}: the spread of {name} is negative")
    for run in results.all_runs:
        if not (run.environment or 0) < max(len(results.environments), 1):
            raise ValueError(f"{run.path}: there is no environment {run.environment}")
        if any(len(point) != 2 for curve in (run.train_losses, run.dev_losses, run.dev_bleu)
               for point in curve):
            raise ValueError(f"{run.path}: a point of a curve has a step and a value")
