"""A study: arms that differ in some settings of a run, each trained with several seeds.

    STUDY/study.gin      the resolved study
    STUDY/study.json     {"baseline": NAME, "arms": [{"name", "changes", "paper",
                         "runs": [{"seed", "directory"}]}]}, directories relative to STUDY
    STUDY/data/          vocabulary and TFRecords, shared by the runs
    STUDY/runs/NAME/     a run (rpr.experiment); NAME ends in a hash of its resolved configuration

Since a run's name comes from its configuration, another arm or seed adds runs and repeats none.
"""
import argparse
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import re
import time

from rpr import experiment, metrics, pool
from rpr.console import terminal
from rpr.errors import UserError

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


def prepare(study, run, study_dir):
    """Writes what describes the study; returns its members.

    Raises:
      UserError: the directory holds a study on another base run.
    """
    from rpr import config
    found = members(study, run, study_dir)
    os.makedirs(study_dir, exist_ok=True)
    with open(os.path.join(study_dir, ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(study_dir, "study.gin")
        if os.path.exists(path):
            experiment.refuse_another(run, config.load_study(path)[1], study_dir, "--study_dir")
        metrics.write_atomically(path, config.as_gin(run) + config.as_gin(study, "study"))
        arms = [{"name": arm, "changes": changes, "paper": study.paper.get(arm),
                 "runs": [{"seed": member.run.seed, "directory": member.directory}
                          for member in found if member.arm == arm]}
                for arm, changes in study.changes().items()]
        metrics.write_atomically(os.path.join(study_dir, "study.json"), json.dumps(
            {"baseline": study.baseline, "arms": arms}, indent=1) + "\n")
        for member in found:
            os.makedirs(member.where.path, exist_ok=True)
            if not os.path.exists(member.where.config):
                metrics.write_atomically(member.where.config, config.as_gin(member.run))
    return found


def make_data(found):
    """Runs datagen once for each problem that an unfinished run needs."""
    problems = {}
    for member in found:
        if member.state() != "done":
            problems.setdefault(member.run.problem, member)
    for member in problems.values():
        experiment.make_data(member.run, member.where)


def conduct(found, machine, retry_failed):
    """Brings all runs to their end.

    Args:
      found: `Member`s.
      machine: a `pool.Machine`.
      retry_failed: whether runs that failed are tried again.

    Returns:
      the members that failed.
    """
    waiting, failed = [], []
    for member in found:
        state = member.state()
        if state == "failed" and not retry_failed:
            failed.append(member)
        elif state != "done":
            waiting.append(member)
    with pool.Pool(machine) as workers:
        while waiting or workers.running:
            for member, code in workers.ended():
                state = member.state()
                if state == "done":
                    _say(f"{member.name}: done")
                elif state == "running":              # another pool was faster
                    waiting.append(member)
                else:
                    failed.append(member)
                    _say(f"{member.name}: failed with exit code {code}; see {member.log}")
            for member in list(waiting):
                state = member.state()
                if state == "running":                # by another pool
                    continue
                if state == "done":
                    waiting.remove(member)
                elif workers.start(member, _command(member), member.log, member.run.worker_gpu):
                    waiting.remove(member)
                    _say(f"{member.name}: begins")
                else:
                    break
            time.sleep(0.5)
    return failed


def _command(member):
    where = member.where
    return ["run", where.config, f"--run_dir={where.path}", f"--data_dir={where.data_dir}",
            "--data_checked"]


def _say(line):
    terminal.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, soft_wrap=True)


def main(argv):
    """`rpr study GIN [--study_dir=DIR] [--set NAME=VALUE ...] [--devices=N | --cores=N] ...`."""
    parser = argparse.ArgumentParser(
        prog="rpr study", description="All runs of a study, on the GPUs or cores of this machine. "
        "Stop it when you like: the same command goes on; what is finished is not repeated.")
    parser.add_argument("gin", help="the file that describes the study (gin/*.gin)")
    parser.add_argument("--study_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting (run.NAME or study.NAME) that wins over the file; may be "
                        "repeated")
    parser.add_argument("--devices", type=int, help="GPUs to use at most (default: all)")
    parser.add_argument("--cores", type=int, help="without a GPU: cores to use at most, one for "
                        "each run (default: all)")
    parser.add_argument("--retry_failed", action="store_true", help="try failed runs again")
    args = parser.parse_args(argv)
    from rpr import config
    study, run = config.load_study(args.gin, args.set)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    study_dir = os.path.abspath(args.study_dir or os.path.join("runs", name))
    machine = pool.this_machine(args.devices, args.cores)
    machine.check([member.run for member in members(study, run, study_dir)])
    found = prepare(study, run, study_dir)
    make_data(found)
    failed = conduct(found, machine, args.retry_failed)
    if failed:
        names = ", ".join(member.name for member in failed)
        raise UserError(f"{len(failed)} of {len(found)} runs failed: {names}; --retry_failed tries "
                        "them again")
    terminal.print(f"{study_dir}: done", style="bold green", highlight=False)
