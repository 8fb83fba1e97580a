"""A study: arms that differ in some settings of a run, each trained with several seeds.

    STUDY/study.gin      the resolved study
    STUDY/study.json     {"baseline": NAME, "arms": [{"name", "changes", "paper_bleu",
                         "runs": [{"seed", "directory"}]}]}, directories relative to STUDY
    STUDY/data/          vocabulary and TFRecords, shared by the runs
    STUDY/runs/NAME/     a run (rpr.experiments.run); NAME ends in a hash of its resolved configuration

Since a run's name comes from its configuration, another arm or seed adds runs and repeats none.
"""
import dataclasses
import fcntl
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import time
from concurrent import futures

from rpr.experiments import config, progress, run_directory
from rpr.experiments import run as experiment
from rpr.t2t import preflight
from rpr.utils import files
from rpr.utils.errors import UserError
from rpr.utils.processes import with_parent

_FIELDS = {field.name for field in dataclasses.fields(config.Run)}


def resolve(run, changes, seed):
    """The run of an arm.

    Args:
      run: the base `experiment.Run`.
      changes: {setting: value}.
      seed: the arm's seed.
    """
    hparams = dict(pair.split("=", 1) for pair in re.split(r",(?![^\[]*\])", run.hparams) if pair)
    fields = {}
    for name, value in changes.items():
        if name in _FIELDS:
            fields[name] = value
        else:
            hparams[name] = str(value).replace(" ", "")
    joined = ",".join(f"{name}={value}" for name, value in sorted(hparams.items()))
    return dataclasses.replace(run, **{"hparams": joined, **fields, "seed": seed})


def run_id(arm, run):
    """The name of a run's directory: arm, seed, hash of what may not change when it goes on."""
    fixed = {name: value for name, value in dataclasses.asdict(run).items()
             if name not in config.MUTABLE_FIELDS}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', arm)}-{run.seed}-{digest}"


class StudyRun:
    """One run of a study.

    Args:
      study_dir: the study's directory.
      arm: the arm's name.
      run: the `experiment.Run`.
    """

    def __init__(self, study_dir, arm, run):
        self.arm, self.run = arm, run
        self.directory = os.path.join("runs", run_id(arm, run))
        self.name = os.path.basename(self.directory)
        self.run_dir = run_directory.RunDirectory(os.path.join(study_dir, self.directory),
                                          os.path.join(study_dir, "data"))
        self.log = self.run_dir.file("run.log")

    def state(self):
        """"done", "running" (its lock is held), "failed", or "waiting"."""
        return run_directory.state(self.run_dir)


def members(study, run, study_dir):
    """The runs of a study, all arms of the first seed first."""
    found = [StudyRun(study_dir, arm, resolve(run, changes, seed))
             for seed in study.seeds for arm, changes in study.changes().items()]
    for one, other in itertools.combinations(found, 2):
        if one.run == other.run:
            raise UserError(f"study: arms '{one.arm}' and '{other.arm}' are the same run")
    return found


def check(found):
    """Refuses new runs that name a model, problem, hparams set or hparam that does not exist."""
    new = [member.run for member in found if not os.path.exists(member.run_dir.config)]
    if new:                                           # TensorFlow stays out of this process
        with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"),
                                         with_parent()) as process:
            process.submit(preflight.check_runs, new).result()


def prepare(study, run, study_dir):
    """Writes what describes the study; returns its members.

    Raises:
      UserError: the directory holds a study on another base run.
    """
    from rpr.experiments import config
    found = members(study, run, study_dir)
    os.makedirs(study_dir, exist_ok=True)
    with open(os.path.join(study_dir, ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(study_dir, "study.gin")
        if os.path.exists(path):
            experiment.refuse_another(run, config.load_study(path)[1], study_dir, "--study_dir")
        files.write_atomically(path, config.as_gin(run) + config.as_gin(study, "study"))
        arms = [{"name": arm, "changes": changes, "paper_bleu": study.paper_bleu.get(arm),
                 "runs": [{"seed": member.run.seed, "directory": member.directory}
                          for member in found if member.arm == arm]}
                for arm, changes in study.changes().items()]
        files.write_atomically(os.path.join(study_dir, "study.json"), json.dumps(
            {"baseline": study.baseline, "arms": arms}, indent=1) + "\n")
        for member in found:
            os.makedirs(member.run_dir.path, exist_ok=True)
            if not os.path.exists(member.run_dir.config):
                files.write_atomically(member.run_dir.config, config.as_gin(member.run))
    return found


def load(study_dir):
    """The members of the study in a directory."""
    from rpr.experiments import config
    path = os.path.join(study_dir, "study.gin")
    if not os.path.exists(path):
        raise UserError(f"{study_dir}: no study in it (a directory with a study.gin)")
    return members(*config.load_study(path), study_dir)


def unfinished(found, retry_failed):
    """The members that have something left to do, those that failed only on demand."""
    over = ("done",) if retry_failed else ("done", "failed")
    return [member for member in found if member.state() not in over]


def make_data(found):
    """Runs datagen once for each problem."""
    for member in {member.run.problem: member for member in found}.values():
        experiment.make_data(member.run, member.run_dir)


def run_all(found, workers, max_parallel, more_flags, retry_failed):
    """Brings all runs to their end.

    Args:
      found: `StudyRun`s.
      workers: a `pool.Pool` or `cluster.Cluster`.
      max_parallel: how many runs go on at the same time.
      more_flags: of `rpr run`.
      retry_failed: whether runs that failed are tried again.

    Returns:
      the members that are not done.
    """
    waiting = unfinished(found, retry_failed)
    with progress.View(found, max_parallel) as view, workers:
        while waiting or workers.running:
            for member, code in workers.ended():
                state = member.state()
                if state == "running":                # another pool was faster
                    waiting.append(member)
                elif state == "done":
                    view.say(f"{member.name}: done")
                else:
                    view.say(f"{member.name}: {_why(member, code)}")
            for member in list(waiting):
                state = member.state()
                if state == "running":                # by another pool
                    continue
                if state == "done" or state == "failed" and not retry_failed:
                    waiting.remove(member)            # another pool ended it
                elif workers.start(member, [*_command(member), *more_flags], member.log,
                                   member.run.worker_gpu):
                    waiting.remove(member)
                    view.say(f"{member.name}: begins")
                else:
                    break
            view.refresh()
            time.sleep(0.5)
    return [member for member in found if member.state() != "done"]


def _why(member, code):
    """Why a run did not come to its end."""
    reason = progress.of(member).reason
    return f"failed: {reason}" if reason else f"ended with exit code {code}; see {member.log}"


def _command(member):
    run_dir = member.run_dir
    return ["run", run_dir.config, f"--run_dir={run_dir.path}", f"--data_dir={run_dir.data_dir}"]
