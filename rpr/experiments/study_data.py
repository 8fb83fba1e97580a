"""Data generation of a study: once per problem, before its runs, with a record of its state.

    STUDY/datagen.json    {"problem", "state": "running"|"done"|"failed", "started", "reason"}
"""
import json
import os
import time
from typing import Any

from rpr.experiments import provenance
from rpr.experiments import run as experiment
from rpr.experiments.run_directory import data_record, stages
from rpr.experiments.study import StudyRun
from rpr.utils import files, locks
from rpr.utils.console import say
from rpr.utils.errors import UserError

_SCHEMA = {"problem": str, "state": ("running", "done", "failed"), "started": float,
           "reason": str}


def make_data(runs: list[StudyRun], study_dir: str) -> None:
    """Runs `rpr datagen` once for each problem of the runs; it leaves finished data alone.

    Raises:
      UserError: it failed.
    """
    if not runs:
        return
    with locks.lock(_lock(study_dir)):
        for study_run in {study_run.run.problem: study_run for study_run in runs}.values():
            _make_data(study_run, study_dir)


def without_test_text(runs: list[StudyRun]) -> list[StudyRun]:
    """The finished runs that were copied without their test text."""
    return [study_run for study_run in runs if study_run.state() == "done"
            and experiment.lacks_test_text(study_run.run, study_run.run_dir)]


def restore_test_texts(runs: list[StudyRun]) -> None:
    """Copies the test text to finished runs, from data that has been made.

    Raises:
      UserError: a run was made from other text.
    """
    for study_run in runs:
        provenance.check_corpus(study_run.run, study_run.run_dir)
        experiment.copy_test_texts(study_run.run, study_run.run_dir)


def _make_data(study_run: StudyRun, study_dir: str) -> None:
    run, run_dir = study_run.run, study_run.run_dir
    record = {"problem": run.problem, "state": "running", "started": time.time(), "reason": ""}
    _write(study_dir, record)
    say(f"{run_dir.data_dir}: data of {run.problem}", style="bold")
    os.makedirs(run_dir.data_dir, exist_ok=True)
    code, reason = experiment.run_stage(next(stages(run, run_dir)), run)
    _write(study_dir, {**record, "state": "failed" if code else "done", "reason": reason})
    if code:
        raise UserError(f"{run_dir.data_dir}: data generation of {run.problem} failed"
                        + ("" if reason else f" with exit code {code}"))


def _write(study_dir: str, record: dict[str, Any]) -> None:
    files.write_atomically(os.path.join(study_dir, "datagen.json"),
                           json.dumps(record, indent=1) + "\n")


def _lock(study_dir: str) -> str:
    return os.path.join(study_dir, ".datagen.lock")


def data_line(runs: list[StudyRun], study_dir: str) -> str:
    """One line about data generation that is going on, was stopped or failed, else ""."""
    record = files.read_json(os.path.join(study_dir, "datagen.json"), _SCHEMA)
    if record.get("state") == "failed":
        return f"data of {record['problem']}: failed: {record['reason']}"
    if record.get("state") == "running":
        if not locks.is_held(_lock(study_dir)):
            made = {study_run.run.problem for study_run in runs
                    if os.path.exists(data_record(study_run.run, study_run.run_dir.data_dir))}
            # By now a run of the study may have made the data itself.
            return "" if record["problem"] in made else f"data of {record['problem']}: stopped"
        minutes = (time.time() - record["started"]) / 60
        return f"data of {record['problem']}: begun {minutes:.0f} min ago"
    return ""
