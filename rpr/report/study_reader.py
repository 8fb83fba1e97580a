"""Reads a study, or a directory of runs, into `StudyResults`; `comparison` adds the scores."""
import datetime
import math
import os
import statistics
from typing import Any

from rpr.evaluation import ALL_METRICS
from rpr.evaluation.metrics import METRICS
from rpr.experiments import gin_files, run_directory
from rpr.experiments.run_directory import RunDirectory
from rpr.report.results import ArmResult, RunResult, StudyResults, unique
from rpr.utils import files, metrics_log
from rpr.utils.errors import InvalidPath, InvalidValue, UserError

MOST_RECORDS = 200                                    # training records of a run, for its curve

_STUDY = {"baseline": str, "length_buckets?": [int],
          "arms": [{"name": str, "changes": dict, "paper_bleu": (float, None),
                    "runs": [{"seed": int, "directory": str}]}]}
_REMEDY = "rpr study with the same gin file writes it again"
_CHECKS = {"checks": [{"check": str, "side": str, "problem": str, "note": str}]}
_CORPUS = {"sources": {"*": {"path?": str, "lines?": int, "sha256": str}}}


def read_study(path: str, baseline: str | None = None, against: str | None = None
               ) -> StudyResults:
    """Reads the arms and runs of a study, or all runs in a directory, without their scores.

    Args:
      path: a study's directory, or a directory of run directories; there each run is an arm.
      baseline: name of an arm; None: the study's own baseline.
      against: directory of a finished run elsewhere, which becomes an arm and the baseline.

    Returns:
      Results without scores, see `comparison.score_runs`.

    Raises:
      UserError: there is no run, or no arm of that name.
    """
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such directory")
    environments: list[dict[str, Any]] = []
    arms, study_baseline = _read_arms(path, environments)
    if against:
        other = _read_other_run(path, against, environments)
        if any(arm.name == other.name for arm in arms):
            other.name = os.path.abspath(against)
        arms.insert(0, other)
        baseline = other.name
    names = [arm.name for arm in arms]
    baseline = baseline or study_baseline
    if baseline is None:
        raise InvalidValue("baseline", None, f"one of {', '.join(names)}")
    if baseline not in names:
        raise InvalidValue("baseline", baseline, f"one of {', '.join(names)}")
    if not study_baseline:
        arms.sort(key=lambda arm: arm.name != baseline)
    results = StudyResults(os.path.basename(os.path.abspath(path)), baseline,
                           environments=environments, arms=arms)
    results.length_buckets = files.read_json(os.path.join(path, "study.json"), _STUDY, _REMEDY
                                             ).get("length_buckets", [])
    _describe_study(results, path)
    for arm in arms:
        _average_training(arm)
    fill_speeds(results)
    return results


def fill_speeds(results: StudyResults) -> None:
    """Fills in the speeds relative to the baseline's, for arms that ran on the same machines."""
    def machines(arm: ArmResult) -> list[str]:
        found = [results.environments[run.environment] for run in arm.runs
                 if run.environment is not None]
        names = sorted(str([record.get(name) for name in ("cpu", "cores", "gpus")])
                       for record in found)
        return names[:1] if len(set(names)) == 1 else names

    speed = results.baseline_arm.steps_per_second
    for arm in results.arms:
        arm.relative_speed = None
        if arm.steps_per_second and speed and machines(arm) == machines(results.baseline_arm):
            arm.relative_speed = round(arm.steps_per_second / speed, 4)


def run_directory_of(study_dir: str, run: RunResult) -> RunDirectory:
    """The directory of a run of the study (or directory of runs) at `study_dir`."""
    return RunDirectory(os.path.join(study_dir, run.path))


def _read_arms(path: str, environments: list[dict[str, Any]]
               ) -> tuple[list[ArmResult], str | None]:
    """The arms without scores, and the name of the study's baseline, if it is a study."""
    study = files.read_json(os.path.join(path, "study.json"), _STUDY, _REMEDY)
    if not study:
        names = [name for name in sorted(os.listdir(path))
                 if os.path.exists(os.path.join(path, name, gin_files.RUN_FILE))]
        if not names:
            raise UserError(f"{path}: neither a study (study.json) nor a directory of runs (each "
                            f"with a {gin_files.RUN_FILE})")
        return [ArmResult(name, {}, None, [_read_run(path, name, environments)])
                for name in names], None
    try:
        unique((arm["name"] for arm in study["arms"]), "an arm is called")
        unique((run["directory"] for arm in study["arms"] for run in arm["runs"]), "a run lies in")
    except ValueError as error:
        raise UserError(f"{os.path.join(path, 'study.json')} is damaged: {error}; {_REMEDY}"
                        ) from None
    for arm in study["arms"]:
        for run in arm["runs"]:
            files.below(path, run["directory"])
    settings = _varying_settings(study["arms"], path)
    return [ArmResult(arm["name"], settings[arm["name"]], arm["paper_bleu"],
                      [_read_run(path, run["directory"], environments, run["seed"])
                       for run in arm["runs"]])
            for arm in study["arms"]], study["baseline"]


