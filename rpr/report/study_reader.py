"""Reads a study, or a directory of runs, into `StudyResults`; `comparison` adds the scores."""
import dataclasses
import datetime
import math
import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from rpr.evaluation import ALL_METRICS
from rpr.experiments import gin_files, run_directory, studies
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory
from rpr.report.results import DEFAULT_METRICS, ArmResult, RunResult, StudyResults, unique
from rpr.utils import files, metrics_log
from rpr.utils.errors import InvalidPath, InvalidValue, UserError

MOST_RECORDS = 200                                    # training records of a run, for its curve

_STUDY = {"baseline": str, "length_buckets?": [int], "looks?": [int], "margin?": float,
          "arms": [{"name": str, "changes": dict, "paper_bleu": (float, None),
                    "runs": [{"seed": int, "directory": str, "tuned?": dict}]}]}
_REMEDY = "rpr study with the same gin file writes it again"
_CHECKS = {"checks": [{"check": str, "side": str, "problem": str, "note": str}]}
_DATA = {"problem": str, "sources": {"*": {"path?": str, "lines?": int, "sha256": str}}}
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Run)}


def read_study(path: str, baseline: str | None = None, against: str | None = None,
               others: Sequence[str] = (), chosen: Sequence[str] = ()) -> StudyResults:
    """Reads the arms and runs of a study, or all runs in a directory, without their scores.

    Args:
      path: a study's directory, or a directory of run directories; there each run is an arm.
      baseline: name of an arm; None: that of `against`, else of the first study.
      against: directory of a finished run or of a study. Its arms join the others, and the run, or
        the study's baseline, becomes the baseline.
      others: more directories like `path`; their arms join. An arm whose name is taken is called
        "STUDY: ARM".
      chosen: names of arms, or several joined by commas; the others are left out. Empty: all. If
        the baseline is not among them, the first one takes its place; that of `against` stays.

    Raises:
      UserError: there are no runs, a run is listed twice, no arm has a given name, or study.looks
        has fixed other comparisons.
    """
    arms: list[ArmResult] = []
    own_baseline = None
    described = {directory: files.read_json(os.path.join(directory, "study.json"), _STUDY, _REMEDY)
                 for directory in (path, *others, against) if directory is not None}
    for directory, study in described.items():
        if study.get("looks") and (len(described) > 1 or chosen
                                   or baseline not in (None, study["baseline"])):
            raise UserError(f"{directory}: study.looks compares all of its arms, and no others, "
                            f"with {study['baseline']}")
        found, their_baseline = _read_arms(path, directory, study, directory == against)
        _rename(found, directory, {arm.name for arm in arms})
        if directory == against and their_baseline:
            arms, own_baseline = found + arms, their_baseline
        else:
            arms += found
            own_baseline = own_baseline or their_baseline
    try:
        unique((os.path.realpath(os.path.join(path, run.path)) for arm in arms
                for run in arm.all_runs), "the run directory")
    except ValueError as error:
        raise UserError(f"{', '.join(described)}: {error}") from None
    if chosen and against and own_baseline and baseline is None:
        chosen = [*chosen, own_baseline.name]
    arms = _choose(arms, chosen) if chosen else arms
    names = [arm.name for arm in arms]
    if baseline is None and own_baseline:
        baseline = own_baseline.name if own_baseline.name in names else names[0]
    if baseline is None or baseline not in names:
        raise InvalidValue("baseline", baseline, f"one of {', '.join(names)}")
    if not own_baseline:
        arms.sort(key=lambda arm: arm.name != baseline)
    results = StudyResults(" and ".join(os.path.basename(os.path.abspath(directory)) for directory
                                        in dict.fromkeys((path, *others))), baseline, arms=arms)
    results.length_buckets = described[path].get("length_buckets", [])
    results.looks = described[path].get("looks", [])
    results.margin = described[path].get("margin", 0.0)
    _describe_study(results, path)
    _describe_settings(results, path)
    for arm in arms:
        _average_training(arm)
        arm.settings |= arm.runs[0].tuned if arm.runs else {}
    _fill_speeds(results)
    return results


