"""`rpr evaluate`: T2T's metrics of a trained model on the development or test set."""
import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags
from tensor2tensor.bin import (
    t2t_eval,  # noqa: F401  defines the flags
    t2t_trainer,
)
from tensor2tensor.utils import trainer_lib

from rpr.cli import arguments, launcher
from rpr.inference import file_checks
from rpr.problems.checks import check_data
from rpr.t2t import trained_model
from rpr.utils import files, processes
from rpr.utils.console import keep_log, say
from rpr.utils.errors import UserError

PROGRAM = """rpr evaluate RUN
  evaluates the averaged (or last) checkpoint of a run directory on the development set
rpr evaluate --output_dir=DIR --model=... --problem=... --hparams_set=... --data_dir=... (t2t-eval)
  evaluates the newest checkpoint of a model that T2T's flags name"""


def main(argv: list[str]) -> None:
    """`rpr evaluate`, with the flags of t2t-eval and those defined here."""
    absl_flags.DEFINE_string("checkpoint_path", None, "Checkpoint to evaluate, without suffix "
                             "(default: the newest one of --output_dir).")
    absl_flags.DEFINE_string("json", None, "File to which the metrics are written as JSON.")
    absl_flags.DEFINE_bool("wait", False, "Afterwards wait for new checkpoints in --output_dir and "
                           "evaluate each, until there was none for --eval_timeout_mins.")
    absl_flags.FLAGS.set_default("eval_steps", None)  # the whole set; T2T: 100 batches
    flags, words = launcher.parse(argv, PROGRAM, f"{launcher.TRAINING}|decode_|worker_id")
    run, request = arguments.find_model(flags, words)
    if run and flags.wait:
        raise UserError("--wait: a run evaluates its own checkpoints; name its model directory "
                        "with T2T's flags instead")
    if flags.json:
        file_checks.check_output(flags.json, of_json=True)
    model = trained_model.find_trained_model(request)
    check_data(model.hparams.problem, model.hparams.data_dir,
               ("test",) if flags.eval_use_test_set else ("dev",))
    launcher.set_t2t_flags(dataclasses.asdict(model.request))
    model_dir = model.hparams.model_dir
    if os.access(model_dir, os.W_OK):
        keep_log(os.path.join(model_dir, "evaluate.log"))
    tf.logging.set_verbosity(tf.logging.INFO)
    trainer_lib.set_random_seed(flags.random_seed)
    hparams = model.hparams
    hparams.model_dir = processes.directory_to_write(model_dir, "evaluate")     # of events
    input_fn = hparams.problem.make_estimator_input_fn(
        tf.estimator.ModeKeys.EVAL, hparams,
        dataset_kwargs={"dataset_split": "test" if flags.eval_use_test_set else None})
    estimator = trainer_lib.create_estimator(
        model.name, hparams, t2t_trainer.create_run_config(hparams, hparams.model_dir))

    def evaluate(checkpoint: str) -> None:
        directory = os.path.dirname(os.path.abspath(checkpoint))
        is_own = directory == os.path.abspath(model_dir)
        metrics = estimator.evaluate(
            input_fn, steps=flags.eval_steps, checkpoint_path=checkpoint,
            name=None if is_own else os.path.basename(directory))     # its own TensorBoard curve
        # metrics-PROBLEM/targets/accuracy becomes accuracy.
        _report(checkpoint, {re.sub("^[^/]*/targets/", "", name): np.asarray(value).item()
                             for name, value in metrics.items()}, flags.json)

    evaluate(model.checkpoint)
    if flags.wait:
        say(f"waiting up to {flags.eval_timeout_mins} minutes for each new checkpoint in "
            f"{model_dir}")
        for path in trainer_lib.next_checkpoint(model_dir, flags.eval_timeout_mins):
            checkpoint = os.path.join(model_dir, os.path.basename(path))    # not of the original
            if checkpoint != model.checkpoint:
                evaluate(checkpoint)


def _report(checkpoint: str, metrics: Mapping[str, float], json_path: str | None) -> None:
    """Prints a table, then the same as a line of JSON; writes the JSON file that was asked for."""
    width = max(map(len, metrics))
    print(checkpoint)
    for name, value in sorted(metrics.items()):
        print(f"  {name:<{width}}  " + (f"{value:.4f}" if isinstance(value, float) else f"{value}"))
    numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    line = json.dumps({"checkpoint": checkpoint, **numbers}, sort_keys=True)
    print(line, flush=True)
    if json_path:
        files.write_atomically(json_path, line + "\n")