def _read_other_run(path: str, run_path: str, environments: list[dict[str, Any]]) -> ArmResult:
    """A run outside the study, as an arm without settings."""
    if not os.path.exists(os.path.join(run_path, gin_files.RUN_FILE)):
        raise InvalidPath(run_path, f"there is no run in it (no {gin_files.RUN_FILE})")
    run = _read_run(path, os.path.relpath(run_path, path), environments)
    if run.state != "done":
        raise InvalidPath(run_path, f"the run is not done ({run.state})")
    return ArmResult(os.path.relpath(run_path), {}, None, [run])


def _varying_settings(arms: list[dict[str, Any]], path: str) -> dict[str, dict[str, Any]]:
    """{arm: {setting: value}} of the settings that differ between arms.

    A setting that an arm does not change has its default, read from the hparams.json of its run;
    before training, from that of an arm which leaves the setting alone too. It is None where the
    arm's position scheme does not use it.
    """
    names = list(dict.fromkeys(name for arm in arms for name in arm["changes"]))
    trained = {arm["name"]: _hparams(arm, path) for arm in arms}
    same_set = not {"hparams_set", "hparams"} & set(names)
    defaults = {name: value for arm in arms if same_set
                for name, value in trained[arm["name"]].items() if name not in arm["changes"]}
    values, positions = {}, {}
    for arm in arms:
        hparams = (trained[arm["name"]] or defaults) | arm["changes"]
        values[arm["name"]] = {name: hparams.get(name) for name in names}
        positions[arm["name"]] = _positions(hparams)
    if len(set(positions.values())) > 1:
        _clear_unused(values, positions)
    varying = [name for name in names
               if len({repr(settings[name]) for settings in values.values()}) > 1]
    return {arm: {name: settings[name] for name in varying} for arm, settings in values.items()}


def _hparams(arm: dict[str, Any], path: str) -> dict[str, Any]:
    """The hparams with which the first run of an arm that has begun was trained, else {}."""
    for run in arm["runs"]:
        run_dir = os.path.join(path, run["directory"])
        file = os.path.join(run_dir, "model", "hparams.json")
        # A report must not show what a link leads to.
        hparams = files.read_json(file) if files.is_below(run_dir, file) else {}
        if hparams:
            return hparams
    return {}


def _positions(hparams: dict[str, Any]) -> tuple[str, ...]:
    """The position schemes of encoder, decoder, and the attention from one to the other."""
    default = hparams.get("position", "")
    return (str(hparams.get("encoder_position") or default),
            str(hparams.get("decoder_position") or default),
            str(hparams.get("cross_position") or "none"))


