"""Logs one example of each evaluation: input, expected and predicted words."""
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


class ExampleLog(tf.train.SessionRunHook):
    """Logs the first example of an evaluation.

    The prediction is the most probable word at each position, given the expected words before it.

    Args:
      features: ids `inputs` and `targets`, int32 [batch, length, 1, 1].
      logits: float32 [batch, length, 1, 1, vocabulary].
      encoders: the text encoders {"inputs": ..., "targets": ...}.
    """

    def __init__(self, features: dict[str, tf.Tensor], logits: tf.Tensor,
                 encoders: dict[str, Any]) -> None:
        self._fetches = [features["inputs"][0], features["targets"][0],
                         tf.argmax(logits[0], axis=-1)]
        self._encoders, self._done = encoders, False

    def before_run(self, run_context: Any) -> Any:
        return None if self._done else tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._done:
            return
        self._done = True
        inputs, expected, predicted = (ids.flatten() for ids in run_values.results)
        predicted = predicted[:np.count_nonzero(expected)]       # ignore padding positions
        for label, side, ids in (("input", "inputs", inputs), ("expected", "targets", expected),
                                 ("predicted", "targets", predicted)):
            words = [int(word_id) for word_id in ids if word_id > 1]     # without padding and end
            tf.logging.info("%-10s %s", label, self._encoders[side].decode(words))
