"""The results of a study as data classes: `StudyResults` holds `ArmResult`s and those `RunResult`s.

`study_reader` fills in what the run directories contain, `comparison` adds scores and significance.
Tables, figures and pages only read these classes.
"""
import dataclasses
from typing import Any

from rpr.evaluation.significance import Estimate
from rpr.report.length_buckets import Bucket


@dataclasses.dataclass
class RunResult:
    """One training run.

    Attributes:
      path: its directory, relative to the study's.
      seed: random seed of the run.
      state: "done", "running", "failed" or "waiting"; only finished runs have scores.
      note: progress of an unfinished run, or why it failed.
      parameters: number of trainable parameters; None before training starts.
      steps_per_second: median over the training records; evaluations and checkpoints not counted.
      train_minutes: wall time of the last attempt of the train stage.
      bleu, chrf: sacreBLEU scores on the test set, 0 to 100.
      exact: percentage of hypotheses that equal their reference.
      loss: development-set loss of the last evaluation, nats per sub-word.
    """
    path: str
    seed: int
    state: str
    note: str = ""
    parameters: int | None = None
    steps_per_second: float | None = None
    train_minutes: float | None = None
    bleu: float | None = None
    chrf: float | None = None
    exact: float | None = None
    loss: float | None = None


@dataclasses.dataclass
class ArmResult:
    """The runs that differ only in their seed; averages are over the finished ones.

    Attributes:
      name: of the arm.
      settings: {name: value} of the settings that differ between arms; empty outside a study.
      paper_bleu: the published BLEU, or None.
      runs: one `RunResult` per seed.
      parameters: number of trainable parameters.
      steps: training step of the decoded checkpoint.
      steps_per_second: mean over runs.
      relative_speed: steps_per_second divided by the baseline's.
      train_minutes: mean over runs.
      bleu, chrf: mean over runs with uncertainty; None while no run is done.
      exact: mean over runs, percent.
      loss: mean development-set loss over runs, nats per sub-word.
      bleu_by_length: BLEU for each length bucket of the study, mean over runs.
    """
    name: str
    settings: dict[str, Any]
    paper_bleu: float | None
    runs: list[RunResult]
    parameters: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    relative_speed: float | None = None
    train_minutes: float | None = None
    bleu: Estimate | None = None
    chrf: Estimate | None = None
    exact: float | None = None
    loss: float | None = None
    bleu_by_length: list[float] = dataclasses.field(default_factory=list)

    @property
    def done(self) -> list[RunResult]:
        """The finished runs."""
        return [run for run in self.runs if run.state == "done"]


@dataclasses.dataclass
class StudyResults:
    """Everything that a report shows.

    Attributes:
      title: name of the study's directory.
      baseline: name of the arm that the others are compared with.
      sentences: number of test sentences.
      signatures: {"BLEU": signature, "chrF": signature}; empty while no run is done.
      length_unit: unit of `buckets`: "words", or "sub-words" of the model.
      buckets: length buckets of the test sources.
      trained_length: max_length in sub-words if all models share it, else None.
      arms: one `ArmResult` per arm.
    """
    title: str
    baseline: str
    sentences: int = 0
    signatures: dict[str, str] = dataclasses.field(default_factory=dict)
    length_unit: str = ""
    buckets: list[Bucket] = dataclasses.field(default_factory=list)
    trained_length: int | None = None
    arms: list[ArmResult] = dataclasses.field(default_factory=list)

    @property
    def baseline_arm(self) -> ArmResult:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.name == self.baseline)

    @property
    def unfinished(self) -> list[str]:
        """A line for each run that is not done."""
        return [f"{run.path}: {run.state}" + (f" ({run.note})" if run.note else "")
                for arm in self.arms for run in arm.runs if run.state != "done"]

    def as_dict(self) -> dict[str, Any]:
        """All attributes as plain dicts and lists, for JSON."""
        return dataclasses.asdict(self)
