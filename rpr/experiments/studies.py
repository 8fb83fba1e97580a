"""A study: arms that differ in some settings of a run, each trained with several seeds.

    STUDY/study.gin      the resolved study
    STUDY/study.json     {"baseline": NAME, "length_buckets": [], "arms": [{"name", "changes",
                         "paper_bleu", "runs": [{"seed", "directory", "tuned"}]}]}, directories
                         relative to STUDY; "tuned" is what a run tries of study.tune; with
                         study.looks also "looks" and "margin", and the runs needed so far
    STUDY/datagen.json   state of the data generation
    STUDY/data/          vocabulary and TFRecords, shared by the runs
    STUDY/runs/NAME/     a run; NAME ends in a hash of its configuration

Since a run is named by its configuration, another arm or seed adds runs and repeats none.
"""
import contextlib
import dataclasses
import glob
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Hashable, Iterable
from typing import Any

from rpr.experiments import gin_files, pipeline, provenance, run_directory, sharing
from rpr.experiments.config import MUTABLE_FIELDS, Run, Study
from rpr.experiments.run_directory import data_record, stages
from rpr.utils import files, locks
from rpr.utils.console import say
from rpr.utils.errors import InvalidPath, UserError

_FIELDS = {field.name for field in dataclasses.fields(Run)}
_DATAGEN, _DATAGEN_LOCK = "datagen.json", ".datagen.lock"
_SMOKE_STEPS = 5                                      # between checkpoints
_BETWEEN = re.compile(r",(?![^\[]*\])")             # the pairs of NAME=VALUE,NAME=[VALUE,VALUE]
_LONGEST_SLUG = 100                                   # characters; a file name has at most 255
_SCHEMA = {"problem": str, "state": ("running", "done", "failed"), "started": float,
           "reason": str}

Trainings = dict[Hashable, list[tuple[Run, run_directory.RunDirectory]]]


class StudyRun:
    """One run of a study: what its arm changes, and what it tries of `study.tune` (`tuned`)."""

    def __init__(self, study_dir: str, arm: str, changes: dict[str, Any], run: Run,
                 tuned: dict[str, Any]) -> None:
        self.study_dir, self.arm, self.changes, self.run = study_dir, arm, changes, run
        self.tuned = tuned
        self.name = run_id(arm, run)
        self.directory = os.path.join("runs", self.name)
        self.run_dir = run_directory.RunDirectory(os.path.join(study_dir, self.directory),
                                                  os.path.join(study_dir, "data"))
        self.log = self.run_dir.file("run.log")

    def state(self) -> str:
        """"done", "running" (its lock is held), "failed", or "waiting"."""
        return run_directory.state(self.run_dir)


def resolve(run: Run, changes: dict[str, Any], seed: int) -> Run:
    """The run of an arm: a base run with {field of `Run` or else hparam: value}, and a seed."""
    fields = {name: value for name, value in changes.items() if name in _FIELDS}
    own = {name: value if isinstance(value, str) else            # T2T's lists have brackets
           str(list(value) if isinstance(value, tuple) else value).replace(" ", "")
           for name, value in changes.items() if name not in _FIELDS}
    if own or "hparams" not in fields:
        hparams = hparam_values(fields.get("hparams", run.hparams))
        fields["hparams"] = ",".join(f"{name}={value}"
                                     for name, value in sorted((hparams | own).items()))
    return dataclasses.replace(run, **fields, seed=seed)


def _run_of(arm: str, run: Run, changes: dict[str, Any], seed: int) -> Run:
    """The run of an arm, see `resolve`; an error names the arm."""
    try:
        return resolve(run, changes, seed)
    except UserError as error:
        raise UserError(f"study: arm {arm!r}: {error}") from None


def hparam_values(hparams: str) -> dict[str, str]:
    """{name: value} of NAME=VALUE,NAME=[VALUE,VALUE]."""
    pairs = (pair.split("=", 1) for pair in _BETWEEN.split(hparams) if "=" in pair)
    return {name.strip(): value for name, value in pairs}


def run_id(arm: str, run: Run) -> str:
    """The name of a run's directory: arm, seed, hash of the settings that identify the run."""
    digest = hashlib.sha256(json.dumps(run.identity(), sort_keys=True).encode()).hexdigest()[:6]
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", arm)[:_LONGEST_SLUG].lstrip(".")
    return f"{slug}-{run.seed}-{digest}"


