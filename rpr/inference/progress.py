"""rpr.inference.progress"""
import time

import numpy as np

from rpr.utils.console import Task


class WatchedEstimator:
    """An Estimator whose `predict` shows progress and counts what it yields.

    Args:
      estimator: the Estimator to decode with.
      total: sentences to decode; None where that is not known.
    """

    def __init__(self, estimator, total):
        self._estimator, self._total = estimator, total
        self.config, self.model_dir = estimator.config, estimator.model_dir
        self.sentences = self.tokens = 0
        self.seconds = 0.0

    def predict(self, *args, **kwargs):
        began = time.time()
        with Task("decoding", self._total, "sentences") as task:
            for result in self._estimator.predict(*args, **kwargs):
                self.sentences += 1
                best = np.atleast_2d(result["outputs"])[0]
                self.tokens += int(np.count_nonzero(best))
                self.seconds = time.time() - began
                task.update(self.sentences, f"{self.sentences / self.seconds:.1f}/s",
                            seconds_left=self._seconds_left())
                yield result

    def _seconds_left(self):
        if self._total:
            return (self._total - self.sentences) * self.seconds / self.sentences

    def record(self):
        """The `decode` event of what was yielded so far."""
        return decoded(self.sentences, self.tokens, self.seconds)


def decoded(sentences, tokens, seconds):
    """The `decode` event: sentences, tokens (of the best hypotheses), seconds, rates."""
    seconds = max(seconds, 1e-9)
    return {"sentences": sentences, "tokens": tokens, "seconds": round(seconds, 3),
            "sentences_per_second": round(sentences / seconds, 3),
            "tokens_per_second": round(tokens / seconds, 3)}
