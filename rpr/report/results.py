"""What a report says, as one record that its tables, plots and pages are views of."""
import dataclasses
import json
import os
import statistics

from rpr.evaluation import scoring, significance, test_sets
from rpr.experiments import config, run_directory
from rpr.report import length_buckets
from rpr.utils import files, metrics_log
from rpr.utils.console import Task
from rpr.utils.errors import UserError

METRICS = ("bleu", "chrf")


@dataclasses.dataclass
class Trained:
    """One run.

    Attributes:
      path: its directory, relative to the report's.
      seed: of the run.
      state: "done", "running", "failed" or "waiting"; only a run that is done has scores.
      note: how far an unfinished run is, or why it failed.
      parameters: trainable; None before the training begins.
      steps_per_second: median over the training, of the time inside a step alone.
      train_minutes: wall time of the train stage's last attempt.
      bleu, chrf: sacreBLEU's, 0 to 100.
      exact: per cent of the lines that equal their reference.
      loss: on the development set, of the last evaluation, nats a sub-word.
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
class Arm:
    """Runs that differ in their seed alone; every number but the paper's is over those done.

    Attributes:
      name: of the arm.
      settings: {name: value} of what differs between the study's arms; empty outside a study.
      paper: the paper's BLEU, or None.
      runs: a list of `Trained`.
      parameters: trainable.
      steps: of the checkpoint that was decoded.
      steps_per_second: mean over the runs.
      relative_speed: steps_per_second as a multiple of the baseline's.
      train_minutes: mean over the runs.
      bleu, chrf: `significance.Estimate`s, or None while no run is done.
      exact: mean over the runs, per cent of the lines.
      loss: mean over the runs, on the development set, nats a sub-word.
      bleu_by_length: mean over the runs for each of the record's buckets.
    """
    name: str
    settings: dict
    paper: float | None
    runs: list
    parameters: int | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    relative_speed: float | None = None
    train_minutes: float | None = None
    bleu: significance.Estimate | None = None
    chrf: significance.Estimate | None = None
    exact: float | None = None
    loss: float | None = None
    bleu_by_length: list = dataclasses.field(default_factory=list)

    @property
    def done(self):
        """The runs that are done."""
        return [run for run in self.runs if run.state == "done"]


@dataclasses.dataclass
class Record:
    """A whole report.

    Attributes:
      title: the directory's name.
      baseline: the name of the arm that the others are compared with.
      sentences: of the test set.
      signatures: {"BLEU": signature, "chrF": signature}; empty while no run is done.
      length_unit: what `buckets` count: "words", or "sub-words" of the model.
      buckets: of the source's length.
      trained_length: max_length, in sub-words, where all models agree in it; else None.
      arms: a list of `Arm`s.
    """
    title: str
    baseline: str
    sentences: int = 0
    signatures: dict = dataclasses.field(default_factory=dict)
    length_unit: str = ""
    buckets: list = dataclasses.field(default_factory=list)
    trained_length: int | None = None
    arms: list = dataclasses.field(default_factory=list)

    @property
    def unfinished(self):
        """Lines on the runs that are not done."""
        return [f"{run.path}: {run.state}" + (f" ({run.note})" if run.note else "")
                for arm in self.arms for run in arm.runs if run.state != "done"]

    def as_dict(self):
        """For JSON."""
        return dataclasses.asdict(self)


def read(path, baseline=None):
    """The arms and runs of a study, or all runs below a directory, without their scores.

    Args:
      path: a study's directory, or a directory of run directories, each an arm of one seed.
      baseline: the name of an arm; None: the study's own.

    Returns:
      a `Record`, which `score` completes.

    Raises:
      UserError: no run in it, or no such baseline.
    """
    arms, of_study = _read_arms(path)
    names = [arm.name for arm in arms]
    baseline = baseline or of_study
    if baseline not in names:
        raise UserError(f"--baseline={baseline}: one of {', '.join(names)}" if baseline else
                        f"--baseline is missing: one of {', '.join(names)}")
    if not of_study:
        arms.sort(key=lambda arm: arm.name != baseline)
    for arm in arms:
        _summarise_training(arm)
    base = next(arm for arm in arms if arm.name == baseline)
    for arm in arms:
        if arm.steps_per_second and base.steps_per_second:
            arm.relative_speed = round(arm.steps_per_second / base.steps_per_second, 4)
    return Record(os.path.basename(os.path.abspath(path)), baseline, arms=arms)


def where(path, run):
    """The `experiment.Directory` of a run of the report on `path`."""
    return run_directory.Directory(os.path.join(path, run.path), os.path.join(path, "data"))


def _read_arms(path):
    """The arms, without their scores; the name of the study's baseline, or None."""
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such directory")
    try:
        with open(os.path.join(path, "study.json"), encoding="utf-8") as text:
            study = json.load(text)
    except FileNotFoundError:
        names = [name for name in sorted(os.listdir(path))
                 if os.path.exists(os.path.join(path, name, "config.gin"))]
        if not names:
            raise UserError(f"{path}: neither a study (study.json) nor a directory of runs (each "
                            "with a config.gin)") from None
        return [Arm(name, {}, None, [_read_run(path, name)]) for name in names], None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}/study.json: {error}") from None
    settings = _settings(study["arms"], path)
    return [Arm(arm["name"], settings[arm["name"]], arm["paper"],
                [_read_run(path, run["directory"], run["seed"]) for run in arm["runs"]])
            for arm in study["arms"]], study["baseline"]


