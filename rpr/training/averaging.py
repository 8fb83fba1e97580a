"""Averages checkpoints, as t2t-avg-all does, in bounded memory.

T2T's program runs the session once per variable, accumulates rounding errors from window to window,
and leaves a half-written checkpoint behind if it is killed.
"""
import collections
import contextlib
import glob
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import bleu_hook

from rpr.t2t import checkpoints, preflight
from rpr.utils import files
from rpr.utils.console import Task
from rpr.utils.errors import InvalidPath, InvalidValue, UserError

_FILE_BYTES = 1 << 26                                 # least size of a data file of an average
_FIXED = {"global_step": np.int64, "train_stats/problem_0_steps": np.int32}   # not averaged
# Variables that only training needs: T2T's scopes, and TensorFlow's names for the loss scale.
_TRAINING_SCOPES = ("training/", "losses_avg/", "current_loss_scale", "good_steps")


def average_all(model_dir: str, output_dir: str, n: int, min_steps: int = 0,
                wait_minutes: int = 0) -> list[str]:
    """Writes the average of every n consecutive checkpoints, at the step of the last of them.

    The description of the model is copied too, and flags.txt, from which t2t-bleu takes times.
    Checkpoints of fewer than `min_steps` are ignored. `wait_minutes` is how long to wait for
    another checkpoint. Returns the paths of the averages, without suffix; none is an error.
    """
    os.makedirs(output_dir, exist_ok=True)
    files.remove_temporary_files(output_dir)
    for name in ("flags.txt", "hparams.json", preflight.TRAINED_WITH):
        source, copy = os.path.join(_training(model_dir), name), os.path.join(output_dir, name)
        if os.path.exists(source):
            with files.atomic_path(copy) as temporary:
                shutil.copy2(source, temporary)
    window: collections.deque = collections.deque(maxlen=n)
    written = []
    with Task("averaging", None, "averages") as task:
        for checkpoint in bleu_hook.stepfiles_iterator(model_dir, wait_minutes, min_steps):
            window.append(checkpoint)
            if len(window) == n:
                path = os.path.join(output_dir, f"model.ckpt-{checkpoint.steps}")
                write_mean(path, [each.filename for each in window], checkpoint.steps)
                os.utime(path + ".index", (checkpoint.mtime, checkpoint.mtime))
                written.append(path)
                checkpoints.write_state(output_dir, written)
                task.update(len(written))
    if not written:
        raise InvalidValue("n", n, f"after a wait of {wait_minutes} min {model_dir} has only "
                           f"{len(window)} checkpoints from step {min_steps} on")
    return written


def check_output(model_dir: str, output_dir: str) -> None:
    """Refuses an output directory that holds checkpoints of another training."""
    if not checkpoints.by_step(output_dir):
        return
    one, other = ({"hparams": preflight.saved_hparams(directory),
                   **{name: value for name, value in preflight.trained_with(directory).items()
                      if name in ("model", "problem", "hparams_set", "random_seed", "vocabulary")}}
                  for directory in (_training(model_dir), output_dir))
    if one != other:
        raise InvalidPath(output_dir, f"holds checkpoints of another training than {model_dir}; "
                          "take another directory")


def _training(model_dir: str) -> str:
    """The directory with the description of the training whose checkpoints are in `model_dir`."""
    path = os.path.abspath(model_dir)
    return os.path.dirname(path) if os.path.basename(path) == "kept" else path


def write_mean(path: str, paths: Sequence[str], step: int) -> None:
    """Writes the mean of checkpoints, with `global_step` = step.

    A reader sees all of it or nothing. Paths are without suffix. Only the variables that inference
    uses are averaged. The optimizer's slots, two thirds of a checkpoint, and the running averages
    of losses are left out. At any time, memory holds the variables of one data file only
    (_FILE_BYTES, or one larger variable).
    """
    directory, name = os.path.split(path)
    for leftover in glob.glob(os.path.join(glob.escape(directory), ".model.ckpt-*.part*")):
        os.unlink(leftover)
    temporary = os.path.join(directory, f".{name}.part")      # no checkpoint to T2T and to us
    names = averaged_variables(paths)
    readers = [tf.train.load_checkpoint(source) for source in paths]
    values: dict[str, Any] = {name: kind(step if name == "global_step" else 0)
                              for name, kind in _FIXED.items()}
    parts: list[str] = []

    def save() -> None:
        parts.append(f"{temporary}{len(parts)}")
        write_checkpoint(parts[-1], values)
        values.clear()

    for name in names:
        values[name] = _mean(readers, name)
        if sum(value.nbytes for value in values.values()) >= _FILE_BYTES:
            save()
    if values:
        save()
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=temporary, delete_old_dirs=False))
    with contextlib.suppress(FileNotFoundError):      # it does not describe the new data files
        os.unlink(path + ".index")
    for number in range(len(parts)):
        suffix = f".data-{number:05d}-of-{len(parts):05d}"
        os.replace(temporary + suffix, path + suffix)
    os.replace(temporary + ".index", path + ".index")     # last: it makes the checkpoint visible


def averaged_variables(paths: Sequence[str]) -> list[str]:
    """The names of the variables that are averaged, in order.

    Refuses checkpoints whose variables or shapes differ.
    """
    first, *others = ({name: shape for name, shape in tf.train.list_variables(path)
                       if name not in _FIXED and not name.startswith(_TRAINING_SCOPES)}
                      for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        for name in sorted({*first, *other}):
            if first.get(name) != other.get(name):
                raise UserError(f"{path} is of another model than {paths[0]}: {name} has "
                                f"the shape {other.get(name)} instead of {first.get(name)}")
    return sorted(first)


def is_average(path: str) -> bool:
    """Whether a checkpoint, as those of `write_mean`, has no variable that only training needs."""
    return not any(name.startswith(_TRAINING_SCOPES) for name, _ in tf.train.list_variables(path))


def _mean(readers: Sequence[Any], name: str) -> np.ndarray:
    """The mean of one variable, summed in float64."""
    total: Any = 0.0
    for reader in readers:
        value = reader.get_tensor(name)
        total += value.astype(np.float64)
    return (total / len(readers)).astype(value.dtype)


def write_checkpoint(path: str, values: dict[str, Any]) -> None:
    """Writes a checkpoint of {name: array} at `path`, without suffix."""
    names = sorted(values)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(prefix=path, tensor_names=names,
                                 shape_and_slices=[""] * len(names), tensors=tensors)
        session.run(save, {tensor: values[name]
                           for tensor, name in zip(tensors, names, strict=True)})
