"""`rpr train` (t2t-trainer): trains a model."""
import os
from typing import Any

from rpr.t2t.launcher import METRICS_FILE, need, parse
from rpr.t2t.trained_model import build_hparams
from rpr.utils.console import say
from rpr.utils.errors import UserError


def main(argv: list[str], logs: Any) -> None:
    """Runs the command.

    Args:
      argv: T2T's flags and those of `_define_flags`.
      logs: a `QuietLogs`, or None with --verbose.
    """
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib

    from problems import download
    from problems.checks import check_data
    from rpr.models import pretrained_embeddings
    from rpr.t2t import checkpoints, preflight, registration
    from rpr.training import devices, trainer
    _define_flags()
    flags, rest = parse(argv, "t2t-trainer")
    if flags.cloud_mlengine or flags.use_tpu:
        raise UserError("--cloud_mlengine and --use_tpu need TensorFlow 1: not on TensorFlow 2.15")
    if flags.registry_help:
        from tensor2tensor.utils import registry
        print(registry.help_string())
        return
    need(flags, "output_dir", "data_dir")
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
        t2t_trainer.generate_data()
    check_data(problem, data_dir, ("train",) if flags.schedule == "train" else ("train", "dev"))
    requested = {"model": flags.model, "problem": flags.problem, "hparams_set": flags.hparams_set,
                 "random_seed": flags.random_seed,
                 "vocabulary": preflight.vocabularies(problem, data_dir)}
    preflight.check_same_training(output_dir, requested)
    devices.check(flags, hparams)
    machines = devices.training_cluster()
    _repair(output_dir, is_chief=not machines or machines.index == 0)
    if checkpoints.newest(output_dir):
        checkpoints.find_checkpoint(output_dir, flags.model, "output_dir")
    else:
        pretrained_embeddings.check(hparams, problem, data_dir)

    def keep_logs() -> None:
        if logs:
            process = f".worker{machines.index}" if machines and machines.index else ""
            logs.keep(os.path.join(output_dir, f"train{process}.log"))

    trainer.run(flags, hparams, requested,
                flags.metrics_file or os.path.join(output_dir, METRICS_FILE), keep_logs)


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
    flags.DEFINE_bool("log_batches", False, "Write a hash of each batch to the metrics file.")
