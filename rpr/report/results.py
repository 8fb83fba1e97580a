"""The results of a study as data classes: `StudyResults` holds `ArmResult`s and those `RunResult`s.

`study_reader` fills in what the run directories contain, `comparison` adds scores and significance.
Tables, figures and pages only read these classes, so they can also be made from a results.json.
"""
import dataclasses
import math
import os
import statistics
from collections.abc import Iterable
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


@dataclasses.dataclass
class Bucket:
    """Sentences with sources of `low` to `high` units; of language models, tokens there."""
    low: int
    high: int
    sentences: int

    def contains(self, lengths: np.ndarray) -> np.ndarray:
        """bool [sentences]: which of the int [sentences] lengths fall into this bucket."""
        return (lengths >= self.low) & (lengths <= self.high)


@dataclasses.dataclass
class RunResult:
    """One training run. A value that is not known (yet) is None.

    Attributes:
      path: directory, relative to the study's.
      state: "done", "running", "failed" or "waiting"; only finished runs have scores.
      note: progress of an unfinished run, or why it failed.
      parameters: how many are trained.
      steps: training step of the decoded checkpoint.
      steps_per_second: median over the training records, without evaluations and checkpoints.
      model_tflops, mfu: such medians of model TFLOP/s, and of their share of the GPUs' peak.
      seconds: {stage: wall time of its last attempt}; training includes earlier attempts, each up
        to the checkpoint from which the next one went on.
      environment: index into `StudyResults.environments`.
      scores: {metric: score on the test set}, and of `BEYOND`.
      by_length: the score in the first metric for each length bucket of the study.
      exact: percentage of hypotheses that equal their reference.
      empty: number of hypotheses without a word.
      short: number of other hypotheses with less than half of their reference's tokens.
      cut: number of hypotheses that reached the length limit.
      brevity_penalty: BLEU's, 0 to 1; below 1 the hypotheses are shorter than the references.
      loss: development-set loss of the last evaluation, nats per token; None if not finite.
      train_losses, dev_losses: [[step, loss], ...], thinned out.
      dev_bleu: [[step, BLEU on the development set], ...] of checkpoints (run.bleu_frequency).
      tuned: {setting: value} that the run tries of `study.tune`.
    """
    path: str
    seed: int
    state: str
    note: str = ""
    parameters: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    model_tflops: float | None = None
    mfu: float | None = None
    train_minutes: float | None = None
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    environment: int | None = None
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    by_length: list[float] = dataclasses.field(default_factory=list)
    exact: float | None = None
    empty: int | None = None
    short: int | None = None
    cut: int | None = None
    brevity_penalty: float | None = None
    loss: float | None = None
    train_losses: list[list[float]] = dataclasses.field(default_factory=list)
    dev_losses: list[list[float]] = dataclasses.field(default_factory=list)
    dev_bleu: list[list[float]] = dataclasses.field(default_factory=list)
    tuned: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or is done without a finite loss to choose its setting by."""
        return self.state == "failed" or (self.state == "done" and self.loss is None)


@dataclasses.dataclass
class ArmResult:
    """Runs that differ only in their seed, with means over the finished ones.

    Attributes:
      settings: {name: value} of the settings that differ between arms; None where the arm's
        position scheme does not use the setting. Empty outside a study.
      paper_bleu: the published BLEU, or None.
      runs: one `RunResult` per seed; the fields below have the same units.
      relative_speed: steps_per_second divided by the baseline's; None if its machines differ.
      scores: {metric: mean and uncertainty}, and of `BEYOND`; empty while no run is done.
      differences: {metric: comparison with the baseline}; empty for the baseline itself.
      letters: arms that share a letter do not differ significantly in the first metric; empty where
        nothing was tested.
      looked, answer: with study.looks, seeds per arm at its last look, and whether it differs from
        the baseline by more than the margin: "yes", "no" or "open". 0 and "" before a look.
      configuration: {name: value} of the settings in which the runs of some arms differ.
      by_length: mean of the runs' `by_length`; some records lack those of the runs.
      interval_by_length: [low, high] of the first metric over each bucket's sentences, 95%; None
        where there is a single one.
      others: with `study.tune`, the runs that do not count: of other settings than the chosen one,
        and of seeds that some setting lacks.
      by_test_set: score in the first metric of each of several test sets judged together.
    """
    name: str
    settings: dict[str, Any]
    paper_bleu: float | None
    runs: list[RunResult]
    parameters: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    model_tflops: float | None = None
    mfu: float | None = None
    relative_speed: float | None = None
    train_minutes: float | None = None
    scores: dict[str, ArmScore] = dataclasses.field(default_factory=dict)
    differences: dict[str, Comparison] = dataclasses.field(default_factory=dict)
    letters: str = ""
    looked: int = 0
    answer: str = ""
    configuration: dict[str, Any] = dataclasses.field(default_factory=dict)
    exact: float | None = None
    loss: float | None = None
    by_length: list[float] = dataclasses.field(default_factory=list)
    interval_by_length: list[list[float | None]] = dataclasses.field(default_factory=list)
    by_test_set: dict[str, float] = dataclasses.field(default_factory=dict)
    others: list[RunResult] = dataclasses.field(default_factory=list)

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


@dataclasses.dataclass
class Sample:
    """One test sentence with the translations of some arms (their first finished run)."""
    source: str
    reference: str
    hypotheses: dict[str, str]


@dataclasses.dataclass
class ArmPair:
    """How two arms differ in the first metric, second minus first; Holm covers all pairs."""
    first: str
    second: str
    comparison: Comparison


@dataclasses.dataclass
class StudyResults:
    """Everything that a report shows.

    Attributes:
      title: name of the study's directory.
      baseline: arm that the others are compared with.
      date: when the last run was scored, YYYY-MM-DD (UTC); empty while none is done.
      problem: T2T problem, if all runs share it; else empty.
      corpus: {"train source": {"path", "lines", "sha256"}}: the files that the data was made from.
      environments: different software and hardware environments of the runs.
      study_gin: text of the study's gin file, or empty.
      checks: `rpr.conformance.checks.Result`s of the baseline's scheme, from `rpr benchmark`.
      sentences: number of test sentences; of language models, texts.
      documents: number of documents of the test set, the units of the test if known; else 0.
      metrics: what was scored, of `evaluation.ALL_METRICS`; arms are ranked by the first.
      signatures: {"BLEU": signature, "chrF": signature}; empty while no run is done.
      length_unit: unit of `buckets`: words, tokens, or sub-words of the model.
      length_buckets: study.length_buckets, the longest source of each bucket; [] if not chosen.
      buckets: length buckets of the test sources.
      trained_length: longest source in training, in `length_unit`, where it is known.
      seeds_needed, seeds_range: what `designs.seeds_needed` gives for the pairs, and for the 10%
        and 90% quantiles of the variance over seeds; None and [] if unknown.
      pairs: every pair of arms that was tested, for the ranking.
      looks, margin: study.looks and study.margin.
      configuration: {name: value} of the settings that all runs share, but for their seed.
    """
    title: str
    baseline: str
    date: str = ""
    problem: str = ""
    corpus: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    environments: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    study_gin: str = ""
    sentences: int = 0
    documents: int = 0
    metrics: list[str] = dataclasses.field(default_factory=lambda: list(DEFAULT_METRICS))
    signatures: dict[str, str] = dataclasses.field(default_factory=dict)
    length_unit: str = ""
    length_buckets: list[int] = dataclasses.field(default_factory=list)
    buckets: list[Bucket] = dataclasses.field(default_factory=list)
    trained_length: int | None = None
    seeds_needed: int | None = None
    seeds_range: list[int] = dataclasses.field(default_factory=list)
    pairs: list[ArmPair] = dataclasses.field(default_factory=list)
    looks: list[int] = dataclasses.field(default_factory=list)
    margin: float = 0.0
    samples: list[Sample] = dataclasses.field(default_factory=list)
    configuration: dict[str, Any] = dataclasses.field(default_factory=dict)
    checks: list[dict[str, str]] = dataclasses.field(default_factory=list)
    arms: list[ArmResult] = dataclasses.field(default_factory=list)

    @property
    def baseline_arm(self) -> ArmResult:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.name == self.baseline)

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
            score = arm.scores.get(self.metric)       # None before the runs are scored
            recorded = [score.mean] if score else [
                run.scores[self.metric] for run in arm.done if self.metric in run.scores]
            return arm.name != self.baseline, min((sign * each for each in recorded),
                                                  default=math.inf)

        done = [arm for arm in self.arms if arm.done]
        best = [id(arm) for arm in sorted(done, key=place)[:most]]
        return [arm for arm in done if id(arm) in best]

    @property
    def unfinished(self) -> list[str]:
        """A line for each run that is not done."""
        return [f"{run.path}: {run.state}" + (f" ({run.note})" if run.note else "")
                for arm in self.arms for run in arm.all_runs if run.state != "done"]

    @property
    def warnings(self) -> list[str]:
        """A line for each finished run whose translations are empty, cut off or too short."""
        return [f"{run.path}: {', '.join(problems)}" for arm in self.arms for run in arm.done
                if (problems := length_warnings(self.sentences, run.empty, run.cut,
                                                run.brevity_penalty, run.short))]


def load_record(path: str) -> StudyResults:
    """The results in PATH/results.json, as `rpr report` wrote them.

    Raises:
      UserError: the file is damaged, or of another version of this program.
    """
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
            raise ValueError(f"{what} {name!r} twice")
        found.add(name)
    return found


def _check_references(results: StudyResults) -> None:
    """Names of arms, indices and points that a report follows."""
    names = unique((arm.name for arm in results.arms), "an arm is called")
    if not results.metrics or not set(results.metrics) <= set(ALL_METRICS):
        raise ValueError(f"metrics are {results.metrics}")
    runs = [run for arm in results.arms for run in arm.all_runs]
    unique((run.path for run in runs), "a run lies in")
    for name in (results.baseline, *(
            name for pair in results.pairs for name in (pair.first, pair.second))):
        if name not in names:
            raise ValueError(f"no arm is called {name!r}")
    buckets = len(results.buckets)
    for name, scores in (*((arm.name, arm.by_length) for arm in results.arms),
                         *((run.path, run.by_length) for run in runs)):
        if len(scores) not in (0, buckets):
            raise ValueError(f"{name}: scores of {len(scores)} lengths, there are {buckets} "
                             "buckets")
    for arm in results.arms:
        if [len(interval) for interval in arm.interval_by_length] not in ([], [2] * buckets):
            raise ValueError(f"{arm.name}: an interval has two ends")
    for run in runs:
        if not (run.environment or 0) < max(len(results.environments), 1):
            raise ValueError(f"{run.path}: there is no environment {run.environment}")
        if any(len(point) != 2 for curve in (run.train_losses, run.dev_losses, run.dev_bleu)
               for point in curve):
            raise ValueError(f"{run.path}: a point of a curve has a step and a value")
