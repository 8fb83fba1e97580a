"""Tokens per second, share of padding, and memory of a training."""
import resource
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

COUNTS = "rpr/counts"                                 # a graph collection: int64 [3] per batch


def count_tokens(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an Estimator's model function count the tokens of training batches.

    For each batch, the returned function adds the numbers of source tokens, of target tokens and of
    positions (padding included) to the graph collection COUNTS. The ids in the features `inputs`,
    if there is a source, and `targets` are int [batch, length, 1, 1], 0 for padding.
    """
    def counting(features: dict, labels: Any, mode: str, params: Any, config: Any) -> Any:
        texts = [features.get("inputs"), features.get("targets")]
        if (mode == tf.estimator.ModeKeys.TRAIN and texts[1] is not None
                and all(ids is None or ids.dtype.is_integer for ids in texts)):
            tokens = [tf.constant(0, tf.int64) if ids is None else tf.math.count_nonzero(ids)
                      for ids in texts]
            positions = sum(tf.size(ids, out_type=tf.int64) for ids in texts if ids is not None)
            tf.add_to_collection(COUNTS, tf.stack([*tokens, positions]))
        return model_fn(features, labels, mode, params=params, config=config)
    return counting


def peak_memory() -> int | None:
    """Peak memory so far, in bytes: of the fullest GPU, or of the process if there is no GPU.

    None if TensorFlow has no statistics of the GPU.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        return max(tf.config.experimental.get_memory_info(f"GPU:{gpu}")["peak"]
                   for gpu in range(gpus))
    except (ValueError, tf.errors.OpError):           # an allocator without statistics
        return None


class Throughput:
    """Sums the counts of batches between reports. Create it when the graph is complete.

    The reports also go to TensorBoard, to the event files in `model_dir`.
    """

    def __init__(self, model_dir: str) -> None:
        self._writer = tf.summary.FileWriterCache.get(model_dir)
        self.fetches = tf.get_collection(COUNTS)
        self._sums = np.zeros(3, np.int64)

    def add(self, counts: Sequence[np.ndarray]) -> None:
        """Takes the values of `fetches` of one batch per device."""
        self._sums += np.sum(counts, axis=0, dtype=np.int64)

    def report(self, step: int, seconds: float) -> dict[str, float]:
        """Fields of a `train` event: peak memory; since the last report, tokens and padding."""
        source, target, positions = self._sums
        self._sums = np.zeros(3, np.int64)
        fields: dict[str, float] = {}
        peak = peak_memory()
        if peak:
            fields["peak_memory"] = peak
        if positions:
            fields |= {"source_tokens_per_second": round(float(source / seconds), 1),
                       "target_tokens_per_second": round(float(target / seconds), 1),
                       "padding": round(float(1 - (source + target) / positions), 4)}
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=f"throughput/{name}", simple_value=value)
            for name, value in fields.items()]), step)
        return fields
