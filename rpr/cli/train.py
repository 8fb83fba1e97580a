"""`rpr train` (t2t-trainer): trains a model."""
import contextlib
import os
from typing import Any

from rpr.t2t.launcher import METRICS_FILE, need, parse
from rpr.t2t.trained_model import build_hparams
from rpr.utils import files, locks, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import UserError

_UNSUPPORTED = ("cloud_mlengine", "use_tpu", "use_tpu_estimator", "tfdbg", "dbgprofile",
                "export_saved_model", "autotune_objective", "hparams_range", "xla_compile",
                "job-dir")
_EVALUATIONS = ("evaluate", "evaluate_on_train_data", "continuous_eval",
                "continuous_eval_on_train_data")


def main(argv: list[str], logs: Any) -> None:
    """Runs the command.

    Args:
      argv: T2T's flags and those of `_define_flags`.
      logs: a `QuietLogs`, or None with --verbose.
    """
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib

    from rpr.inference import file_checks
    from rpr.models import pretrained_embeddings
    from rpr.problems import download
    from rpr.problems.checks import check_data
    from rpr.t2t import checkpoints, preflight, registration
    from rpr.training import devices, trainer
    _define_flags()
    flags, rest = parse(argv, "rpr train (t2t-trainer)")
    for name in _UNSUPPORTED:
        if flags[name].value:
            raise UserError(f"--{name}: T2T's code for it needs TensorFlow 1")
    if flags.schedule in _EVALUATIONS:
        raise UserError(f"--schedule={flags.schedule}: rpr evaluate evaluates a checkpoint, and "
                        "with --wait each new one")
    if flags.eval_early_stopping_steps:
        raise UserError(f"--eval_early_stopping_steps={flags.eval_early_stopping_steps}: T2T's "
                        "code for it stops no training; --train_steps and --max_loss_rise do")
    if flags.registry_help:
        from tensor2tensor.utils import registry
        print(registry.help_string())
        return
    need(flags, "output_dir", "data_dir")
    for name in ("output_dir", "data_dir"):
        files.refuse_pattern(os.path.expanduser(flags[name].value), f"--{name}")
    if flags.metrics_file:
        file_checks.check_output(flags.metrics_file, "metrics_file")
    if len(rest) % 2 or not all(name.startswith("--hp_") for name in rest[::2]):
        raise UserError(f"{' '.join(rest)[:80]!r}: rpr train takes flags only; hparams are "
                        "--hparams=NAME=VALUE,... or --hp_NAME VALUE")
    t2t_trainer.set_hparams_from_args(rest)
    registration.check_model(flags.model)
    problem = registration.find_problem(flags.problem)
    if flags.gpu_automatic_mixed_precision:
        flags.hparams = ",".join(filter(None, (flags.hparams,
                                               "gpu_automatic_mixed_precision=True")))
    hparams = build_hparams(flags)
    trainer_lib.set_random_seed(flags.random_seed)
    data_dir, output_dir = map(os.path.expanduser, (flags.data_dir, flags.output_dir))
    if flags.generate_data:
        flags.tmp_dir = download.private_directory(flags.tmp_dir)
        _generate_data(flags)
    evaluated = "test" if flags.eval_use_test_set else "dev"
    check_data(problem, data_dir,
               ("train",) if flags.schedule == "train" else ("train", evaluated))
    requested = {"model": flags.model, "problem": flags.problem, "hparams_set": flags.hparams_set,
                 "random_seed": flags.random_seed,
                 "vocabulary": preflight.vocabularies(problem, data_dir)}
    preflight.check_same_training(output_dir, requested)
    flags.worker_gpu = flags.cpu_devices or flags.worker_gpu
    devices.check(flags, hparams)
    machines = devices.training_cluster()
    is_chief = not machines or machines.index == 0
    stack = contextlib.ExitStack()                    # until the process ends

    def lock_output() -> None:
        if is_chief:
            stack.enter_context(locks.lock(os.path.join(output_dir, ".train.lock"), wait=False))

    is_new = not os.path.isdir(output_dir)
    if not is_new:
        lock_output()
    _repair(output_dir, is_chief)
    if checkpoints.newest(output_dir):
        checkpoints.find_checkpoint(output_dir, flags.model, "output_dir")
    else:
        pretrained_embeddings.check(hparams, problem, data_dir)
        if flags.warm_start_from:
            flags.warm_start_from = checkpoints.find_checkpoint(
                os.path.expanduser(flags.warm_start_from), flags.model, "warm_start_from")

    def prepare_output() -> None:
        if is_new:
            os.makedirs(output_dir, exist_ok=True)
            lock_output()
        if logs:
            process = f".worker{machines.index}" if machines and machines.index else ""
            logs.keep(os.path.join(output_dir, f"train{process}.log"))

    metrics_file = flags.metrics_file or os.path.join(output_dir, METRICS_FILE)
    try:
        with stack:
            trainer.run(flags, hparams, requested, metrics_file, prepare_output)
    except OSError as error:                          # a failed write does not say where
        error.filename = error.filename or output_dir
        raise
    checkpoint = checkpoints.newest(output_dir)
    if checkpoint and is_chief:
        say(f"{checkpoint}{_losses(metrics_file)}")