def _fill_speeds(results: StudyResults) -> None:
    """Fills in the speeds relative to the baseline's, for arms that ran on the same machines."""
    def machines(arm: ArmResult) -> list[str]:
        names = sorted(str([results.environments[run.environment].get(name)
                            for name in ("cpu", "cores", "gpus")])
                       for run in arm.runs if run.environment is not None)
        return names[:1] if len(set(names)) == 1 else names

    speed = results.baseline_arm.steps_per_second
    for arm in results.arms:
        if arm.steps_per_second and speed and machines(arm) == machines(results.baseline_arm):
            arm.relative_speed = round(arm.steps_per_second / speed, 4)


def run_directory_of(study_dir: str, run: RunResult) -> RunDirectory:
    """The directory of a run of the study (or directory of runs) at `study_dir`."""
    return RunDirectory(os.path.join(study_dir, run.path))


def _read_arms(root: str, path: str, study: dict[str, Any], is_other: bool
               ) -> tuple[list[ArmResult], ArmResult | None]:
    """The arms of a directory, without scores, and its baseline, if it has one.

    Their settings are what the study changes in each arm. The paths of runs are relative to `root`.
    With `is_other` the directory is that of a study or of a finished run.
    """
    def read(name: str, seed: int | None = None, tuned: dict[str, Any] | None = None) -> RunResult:
        run = _read_run(root, os.path.relpath(os.path.join(path, name), root)
                        if path != root else name, seed)
        return dataclasses.replace(run, tuned=tuned or {})

    if not os.path.isdir(path):
        raise InvalidPath(path, "no such directory")
    if is_other and not study:
        if not os.path.exists(os.path.join(path, gin_files.RUN_FILE)):
            raise InvalidPath(path, f"contains neither a run ({gin_files.RUN_FILE} is missing) "
                              "nor a study (study.json is missing)")
        arm = ArmResult(os.path.relpath(path), {}, None, [read("")])
        _check_done(arm, path)
        return [arm], arm
    if not study:
        names = [name for name in sorted(os.listdir(path))
                 if os.path.exists(os.path.join(path, name, gin_files.RUN_FILE))]
        if not names:
            raise UserError(f"{path}: neither a study (study.json) nor a directory of runs (each "
                            f"with a {gin_files.RUN_FILE})")
        return [ArmResult(name, {}, None, [read(name)]) for name in names], None
    directories = [run["directory"] for arm in study["arms"] for run in arm["runs"]]
    try:
        known = unique((arm["name"] for arm in study["arms"]), "the arm name")
        unique(directories, "the run directory")
        if study["baseline"] not in known:
            raise ValueError(f"no arm is called {study['baseline']!r}")
        for arm in study["arms"]:
            if not arm["runs"]:
                raise ValueError(f"the arm {arm['name']!r} has no runs")
    except ValueError as error:
        raise UserError(f"{os.path.join(path, 'study.json')} is damaged: {error}; {_REMEDY}"
                        ) from None
    for directory in directories:
        files.below(path, directory)
    arms = [ArmResult(arm["name"], arm["changes"], arm["paper_bleu"], [
        read(run["directory"], run["seed"], run.get("tuned")) for run in arm["runs"]])
            for arm in study["arms"]]
    for arm in arms:
        arm.choose_setting()
    baseline = next(arm for arm in arms if arm.name == study["baseline"])
    if is_other:
        _check_done(baseline, path)
    return arms, baseline


def _check_done(arm: ArmResult, path: str) -> None:
    """Refuses to compare with an arm that has no finished run."""
    if not arm.done:
        raise InvalidPath(path, f"the run is not done ({arm.all_runs[0].state})"
                          if len(arm.all_runs) == 1
                          else f"no run of {arm.name}, the baseline, is done")


def _rename(arms: list[ArmResult], path: str, taken: set[str]) -> None:
    """Renames arms whose names are taken by arms of another directory."""
    for arm in arms:
        if arm.name in taken:
            is_run = arm.name == os.path.relpath(path)
            names = [f"{place}: {arm.name}" for place in
                     (os.path.basename(os.path.abspath(path)), os.path.abspath(path))]
            arm.name = os.path.abspath(path) if is_run else next(
                name for name in names if name not in taken)


def _choose(arms: list[ArmResult], chosen: Sequence[str]) -> list[ArmResult]:
    """The arms with these names. Those of a grid contain commas, so a whole text comes first."""
    known = [arm.name for arm in arms]
    names = [name for text in chosen for name in ([text] if text in known else text.split(","))]
    for name in names:
        if name not in known:
            raise InvalidValue("arms", name, f"one of {', '.join(known)}")
    return [arm for arm in arms if arm.name in names]


