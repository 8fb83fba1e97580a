"""Metrics of evaluations: equal for every division into batches, and to T2T's without padding."""
import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.layers import common_layers
from tensor2tensor.utils import bleu_hook, rouge
from tensor2tensor.utils import metrics as t2t_metrics

from rpr.t2t import evaluation_metrics

SYMBOLS = 5
SENTENCES = st.lists(st.integers(1, 12).flatmap(lambda length: st.tuples(
    *[st.lists(st.integers(1, SYMBOLS - 1), min_size=length, max_size=length)] * 2)),
    min_size=1, max_size=8)


def padded(sentences, width):
    return np.array([ids + [0] * (width - len(ids)) for ids in sentences], np.int32)


@functools.cache
def metric(name):
    """A session, the two ids to feed, and what begins, updates and gives a metric."""
    with tf.Graph().as_default():
        predicted, expected = (tf.placeholder(tf.int32, [None, None]) for _ in range(2))
        logits = tf.one_hot(predicted, SYMBOLS)[:, :, None, None]
        value, update = evaluation_metrics.OF_SENTENCES[name](
            logits, {}, expected[:, :, None, None])
        return tf.Session(), predicted, expected, tf.local_variables_initializer(), update, value


def evaluate(name, batches):
    """The metric after all batches, each a list of (predicted ids, expected ids) and a width."""
    session, predicted, expected, begin, update, value = metric(name)
    session.run(begin)
    for pairs, width in batches:
        ours, theirs = zip(*pairs, ([], []), strict=True)           # the last row is padding only
        # A model also predicts something after the end.
        noise = padded(ours, width) + (padded(theirs, width) == 0) * 3
        session.run(update, {predicted: noise, expected: padded(theirs, width)})
    return session.run(value)


@pytest.mark.parametrize("name", list(evaluation_metrics.OF_SENTENCES))
@settings(max_examples=15)
@given(SENTENCES, st.integers(1, 7))
def test_padding_and_batches_change_nothing(name, pairs, cut):
    halves = [half for half in (pairs[:cut], pairs[cut:]) if half]
    together = evaluate(name, [(pairs, 13)])
    assert evaluate(name, [(half, 12 + 5 * i) for i, half in enumerate(halves)]) == pytest.approx(
        together, rel=1e-6)


@settings(max_examples=15)
@given(SENTENCES)
def test_they_are_those_of_t2t_without_padding(pairs):
    ours, theirs = (list(side) for side in zip(*pairs, strict=True))
    expected = {"approx_bleu_score": bleu_hook.compute_bleu(theirs, ours),
                "rouge_2_fscore": np.mean([rouge.rouge_n([a], [b]) for a, b in pairs]),
                "rouge_L_fscore": np.mean([rouge.rouge_l_sentence_level([a], [b])
                                           for a, b in pairs])}
    for name, value in expected.items():
        assert evaluate(name, [(pairs, 12)]) == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize("weights_fn, expected", [
    (common_layers.weights_nonzero, 1 / 2), (common_layers.weights_all, 1 / 3)])
def test_a_row_of_padding_is_no_correct_sentence(weights_fn, expected):
    labels = padded([[3, 2], [4, 1], []], 3)
    with tf.Graph().as_default(), tf.Session() as session:
        logits = tf.one_hot(padded([[3, 2], [4, 4], [2]], 3), SYMBOLS)[:, :, None, None]
        scores, weights = session.run(t2t_metrics.METRICS_FNS["accuracy_per_sequence"](
            logits, tf.constant(labels)[:, :, None, None], weights_fn))
    assert np.average(scores, weights=weights * np.ones(3)) == pytest.approx(expected)


def test_the_loss_per_token_needs_one_perplexity():
    metric = (tf.constant(-2.0), None)
    with tf.Session() as session:
        value, _ = evaluation_metrics.loss_per_token({"metrics-p/targets/neg_log_perplexity":
                                                      metric, "loss": metric})
        assert session.run(value) == 2.0
    assert evaluation_metrics.loss_per_token({"loss": metric}) is None
    assert evaluation_metrics.loss_per_token(
        {"a/neg_log_perplexity": metric, "b/neg_log_perplexity": metric}) is None
