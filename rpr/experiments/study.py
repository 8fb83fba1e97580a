"""A study: arms that differ in some settings of a run, each trained with several seeds.

    STUDY/study.gin      the resolved study
    STUDY/study.json     {"baseline": NAME, "arms": [{"name", "changes", "paper",
                         "runs": [{"seed", "directory"}]}]}, directories relative to STUDY
    STUDY/data/          vocabulary and TFRecords, shared by the runs
    STUDY/runs/NAME/     a run (rpr.experiments.run); NAME ends in a hash of its resolved configuration

Since a run's name comes from its configuration, another arm or seed adds runs and repeats none.
"""
import argparse
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

from rpr.experiments import local_pool, progress, slurm
from rpr.experiments import run as experiment
from rpr.t2t import launcher
from rpr.utils import metrics_log
from rpr.utils.console import terminal
from rpr.utils.errors import UserError
from rpr.utils.processes import with_parent

_FIELDS = {field.name for field in dataclasses.fields(experiment.Run)}


@dataclasses.dataclass(frozen=True)
class Study:
    """What a study compares. A setting is a field of `experiment.Run`, else a hparam.

    Attributes:
      baseline: the arm that the others are compared with.
      grid: {setting: values}; an arm for each combination, called "setting=value,...".
      arms: {name: {setting: value}}; further arms.
      seeds: each arm is trained once with each.
      paper: {arm: BLEU}, to be shown beside ours.
    """
    baseline: str
    grid: dict = dataclasses.field(default_factory=dict)
    arms: dict = dataclasses.field(default_factory=dict)
    seeds: tuple = (1,)
    paper: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for field, kinds, what in (("baseline", str, "a name"), ("grid", dict, "a dict"),
                                   ("arms", dict, "a dict"), ("paper", dict, "a dict"),
                                   ("seeds", (tuple, list), "a tuple of numbers")):
            if not isinstance(getattr(self, field), kinds):
                raise UserError(f"study.{field} = {getattr(self, field)!r}: {what} is needed")
        for name, values in self.grid.items():
            if not isinstance(values, tuple | list) or not values:
                raise UserError(f"study.grid: {name!r} needs a tuple of values, not {values!r}")
        for name, changes in self.arms.items():
            if not isinstance(changes, dict):
                raise UserError(f"study.arms: {name!r} needs a dict of settings, not {changes!r}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(
                type(seed) is int for seed in self.seeds):
            raise UserError(f"study.seeds = {self.seeds!r}: different whole numbers are needed")
        names = self.changes()
        for where, wanted in (("baseline", [self.baseline]), ("paper", self.paper)):
            for name in wanted:
                if name not in names:
                    raise UserError(f"study.{where}: no arm '{name}'; one of {', '.join(names)}")
        for name, changes in names.items():
            if "seed" in changes:
                raise UserError(f"study: arm '{name}' sets the seed; that is what study.seeds does")

    def changes(self):
        """{arm: {setting: value}}, those of the grid first."""
        found = {}
        if self.grid:
            for values in itertools.product(*self.grid.values()):
                changes = dict(zip(self.grid, values, strict=True))
                found[",".join(f"{name}={value}" for name, value in changes.items())] = changes
        for name, changes in self.arms.items():
            if name in found:
                raise UserError(f"study.arms: '{name}' is an arm of the grid already")
            found[name] = changes
        return found


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
             if name not in experiment.FREE}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9._]+', '-', arm)}-{run.seed}-{digest}"


class Member:
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
        self.where = experiment.Directory(os.path.join(study_dir, self.directory),
                                          os.path.join(study_dir, "data"))
        self.log = self.where.file("run.log")

    def state(self):
        """"done", "running" (its lock is held), "failed", or "waiting"."""
        return experiment.state(self.where)


def members(study, run, study_dir):
    """The runs of a study, all arms of the first seed first."""
    found = [Member(study_dir, arm, resolve(run, changes, seed))
             for seed in study.seeds for arm, changes in study.changes().items()]
    for one, other in itertools.combinations(found, 2):
        if one.run == other.run:
            raise UserError(f"study: arms '{one.arm}' and '{other.arm}' are the same run")
    return found


