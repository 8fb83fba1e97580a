"""Checkpoint averaging: what t2t-avg-all does, a few variables at a time, whatever their number.

T2T's program runs one session call a variable, accumulates rounding errors from window to window,
and leaves a half-written checkpoint where it is killed.
"""
import collections
import glob
import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import bleu_hook

from rpr.utils.console import Task

_FILE_BYTES = 1 << 26                                 # of a data file of an average, at least
# T2T's scopes of what only training needs, and TensorFlow's names for the scale of a loss.
_OF_TRAINING = ("training/", "losses_avg/", "current_loss_scale", "good_steps")


def average_all(model_dir, output_dir, n, min_steps=0, wait_minutes=0):
    """Writes the average of every n consecutive checkpoints, under the step of the last of them.

    Args:
      model_dir: where the checkpoints are.
      output_dir: where the averages go; flags.txt is copied for t2t-bleu's times.
      n: checkpoints in an average.
      min_steps: checkpoints of fewer steps are left out.
      wait_minutes: how long a further checkpoint is waited for.

    Returns:
      the paths of the averages, without suffix.
    """
    os.makedirs(output_dir, exist_ok=True)
    flags = os.path.join(model_dir, "flags.txt")
    if os.path.exists(flags) and not os.path.exists(os.path.join(output_dir, "flags.txt")):
        shutil.copy2(flags, os.path.join(output_dir, "flags.txt"))
    window, written = collections.deque(maxlen=n), []
    for checkpoint in bleu_hook.stepfiles_iterator(model_dir, wait_minutes, min_steps):
        window.append(checkpoint)
        if len(window) == n:
            path = os.path.join(output_dir, f"model.ckpt-{checkpoint.steps}")
            write_mean(path, [c.filename for c in window], checkpoint.steps)
            os.utime(path + ".index", (checkpoint.mtime, checkpoint.mtime))
            written.append(path)
            tf.train.update_checkpoint_state(output_dir, path, written)
    return written


def write_mean(path, paths, step):
    """Writes the mean of checkpoints, variable by variable, whole or not at all.

    Only what a model computes with is averaged: the slots of an optimizer, two thirds of a
    checkpoint, and the running averages of losses are left out. Memory holds the variables of one
    data file, of _FILE_BYTES or one variable, whatever the model's size.

    Args:
      path: the checkpoint to write, without suffix.
      paths: checkpoints with the same variables.
      step: what `global_step` becomes.
    """
    for left in glob.glob(glob.escape(path) + ".part*"):
        os.unlink(left)
    readers = [tf.train.load_checkpoint(source) for source in paths]
    fixed = {"global_step": np.int64(step), "train_stats/problem_0_steps": np.int32(0)}
    names = sorted(name for name in readers[0].get_variable_to_shape_map()
                   if name not in fixed and not name.startswith(_OF_TRAINING))
    values, size, parts = dict(fixed), 0, []

    def save():
        parts.append(f"{path}.part-{len(parts)}")
        write_checkpoint(parts[-1], values)
        values.clear()

    with Task("averaging", len(names), "variables") as task:
        for count, name in enumerate(names, start=1):
            values[name] = _mean(readers, name)
            size += values[name].nbytes
            if size >= _FILE_BYTES:
                save()
                size = 0
            task.update(count)
    if values:
        save()
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=path + ".part", delete_old_dirs=False))
    if os.path.exists(path + ".index"):
        os.unlink(path + ".index")                    # it does not describe the files to come
    for number in range(len(parts)):
        suffix = f".data-{number:05d}-of-{len(parts):05d}"
        os.replace(path + ".part" + suffix, path + suffix)
    os.replace(path + ".part.index", path + ".index")     # the last: it makes it a checkpoint


def _mean(readers, name):
    total = 0.0
    for reader in readers:                            # in float64, one array of each at a time
        value = reader.get_tensor(name)
        total += value.astype(np.float64)
    return (total / len(readers)).astype(value.dtype)


def write_checkpoint(path, values):
    """Writes a checkpoint of {name: array}."""
    names = sorted(values)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(prefix=path, tensor_names=names,
                                 shape_and_slices=[""] * len(names), tensors=tensors)
        session.run(save, {tensor: values[name]
                           for tensor, name in zip(tensors, names, strict=True)})
