import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.layers import common_layers

from rpr.models import layers


def test_layer_normalisation_and_its_gradients_are_those_of_t2t():
    random = np.random.RandomState(0)
    x, dy = random.randn(2, 3, 5) + 2, random.randn(2, 3, 5)
    scale, bias = random.randn(5), random.randn(5)
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(value) for value in (x, scale, bias)]
        found = []
        for y in (layers.layer_norm(*inputs, 1e-6),
                  common_layers.layer_norm_compute(inputs[0], 1e-6, *inputs[1:])):
            found.append(session.run([y, *tf.gradients(y, inputs, tf.constant(dy))]))
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sequence", ["none", "n", "da", "dan", "dza"])
def test_a_sequence_of_steps_makes_t2t_s_variables_and_numbers(sequence):
    values = tiny_models.hparams(layer_postprocess_sequence=sequence,
                                 layer_prepostprocess_dropout=0.0)
    x, y = np.random.RandomState(1).randn(2, 2, 3, 4).astype(np.float32)
    found = []
    for postprocess in (layers.postprocess, common_layers.layer_postprocess):
        with tf.Graph().as_default(), tf.Session() as session, tf.variable_scope("sub_layer"):
            z = postprocess(tf.constant(x), tf.constant(y), values)
            session.run(tf.global_variables_initializer())
            found.append((session.run(z), [v.name for v in tf.global_variables()]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("overrides", [{"layer_postprocess_sequence": "z"},
                                       {"norm_type": "noam"}, {"norm_type": "l2"}])
def test_functions_of_t2t_take_half_precision(overrides):
    values = tiny_models.hparams(layer_prepostprocess_dropout=0.0, **overrides)
    x, y = np.random.RandomState(1).randn(2, 2, 3, 4).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        found = []
        for dtype in (tf.float32, tf.bfloat16):
            with tf.variable_scope("sub_layer", reuse=tf.AUTO_REUSE):
                z = layers.postprocess(tf.cast(x, dtype), layers.normalize(
                    tf.cast(y, dtype), values), values)
            assert z.dtype == dtype
            found.append(tf.cast(z, tf.float32))
        session.run(tf.global_variables_initializer())
        exact, rounded = session.run(found)
    np.testing.assert_allclose(rounded, exact, rtol=0.05, atol=0.05)


def test_the_norm_without_scale_centres_divides_and_adds():
    """(x - mean) / deviation + bias; its only variable is the bias."""
    random = np.random.RandomState(0)
    x, dy, bias = random.randn(2, 3, 5) + 2, random.randn(2, 3, 5), random.randn(5)
    values = tiny_models.hparams(norm_type="layer_without_scale", norm_epsilon=0.01)
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = tf.constant(x, tf.float32)
        y = layers.normalize(inputs, values)
        variable, = tf.trainable_variables()
        assert variable.op.name == "layer_norm/layer_norm_bias"
        session.run(tf.global_variables_initializer())
        variable.load(bias, session)
        y, dx, dbias = session.run([y, *tf.gradients(y, [inputs, variable],
                                                     tf.constant(dy, tf.float32))])
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred ** 2).mean(-1, keepdims=True) + 0.01)
    normal = centred / deviation
    np.testing.assert_allclose(y, normal + bias, rtol=1e-4, atol=1e-5)
    expected = dy - dy.mean(-1, keepdims=True) - normal * (dy * normal).mean(-1, keepdims=True)
    np.testing.assert_allclose(dx, expected / deviation, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(dbias, dy.sum((0, 1)), rtol=1e-4)


def test_a_mask_may_be_the_same_at_every_place():
    """Of residuals, of embedded words, and of what is inside a feed-forward layer."""
    values = tiny_models.hparams(
        layer_prepostprocess_dropout=0.5, layer_prepostprocess_dropout_broadcast_dims="1",
        relu_dropout=0.5, relu_dropout_broadcast_dims="1", layer_postprocess_sequence="d")
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.ones([3, 20, 64])
        hidden = [layers.drop(ones, values), layers.postprocess(None, ones, values)]
        with tf.variable_scope("ffn"):
            layers.feed_forward(tf.ones([3, 20, 8]), values)
        kept = next(op for op in tf.get_default_graph().get_operations()
                    if op.name.startswith("ffn/") and op.type == "SelectV2").outputs[0]
        session.run(tf.global_variables_initializer())
        for mask in session.run([*hidden, kept]):
            mask = mask != 0
            assert (mask == mask[:, :1]).all()
            assert (mask[:, 0] != mask[:1, 0]).any() and 0.1 < mask.mean() < 0.7