def _describe_settings(results: StudyResults, path: str) -> None:
    """Fills in the settings that arms change, and the configuration of their runs.

    A setting that an arm does not change has the value that its run recorded; before training,
    that of another arm of the study. It is None where the arm's position scheme does not use it.
    """
    names = results.setting_names
    runs, recorded = {}, {}
    for arm in results.arms:
        run, hparams = _recorded(arm, path)
        recorded[arm.name] = hparams | (dataclasses.asdict(run) if run else {})
        if run:
            runs[arm.name] = run
    is_known = _DEFAULTS.keys() if {"hparams_set", "hparams"} & set(names) else None
    own = [arm for arm in results.arms if not arm.all_runs[0].path.startswith(os.pardir)]
    defaults = {name: value for arm in own for name, value in recorded[arm.name].items()
                if name not in arm.settings and (is_known is None or name in is_known)}
    values, positions = {}, {}
    for arm in results.arms:
        resolved = (defaults if arm in own else {}) | recorded[arm.name] | arm.settings
        values[arm.name] = {name: resolved.get(name) for name in names}
        positions[arm.name] = _positions(resolved)
    if len(set(positions.values())) > 1:
        _clear_unused(values, positions)
    varying = [name for name in names
               if len({repr(settings[name]) for settings in values.values()}) > 1]
    for arm in results.arms:
        arm.settings = {name: values[arm.name][name] for name in varying}
    _describe_configurations(results, runs, recorded)


def _describe_configurations(results: StudyResults, runs: dict[str, Run],
                             recorded: dict[str, dict[str, Any]]) -> None:
    """Fills in the settings of all runs: those that are shared, and those that are not, by arm."""
    names = dict.fromkeys(name for name in _DEFAULTS if name not in ("seed", "hparams"))
    names |= dict.fromkeys(name for run in runs.values()
                           for name in studies.hparam_values(run.hparams))
    for name in names:
        values = {arm: ", ".join(value) if isinstance(value := recorded[arm].get(name), tuple)
                  else value for arm in runs}
        if len({repr(value) for value in values.values()}) > 1:
            for arm in results.arms:
                if arm.name in values:
                    arm.configuration[name] = values[arm.name]
        elif values and (value := next(iter(values.values()))) not in ("", None) and (
                value or value != _DEFAULTS.get(name)):
            results.configuration[name] = value


def _recorded(arm: ArmResult, path: str) -> tuple[Run | None, dict[str, Any]]:
    """The configuration and all hparams of the first run of an arm that has them."""
    config: Run | None = None
    hparams: dict[str, Any] = {}
    for run in arm.runs:
        run_dir = run_directory_of(path, run)
        if config is None and os.path.exists(run_dir.config):
            config = gin_files.load_run(run_dir.config)
        file = run_dir.file("model", "hparams.json")
        # A report must not show what a link leads to.
        if not hparams and files.is_below(run_dir.path, file):
            hparams = files.read_json(file)
    return config, hparams


def _positions(hparams: dict[str, Any]) -> tuple[str, ...]:
    """The position schemes of encoder, decoder, and the attention from one to the other."""
    return (*(str(hparams.get(f"{side}_position") or hparams.get("position", ""))
              for side in ("encoder", "decoder")), str(hparams.get("cross_position") or "none"))


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
    """Fills in what the study is about: problem, metrics, corpus, date, environments, gin file."""
    problems, metrics, dates = set(), [], []
    for run in results.all_runs:
        run_dir = run_directory_of(path, run)
        if os.path.exists(run_dir.config):
            config = gin_files.load_run(run_dir.config)
            problems.add(config.problem)
            if run.state == "done":
                metrics.append(config.metrics or DEFAULT_METRICS)
        started = run_dir.read_status().get("score", {}).get("started")
        if started:
            try:
                dates.append(datetime.datetime.fromtimestamp(started, datetime.UTC))
            except (OverflowError, OSError, ValueError):
                raise UserError(f"{run_dir.status} is damaged: score.started is {started}, which "
                                "is not a valid time; remove it") from None
        data = files.read_json(run_dir.data, _DATA)
        for name, source in data.get("sources", {}).items():
            if results.corpus.setdefault(name, source) != source:
                results.corpus[f"{data['problem']}: {name}"] = source
        environment = files.read_json(run_dir.file("environment.json"))
        environment.pop("command", None)              # it differs in every run
        if environment:
            if environment not in results.environments:
                results.environments.append(environment)
            run.environment = results.environments.index(environment)
    results.problem = problems.pop() if len(problems) == 1 else ""
    if metrics:
        results.metrics = list(metrics[0])
    results.date = f"{max(dates):%Y-%m-%d}" if dates else ""
    results.checks = files.read_json(os.path.join(path, "checks.json"), _CHECKS).get("checks", [])
    study_gin = pathlib.Path(path, gin_files.STUDY_FILE)
    if study_gin.is_file() and not study_gin.is_symlink():
        results.study_gin = study_gin.read_text(encoding="utf-8", errors="replace")


