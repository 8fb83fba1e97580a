"""The devices, machines and threads of a training.

A step is one update of the weights, from one batch per device. `batch_size` is the number of
sub-words of one device's batch, padding included (sentences with `use_fixed_batch_size`). The loss
is the sum over all devices, divided by the target tokens of all of them. docs/training.md describes
the modes: towers, mirrored replicas, several machines, accumulated batches, half precision.
"""
import dataclasses
import json
import os

import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer
from tensor2tensor.utils import expert_utils, misc_utils
from tensorflow.python.client import pywrap_tf_session

from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import HParams

# TensorFlow's rewriting to float16 reads these lists from the environment. A softmax stays float32,
# as sums, means and logarithms do: its input may contain masks of -1e9, which float16 cannot
# represent. An operation in two lists stops the rewriting.
FLOAT32_OPS = {f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{change}": "Softmax"
               for change in ("DENYLIST_ADD", "INFERLIST_REMOVE")}
# Arguments to copy a RunConfig. TensorFlow accepts TF_CONFIG for a mirrored cluster only if the
# strategy is given when the RunConfig is made.
_RUN_CONFIG_ARGUMENTS = (
    "model_dir", "session_config", "save_summary_steps", "save_checkpoints_steps",
    "save_checkpoints_secs", "keep_checkpoint_max", "keep_checkpoint_every_n_hours",
    "tf_random_seed", "log_step_count_steps", "checkpoint_save_graph_def")


@dataclasses.dataclass(frozen=True)
class TrainingCluster:
    """The processes of a training: `host:port` of each, the chief first; index of this one."""
    addresses: tuple[str, ...]
    index: int


def training_cluster() -> TrainingCluster | None:
    """The cluster of TF_CONFIG; None if the variable is not set or names a chief alone."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(addresses) for job, addresses in config["cluster"].items() if addresses}
        task, index = str(config["task"]["type"]), int(config["task"].get("index", 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise UserError(f"TF_CONFIG={text}: expected JSON such as " + json.dumps(
            {"cluster": {"chief": ["host:port"], "worker": ["host:port"]},
             "task": {"type": "worker", "index": 0}})) from None
    if "ps" in jobs:
        raise UserError("TF_CONFIG names parameter servers (ps): T2T's do not work on TensorFlow "
                        "2; start the same command on every machine with a TF_CONFIG of one chief "
                        "and workers, which mirrors the model (scripts/train_on_hosts writes it)")
    if set(jobs) - {"chief", "worker"} or len(jobs.get("chief", ())) != 1:
        raise UserError(f"TF_CONFIG: its cluster has {', '.join(sorted(jobs)) or 'no jobs'}; one "
                        "chief and any number of workers are needed (the chief evaluates)")
    if task not in jobs or not 0 <= index < len(jobs[task]):
        raise UserError(f"TF_CONFIG: its cluster has no {task} {index}")
    if len(jobs) == 1:
        del os.environ["TF_CONFIG"]                   # TensorFlow needs none for one machine
        return None
    addresses = (*jobs["chief"], *jobs["worker"])
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        # The worker group meets at the port after the chief's.
        if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) < 65535:
            raise UserError(f"TF_CONFIG: its cluster has the address {address!r}; expected "
                            "host:port with a port from 1 to 65534")
    return TrainingCluster(addresses, index + (task == "worker"))


@dataclasses.dataclass(frozen=True)
class DeviceRequest:
    """The devices and threads of a training.

    The threads of one operation, `intra_op_threads`, affect rounding; 0: as in the training so far,
    else all cores.
    """
    per_machine: int = 1                              # GPUs, or parts of a CPU; 0: the CPU
    cpu_devices: int = 0                              # parts of the CPU; 0: use GPUs
    mirrored: bool = False                            # each device of a machine has all weights
    intra_op_threads: int = 0
    inter_op_threads: int = 0                         # operations at a time; 0: as intra_op
    machines: TrainingCluster | None = None           # None: this machine alone
    compiled: bool = False                            # by XLA

    @property
    def count(self) -> int:
        """The number of devices on all machines."""
        return max(1, self.per_machine) * (len(self.machines.addresses) if self.machines else 1)

    @property
    def mirrors_devices(self) -> bool:
        """Whether the devices of one machine have copies of the weights."""
        return self.mirrored and self.per_machine > 1

    @property
    def is_mirrored(self) -> bool:
        """Whether each device has a copy of the weights, on one machine or on several."""
        return bool(self.machines) or self.mirrors_devices

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and metrics."""
        return not self.machines or self.machines.index == 0

    def batches_per_step(self, hparams: HParams) -> int:
        """Batches that this process reads for one update of the weights."""
        replicas = max(1, self.per_machine) if self.is_mirrored else 1
        return replicas * (hparams.optimizer_multistep_accumulate_steps or 1)