def _clear_unused(values: dict[str, dict[str, Any]], positions: dict[str, tuple[str, ...]]
                  ) -> None:
    """Sets settings to None in arms whose position schemes do not use them.

    A scheme of the user's own is not loaded here: its settings begin with its name.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Here, as it imports TensorFlow, which most reports do not need.
    from rpr.positions.registry import SCHEMES, names_in, unused_settings
    schemes = {arm: set().union(*map(names_in, sides)) for arm, sides in positions.items()}
    own = set().union(*schemes.values()) - set(SCHEMES)
    for arm, settings in values.items():
        unused = set.intersection(*map(unused_settings, positions[arm]))
        others = tuple(f"{name}_" for name in own - schemes[arm])
        for name in settings:
            if name in unused or name.startswith(others):
                settings[name] = None


def _describe_study(results: StudyResults, path: str) -> None:
    """Fills in what the study is about: problem, corpus, date and gin file."""
    run_dirs = [run_directory_of(path, run) for arm in results.arms for run in arm.runs]
    problems = set()
    dates = []
    for run_dir in run_dirs:
        if os.path.exists(run_dir.config):
            problems.add(gin_files.load_run(run_dir.config).problem)
        started = run_dir.read_status().get("score", {}).get("started")
        if started:
            try:
                dates.append(datetime.datetime.fromtimestamp(started, datetime.UTC))
            except (OverflowError, OSError, ValueError):
                raise UserError(f"{run_dir.status} is damaged: score.started is {started}, which "
                                "is not a valid time; remove it") from None
        if not results.corpus:
            results.corpus = files.read_json(run_dir.data, _CORPUS).get("sources", {})
    if len(problems) == 1:
        results.problem = problems.pop()
    results.date = f"{max(dates):%Y-%m-%d}" if dates else ""
    results.checks = files.read_json(os.path.join(path, "checks.json"), _CHECKS).get("checks", [])
    study_gin = os.path.join(path, "study.gin")
    if os.path.isfile(study_gin) and not os.path.islink(study_gin):
        with open(study_gin, encoding="utf-8", errors="replace") as text:
            results.study_gin = text.read()


def _read_run(study_dir: str, path: str, environments: list[dict[str, Any]],
              seed: int | None = None) -> RunResult:
    """A run without its scores; its seed is read from its configuration if not given.

    Its environment is appended to `environments` unless it is among them.
    """
    run_dir = RunDirectory(os.path.join(study_dir, path), "")
    run_dir.refuse_links()
    if seed is None:
        seed = gin_files.load_run(run_dir.config).seed
    scores, status = run_dir.read_scores(), run_dir.read_status()
    events = metrics_log.read(run_dir.metrics, MOST_RECORDS)
    done = "step" in scores
    run = RunResult(path, seed, "done" if done else run_directory.state(run_dir))
    run.steps, run.exact = scores.get("step"), scores.get("exact")
    if done:
        run.bleu = scores.get("bleu", {}).get("score")
        run.scores = {name: scores[name]["score"] for name in ALL_METRICS
                      if name in scores and name not in METRICS}
    run.seconds = {stage: entry["seconds"] for stage, entry in status.items()
                   if "seconds" in entry}
    _read_metrics(run, events)
    run.dev_bleu = [[step, round(bleu, 3)] for step, bleu in run_dir.read_dev_bleu().items()]
    if not done:
        run.note = _progress_note(run.state, status, events)
    if "train" in run.seconds:
        run.seconds["train"] = round(
            run.seconds["train"] + _earlier_seconds(events, status["train"].get("started", 0)), 1)
        run.train_minutes = round(run.seconds["train"] / 60, 2)
    environment = files.read_json(run_dir.file("environment.json"))
    environment.pop("command", None)                  # it differs in every run
    if environment:
        if environment not in environments:
            environments.append(environment)
        run.environment = environments.index(environment)
    return run


def _read_metrics(run: RunResult, events: list[metrics_log.Event]) -> None:
    """Fills in what metrics.jsonl recorded."""
    for kind, losses in (("train", run.train_losses), ("eval", run.dev_losses)):
        losses += [[event["step"], round(metrics_log.loss_of(event), 5)] for event in events
                   if event["event"] == kind and "step" in event
                   and math.isfinite(metrics_log.loss_of(event))]
    run.loss = run.dev_losses[-1][1] if run.dev_losses else None
    run.parameters = next((event.get("parameters") for event in events
                           if event["event"] == "start"), None)
    speeds = [event["steps_per_second"] for event in events
              if event["event"] == "train" and event.get("steps_per_second")]
    if speeds:
        run.steps_per_second = round(statistics.median(speeds), 3)
    decoded = [event for event in events if event["event"] == "decode"]
    if decoded:
        run.cut = decoded[-1].get("cut")


def _earlier_seconds(events: list[metrics_log.Event], last_started: float) -> float:
    """The time between the events of each attempt to train but the last, in seconds.

    It ends at the checkpoint from which the next attempt went on: later events were dropped.

    Args:
      events: events of the run.
      last_started: when the last attempt began. It has no `start` event if it found the training
        finished.
    """
    seconds, began, latest = 0.0, 0.0, 0.0
    for event in events:
        time = event.get("time") or latest
        if time >= last_started:
            break
        if event["event"] == "start":
            seconds += latest - began
            began = time
        latest = time
    return seconds + latest - began


def _progress_note(state: str, status: dict[str, Any], events: list[metrics_log.Event]) -> str:
    """One line: the stage and step of an unfinished run, or why it failed."""
    for stage, entry in status.items():
        if state == "failed" and entry["state"] == "failed":
            reason = entry.get("reason", "").strip().splitlines()
            return f"{stage}: {reason[-1] if reason else 'exit code ' + str(entry.get('code'))}"
    if not status:
        return ""
    stage = list(status)[-1]
    step = next((event["step"] for event in reversed(events)
                 if event["event"] == "train" and "step" in event), 0)
    return f"train, step {step:,}" if stage == "train" else stage


def _average_training(arm: ArmResult) -> None:
    """Fills in the arm's means over its finished runs, or over all runs while none is done."""
    runs = arm.done or arm.runs
    arm.parameters = next((run.parameters for run in runs if run.parameters), None)
    arm.steps = next((run.steps for run in arm.done), None)
    for name, digits in (("steps_per_second", 3), ("train_minutes", 2), ("exact", 2),
                         ("loss", 4)):
        values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        if values:
            setattr(arm, name, round(statistics.fmean(values), digits))
