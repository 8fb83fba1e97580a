"""Reads a study, or a directory of runs, into `StudyResults`; `comparison` adds the scores."""
import json
import os
import statistics
from typing import Any

from rpr.experiments import gin_files, run_directory
from rpr.experiments.run_directory import RunDirectory
from rpr.report.results import ArmResult, RunResult, StudyResults
from rpr.utils import files, metrics_log
from rpr.utils.errors import UserError


def read_study(path: str, baseline: str | None = None) -> StudyResults:
    """Reads the arms and runs of a study, or all runs in a directory, without their scores.

    Args:
      path: a study's directory, or a directory of run directories; there each run is an arm.
      baseline: name of an arm; None: the study's own baseline.

    Returns:
      Results without scores, see `comparison.score_runs`.

    Raises:
      UserError: there is no run, or no arm of that name.
    """
    arms, study_baseline = _read_arms(path)
    names = [arm.name for arm in arms]
    baseline = baseline or study_baseline
    if baseline is None:
        raise UserError(f"--baseline is missing: one of {', '.join(names)}")
    if baseline not in names:
        raise UserError(f"--baseline={baseline}: one of {', '.join(names)}")
    if not study_baseline:
        arms.sort(key=lambda arm: arm.name != baseline)
    results = StudyResults(os.path.basename(os.path.abspath(path)), baseline, arms=arms)
    for arm in arms:
        _average_training(arm)
    speed = results.baseline_arm.steps_per_second
    for arm in arms:
        if arm.steps_per_second and speed:
            arm.relative_speed = round(arm.steps_per_second / speed, 4)
    return results


def run_directory_of(study_dir: str, run: RunResult) -> RunDirectory:
    """The directory of a run of the study (or directory of runs) at `study_dir`."""
    return RunDirectory(os.path.join(study_dir, run.path), os.path.join(study_dir, "data"))


def _read_arms(path: str) -> tuple[list[ArmResult], str | None]:
    """The arms without scores, and the name of the study's baseline, if it is a study."""
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
        return [ArmResult(name, {}, None, [_read_run(path, name)]) for name in names], None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}/study.json: {error}") from None
    settings = _varying_settings(study["arms"], path)
    return [ArmResult(arm["name"], settings[arm["name"]], arm["paper_bleu"],
                      [_read_run(path, run["directory"], run["seed"]) for run in arm["runs"]])
            for arm in study["arms"]], study["baseline"]


def _varying_settings(arms: list[dict[str, Any]], path: str) -> dict[str, dict[str, Any]]:
    """{arm: {setting: value}} of the settings that differ between arms.

    A setting that an arm does not change has its default, read from the hparams.json of its run;
    before training only the changes are known.
    """
    names = list(dict.fromkeys(name for arm in arms for name in arm["changes"]))
    values = {}
    for arm in arms:
        hparams: dict[str, Any] = {}
        for run in arm["runs"]:
            hparams |= files.read_json(
                os.path.join(path, run["directory"], "model", "hparams.json"))
        values[arm["name"]] = {name: arm["changes"].get(name, hparams.get(name)) for name in names}
    varying = [name for name in names
               if len({json.dumps(settings[name]) for settings in values.values()}) > 1]
    return {arm: {name: settings[name] for name in varying} for arm, settings in values.items()}


def _read_run(study_dir: str, path: str, seed: int | None = None) -> RunResult:
    """A run without its scores; its seed is read from its configuration if not given."""
    run_dir = RunDirectory(os.path.join(study_dir, path), "")
    if seed is None:
        seed = gin_files.load_run(run_dir.config).seed
    scores, status = files.read_json(run_dir.scores), files.read_json(run_dir.status)
    events = metrics_log.read(run_dir.metrics)
    done = "step" in scores
    run = RunResult(path, seed, "done" if done else run_directory.state(run_dir))
    run.exact = scores.get("exact")
    losses = [event.get("loss") for event in events if event["event"] == "eval"]
    run.loss = losses[-1] if losses else None
    if not done:
        run.note = _progress_note(run.state, status, events)
    run.parameters = next((event["parameters"] for event in events if event["event"] == "start"),
                          None)
    speeds = [event["steps_per_second"] for event in events if event["event"] == "train"]
    if speeds:
        run.steps_per_second = round(statistics.median(speeds), 3)
    if "seconds" in status.get("train", {}):
        run.train_minutes = round(status["train"]["seconds"] / 60, 2)
    return run


def _progress_note(state: str, status: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """One line: the stage and step of an unfinished run, or why it failed."""
    for stage, entry in status.items():
        if state == "failed" and entry["state"] == "failed":
            reason = entry.get("reason", "").strip().splitlines()
            return f"{stage}: {reason[-1] if reason else 'exit code ' + str(entry.get('code'))}"
    if not status:
        return ""
    stage = list(status)[-1]
    step = next((event["step"] for event in reversed(events) if event["event"] == "train"), 0)
    return f"train, step {step:,}" if stage == "train" else stage


def _average_training(arm: ArmResult) -> None:
    """Fills in the arm's means over its finished runs, or over all runs while none is done."""
    runs = arm.done or arm.runs
    arm.parameters = next((run.parameters for run in runs if run.parameters), None)
    for name, digits in (("steps_per_second", 3), ("train_minutes", 2), ("exact", 2),
                         ("loss", 4)):
        values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
        if values:
            setattr(arm, name, round(statistics.fmean(values), digits))