def check(request: DeviceRequest, hparams: HParams, save_checkpoints_secs: int = 0) -> None:
    """Refuses combinations that do not work, or that would train something else than requested."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if request.per_machine > (gpus or max(request.cpu_devices, 1)):
        raise InvalidValue("worker_gpu", request.per_machine, f"{gpus or 'no'} GPUs are visible; "
                           "cpu_devices tries it out on a CPU")
    if gpus and request.cpu_devices:
        raise InvalidValue("cpu_devices", request.cpu_devices, f"{gpus} GPUs are visible; "
                           "CUDA_VISIBLE_DEVICES= hides them")
    if request.machines and gpus and gpus != request.per_machine:
        raise InvalidValue("worker_gpu", request.per_machine, f"with TF_CONFIG all {gpus} visible "
                           "GPUs of the machine are used; CUDA_VISIBLE_DEVICES hides some")
    accumulates = misc_utils.camelcase_to_snakecase(hparams.optimizer) == "multistep_adam"
    if accumulates and save_checkpoints_secs:
        raise InvalidValue("save_checkpoints_secs", save_checkpoints_secs, "with "
                           "optimizer=multistep_adam a checkpoint could fall between the batches "
                           "of a step, and a resumed training would repeat them; use "
                           "local_eval_frequency")
    mode = ("TF_CONFIG" if request.machines
            else "optionally_use_dist_strat" if request.mirrors_devices
            else "optimizer=multistep_adam" if accumulates else None)
    batches, dtype = hparams.optimizer_multistep_accumulate_steps, hparams.activation_dtype
    for is_wrong, why in (
            (dtype not in ("float32", "bfloat16"), f"activation_dtype={dtype}: float32 or "
             "bfloat16; gpu_automatic_mixed_precision computes in float16"),
            (hparams.weight_dtype != "float32", f"weight_dtype={hparams.weight_dtype}: weights are "
             "float32; activation_dtype=bfloat16 computes in half precision"),
            (hparams.gpu_automatic_mixed_precision and dtype != "float32",
             f"gpu_automatic_mixed_precision with activation_dtype={dtype}: one of the two"),
            (accumulates != (batches > 0), f"optimizer={hparams.optimizer} with "
             f"optimizer_multistep_accumulate_steps={batches}: multistep_adam and a number of "
             "batches go together"),
            (mode and hparams.clip_grad_norm, f"clip_grad_norm={hparams.clip_grad_norm} with "
             f"{mode}: the gradient of each batch would be clipped, not their sum; towers clip the "
             "sum"),
            (hparams.no_data_parallelism and request.per_machine > 1, "no_data_parallelism=True "
             f"with {request.per_machine} devices: only one of them would train"),
            (request.compiled and request.is_mirrored,
             f"xla_compile with {mode}: only one device and towers are compiled"),
            (accumulates and request.is_mirrored, f"optimizer=multistep_adam with {mode}: only one "
             "device and towers accumulate batches")):
        if is_wrong:
            raise UserError(why)


def compile_with_xla(session: tf.ConfigProto) -> None:
    """Makes XLA compile what a session runs."""
    session.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_2
    # TF_XLA_FLAGS was read when TensorFlow looked for devices. Without lazy compilation, no step
    # depends on how often its shape has occurred in this process.
    pywrap_tf_session.TF_SetTfXlaCpuGlobalJit(True)
    pywrap_tf_session.TF_SetXlaEnableLazyCompilation(False)


def run_config(request: DeviceRequest, hparams: HParams, threads: int) -> tf.estimator.RunConfig:
    """T2T's RunConfig on the requested devices, with `threads` per operation.

    T2T's flags must agree with the request.
    """
    os.environ.update(FLOAT32_OPS)
    # Without graph.pbtxt and a .meta file beside each checkpoint, which take seconds and megabytes:
    # nothing reads them, and TensorBoard takes the graph from the event file. With XLA, a step that
    # also writes summaries would be another program. `replace` copies the session's configuration.
    config = t2t_trainer.create_run_config(hparams).replace(
        checkpoint_save_graph_def=False, **{"save_summary_steps": 0} if request.compiled else {})
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    session = config.session_config
    session.intra_op_parallelism_threads = threads
    session.inter_op_parallelism_threads = request.inter_op_threads or threads
    if request.compiled:
        compile_with_xla(session)
    # By default, TensorFlow rewrites a graph twice, for seconds; the second time finds nothing.
    rewriting = session.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = 1
    if not has_gpu:
        session.device_count["CPU"] = max(1, request.per_machine)
        # These passes only help on a GPU.
        rewriting.layout_optimizer = rewriting.implementation_selector = rewriting.OFF
        rewriting.memory_optimization = rewriting.NO_MEM_OPT
    devices = [f"{'gpu' if has_gpu else 'cpu'}:{number}" for number in range(request.per_machine)]
    if request.machines:
        arguments = {name: getattr(config, name) for name in _RUN_CONFIG_ARGUMENTS}
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
        shared, config = config, tf.estimator.RunConfig(train_distribute=strategy, **arguments)
        config.use_tpu, config.t2t_device_info = shared.use_tpu, shared.t2t_device_info
        config.data_parallelism = None
    elif request.mirrors_devices:
        strategy = tf.distribute.MirroredStrategy([f"/{device}" for device in devices])
        config = config.replace(train_distribute=strategy)
        config.data_parallelism = None
    elif request.per_machine > 1 and not has_gpu:
        config.data_parallelism = expert_utils.Parallelism(devices, ps_devices=devices)
    return config
