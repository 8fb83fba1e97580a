"""What a training does a second, how much of it is padding, and what memory it takes."""
import resource

import numpy as np
import tensorflow.compat.v1 as tf

COUNTS = "rpr/counts"                                 # a graph collection: one tensor, int64 [3]


def count_tokens(model_fn):
    """An Estimator's model function that also counts what is in the batches it trains on.

    Args:
      model_fn: takes features, a dict with ids `inputs` (where there is a source) and `targets`,
        int [batch, length, 1, 1], 0 padding.

    Returns:
      a model function; for each device of this process that has a batch of its own it leaves source
      tokens, target tokens and places, padding among them, in the graph collection COUNTS.
    """
    def count(features, labels, mode, params, config):
        texts = [features.get("inputs"), features.get("targets")]
        if (mode == tf.estimator.ModeKeys.TRAIN and texts[1] is not None
                and all(ids is None or ids.dtype.is_integer for ids in texts)):
            tokens = [tf.constant(0, tf.int64) if ids is None else tf.math.count_nonzero(ids)
                      for ids in texts]
            places = sum(tf.size(ids, out_type=tf.int64) for ids in texts if ids is not None)
            tf.add_to_collection(COUNTS, tf.stack([*tokens, places]))
        return model_fn(features, labels, mode, params=params, config=config)
    return count


def peak_memory():
    """The most bytes that this process held at a time: on a GPU, the fullest, or without one in
    main memory. None where TensorFlow does not say."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        return max(tf.config.experimental.get_memory_info(f"GPU:{gpu}")["peak"]
                   for gpu in range(gpus))
    except (ValueError, tf.errors.OpError):           # an allocator that keeps no account
        return None


class Throughput:
    """Sums the counts of batches from report to report; made when the graph is there.

    Args:
      model_dir: TensorBoard's events go there.
    """

    def __init__(self, model_dir):
        self._writer = tf.summary.FileWriterCache.get(model_dir)
        self.fetches = tf.get_collection(COUNTS)
        self._sums = np.zeros(3, np.int64)

    def add(self, counts):
        """Takes what a batch fetched."""
        self._sums += np.sum(counts, axis=0, dtype=np.int64)

    def report(self, step, seconds):
        """Tokens a second and the share of padding since the last report, and peak memory.

        Returns:
          fields of a `train` event; no tokens where none were counted.
        """
        source, target, places = self._sums
        self._sums = np.zeros(3, np.int64)
        found, peak = {}, peak_memory()
        if peak:
            found["peak_memory"] = peak
        if places:
            found |= {"source_tokens_per_second": round(float(source / seconds), 1),
                      "target_tokens_per_second": round(float(target / seconds), 1),
                      "padding": round(float(1 - (source + target) / places), 4)}
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=f"throughput/{name}", simple_value=value)
            for name, value in found.items()]), step)
        return found