def check(found):
    """Refuses new runs that name a model, problem, hparams set or hparam that does not exist."""
    new = [member.run for member in found if not os.path.exists(member.where.config)]
    if new:                                           # TensorFlow stays out of this process
        with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"),
                                         with_parent()) as process:
            process.submit(launcher.check, new).result()


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
        metrics_log.write_atomically(path, config.as_gin(run) + config.as_gin(study, "study"))
        arms = [{"name": arm, "changes": changes, "paper": study.paper.get(arm),
                 "runs": [{"seed": member.run.seed, "directory": member.directory}
                          for member in found if member.arm == arm]}
                for arm, changes in study.changes().items()]
        metrics_log.write_atomically(os.path.join(study_dir, "study.json"), json.dumps(
            {"baseline": study.baseline, "arms": arms}, indent=1) + "\n")
        for member in found:
            os.makedirs(member.where.path, exist_ok=True)
            if not os.path.exists(member.where.config):
                metrics_log.write_atomically(member.where.config, config.as_gin(member.run))
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
        experiment.make_data(member.run, member.where)


def conduct(found, workers, at_once, more_flags, retry_failed):
    """Brings all runs to their end.

    Args:
      found: `Member`s.
      workers: a `pool.Pool` or `cluster.Cluster`.
      at_once: how many runs go on at the same time.
      more_flags: of `rpr run`.
      retry_failed: whether runs that failed are tried again.

    Returns:
      the members that are not done.
    """
    waiting = unfinished(found, retry_failed)
    with progress.View(found, at_once) as view, workers:
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
    where = member.where
    return ["run", where.config, f"--run_dir={where.path}", f"--data_dir={where.data_dir}"]


def main(argv):
    """`rpr study GIN [FLAGS]`, `rpr study --status DIR`."""
    parser = argparse.ArgumentParser(
        prog="rpr study", description="All runs of a study, on the GPUs or cores of this machine. "
        "Stop it when you like: the same command goes on; what is finished is not repeated.")
    parser.add_argument("gin", nargs="?", help="the file that describes the study (gin/*.gin)")
    parser.add_argument("--study_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting (run.NAME or study.NAME) that wins over the file; may be "
                        "repeated")
    parser.add_argument("--devices", type=int, help="GPUs to use at most (default: all)")
    parser.add_argument("--cores", type=int, help="without a GPU: cores to use at most, one for "
                        "each run (default: all)")
    parser.add_argument("--retry_failed", action="store_true", help="try failed runs again")
    parser.add_argument("--cluster", choices=["slurm", "local"], help="queue a job for each run "
                        "through submitit, and follow them; Ctrl-C leaves them queued. local: "
                        "submitit's stand-in for Slurm on this machine, to try it out")
    parser.add_argument("--cluster_set", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter of submitit, such as timeout_min=1440 or "
                        "slurm_partition=gpu; may be repeated")
    parser.add_argument("--status", metavar="DIR", help="show how far the study in DIR is, and "
                        "start nothing")
    args = parser.parse_args(argv)
    if args.status:
        progress.show(load(args.status))
        return
    if not args.gin:
        raise UserError("name the gin file of a study, or a study's directory with --status")
    from rpr.experiments import config
    study, run = config.load_study(args.gin, args.set)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    study_dir = os.path.abspath(args.study_dir or os.path.join("runs", name))
    found = members(study, run, study_dir)
    runs = [member.run for member in found]
    if args.cluster:
        workers = slurm.Cluster(args.cluster, os.path.join(study_dir, "jobs"), args.cluster_set)
        at_once, more_flags = len(runs), []           # the jobs make the data, the first of them
    else:
        machine = local_pool.this_machine(args.devices, args.cores)
        machine.check(runs)
        workers, at_once, more_flags = local_pool.Pool(machine), machine.at_once(runs), ["--data_checked"]
    check(found)
    found = prepare(study, run, study_dir)
    if not args.cluster:
        make_data(unfinished(found, args.retry_failed))
    rest = conduct(found, workers, at_once, more_flags, args.retry_failed)
    if rest:
        names = ", ".join(member.name for member in rest)
        raise UserError(f"{len(rest)} of {len(found)} runs did not come to their end: {names}; the "
                        "same command goes on with those that were killed, with --retry_failed "
                        "also with those that failed")
    terminal.print(f"{study_dir}: done", style="bold green", highlight=False)
