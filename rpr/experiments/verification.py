"""Repeats the first steps of a training and compares every recorded bit.

A training records the loss of every tenth step (metrics.jsonl) and a checksum of each tensor of
each checkpoint (model/checksums.jsonl). The repetition runs in a temporary directory.
"""
import os
from typing import NamedTuple

from rpr.experiments.config import Run
from rpr.experiments.pipeline import run_command
from rpr.experiments.run_directory import RunDirectory, stages
from rpr.utils import files, metrics_log
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.processes import temporary_directory


class Comparison(NamedTuple):
    """The result of a repetition."""
    losses: int                                       # that were compared
    checkpoints: list[int]                            # steps whose tensors were compared
    tensors: int                                      # of a checkpoint
    difference: str                                   # the first one, in one line; else empty


def repeat_training(run: Run, run_dir: RunDirectory, steps: int | None = None) -> Comparison:
    """Trains the first steps of a run again and compares them with those of the run.

    `steps` is how many; None: up to the first checkpoint after the start, or 100 if only losses
    are recorded, as in docs/results. Refuses a run that has not reached this step.
    """
    recorded, losses = metrics_log.read_checksums(run_dir.model), _losses(run_dir)
    last = max([*recorded, *losses], default=0)
    steps = steps or min(filter(None, recorded), default=min(last, 100))
    if not last:
        raise UserError(f"{run_dir.path}: no loss and no checkpoint is recorded yet; there is "
                        "nothing to compare")
    if steps > last:
        raise UserError(f"{run_dir.path}: its training recorded {last} steps; there is nothing to "
                        f"compare up to step {steps}")
    if not any(0 < step <= steps for step in (*recorded, *losses)):
        raise _nothing_up_to(steps)
    repeated = RunDirectory(temporary_directory("verify"), run_dir.data_dir)
    train = next(stage for stage in stages(run, repeated) if stage.name == "train")
    # Records in docs/results may lack rpr.json. A run starts with as many threads as cores.
    threads = (files.read_json(os.path.join(run_dir.model, "rpr.json")).get("threads")
               or files.read_json(run_dir.file("environment.json")).get("cores", 0))
    argv = [*(arg for arg in train.argv if not arg.startswith("--eval_")),
            "--schedule=train", f"--stop_at_step={steps}",
            f"--intra_op_parallelism_threads={threads}"]
    code, reason = run_command(argv, run.environment())
    if code:
        raise UserError(f"{run_dir.path}: the repetition failed with exit code {code}: {reason}")
    return _compare(run_dir, repeated, steps)


def _compare(run_dir: RunDirectory, repeated: RunDirectory, steps: int) -> Comparison:
    differences: list[tuple[int, str]] = []
    losses, new_losses = _losses(run_dir), _losses(repeated)
    common = sorted(step for step in losses.keys() & new_losses.keys() if step <= steps)
    for step in common:
        before, now = repr(losses[step]), repr(new_losses[step])      # NaN equals itself
        if before != now:
            differences.append((step, f"the loss at step {step} was {before} and is {now}"))
    tensors = metrics_log.read_checksums(run_dir.model)
    new_tensors = metrics_log.read_checksums(repeated.model)
    checkpoints = sorted(step for step in tensors.keys() & new_tensors.keys() if step <= steps)
    for step in checkpoints:
        known, found = tensors[step], new_tensors[step]
        different = [name for name in sorted(known.keys() | found.keys())
                     if known.get(name) != found.get(name)]
        if different:
            differences.append((step, f"{len(different)} of {len(known)} tensors differ at step "
                                f"{step}; the first is {different[0]}"))
    if not common and not any(checkpoints):
        raise _nothing_up_to(steps)
    return Comparison(len(common), checkpoints, len(tensors[checkpoints[-1]]) if checkpoints else 0,
                      min(differences, default=(0, ""))[1])


def _nothing_up_to(steps: int) -> InvalidValue:
    return InvalidValue("steps", steps, "the run recorded no loss and no checkpoint up to there; "
                        "losses are recorded every tenth step")


def _losses(run_dir: RunDirectory) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in metrics_log.events(run_dir.metrics)
            if event["event"] == "train" and {"step", "loss"} <= event.keys()}
