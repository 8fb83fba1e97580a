"""Trainings that runs share: more steps of one that is finished, or another way to decode it.

A run that shares a training begins with copies of what the other one left in model/. Checkpoints
are hard links, which take no space. `rpr train` then goes on as after a kill.
"""
import contextlib
import dataclasses
import glob
import os
import shutil
from collections.abc import Hashable, Iterable

from rpr.experiments.config import MUTABLE_FIELDS, Run
from rpr.experiments.run_directory import RunDirectory
from rpr.utils import files, metrics_log
from rpr.utils.errors import UserError

# How the development set is translated and scored.
_SEARCH = {"beam_size", "alpha", "decode_batch_size", "language_pair"}
# Settings that a training does not depend on.
_OF_DECODING = MUTABLE_FIELDS | _SEARCH | {"average_checkpoints", "test_set"}
# Factors of learning_rate_schedule that depend on the last step of a training (T2T).
_TO_LAST_STEP = {"linear_decay", "single_cycle_cos_decay"}
_COPIED = ("checkpoint", metrics_log.CHECKSUMS, "flags.txt", "flags_t2t.txt", "hparams.json",
           "rpr.json")                                # of model/; the records of a training
NEW = "model.new"                                     # becomes model/ of a run


def training(run: Run) -> Hashable:
    """Identifies what a run trains, apart from the number of steps."""
    return tuple(getattr(run, field.name) for field in dataclasses.fields(Run)
                 if field.name not in _OF_DECODING | {"train_steps"})


def differences(run: Run, there: Run, free: Iterable[str]) -> str:
    """The settings that differ between two runs, but for those in `free`; "" if there are none."""
    return ", ".join(f"{name} = {asked!r} (there: {getattr(there, name)!r})"
                     for name, asked in dataclasses.asdict(run).items()
                     if asked != getattr(there, name) and name not in free)


def refuse_another(run: Run, there: Run, path: str) -> None:
    """Refuses to resume `there`, the run of a directory, as `run`, unless it has more steps."""
    more = {"train_steps"} if run.train_steps > there.train_steps else set()
    different = differences(run, there, MUTABLE_FIELDS | more)
    if different:
        raise UserError(f"{path} holds another run: {different}; take another directory, or the "
                        "configuration in it")


def obstacle(run: Run, there: Run, source: RunDirectory) -> str:
    """Why a run cannot go on from the training of `there`, in words; "" if it can."""
    different = differences(run, there, _OF_DECODING | {"train_steps"})
    if different:
        return f"it is another training: {different}"
    if there.train_steps > run.train_steps:
        return f"it has {there.train_steps:,} steps, more than run.train_steps = {run.train_steps}"
    if source.read_status().get("train", {}).get("state") != "done":
        return "it is not finished"
    gone = [step for step in _needed(run, there)
            if not os.path.exists(os.path.join(source.model, f"model.ckpt-{step}.index"))]
    if gone:
        return f"its checkpoint at step {gone[0]} is gone"
    return more_steps_obstacle(source) if run.train_steps > there.train_steps else ""


def more_steps_obstacle(source: RunDirectory) -> str:
    """Why a training cannot get more steps, in words; "" if it can."""
    schedule = str(files.read_json(os.path.join(source.model, "hparams.json")
                                   ).get("learning_rate_schedule", ""))
    factors = _TO_LAST_STEP & {name.strip() for name in schedule.split("*")}
    if factors:
        return (f"its learning rate depends on the last step (learning_rate_schedule={schedule}: "
                f"{', '.join(sorted(factors))})")
    is_there = glob.glob("model.ckpt-[0-9]*.index", root_dir=source.model)
    return "" if is_there else "its checkpoints are gone"


def _needed(run: Run, there: Run) -> list[int]:
    """The steps of the checkpoints of `there` that `run` needs: the last, and those it averages."""
    first = run.train_steps - (run.average_checkpoints - 1) * run.checkpoint_steps
    return sorted({*range(first, there.train_steps + 1, run.checkpoint_steps), there.train_steps})


def check(run: Run, run_dir: RunDirectory, source: RunDirectory) -> Run:
    """The run of another directory; refuses one whose training a run cannot share."""
    there = source.load()
    problem = obstacle(run, there, source)
    if problem:
        raise UserError(f"{run_dir.path} cannot share the training of {source.path}: {problem}")
    source.refuse_links()
    return there


def decode_alike(run: Run, there: Run) -> bool:
    """Whether two runs translate the development set in the same way."""
    return all(getattr(run, name) == getattr(there, name) for name in _SEARCH)


def take(run: Run, there: Run, run_dir: RunDirectory, source: RunDirectory) -> None:
    """Copies the training of `there` for an untrained run, whose directory is locked; see `begin`.

    If the runs decode alike, it also takes the kept weights that `there` has not scored yet.
    """
    for name in ("data.json", "environment.json", "code.json"):
        _copy(source.file(name), run_dir.file(name))
    with open(source.metrics, "rb") as events, files.atomic_path(run_dir.metrics) as temporary:
        with open(temporary, "wb") as out:
            out.writelines(line for line in events if b'"event": "decode"' not in line)
    new = run_dir.file(NEW)
    os.makedirs(os.path.join(new, "eval"))
    for name in _COPIED:
        _copy(os.path.join(source.model, name), os.path.join(new, name))
    for pattern in (*(f"model.ckpt-{step}.*" for step in _needed(run, there)), "*.tfevents.*",
                    "eval/*.tfevents.*"):
        for name in glob.glob(pattern, root_dir=source.model):
            link(os.path.join(source.model, name), os.path.join(new, name))
    for step in run.bleu_steps() if decode_alike(run, there) else ():
        os.makedirs(os.path.join(new, "kept"), exist_ok=True)
        for name in glob.glob(f"kept/model.ckpt-{step}.*", root_dir=source.model):
            with contextlib.suppress(FileNotFoundError):      # it has been scored just now
                link(os.path.join(source.model, name), os.path.join(new, name))


def begin(run_dir: RunDirectory) -> None:
    """Makes a run, which has got all that it shares, a trained one."""
    shutil.rmtree(run_dir.model, ignore_errors=True)
    os.rename(run_dir.file(NEW), run_dir.model)


def link(source: str, target: str) -> None:
    """Makes a hard link of a file that no writer changes; a copy where that is not possible."""
    if os.path.islink(source):
        raise UserError(f"{source} is a symbolic link; expected a file")
    files.remove(target)
    try:
        os.link(source, target)
    except OSError:                                   # another file system, or one without links
        shutil.copyfile(source, target)


def _copy(source: str, target: str) -> None:
    if os.path.isfile(source) and not os.path.islink(source):
        with files.atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
