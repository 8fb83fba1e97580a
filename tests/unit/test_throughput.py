"""Tokens and padding of the batches that a training reads."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rpr.training import hooks, seeding
from rpr.training.input_pipeline import BATCH_NUMBER


def test_counts_are_those_of_the_batches_that_went_by(tmp_path):
    random = np.random.RandomState(0)
    batches = [{name: random.randint(0, 3, [4, 2 + step, 1, 1]).astype(np.int32)
                for name in ("inputs", "targets")} for step in range(3)]

    def model_fn(features, labels, mode, params, config):
        return features["targets"] + 1

    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.placeholder(tf.int32, [None, None, 1, 1]) for name in batches[0]}
        model = seeding.seeded(model_fn, 1)
        features[BATCH_NUMBER] = tf.constant(0, tf.int64)
        # Two devices that each have a batch of their own; an evaluation is not counted.
        answers = [model(features, None, mode, {}, None) for mode in ("train", "train", "eval")]
        counter = hooks.Throughput(str(tmp_path))
        for batch in batches:
            fed = {features[name]: ids for name, ids in batch.items()}
            answer, counts = session.run([answers[0], counter.fetches], fed)
            np.testing.assert_array_equal(answer, batch["targets"] + 1)
            counter.add(counts)
        found = counter.report(7, 2.0)
        assert set(counter.report(8, 1.0)) == {"peak_memory"}
    source, target = (sum(np.count_nonzero(batch[name]) for batch in batches)
                      for name in ("inputs", "targets"))
    places = sum(batch[name].size for batch in batches for name in batch)
    assert found.pop("peak_memory") > 1e8                    # TensorFlow itself takes more
    assert found == {"source_tokens_per_second": source, "target_tokens_per_second": target,
                     "padding": pytest.approx(1 - (source + target) / places, abs=1e-4)}
