"""How many tokens a training reads a second, and how much of its batches is padding."""
import numpy as np
import tensorflow.compat.v1 as tf

COUNTS = "rpr/counts"                                 # a graph collection: one tensor, int64 [3]


def counted(input_fn):
    """An Estimator's input function that also counts what is in its batches.

    Args:
      input_fn: gives a tf.data.Dataset of (features, targets), features being a dict with ids
        `inputs` (where there is a source) and `targets`, int [batch, length, 1, 1], 0 padding.

    Returns:
      an input function; it leaves source tokens, target tokens and places, padding among them, of
      each batch in the graph collection COUNTS.
    """
    def count(params, config):
        dataset = input_fn(params, config)
        if config.train_distribute:                   # such a strategy divides the dataset itself
            return dataset
        options = tf.data.Options()
        options.experimental_warm_start = True        # T2T shuffles 512 batches: seconds to fill
        batches = tf.data.make_initializable_iterator(dataset.with_options(options))
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, batches.initializer)
        features, targets = batches.get_next()
        texts = [features.get("inputs"), features["targets"]]
        if all(ids is None or ids.dtype.is_integer for ids in texts):
            tokens = [tf.constant(0, tf.int64) if ids is None else tf.math.count_nonzero(ids)
                      for ids in texts]
            places = sum(tf.size(ids, out_type=tf.int64) for ids in texts if ids is not None)
            tf.add_to_collection(COUNTS, tf.stack([*tokens, places]))
        return features, targets
    return count


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
        """Takes what a step fetched."""
        self._sums += np.sum(counts, axis=0, dtype=np.int64)

    def report(self, step, seconds):
        """Source and target tokens a second and the share of padding, since the last report.

        Returns:
          fields of a `train` event; none where nothing was counted.
        """
        source, target, places = self._sums
        self._sums = np.zeros(3, np.int64)
        if not places:
            return {}
        found = {"source_tokens_per_second": round(float(source / seconds), 1),
                 "target_tokens_per_second": round(float(target / seconds), 1),
                 "padding": round(float(1 - (source + target) / places), 4)}
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=f"throughput/{name}", simple_value=value)
            for name, value in found.items()]), step)
        return found
