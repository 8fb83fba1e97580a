"""rpr.training.divergence"""
import math
import statistics

import numpy as np
import tensorflow.compat.v1 as tf


class Diverged(Exception):
    """A training that will come to nothing. The message says what its loss did, and when."""


class DivergenceDetector:
    """Notices within 100 steps that a loss is infinite, or lost what training had gained.

    A loss is noisy: the median of 5 records stands for it.

    Args:
      max_rise: how far above its best a loss may stay, in nats a token; 0: as far as it likes.
    """

    WINDOW = 5

    def __init__(self, max_rise):
        self._max_rise = max_rise
        self._recent = []
        self._best, self._best_step = math.inf, 0
        self.good_step = 0                            # the last one with nothing wrong yet

    def add(self, step, loss):
        """Takes one record.

        Raises:
          Diverged: the training should end.
        """
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {step}")
        self._recent = [*self._recent[1 - self.WINDOW:], loss]
        if len(self._recent) < self.WINDOW:
            return
        median = statistics.median(self._recent)
        if median < self._best:
            self._best, self._best_step = median, step
        if not self._max_rise or median <= self._best + self._max_rise / 2:
            self.good_step = step
        elif median > self._best + self._max_rise:
            raise Diverged(f"the loss diverges: {median:.2f} at step {step}, after "
                           f"{self._best:.2f} at step {self._best_step} (--max_loss_rise="
                           f"{self._max_rise:g})")


def explain(error, hook, output_dir):
    """One line on a training that came to nothing, naming the last checkpoint from before.

    Args:
      error: a `Diverged`, or TensorFlow's error for a NaN.
      hook: the training's `TrainingHook`.
      output_dir: where the checkpoints are.
    """
    what, until = str(error), hook.losses.good_step
    if not isinstance(error, Diverged):               # TensorFlow looks before the hook counts
        what, until = f"the loss is NaN at step {hook.step + 1}", hook.step
    state = tf.train.get_checkpoint_state(output_dir)
    for path in reversed(state.all_model_checkpoint_paths if state else ()):
        if int(path.rsplit("-", 1)[1]) <= until and _is_finite(path):
            return f"{what}; the last good checkpoint is {path}"
    return f"{what}; no checkpoint from before is left"


def _is_finite(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    return all(np.isfinite(reader.get_tensor(name)).all()
               for name, kind in reader.get_variable_to_dtype_map().items() if kind.is_floating)