def _generate_data(flags: Any) -> None:
    """T2T's --generate_data; as in `rpr datagen`, NAME_rev and NAME_copy share the data of NAME."""
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import registry
    name = flags.problem
    try:
        flags.problem = registry.parse_problem_name(name).base_name
        t2t_trainer.generate_data()
    finally:
        flags.problem = name


def _losses(metrics_file: str) -> str:
    """The last losses of a training, for its last line."""
    last = metrics_log.last(metrics_file)
    losses = [f"{meaning} {metrics_log.loss_of(last[event]):.3f} at step {last[event]['step']:,}"
              for event, meaning in (("train", "training loss"), ("eval", "development loss"))
              if "loss" in last.get(event, {})]
    return ": " + ", ".join(losses) if losses else ""


def _repair(output_dir: str, is_chief: bool) -> None:
    """Lets a training resume from the newest complete checkpoint, whatever a power cut left."""
    from rpr.t2t import checkpoints
    repaired = checkpoints.repair_state(output_dir) if is_chief else None
    if repaired:
        say(f"rpr train: the newest checkpoint was damaged or not recorded; resuming from "
            f"{repaired}")


def _define_flags() -> None:
    from absl import flags
    flags.FLAGS.set_default("random_seed", 1)
    flags.DEFINE_string("metrics_file", None, "The file for losses, speed and evaluations, one "
                        "JSON object per line (default: metrics.jsonl in --output_dir).")
    flags.DEFINE_float("max_loss_rise", 2.0, "Stop a training whose loss (median of 50 steps) "
                       "stays this far above its best, in nats per token; 0: never.")
    flags.DEFINE_integer("stop_at_step", 0, "Stop at this step, before --train_steps, on which "
                         "learning rates may depend; 0: do not.")
    flags.DEFINE_integer("eval_frequency", None, "Evaluate at the first checkpoint that is this "
                         "many steps after the last evaluation (default: T2T's way, by the clock: "
                         "--eval_throttle_seconds).", lower_bound=1)
    flags.DEFINE_integer("keep_checkpoint_every_n_steps", 0, "Keep the weights of the checkpoints "
                         "at multiples of this step in kept/ below --output_dir, without the "
                         "optimizer's variables; 0: of none.", lower_bound=0)
    flags.DEFINE_integer("cpu_devices", 0, "Without GPUs: divide the CPU into this many devices, "
                         "to try out what --worker_gpu does on as many GPUs.", lower_bound=0,
                         upper_bound=64)
    flags.DEFINE_bool("log_batches", False, "Write a hash of each batch to the metrics file.")
