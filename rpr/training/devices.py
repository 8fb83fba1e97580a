"""On which devices a training runs, and what a step is there.

A step is one update of the weights from one batch a device: `batch_size` counts the sub-words of a
device's batch, padding included (sentences, with `use_fixed_batch_size`), so that N devices take N
times as many a step. The loss is summed over all devices and divided by the target tokens of all of
them, wherever these are:

| mode | asked for by | what it is |
| --- | --- | --- |
| towers | `--worker_gpu=N` | T2T's: one copy of the weights, N copies of the graph |
| mirrored | and `--optionally_use_dist_strat` | `tf.distribute.MirroredStrategy`: a copy of the
weights a device, gradients all-reduced |
| several machines | TF_CONFIG with chief and workers | `MultiWorkerMirroredStrategy`: the same,
`--worker_gpu` devices a machine |
| accumulated | `optimizer=multistep_adam,optimizer_multistep_accumulate_steps=n` | n batches of a
device, or of towers, one after the other, make a step |

The learning rate, `--train_steps`, checkpoints and evaluations follow the step and nothing else.
Towers are the default on one machine: they serve all that the others do and `clip_grad_norm` and
accumulation too, and which mode is faster was not measured on GPUs. Without a GPU N devices are N
logical CPUs, to try things out.

Half precision: `--gpu_automatic_mixed_precision` lets TensorFlow rewrite the graph to float16 where
the GPU gains by it, and scales the loss: a step whose gradients are not finite is left out and the
scale halved; after 2,000 good ones it is doubled. `activation_dtype=bfloat16` is T2T's, and needs
no scale. Weights and Adam's moments are float32 in both, and so are softmax, normalisation and
loss. T2T's `activation_dtype=float16` is refused: it casts variables as they are read, and so
computes in float16 whatever follows: normalisation too, whose squares pass 65,504.
"""
import json
import os
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer
from tensor2tensor.utils import expert_utils

from rpr.utils.errors import UserError

_MIRROR = ("T2T's parameter servers do not work on TensorFlow 2; start the same command on every "
           "machine with a TF_CONFIG of one chief and workers, which mirrors the model "
           "(scripts/train_on_hosts writes it)")
# What TensorFlow's rewriting to float16 reads from the environment: a softmax stays float32, as
# sums, means and logarithms do. It would take masks along, whose -1e9 float16 does not hold. (In
# two lists at once, it would end the rewriting.)
FLOAT32_OPS = {f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{change}": "Softmax"
               for change in ("DENYLIST_ADD", "INFERLIST_REMOVE")}
# What a RunConfig is made anew from: TensorFlow reads TF_CONFIG as a cluster that mirrors only
# where the strategy is there from the start.
_KEPT = ("model_dir", "session_config", "save_summary_steps", "save_checkpoints_steps",
         "save_checkpoints_secs", "keep_checkpoint_max", "keep_checkpoint_every_n_hours",
         "tf_random_seed", "log_step_count_steps")


class TrainingCluster(NamedTuple):
    """The processes of a training on several machines.

    Attributes:
      addresses: `host:port` of each, the chief first.
      index: which of them this one is.
    """
    addresses: tuple
    index: int


