"""Stops a training whose loss becomes infinite or rises far above its best."""
import math
import statistics
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from rpr.t2t import checkpoints


class Diverged(Exception):
    """The training diverged. The message has the loss and the step."""


class DivergenceDetector:
    """Notices a diverging loss within 100 steps, by the median of the last 5 records.

    Args:
      max_rise: largest rise of the loss above its best, in nats per token; 0: no limit.
    """

    WINDOW = 5

    def __init__(self, max_rise: float) -> None:
        self._max_rise = max_rise
        self._recent: list[float] = []
        self._best, self._best_step = math.inf, 0
        self.good_step = 0                            # the last step without any sign of divergence

    def add(self, step: int, loss: float) -> None:
        """Takes one record; raises `Diverged` if the training should end."""
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
                           f"{self._best:.2f} at step {self._best_step} (max_loss_rise="
                           f"{self._max_rise:g})")


def explain(error: Exception, hook: Any, output_dir: str) -> str:
    """One line on a training that diverged, with the last good checkpoint in `output_dir`.

    `error` is a `Diverged` or TensorFlow's error for a NaN; `hook` is the `TrainingHook`.
    """
    cause, last_good = str(error), hook.detector.good_step
    if not isinstance(error, Diverged):               # TensorFlow stops before the hook records
        cause, last_good = f"the loss is NaN at step {hook.step + 1}", hook.step
    state = tf.train.get_checkpoint_state(output_dir)
    for path in reversed(state.all_model_checkpoint_paths if state else ()):
        if (int(path.rsplit("-", 1)[1]) <= last_good and not checkpoints.damage(path)
                and _is_finite(tf.train.load_checkpoint(path))):
            return f"{cause}; the last good checkpoint is {path}"
    return f"{cause}; no earlier checkpoint is left"


def _is_finite(reader: Any) -> bool:
    return all(np.isfinite(reader.get_tensor(name)).all()
               for name, dtype in reader.get_variable_to_dtype_map().items() if dtype.is_floating)