def _read_run(study_dir: str, path: str, seed: int | None = None) -> RunResult:
    """A run without its scores; its seed is read from its configuration if not given."""
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
        run.scores = {name: scores[name]["score"] for name in ALL_METRICS if name in scores}
    run.seconds = {stage: entry["seconds"] for stage, entry in status.items() if "seconds" in entry}
    _read_metrics(run, events)
    run.dev_bleu = [[step, round(bleu, 3)] for step, bleu in run_dir.read_dev_bleu().items()]
    if not done:
        run.note = _progress_note(run.state, status, run_dir)
    if "train" in run.seconds:
        run.seconds["train"] = round(
            run.seconds["train"] + _earlier_seconds(events, status["train"].get("started", 0)), 1)
        run.train_minutes = round(run.seconds["train"] / 60, 2)
    return run


def _read_metrics(run: RunResult, events: list[metrics_log.Event]) -> None:
    """Fills in what metrics.jsonl recorded."""
    for kind, losses in (("train", run.train_losses), ("eval", run.dev_losses)):
        losses += [[event["step"], round(loss, 5)] for event in events if event["event"] == kind
                   and "step" in event and math.isfinite(loss := metrics_log.loss_of(event))]
    last = {event["event"]: event for event in events}
    loss = metrics_log.loss_of(last.get("eval", {"event": "eval"}))
    run.loss = round(loss, 5) if math.isfinite(loss) else None
    run.cut = last.get("decode", {}).get("cut")
    run.parameters = next((event.get("parameters") for event in events
                           if event["event"] == "start"), None)
    for name, digits in (("steps_per_second", 3), ("model_tflops", 6), ("mfu", 4)):
        values = [event[name] for event in events if event["event"] == "train" and event.get(name)]
        if values:
            setattr(run, name, round(statistics.median(values), digits))


def _earlier_seconds(events: list[metrics_log.Event], last_started: float) -> float:
    """The time between the events of each attempt to train but the last, in seconds.

    It ends at the checkpoint from which the next attempt went on: later events were dropped. The
    last attempt, begun at `last_started`, has no `start` event if it found the training finished.
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


def _progress_note(state: str, status: dict[str, Any], run_dir: RunDirectory) -> str:
    """One line: the stage and step of an unfinished run, or why it failed."""
    for stage, entry in status.items():
        if state == "failed" and entry["state"] == "failed":
            reason = entry.get("reason", "").strip().splitlines()
            return f"{stage}: {reason[-1] if reason else 'exit code ' + str(entry.get('code'))}"
    stage = run_directory.last_stage(status)
    step = metrics_log.last(run_dir.metrics).get("train", {}).get("step", 0)
    return f"train, step {step:,}" if stage == "train" else stage


def _average_training(arm: ArmResult) -> None:
    """Fills in the arm's means over its finished runs, or over all runs while none is done."""
    runs = arm.done or arm.runs
    arm.parameters = next((run.parameters for run in runs if run.parameters), None)
    arm.steps = next((run.steps for run in arm.done), None)
    for name, digits in (("steps_per_second", 3), ("model_tflops", 6), ("mfu", 4),
                         ("train_minutes", 2), ("exact", 2), ("loss", 4)):
        values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        if values and not (name == "loss" and len(values) < len(arm.done)):    # one diverged
            setattr(arm, name, round(statistics.fmean(values), digits))
