"""Progress and speed of a decoding."""
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from rpr.utils.console import Task


class ProgressEstimator:
    """An Estimator whose `predict` shows progress and counts sentences and tokens.

    T2T's decoding functions take it in place of the Estimator.

    Args:
      estimator: a `tf.estimator.Estimator`.
      total: sentences to decode; None if not known.
    """

    def __init__(self, estimator: Any, total: int | None) -> None:
        self._estimator, self._total = estimator, total
        self.config, self.model_dir = estimator.config, estimator.model_dir
        self.sentences = self.tokens = 0
        self.seconds = 0.0

    def predict(self, *args: Any, **kwargs: Any) -> Iterator[dict[str, np.ndarray]]:
        """As `Estimator.predict`."""
        start = time.time()
        with Task("decoding", self._total, "sentences") as task:
            for prediction in self._estimator.predict(*args, **kwargs):
                self.sentences += 1
                best = np.atleast_2d(prediction["outputs"])[0]
                self.tokens += int(np.count_nonzero(best))
                self.seconds = time.time() - start
                task.update(self.sentences, f"{self.sentences / self.seconds:.1f}/s",
                            seconds_left=self._seconds_left())
                yield prediction

    def _seconds_left(self):
        if self._total is None:
            return None
        return (self._total - self.sentences) * self.seconds / self.sentences

    def event(self) -> dict[str, float]:
        """The `decode` event of what was predicted so far."""
        return decode_event(self.sentences, self.tokens, self.seconds)


def decode_event(sentences: int, tokens: int, seconds: float) -> dict[str, float]:
    """The `decode` event of metrics.jsonl.

    Args:
      sentences: decoded.
      tokens: of their best hypotheses.
      seconds: that it took.

    Returns:
      the arguments and the rates per second.
    """
    seconds = max(seconds, 1e-9)
    return {"sentences": sentences, "tokens": tokens, "seconds": round(seconds, 3),
            "sentences_per_second": round(sentences / seconds, 3),
            "tokens_per_second": round(tokens / seconds, 3)}