def training_cluster():
    """The cluster of TF_CONFIG; None where it is not set, or has a chief alone.

    Raises:
      UserError: it is not one of a chief and workers.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(addresses) for job, addresses in config["cluster"].items() if addresses}
        task, index = config["task"]["type"], int(config["task"].get("index", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"TF_CONFIG={text}: JSON such as " + json.dumps(
            {"cluster": {"chief": ["host:port"], "worker": ["host:port"]},
             "task": {"type": "worker", "index": 0}})) from None
    if "ps" in jobs:
        raise UserError(f"TF_CONFIG names parameter servers (ps): {_MIRROR}")
    if set(jobs) - {"chief", "worker"} or len(jobs.get("chief", ())) != 1:
        raise UserError(f"TF_CONFIG: its cluster has {', '.join(sorted(jobs)) or 'no jobs'}; one "
                        "chief and any number of workers are needed (the chief evaluates)")
    if task not in jobs or not 0 <= index < len(jobs[task]):
        raise UserError(f"TF_CONFIG: its cluster has no {task} {index}")
    if len(jobs) == 1:
        del os.environ["TF_CONFIG"]                   # a machine alone: nobody to wait for
        return None
    return TrainingCluster((*jobs["chief"], *jobs["worker"]), index + (task == "worker"))


def check(flags, hparams, problem):
    """Refuses what would train something else than asked, or not at all.

    Args:
      flags: T2T's trainer flags.
      hparams: the model's.
      problem: the T2T problem; its data are there.
    """
    if flags.schedule == "run_std_server":
        raise UserError(f"--schedule=run_std_server: {_MIRROR}")
    for name, alone in (("ps_replicas", 0), ("ps_gpu", 0), ("worker_replicas", 1), ("sync", False),
                        ("master", "")):
        if flags[name].value != alone:
            raise UserError(f"--{name}={flags[name].value}: {_MIRROR}")
    machines = training_cluster()
    gpus = len(tf.config.list_physical_devices("GPU"))
    if 0 < gpus < flags.worker_gpu:
        raise UserError(f"--worker_gpu={flags.worker_gpu}: this machine shows {gpus}")
    if machines and gpus and gpus != flags.worker_gpu:
        raise UserError(f"--worker_gpu={flags.worker_gpu}: with TF_CONFIG all {gpus} GPUs that the "
                        "machine shows are used; CUDA_VISIBLE_DEVICES hides some")
    files = problem.filepattern(os.path.expanduser(flags.data_dir), tf.estimator.ModeKeys.TRAIN)
    if machines and len(tf.gfile.Glob(files)) < len(machines.addresses):
        raise UserError(f"TF_CONFIG: {len(machines.addresses)} machines, and {files} has "
                        f"{len(tf.gfile.Glob(files))} files; each machine reads its own")
    if machines and flags.schedule not in ("train", "continuous_train_and_eval"):
        raise UserError(f"--schedule={flags.schedule}: with TF_CONFIG train or "
                        "continuous_train_and_eval (which evaluates once, at the end)")
    accumulates = hparams.optimizer == "multistep_adam"
    if accumulates != (hparams.optimizer_multistep_accumulate_steps > 0):
        raise UserError(f"--hparams: optimizer={hparams.optimizer} with optimizer_multistep_"
                        f"accumulate_steps={hparams.optimizer_multistep_accumulate_steps}: "
                        "multistep_adam and a number of batches go together")
    _check_precision(hparams)
    mode = ("TF_CONFIG" if machines else "--optionally_use_dist_strat" if _mirrored(flags)
            else "optimizer=multistep_adam" if accumulates else None)
    if mode and hparams.clip_grad_norm:
        raise UserError(f"--hparams: clip_grad_norm={hparams.clip_grad_norm} with {mode}: the "
                        "gradient of each batch would be clipped, and not their sum; towers clip "
                        "the whole one")
    if accumulates and (machines or _mirrored(flags)):
        raise UserError(f"--hparams: optimizer=multistep_adam with {mode}: only one device and "
                        "towers accumulate batches")


def _check_precision(hparams):
    if hparams.activation_dtype not in ("float32", "bfloat16"):
        raise UserError(f"--hparams: activation_dtype={hparams.activation_dtype}: float32 or "
                        "bfloat16; --gpu_automatic_mixed_precision computes in float16")
    if hparams.weight_dtype != "float32":
        raise UserError(f"--hparams: weight_dtype={hparams.weight_dtype}: weights are float32; "
                        "activation_dtype=bfloat16 computes in half precision")
    if hparams.gpu_automatic_mixed_precision and hparams.activation_dtype != "float32":
        raise UserError("--gpu_automatic_mixed_precision with --hparams=activation_dtype="
                        f"{hparams.activation_dtype}: one of the two")


def device_count(flags):
    """The devices of a training, on all its machines."""
    machines = training_cluster()
    return max(1, flags.worker_gpu) * (len(machines.addresses) if machines else 1)


def is_mirrored(flags):
    """Whether each device has a copy of the weights: on one machine, or on several."""
    return bool(training_cluster()) or _mirrored(flags)


def _mirrored(flags):
    return flags.optionally_use_dist_strat and flags.worker_gpu > 1


def run_config(flags, hparams):
    """T2T's RunConfig, on the devices asked for.

    Args:
      flags: T2T's trainer flags, checked.
      hparams: the model's.
    """
    os.environ.update(FLOAT32_OPS)
    config = t2t_trainer.create_run_config(hparams)
    machines = training_cluster()
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    # TensorFlow rewrites a graph twice, for seconds: the second time it finds nothing.
    rewriting = config.session_config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = 1
    if not has_gpu:                                   # these look for what to do on a GPU
        rewriting.layout_optimizer = rewriting.implementation_selector = rewriting.OFF
        rewriting.memory_optimization = rewriting.NO_MEM_OPT
    devices = [f"{'gpu' if has_gpu else 'cpu'}:{number}" for number in range(flags.worker_gpu)]
    if not has_gpu:
        config.session_config.device_count["CPU"] = max(1, flags.worker_gpu)
    if machines:
        kept = {name: getattr(config, name) for name in _KEPT}
        if flags.random_seed is not None:
            # Else every machine would draw the same dropout.
            kept["tf_random_seed"] = flags.random_seed + machines.index
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        shared, config = config, tf.estimator.RunConfig(train_distribute=strategy, **kept)
        config.use_tpu, config.t2t_device_info = shared.use_tpu, shared.t2t_device_info
        config.data_parallelism = None
    elif _mirrored(flags):
        strategy = tf.distribute.MirroredStrategy([f"/{device}" for device in devices])
        config = config.replace(train_distribute=strategy)
        config.data_parallelism = None
    elif flags.worker_gpu > 1 and not has_gpu:
        config.data_parallelism = expert_utils.Parallelism(devices, ps_devices=devices)
    return config


def share_data(problem, machines):
    """Gives each machine training files of its own: every n-th. T2T asks this where it has TPUs."""
    def partition(mode, config, params):
        del config, params
        if mode == tf.estimator.ModeKeys.TRAIN:
            return machines.index, len(machines.addresses)
        return 0, 1

    problem._dataset_partition = partition