def study_runs(study: Study, run: Run, study_dir: str) -> list[StudyRun]:
    """The runs of a study, all arms of the first seed first; refuses arms that are the same run."""
    texts = {"run.hparams": run.hparams}
    texts |= {f"study: hparams of arm {arm!r}": changes["hparams"]
              for arm, changes in study.changes().items() if "hparams" in changes}
    for name, text in texts.items():
        malformed = [pair for pair in _BETWEEN.split(text) if pair.strip() and "=" not in pair]
        if malformed:
            raise UserError(f"{name}: {malformed[0]!r} is not NAME=VALUE")
    runs = [StudyRun(study_dir, arm, changes, _run_of(arm, run, changes | tuned, seed), tuned)
            for seed in study.seeds for arm, changes in study.changes().items()
            for tuned in study.tuned()]
    arms: dict[Run | str, StudyRun] = {}
    for study_run in runs:
        for key in (study_run.run, study_run.directory):     # a directory is one run's
            same = arms.setdefault(key, study_run)
            if same.arm != study_run.arm:
                raise UserError(f"study: arms {same.arm!r} and {study_run.arm!r} are the same run")
            if same is not study_run:
                raise UserError(f"study.tune: {same.tuned} and {study_run.tuned} are the same run")
    return runs


def shortened(study: Study, run: Run) -> tuple[Study, Run]:
    """A study that goes through all stages of all arms in little time, with one seed.

    Arms that differ only in what is shortened are left out. Test sets of sacreBLEU are too.
    """
    most = max(_run_of(arm, run, changes, 0).average_checkpoints
               for arm, changes in study.changes().items())
    steps = _SMOKE_STEPS * max(most, 4)
    fixed: dict[str, Any] = {
        "checkpoint_steps": _SMOKE_STEPS, "train_steps": steps, "eval_frequency": steps,
        "eval_steps": 1, "bleu_frequency": 0, "test_set": "",
        "test_sets": tuple(name for name in run.test_sets if ":" not in name)}
    arms: dict[Run, str] = {}
    short = dataclasses.replace(run, **fixed)
    changes = {arm: {name: value for name, value in settings.items() if name not in fixed}
               for arm, settings in study.changes().items()}
    for arm in sorted(changes, key=lambda arm: arm != study.baseline):
        arms.setdefault(_run_of(arm, short, changes[arm], study.seeds[0]), arm)
    kept = {arm: changes[arm] for arm in changes if arm in arms.values()}
    return Study(study.baseline, arms=kept, seeds=study.seeds[:1], tune=study.tune), short


def cut_test_texts(runs: list[StudyRun], lines: int) -> None:
    """Gives each run the first lines of the problem's test sets only; the data has been made."""
    for study_run in runs:
        run, run_dir = study_run.run, study_run.run_dir
        pipeline.copy_test_texts(run, run_dir)
        for name in ("test", *run.test_sets):
            for path in (*run_dir.test_files(name)[:2], run_dir.documents_file(name)):
                if os.path.exists(path):
                    with open(path, "rb") as text:
                        files.write_atomically(path, b"".join(itertools.islice(text, lines)))


def prepare(study: Study, run: Run, study_dir: str, needed: list[StudyRun] | None = None
            ) -> list[StudyRun]:
    """Writes the files that describe the study; returns its runs.

    `needed` are those that `study.looks` needs so far; None: all. Refuses a directory that holds a
    study of another base run, which has begun.
    """
    runs = study_runs(study, run, study_dir) if needed is None else needed
    os.makedirs(study_dir, exist_ok=True)
    with locks.lock(os.path.join(study_dir, ".lock")):
        files.remove_temporary_files(study_dir)
        check(run, runs, study_dir)                   # before anything is written
        files.write_atomically(os.path.join(study_dir, gin_files.STUDY_FILE),
                               gin_files.as_gin(run) + gin_files.as_gin(study))
        files.write_json(os.path.join(study_dir, "study.json"), _record(study, runs))
        for study_run in runs:
            os.makedirs(study_run.run_dir.path, exist_ok=True)
            # A run under way would not notice another test set, and yet end as done.
            if not locks.is_held(study_run.run_dir.lock):
                pipeline.update_config(study_run.run, study_run.run_dir)
    return runs


