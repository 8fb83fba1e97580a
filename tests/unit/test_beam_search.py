"""The beam search gives what T2T's gives, over a toy language with a memory."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.utils import beam_search as t2t

from rpr.models import beam_search


def language(seed, symbols, liking):
    """A function of last symbols and the cache that gives logits, and the cache with the symbols.

    What follows depends on every symbol before: a cache of another beam would show.
    """
    random = np.random.RandomState(seed)
    last = tf.constant(random.randn(symbols, symbols) * 2, tf.float32)
    earlier = tf.constant(random.randn(symbols, symbols), tf.float32)
    to_end = tf.one_hot(beam_search.EOS_ID, symbols) * liking

    def step(ids, cache):
        cache = tf.concat([cache, tf.one_hot(ids, symbols)[:, None, None, :]], axis=2)
        weights = tf.cast(tf.range(tf.shape(cache)[2]) + 1, tf.float32)
        before = tf.reduce_sum(cache[:, 0] * tf.sin(weights)[None, :, None], axis=1)
        return tf.gather(last, ids) + tf.matmul(before, earlier) + to_end, cache

    return step


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 999), batch=st.integers(1, 3), beams=st.integers(2, 4),
       symbols=st.integers(4, 12), length=st.integers(1, 9), alpha=st.sampled_from([0.0, 0.6, 1.5]),
       liking=st.sampled_from([-30.0, 0.0, 2.0]), first_only=st.booleans())
def test_hypotheses_and_scores_are_those_of_t2t(
        seed, batch, beams, symbols, length, alpha, liking, first_only):
    start = np.random.RandomState(seed + 1).randint(2, symbols, batch).astype(np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        step = language(seed, symbols, liking)
        ids, scores = beam_search.beam_search(
            step, tf.zeros([batch * beams, 1, 0, symbols]), tf.constant(start), beams,
            tf.constant(length), alpha, beam_search.EOS_ID, first_only)
        theirs = t2t.beam_search(
            lambda ids, i, states: (lambda logits, cache: (logits, {"cache": cache}))(
                *step(ids[:, -1], states["cache"])), tf.constant(start), beams, length, symbols,
            alpha, {"cache": tf.zeros([batch, 1, 0, symbols])}, stop_early=first_only)
        ours, theirs = session.run([(ids, scores), theirs[:2]])
    shown = 1 if first_only else beams                       # the others are not final
    np.testing.assert_allclose(ours[1][:, :shown], theirs[1][:, :shown], rtol=1e-5, atol=1e-5)
    real = ours[1][:, :shown] > -beam_search.INFINITY / 2    # else: fewer ended than beams
    np.testing.assert_array_equal(ours[0][:, :shown][real], theirs[0][:, :shown][real])


@pytest.mark.parametrize("liking, steps", [(30.0, 1), (-30.0, 7)])
def test_it_stops_when_the_best_is_certain_and_at_the_length(liking, steps):
    with tf.Graph().as_default(), tf.Session() as session:
        ids, _ = beam_search.beam_search(
            language(1, 6, liking), tf.zeros([4, 1, 0, 6]), tf.constant([2, 3]), 2, tf.constant(7),
            0.6, beam_search.EOS_ID, True)
        assert session.run(ids).shape == (2, 2, steps + 1)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), symbols=st.integers(500, 700), count=st.integers(1, 4),
       values=st.sampled_from([1, 3, 20, 10 ** 6]))
def test_the_best_symbols_are_the_best_in_order(seed, symbols, count, values):
    """Of equal ones the first; whether or not the symbols fill their last group."""
    x = np.random.RandomState(seed).randint(0, values, [3, symbols]).astype(np.float32) - 2
    with tf.Graph().as_default(), tf.Session() as session:
        ours, right = session.run([beam_search.top_k(tf.constant(x), count),
                                   tf.nn.top_k(tf.constant(x), count)])
    np.testing.assert_array_equal(ours[0], right.values)
    np.testing.assert_array_equal(ours[1], right.indices)