def _settings(arms, path):
    """{arm: {setting: value}} of what differs; a default that an arm leaves is read from its run.

    hparams.json is what T2T trained with; before the training there is only what the arm says.
    """
    names = list(dict.fromkeys(name for arm in arms for name in arm["changes"]))
    found = {}
    for arm in arms:
        defaults = {}
        for run in arm["runs"]:
            defaults |= files.read_json(
                os.path.join(path, run["directory"], "model", "hparams.json"))
        found[arm["name"]] = {name: arm["changes"].get(name, defaults.get(name))
                              for name in names}
    varying = [name for name in names
               if len({json.dumps(settings[name]) for settings in found.values()}) > 1]
    return {arm: {name: settings[name] for name in varying} for arm, settings in found.items()}


def _read_run(path, directory, seed=None):
    """A `Trained`, without its scores."""
    at = run_directory.Directory(os.path.join(path, directory), "")
    if seed is None:
        seed = config.load_run(at.config).seed
    scores, status = files.read_json(at.scores), files.read_json(at.status)
    events = metrics_log.read(at.metrics)
    done = "step" in scores
    run = Trained(directory, seed, "done" if done else run_directory.state(at))
    run.exact = scores.get("exact")
    evaluated = [event.get("loss") for event in events if event["event"] == "eval"]
    run.loss = evaluated[-1] if evaluated else None
    if not done:
        run.note = _note(run.state, status, events)
    run.parameters = next((event["parameters"] for event in events if event["event"] == "start"),
                          None)
    speeds = [event["steps_per_second"] for event in events if event["event"] == "train"]
    if speeds:
        run.steps_per_second = round(statistics.median(speeds), 3)
    if "seconds" in status.get("train", {}):
        run.train_minutes = round(status["train"]["seconds"] / 60, 2)
    return run


def _note(state, status, events):
    """How far an unfinished run is, or why it failed, in a line."""
    for stage, entry in status.items():
        if state == "failed" and entry["state"] == "failed":
            reason = entry.get("reason", "").strip().splitlines()
            return f"{stage}: {reason[-1] if reason else 'exit code ' + str(entry.get('code'))}"
    if not status:
        return ""
    stage = list(status)[-1]
    step = next((event["step"] for event in reversed(events) if event["event"] == "train"), 0)
    return f"train, step {step:,}" if stage == "train" else stage