def check(run: Run, runs: list[StudyRun], study_dir: str) -> None:
    """Refuses a base run and runs that cannot go on in a directory."""
    if is_study(study_dir) and _has_begun(study_dir):
        there = gin_files.load_study(os.path.join(study_dir, gin_files.STUDY_FILE))[1]
        sharing.refuse_another(run, there, study_dir)
        if run.train_steps > there.train_steps:
            _check_more_steps(runs, study_dir)
    for study_run in runs:
        run_dir = study_run.run_dir
        run_directory.new_test_sets(study_run.run, run_dir)
        if os.path.exists(run_dir.config) and run_dir.is_trained():
            different = sharing.differences(study_run.run, gin_files.load_run(run_dir.config),
                                            MUTABLE_FIELDS)
            if different:                             # `rpr run` gave it more steps
                raise UserError(f"{run_dir.path} holds another run: {different}; move it out of "
                                "the study's directory; the study then trains its own")


def trainings(study_dir: str) -> Trainings:
    """{what `sharing.training` gives: runs} of all runs on disk, with the most steps first."""
    found: Trainings = {}
    data_dir = os.path.join(study_dir, "data")
    for path in glob.glob(os.path.join(glob.escape(study_dir), "runs", "*", gin_files.RUN_FILE)):
        run = gin_files.load_run(path)
        found.setdefault(sharing.training(run), []).append(
            (run, run_directory.RunDirectory(os.path.dirname(path), data_dir)))
    for same in found.values():
        same.sort(key=lambda pair: -pair[0].train_steps)
    return found


def sources(study_run: StudyRun, on_disk: Trainings
            ) -> list[tuple[Run, run_directory.RunDirectory]]:
    """The other runs of `trainings` with which a run can begin, those with the most steps first."""
    run, run_dir = study_run.run, study_run.run_dir
    return [(there, other) for there, other in on_disk.get(sharing.training(run), [])
            if other.path != run_dir.path and not sharing.obstacle(run, there, other)]


def _check_more_steps(runs: list[StudyRun], study_dir: str) -> None:
    """Refuses more steps for runs whose trainings so far cannot go on to them."""
    known = trainings(study_dir)
    for study_run in runs:
        for there, run_dir in known.get(sharing.training(study_run.run), []):
            if there.train_steps < study_run.run.train_steps and run_dir.is_trained():
                problem = sharing.more_steps_obstacle(run_dir)
                if problem:
                    raise UserError(f"run.train_steps = {study_run.run.train_steps}: "
                                    f"{run_dir.path} cannot go on from {there.train_steps} steps: "
                                    f"{problem}; take another study directory")


def _has_begun(study_dir: str) -> bool:
    """Whether a run of the study in a directory has begun."""
    return bool(glob.glob(os.path.join(glob.escape(study_dir), "runs", "*", "status.json")))


def _record(study: Study, runs: list[StudyRun]) -> dict[str, Any]:
    entries: dict[str, list[dict[str, Any]]] = {}
    for study_run in runs:
        entries.setdefault(study_run.arm, []).append(
            {"seed": study_run.run.seed, "directory": study_run.directory,
             **({"tuned": study_run.tuned} if study_run.tuned else {})})
    looks = {"looks": study.looks, "margin": study.margin} if study.looks else {}
    return {"baseline": study.baseline, "length_buckets": study.length_buckets, **looks, "arms": [
        {"name": arm, "changes": changes, "paper_bleu": study.paper_bleu.get(arm),
         "runs": entries[arm]} for arm, changes in study.changes().items()]}


def discard(runs: list[StudyRun], study_dir: str) -> None:
    """Removes a new study again, unless a run has begun or a part of its data was generated."""
    if _has_begun(study_dir):                         # finished runs were copied into it
        return
    data_dir = os.path.join(study_dir, "data")
    traces = [path for names in (".*.lock", "*.log")
              for path in glob.glob(os.path.join(glob.escape(data_dir), names))]
    if os.path.isdir(data_dir) and not set(os.listdir(data_dir)) <= {
            "download", *map(os.path.basename, traces)}:
        return
    files.remove(*traces, *(study_run.run_dir.config for study_run in runs),
                 *(os.path.join(study_dir, name) for name in (
                     gin_files.STUDY_FILE, "study.json", ".lock", _DATAGEN, _DATAGEN_LOCK)))
    shared = os.path.join(study_dir.removesuffix("-smoke"), "data")
    if os.path.islink(data_dir) and os.readlink(data_dir) == os.path.relpath(shared, study_dir):
        os.unlink(data_dir)                           # of a smoke test
        data_dir = shared
    for directory in (*(study_run.run_dir.path for study_run in runs),
                      os.path.join(study_dir, "runs"), os.path.join(data_dir, "download"), data_dir,
                      os.path.dirname(data_dir), study_dir):
        with contextlib.suppress(OSError):            # what is not empty stays
            os.rmdir(directory)


