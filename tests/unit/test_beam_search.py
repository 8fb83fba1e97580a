"""The beam search gives what T2T's gives, over a toy language with a memory."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.utils import beam_search as t2t

from rpr.models import beam_search
from rpr.utils.errors import UserError


def language(seed, symbols, liking):
    """A function of last symbols, the cache and sources that gives logits, and the next cache.

    What follows depends on every symbol before and on the source, [batch, symbols]: the cache of
    another beam or the source of another sentence would show.
    """
    random = np.random.RandomState(seed)
    last = tf.constant(random.randn(symbols, symbols) * 2, tf.float32)
    earlier = tf.constant(random.randn(symbols, symbols), tf.float32)
    to_end = tf.one_hot(beam_search.EOS_ID, symbols) * liking

    def step(ids, cache, sources):
        cache = tf.concat([cache, tf.one_hot(ids, symbols)[:, None, None, :]], axis=2)
        weights = tf.cast(tf.range(tf.shape(cache)[2]) + 1, tf.float32)
        before = tf.reduce_sum(cache[:, 0] * tf.sin(weights)[None, :, None], axis=1)
        beams = tf.size(ids) // tf.shape(sources)[0]
        return (tf.gather(last, ids) + tf.matmul(before, earlier) + to_end
                + tf.repeat(sources, beams, axis=0)), cache

    return step


def sentences(seed, batch, symbols):
    """Sources whose translations end at different steps."""
    sources = np.random.RandomState(seed + 2).randn(batch, symbols) * 2
    return tf.constant(sources, tf.float32)


@settings(max_examples=12)
@given(seed=st.integers(0, 999), batch=st.integers(1, 6), beams=st.integers(2, 4),
       symbols=st.integers(5, 12), length=st.integers(1, 9), alpha=st.sampled_from([0.0, 0.6, 1.5]),
       liking=st.sampled_from([-30.0, 0.0, 2.0]), first_only=st.booleans())
def test_hypotheses_and_scores_are_those_of_t2t(
        seed, batch, beams, symbols, length, alpha, liking, first_only):
    start = np.random.RandomState(seed + 1).randint(2, symbols, batch).astype(np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        step, sources = language(seed, symbols, liking), sentences(seed, batch, symbols)
        ids, scores = beam_search.beam_search(
            step, tf.zeros([batch * beams, 1, 0, symbols]), sources, tf.constant(start), beams,
            tf.fill([batch], length), alpha, first_only)
        theirs = t2t.beam_search(
            lambda ids, i, states: (lambda logits, cache: (logits, {"cache": cache}))(
                *step(ids[:, -1], states["cache"], sources)), tf.constant(start), beams, length,
            symbols, alpha, {"cache": tf.zeros([batch, 1, 0, symbols])}, stop_early=first_only)
        ours, theirs = session.run([(ids, scores), theirs[:2]])
    shown = 1 if first_only else beams                       # the others are not final
    np.testing.assert_allclose(ours[1][:, :shown], theirs[1][:, :shown], rtol=1e-5, atol=1e-5)
    real = ours[1][:, :shown] > beam_search.MISSING / 2    # else: fewer ended than beams
    rows = [ids[:, :shown][real] for ids in (ours[0], theirs[0])]
    width = max(row.shape[-1] for row in rows)               # one search may stop a word later
    np.testing.assert_array_equal(*(np.pad(row, [(0, 0), (0, width - row.shape[-1])])
                                    for row in rows))


def every_sentence(seed, symbols, length, alpha):
    """All sentences of at most `length` symbols that end, best first: [(score, symbols)]."""
    sentences = [()]
    for _ in range(length):
        sentences += [(*sentence, symbol) for sentence in sentences for symbol in range(symbols)
                      if (*sentence, symbol) not in sentences and 1 not in sentence]
    ended = [sentence for sentence in set(sentences) if sentence and sentence[-1] == 1]
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.constant([[2, *sentence, *[0] * (length - len(sentence))] for sentence in ended])
        cache, logits = tf.zeros([len(ended), 1, 0, symbols]), []
        step = language(seed, symbols, 0.0)
        for place in range(length):
            row, cache = step(ids[:, place], cache, tf.zeros([len(ended), symbols]))
            logits.append(tf.nn.log_softmax(row))
        log_probs = session.run(tf.stack(logits, axis=1))
    scored = [(sum(row[place, symbol] for place, symbol in enumerate(sentence))
               / ((5 + len(sentence)) / 6) ** alpha, sentence)
              for row, sentence in zip(log_probs, ended, strict=True)]
    return sorted(scored, reverse=True)


@settings(max_examples=10)
@given(seed=st.integers(0, 999), beams=st.sampled_from([5, 8, 16, 40]),
       alpha=st.sampled_from([0.0, 0.6, 1.5]), first_only=st.booleans())
def test_a_beam_larger_than_the_vocabulary_finds_the_best_of_all_sentences(
        seed, beams, alpha, first_only):
    """40 beams compare all continuations of all 16 open hypotheses of two symbols; fewer find only
    some of the sentences."""
    expected = every_sentence(seed, 5, 3, alpha)
    assert len(expected) == 1 + 4 + 16
    with tf.Graph().as_default(), tf.Session() as session:
        ids, scores = session.run(beam_search.beam_search(
            language(seed, 5, 0.0), tf.zeros([beams, 1, 0, 5]), tf.zeros([1, 5]),
            tf.constant([2]), beams,
            tf.constant([3]), alpha, first_only))
    found = {tuple(row[1:row.tolist().index(1) + 1]): score
             for row, score in zip(ids[0], scores[0], strict=True) if score > beam_search.MISSING}
    assert len(found) == (scores > beam_search.MISSING).sum()        # none twice
    for sentence, score in found.items():
        assert score == pytest.approx(dict(map(reversed, expected))[sentence], abs=1e-4)
    if beams == 40:
        shown = 1 if first_only else len(expected)
        np.testing.assert_allclose(scores[0, :shown], [score for score, _ in expected[:shown]],
                                   atol=1e-4)


def test_t2ts_search_refuses_a_beam_as_large_as_the_vocabulary():
    with pytest.raises(UserError, match="beam_size=5: must be less than the 5 target symbols"):
        t2t.beam_search(None, tf.constant([0]), 5, 3, 5, 0.6)


@settings(max_examples=6)                             # each builds a search per sentence
@given(seed=st.integers(0, 999), beams=st.integers(1, 4), lengths=st.lists(
    st.integers(0, 7), min_size=2, max_size=7), alpha=st.sampled_from([0.0, 0.6, 1.5]),
    liking=st.sampled_from([-30.0, 0.0, 2.0]), top_beams=st.booleans())
def test_hypotheses_do_not_depend_on_the_other_sentences(
        seed, beams, lengths, alpha, liking, top_beams):
    def found(lengths, sources):
        start = tf.zeros([len(lengths) * beams, 1, 0, 6])
        result = beam_search.search(language(seed, 6, liking), start, sources, tf.constant(lengths),
                                    beams, beams if top_beams else 1, alpha)
        return session.run([result["outputs"], result["scores"]])

    with tf.Graph().as_default(), tf.Session() as session:
        sources = sentences(seed, len(lengths), 6)
        together = found(lengths, sources)
        for place, length in enumerate(lengths):
            ids, scores = found([length], sources[place:place + 1])
            steps = ids.shape[-1]
            assert steps <= length
            np.testing.assert_allclose(together[1][place], scores[0], rtol=1e-5)
            np.testing.assert_array_equal(together[0][place][..., :steps], ids[0])
            assert not together[0][place][..., steps:].any()


@pytest.mark.parametrize("liking, steps", [(30.0, 1), (-30.0, 7)])
def test_it_stops_when_the_best_is_certain_and_at_the_length(liking, steps):
    with tf.Graph().as_default(), tf.Session() as session:
        ids, _ = beam_search.beam_search(
            language(1, 6, liking), tf.zeros([4, 1, 0, 6]), tf.zeros([2, 6]),
            tf.constant([2, 3]), 2,
            tf.constant([7, 7]), 0.6, True)
        assert session.run(ids).shape == (2, 2, steps + 1)


@settings(max_examples=25)
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


@settings(max_examples=6)
@given(seed=st.integers(0, 999), beams=st.integers(1, 3), alpha=st.sampled_from([0.0, 0.6]),
       prompts=st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=2, max_size=5),
       liking=st.sampled_from([0.0, 2.0]), top_beams=st.booleans())
def test_a_prompt_is_read_before_the_search(seed, beams, alpha, prompts, liking, top_beams):
    """As if the caches held it; whatever the other prompts, also with end marks in it."""
    lengths = [3 + len(prompt) % 2 for prompt in prompts]
    with tf.Graph().as_default(), tf.Session() as session:
        step, sources = language(seed, 6, liking), sentences(seed, len(prompts), 6)
        longest = max(1, *map(len, prompts))
        padded = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
        shown = beams if top_beams else 1
        together = beam_search.search(
            step, tf.zeros([len(prompts) * beams, 1, 0, 6]), sources, tf.constant(lengths), beams,
            shown, alpha, tf.constant(padded, tf.int32))
        alone = []
        for place, prompt in enumerate(prompts):
            cache, source = tf.zeros([beams, 1, 0, 6]), sources[place:place + 1]
            *before, last = [0, *prompt]
            for symbol in before:
                _, cache = step(tf.fill([beams], symbol), cache, source)

            def later_step(ids, caches, sources, last=last):
                """The search begins with 0 instead of the last symbol of the prompt."""
                i, cache = caches
                ids = tf.where(tf.equal(i, 0), tf.fill(tf.shape(ids), last), ids)
                logits, cache = step(ids, cache, sources)
                return logits, (i + 1, cache)

            # An axis grows if it is empty at first.
            cache = tf.placeholder_with_default(cache, [beams, 1, None, 6])
            alone.append(beam_search.search(
                later_step, (tf.zeros([beams], tf.int32), cache), source,
                tf.constant([lengths[place]]), beams, shown, alpha))
        together, alone = session.run([together, alone])
    for ids, score, one in zip(together["outputs"], together["scores"], alone, strict=True):
        np.testing.assert_allclose(score, one["scores"][0], rtol=1e-4)
        width = max(ids.shape[-1], one["outputs"].shape[-1])
        np.testing.assert_array_equal(*(
            np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
            for x in (ids, one["outputs"][0])))
