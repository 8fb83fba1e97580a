"""Checkpoint averaging: what t2t-avg-all does, a variable at a time and one write a checkpoint.

T2T's program runs one session call a variable, accumulates rounding errors from window to window,
and leaves a half-written checkpoint where it is killed.
"""
import collections
import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import bleu_hook

from rpr.console import Task


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
            write(path, mean([c.filename for c in window], checkpoint.steps))
            os.utime(path + ".index", (checkpoint.mtime, checkpoint.mtime))
            written.append(path)
            tf.train.update_checkpoint_state(output_dir, path, written)
    return written


def mean(paths, step):
    """The mean of checkpoints, variable by variable.

    Args:
      paths: checkpoints with the same variables.
      step: what `global_step` becomes.

    Returns:
      {name: array}, floats in the dtype of the checkpoints.
    """
    readers = [tf.train.load_checkpoint(path) for path in paths]
    values = {"global_step": np.int64(step), "train_stats/problem_0_steps": np.int32(0)}
    names = [name for name in readers[0].get_variable_to_shape_map() if name not in values]
    with Task("averaging", len(names), "variables") as task:
        for count, name in enumerate(names, start=1):
            total = 0.0
            for reader in readers:                    # in float64, one array of each at a time
                value = reader.get_tensor(name)
                total = total + value.astype(np.float64)
            values[name] = (total / len(readers)).astype(value.dtype)
            task.update(count)
    return values


def write(path, values):
    """Writes a checkpoint, whole or not at all.

    Args:
      path: without suffix.
      values: {name: array}.
    """
    names = sorted(values)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(prefix=path + ".part", tensor_names=names,
                                 shape_and_slices=[""] * len(names), tensors=tensors)
        session.run(save, {tensor: values[name]
                           for tensor, name in zip(tensors, names, strict=True)})
    for suffix in (".data-00000-of-00001", ".index"):  # the index last: it makes it a checkpoint
        os.replace(path + ".part" + suffix, path + suffix)