def is_study(study_dir: str) -> bool:
    """Whether a directory holds a study."""
    return os.path.exists(os.path.join(study_dir, gin_files.STUDY_FILE))


def load(study_dir: str) -> list[StudyRun]:
    """The runs of the study in a directory; with `study.looks`, those that it needs so far."""
    if not is_study(study_dir):
        raise InvalidPath(study_dir, "contains no study "
                          f"({gin_files.STUDY_FILE} is missing)")
    path = os.path.join(study_dir, gin_files.STUDY_FILE)
    study, run = gin_files.load_study(path)
    always = study.seeds[:study.looks[0]] if study.looks else study.seeds
    return [study_run for study_run in study_runs(study, run, study_dir)
            if study_run.run.seed in always or os.path.exists(study_run.run_dir.config)]


def runs_outside(study_dir: str, directories: Iterable[str]) -> list[str]:
    """The runs on disk that are not among `directories`; all relative to `study_dir`."""
    found = glob.glob(os.path.join("runs", "*", gin_files.RUN_FILE), root_dir=study_dir)
    return sorted({os.path.dirname(path) for path in found} - set(directories))


def unfinished(runs: list[StudyRun], retry_failed: bool) -> list[StudyRun]:
    """The runs that are not done; those that failed only with `retry_failed`."""
    over = ("done",) if retry_failed else ("done", "failed")
    return [study_run for study_run in runs if study_run.state() not in over]


def make_data(runs: list[StudyRun], study_dir: str) -> None:
    """Runs `rpr datagen` once for each problem of the runs; it leaves finished data alone."""
    if not runs:
        return
    record_file = os.path.join(study_dir, _DATAGEN)
    with locks.lock(os.path.join(study_dir, _DATAGEN_LOCK)):
        for study_run in {study_run.run.problem: study_run for study_run in runs}.values():
            problem, data_dir = study_run.run.problem, study_run.run_dir.data_dir
            record = {"problem": problem, "state": "running", "started": time.time(), "reason": ""}
            files.write_json(record_file, record)
            say(f"{data_dir}: data of {problem}", style="bold")
            os.makedirs(data_dir, exist_ok=True)
            code, reason = pipeline.run_command(
                next(stages(study_run.run, study_run.run_dir)).argv, study_run.run.environment())
            record |= {"state": "failed" if code else "done", "reason": reason}
            files.write_json(record_file, record)
            if code:
                raise UserError(f"{data_dir}: data generation of {problem} failed"
                                + ("" if reason else f" with exit code {code}"))


def restore_test_texts(runs: list[StudyRun], study_dir: str) -> None:
    """Gives finished runs that were copied without their test text it again; refuses other text."""
    lacking = [study_run for study_run in runs if study_run.state() == "done"
               and pipeline.lacks_test_text(study_run.run, study_run.run_dir)]
    make_data(lacking, study_dir)
    for study_run in lacking:
        provenance.check_corpus(study_run.run, study_run.run_dir)
        pipeline.copy_test_texts(study_run.run, study_run.run_dir)


def data_line(runs: list[StudyRun], study_dir: str) -> str:
    """One line about data generation that is going on, was stopped or failed, else ""."""
    record = files.read_json(os.path.join(study_dir, _DATAGEN), _SCHEMA)
    if record.get("state") == "failed":
        return f"data of {record['problem']}: failed: {record['reason']}"
    if record.get("state") != "running":
        return ""
    if locks.is_held(os.path.join(study_dir, _DATAGEN_LOCK)):
        minutes = (time.time() - record["started"]) / 60
        return f"data of {record['problem']}: begun {minutes:.0f} min ago"
    made = {study_run.run.problem for study_run in runs
            if os.path.exists(data_record(study_run.run, study_run.run_dir.data_dir))}
    # By now a run of the study may have made the data itself.
    return "" if record["problem"] in made else f"data of {record['problem']}: stopped"
