import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr.models import losses


def test_the_gradient_of_a_table_is_the_sum_of_its_uses():
    random = np.random.RandomState(0)
    values, dense, rows = random.randn(7, 3), random.randn(7, 3), random.randn(2, 4, 3)
    ids = random.randint(0, 7, [2, 4])
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.constant(values)
        first, second, whole = losses.three_uses(table)
        loss = tf.reduce_sum(whole * dense) + sum(
            tf.reduce_sum(tf.gather(use, ids[i]) * rows[i])
            for i, use in enumerate((first, second)))
        gradient, = tf.gradients(loss, table)
        expected = dense.copy()
        np.add.at(expected, ids, rows)
        np.testing.assert_allclose(session.run(gradient), expected, rtol=1e-12)
        kinds = [op.type for op in session.graph.get_operations()]
        assert kinds.count("TensorScatterAdd") == 2 and "UnsortedSegmentSum" not in kinds


@pytest.mark.parametrize("overrides, concats", [
    ({}, 1), ({"shared_embedding_and_softmax_weights": False}, 3), ({"symbol_dropout": 0.1}, 3)])
def test_the_shards_of_a_shared_table_are_put_together_once_a_step(overrides, concats):
    values = tiny_models.hparams(symbol_modality_num_shards=3, **overrides)
    with tf.Graph().as_default() as graph:
        made = tiny_models.make(values, tf.estimator.ModeKeys.TRAIN)
        made(tiny_models.features(tiny_models.sentences([4, 2]), tiny_models.sentences([3, 3])))
        tables = [op for op in graph.get_operations() if op.type == "ConcatV2"
                  and op.outputs[0].shape.as_list() == [11, values.hidden_size]]
    assert len(tables) == concats
