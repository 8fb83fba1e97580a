"""rpr.cli.train"""
import os

from rpr.t2t.launcher import METRICS_FILE, need, parse
from rpr.t2t.registration import find_problem, known
from rpr.t2t.trained_model import build_hparams
from rpr.utils.errors import UserError


def main(argv, logs):
    import tensorflow.compat.v1 as tf
    from absl import flags as absl_flags
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib

    from problems.checks import check_data
    from rpr.models import pretrained_embeddings
    from rpr.t2t import preflight, registration
    from rpr.training import devices, trainer
    absl_flags.DEFINE_string("metrics_file", None, "Where loss, speed and evaluations are written, "
                             "a JSON object a line (default: metrics.jsonl in --output_dir).")
    absl_flags.DEFINE_float("max_loss_rise", 2.0, "A training ends whose loss stays so far, in "
                            "nats a token, above its best (medians of 50 steps); 0: none does.")
    flags, rest = parse(argv, "t2t-trainer")
    if flags.cloud_mlengine or flags.use_tpu:
        raise UserError("--cloud_mlengine and --use_tpu need TensorFlow 1: not on TensorFlow 2.15")
    if flags.registry_help:
        from tensor2tensor.utils import registry
        print(registry.help_string())
        return
    need(flags, "output_dir", "data_dir")
    t2t_trainer.set_hparams_from_args(rest)
    registration.check_choice("model", "model", flags.model, known("model", flags.model))
    problem = find_problem(flags.problem)
    if flags.gpu_automatic_mixed_precision:
        flags.hparams = ",".join(filter(None, (flags.hparams,
                                               "gpu_automatic_mixed_precision=True")))
    hparams = build_hparams(flags)
    trainer_lib.set_random_seed(flags.random_seed)
    data_dir, output_dir = (os.path.expanduser(flags[name].value) for name in ("data_dir",
                                                                              "output_dir"))
    if flags.generate_data:
        t2t_trainer.generate_data()
    check_data(problem, data_dir, ("train",) if flags.schedule == "train" else ("train", "dev"))
    asked = {"model": flags.model, "problem": flags.problem, "hparams_set": flags.hparams_set,
             "vocabulary": preflight.vocabularies(problem, data_dir)}
    preflight.check_same_training(output_dir, asked)
    devices.check(flags, hparams, problem)
    if tf.train.latest_checkpoint(output_dir):
        preflight.find_checkpoint(output_dir, flags.model, "output_dir")
    else:
        pretrained_embeddings.check(hparams, problem, data_dir)

    if logs:
        machines = devices.training_cluster()
        who = f".worker{machines.index}" if machines and machines.index else ""
        logs.keep(os.path.join(output_dir, f"train{who}.log"))
    trainer.run(flags, hparams, asked, flags.metrics_file or os.path.join(output_dir,
                                                                           METRICS_FILE))
