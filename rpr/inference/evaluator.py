"""T2T's metrics (loss, accuracy, approximate BLEU, ...) of a checkpoint on a problem's data."""
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer
from tensor2tensor.utils import trainer_lib

from rpr.t2t.trained_model import TrainedModel


def build_evaluator(flags: Any, model: TrainedModel) -> Callable[[str], dict[str, float]]:
    """A function that evaluates a checkpoint of a model.

    Args:
      flags: T2T's, parsed: eval_steps (batches at most) and eval_use_test_set are used.
      model: whose checkpoints are evaluated.

    Returns:
      a function of a checkpoint's path, without suffix; it gives {metric: value}, the step as
      `global_step` among them.
    """
    hparams = model.hparams
    split = {"dataset_split": "test" if flags.eval_use_test_set else None}
    input_fn = hparams.problem.make_estimator_input_fn(
        tf.estimator.ModeKeys.EVAL, hparams, dataset_kwargs=split)
    estimator = trainer_lib.create_estimator(model.name, hparams,
                                             t2t_trainer.create_run_config(hparams))

    def evaluate(checkpoint: str) -> dict[str, float]:
        directory = os.path.dirname(os.path.abspath(checkpoint))
        is_own = directory == os.path.abspath(hparams.model_dir)
        metrics = estimator.evaluate(
            input_fn, steps=flags.eval_steps, checkpoint_path=checkpoint,
            name=None if is_own else os.path.basename(directory))     # its own TensorBoard curve
        return {_short(name): np.asarray(value).item() for name, value in metrics.items()}

    return evaluate


def _short(name):
    """`accuracy` of `metrics-PROBLEM/targets/accuracy`."""
    return name.removeprefix(name.partition("/")[0] + "/targets/") if "/targets/" in name else name
