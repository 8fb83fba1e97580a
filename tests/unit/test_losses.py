import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.layers import common_layers

from rpr.models import losses

TRAIN = tf.estimator.ModeKeys.TRAIN


def stock(x, table, labels, weights, smoothing):
    """T2T's loss, over logits that are written out."""
    logits = tf.matmul(x, table, transpose_b=True)
    each = common_layers.smoothing_cross_entropy(
        logits, labels, table.shape.as_list()[0], 1.0 - smoothing)
    return tf.reduce_sum(each * weights)


def value_and_gradients(function, dtype, x, table, labels, weights, smoothing):
    with tf.Graph().as_default(), tf.Session() as session:
        x, table, weights = (tf.constant(value, dtype) for value in (x, table, weights))
        value = function(x, table, tf.constant(labels), weights, smoothing)
        return session.run([value, *map(tf.convert_to_tensor,
                                        tf.gradients(3 * value, [x, table, weights]))])


def reference(x, table, labels, weights, smoothing):
    """Value and gradients of three times the value, in float64."""
    logits, symbols = x @ table.T, len(table)
    target = np.full(logits.shape, smoothing / (symbols - 1))
    target[np.arange(len(x)), labels] = 1 - smoothing
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    least = -(target * np.log(np.maximum(target, 1e-300))).sum(1)
    log_share = logits - logits.max(1, keepdims=True)
    log_share -= np.log(np.exp(log_share).sum(1, keepdims=True))
    each = -(target * log_share).sum(1) - least
    by_logits = 3 * weights[:, None] * (share - target)
    return (weights * each).sum(), by_logits @ table, by_logits.T @ x, 3 * each


@settings(max_examples=25)
@given(words=st.integers(0, 7), symbols=st.integers(2, 40), hidden=st.integers(1, 9),
       smoothing=st.sampled_from([0.0, 0.1, 0.5]), seed=st.integers(0, 99),
       scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_the_loss_and_its_gradients_are_those_of_smoothed_labels(
        words, symbols, hidden, smoothing, seed, scale):
    random = np.random.RandomState(seed)
    case = (scale * random.randn(words, hidden), random.randn(symbols, hidden),
            random.randint(0, symbols, words).astype(np.int32), random.rand(words), smoothing)
    expected = reference(*case)
    for dtype, tolerance in ((tf.float64, 1e-9), (tf.float32, 3e-4)):
        for ours, right in zip(value_and_gradients(losses.smoothed_cross_entropy, dtype, *case),
                               expected, strict=True):
            np.testing.assert_allclose(ours, right, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradients_are_those_of_t2t(smoothing):
    random = np.random.RandomState(1)
    case = (random.randn(5, 4), random.randn(50, 4), np.array([3, 0, 49, 3, 7], np.int32),
            np.array([1.0, 0.5, 2.0, 1.0, 1.0]), smoothing)
    # T2T counts in float32 what the least cross entropy is.
    for ours, theirs in zip(
            value_and_gradients(losses.smoothed_cross_entropy, tf.float64, *case),
            value_and_gradients(stock, tf.float32, *case), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_confident_model_stays_exact():
    """Shares of 0 and 1 in float32: no infinity, and gradients that vanish where they should."""
    x, table = np.array([[1.0, 0.0]]), np.array([[200.0, 0.0], [0.0, 1.0], [-200.0, 0.0]])
    for label in range(3):
        case = (x, table, np.array([label], np.int32), np.ones(1), 0.0)
        for ours, right in zip(
                value_and_gradients(losses.smoothed_cross_entropy, tf.float32, *case),
                reference(*case), strict=True):
            np.testing.assert_allclose(ours, right, atol=1e-4)


def trained(values, inputs, targets, model):
    """The loss of a model without dropout and its gradients, by variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        made = tiny_models.make(values, TRAIN, model)
        _, found = made(tiny_models.features(inputs, targets))
        variables = tf.trainable_variables()
        gradients = tf.gradients(found["training"], variables)
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        kept = [(v.op.name, tf.convert_to_tensor(g)) for v, g in zip(variables, gradients,
                                                                    strict=True) if g is not None]
        loss, numbers = session.run([found["training"], dict(kept)])
        return loss, numbers


@pytest.mark.parametrize("shards, layers, before, after", [
    (2, 1, "none", "dan"), (1, 2, "n", "da")])
def test_a_training_step_is_that_of_stock_t2t(shards, layers, before, after):
    """Loss and every gradient, with padding in both, before and after each sub-layer."""
    values = tiny_models.hparams(
        "transformer_base_v1", num_hidden_layers=layers, hidden_size=32, filter_size=64,
        num_heads=2, layer_prepostprocess_dropout=0.0, label_smoothing=0.1,
        symbol_modality_num_shards=shards, layer_preprocess_sequence=before,
        layer_postprocess_sequence=after)
    inputs, targets = (tiny_models.sentences([6, 3, 5], seed, padding=2) for seed in (1, 2))
    ours, theirs = (trained(values, inputs, targets, model)
                    for model in ("rpr_transformer", "transformer"))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], gradient, rtol=1e-3,
                                   atol=1e-5 * np.abs(gradient).max(), err_msg=name)


def test_each_sentence_counts_the_same():
    """The mean over the sentences of a batch of their mean loss a word; one may be padding.

    An evaluation counts words, as T2T's metrics do, which would take a weight for a count.
    """
    targets = np.zeros([3, 6, 1, 1], np.int32)
    targets[0, :6, 0, 0], targets[1, :2, 0, 0] = [3, 4, 5, 6, 7, 1], [8, 1]
    inputs = tiny_models.sentences([5, 3, 4])
    values = tiny_models.hparams(num_hidden_layers=1, layer_prepostprocess_dropout=0.0,
                                 loss_per_sentence=True, label_smoothing=0.0)
    with tf.Graph().as_default(), tf.Session() as session:
        made = tiny_models.make(values, TRAIN)
        _, found = made(tiny_models.features(inputs, targets))
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            made.set_mode(tf.estimator.ModeKeys.EVAL)
            logits, evaluated = made(tiny_models.features(inputs, targets))
        logits, *losses_found = session.run(
            [logits[:, :, 0, 0], found["training"], evaluated["training"]])
    logits = logits.astype(np.float64)
    log_shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    words = -np.take_along_axis(log_shares, targets[:, :, 0], axis=2)[:, :, 0]
    expected = (words[0].mean() + words[1, :2].mean()) / 2
    by_word = (words[0].sum() + words[1, :2].sum()) / 8
    assert losses_found == pytest.approx([expected, by_word], rel=1e-4)
    assert abs(expected - by_word) > 1e-3


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
    values = tiny_models.hparams(symbol_modality_num_shards=3, num_hidden_layers=1, **overrides)
    with tf.Graph().as_default() as graph:
        made = tiny_models.make(values, tf.estimator.ModeKeys.TRAIN)
        made(tiny_models.features(tiny_models.sentences([4, 2]), tiny_models.sentences([3, 3])))
        tables = [op for op in graph.get_operations() if op.type == "ConcatV2"
                  and op.outputs[0].shape.as_list() == [11, values.hidden_size]]
    assert len(tables) == concats
