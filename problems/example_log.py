"""problems.example_log"""
import numpy as np
import tensorflow.compat.v1 as tf


class ExampleLog(tf.train.SessionRunHook):
    """Logs the first example of an evaluation: input, expected, and predicted.

    What is predicted is the likeliest word at each place, after the expected words before it.

    Args:
      features: ids `inputs` and `targets`, [batch, length, 1, 1].
      logits: [batch, length, 1, 1, vocabulary].
      encoders: {"inputs": text encoder, "targets": text encoder}.
    """

    def __init__(self, features, logits, encoders):
        self._fetches = [features["inputs"][0], features["targets"][0],
                         tf.argmax(logits[0], axis=-1)]
        self._encoders, self._done = encoders, False

    def before_run(self, run_context):
        return None if self._done else tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        if self._done:
            return
        self._done = True
        words = [ids.flatten() for ids in run_values.results]
        words[2] = words[2][:np.count_nonzero(words[1])]     # padding is predicted as words too
        for name, side, ids in zip(("input", "expected", "predicted"),
                                   ("inputs", "targets", "targets"), words, strict=True):
            ids = [int(id_) for id_ in ids if id_ > 1]       # without padding and end
            tf.logging.info("%-10s %s", name, self._encoders[side].decode(ids))