def _summarise_training(arm):
    runs = arm.done or arm.runs
    arm.parameters = next((run.parameters for run in runs if run.parameters), None)
    for name, digits in (("steps_per_second", 3), ("train_minutes", 2), ("exact", 2),
                         ("loss", 4)):
        values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        if values:
            setattr(arm, name, round(statistics.fmean(values), digits))


def score(record, path):
    """Fills in everything that compares translations; runs that are not done get no scores.

    Args:
      record: of `read`.
      path: as there.

    Raises:
      UserError: runs that were scored on different text, or text that is missing.
    """
    places = {run.path: where(path, run) for arm in record.arms for run in arm.done}
    if not places:
        return
    configured = {name: config.load_run(at.config) for name, at in places.items()}
    for arm in record.arms:
        arm.steps = next((configured[run.path].train_steps for run in arm.done), None)
    source, references = _same_text(configured, places)
    one = next(iter(configured.values()))
    systems = {name: test_sets.read_lines(at.hypotheses) for name, at in places.items()}
    for name, lines in systems.items():
        if len(lines) != len(source):
            raise UserError(f"{places[name].hypotheses} has {len(lines):,} lines, its source has "
                            f"{len(source):,}")
    record.sentences = len(source)
    counts, record.length_unit = length_buckets.of(source, places.values())
    record.buckets = length_buckets.buckets(counts)
    longest = {files.read_json(at.file("model", "hparams.json")).get("max_length")
               for at in places.values()}
    if record.length_unit == "sub-words" and len(longest) == 1:
        record.trained_length = longest.pop()
    count = 0
    with Task("bootstrap", len(METRICS) * len(systems), "scores") as task:
        for metric in METRICS:
            scorer = significance.Scorer(metric, references, one.test_set, one.language_pair)
            resampled = {}
            for arm in record.arms:
                by_length = []
                for run in arm.done:
                    counted = scorer.statistics(systems[run.path])
                    setattr(run, metric, scorer.score(counted))
                    resampled.setdefault(arm.name, []).append(scorer.resampled(counted))
                    by_length.append([scorer.score(counted[bucket.holds(counts)])
                                      for bucket in record.buckets])
                    count += 1
                    task.update(count)
                if arm.done:
                    setattr(arm, metric, significance.estimate(
                        [getattr(run, metric) for run in arm.done], resampled[arm.name]))
                    if metric == "bleu":
                        arm.bleu_by_length = [statistics.fmean(column) for column
                                              in zip(*by_length, strict=True)]
            _compare(record, metric, resampled)
            record.signatures[scoring.METRICS[metric]] = scorer.signature()


def _compare(record, metric, resampled):
    """Differences from the baseline and their p, for one metric."""
    baseline = next(arm for arm in record.arms if arm.name == record.baseline)
    others = [arm for arm in record.arms if arm is not baseline and arm.done]
    if not baseline.done:
        return
    for arm in others:
        significance.compare(getattr(arm, metric), resampled[arm.name],
                             getattr(baseline, metric), resampled[record.baseline])
    corrected = significance.holm([getattr(arm, metric).p for arm in others])
    for arm, p in zip(others, corrected, strict=True):
        getattr(arm, metric).p_holm = p


def _same_text(configured, places):
    """The source lines and the references {name: lines} that all runs share."""
    (first, run), *others = configured.items()
    if run.test_set:
        for name, other in others:
            if (other.test_set, other.language_pair) != (run.test_set, run.language_pair):
                raise UserError(f"{places[name].path} was scored on other text than {first}")
        return (test_sets.test_set_source(run.test_set, run.language_pair),
                test_sets.test_set_references(run.test_set, run.language_pair))
    lines = test_sets.read_lines(places[first].reference)
    for name, other in others:
        if other.test_set or test_sets.read_lines(places[name].reference) != lines:
            raise UserError(f"{places[name].path} was scored on other text than {first}")
    return test_sets.read_lines(places[first].source), {places[first].reference: lines}
