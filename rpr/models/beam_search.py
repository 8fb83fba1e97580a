"""Beam search (Wu et al. 2016) with T2T's hypotheses and scores, and less work per step.

T2T copies the encoder's keys and values to every beam, gathers 2 * beams and then beams rows of
every cache per step, and normalizes all symbols of all beams before it selects the best. Here the
beams of a sentence are queries of one attention to its encoder, the caches are gathered once per
step, and only the best symbols of each beam are normalized and compared.

Two things differ from T2T. Each sentence has a length limit of its own, and its search ends as if
it were alone, so that its hypotheses do not depend on the batch. And a finished hypothesis is never
extended; T2T's search does that where the beam is at least as large as the vocabulary.
"""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list

EOS_ID = 1                                                   # T2T's end-of-sentence symbol
MISSING = -1e7                          # T2T's score of a hypothesis that was not found
GROUP_SIZE = 64                                              # symbols


def top_k(x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.nn.top_k` of x, float32 [rows, symbols], that is faster for many symbols.

    The top k lie in the k groups with the largest maxima, and group maxima vectorize well. Ties
    are in the order of the symbols.
    """
    symbols = x.shape.as_list()[1]
    if symbols < 4 * count * GROUP_SIZE:
        return tf.nn.top_k(x, count)
    if symbols % GROUP_SIZE:
        x = tf.pad(x, [[0, 0], [0, -symbols % GROUP_SIZE]], constant_values=x.dtype.min)
    groups = tf.reshape(x, [-1, -(-symbols // GROUP_SIZE), GROUP_SIZE])
    best_groups = tf.sort(tf.nn.top_k(tf.reduce_max(groups, axis=2), count)[1], axis=1)
    candidates = tf.gather(groups, best_groups, batch_dims=1)        # [rows, count, GROUP_SIZE]
    values, index = tf.nn.top_k(tf.reshape(candidates, [-1, count * GROUP_SIZE]), count)
    group = tf.gather(best_groups, index // GROUP_SIZE, batch_dims=1)
    return values, group * GROUP_SIZE + index % GROUP_SIZE


def search(step: Any, caches: Any, lengths: tf.Tensor, beams: int, top_beams: int, alpha: float
           ) -> dict[str, tf.Tensor]:
    """The best sentences, in the form of T2T's `infer`; one beam is greedy search.

    Arguments are those of `beam_search`; `top_beams` hypotheses of each sentence are returned:
    {"outputs": int32 [batch, steps], "scores": float32 [batch]}, or [batch, top_beams, ...].
    """
    start = tf.zeros_like(lengths)                           # T2T's symbol before the first
    if beams == 1:
        ids, scores = greedy_search(step, caches, start, lengths)
        return {"outputs": ids[:, 1:], "scores": scores}
    ids, scores = beam_search(step, caches, start, beams, lengths, alpha, top_beams == 1)
    if top_beams == 1:
        return {"outputs": tf.cast(ids[:, 0, 1:], tf.int32), "scores": scores[:, 0]}
    return {"outputs": tf.cast(ids[:, :top_beams, 1:], tf.int32), "scores": scores[:, :top_beams]}


def greedy_search(step: Any, caches: Any, start: tf.Tensor, lengths: tf.Tensor
                  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the most probable symbol at each step; arguments are those of `beam_search`.

    Returns int32 [batch, steps + 1], the start symbol first, zeros after an end or the length
    limit, and float32 [batch], log probabilities of the symbols before these zeros.
    """
    def one_step(i: tf.Tensor, ids: tf.Tensor, scores: tf.Tensor, ended: tf.Tensor,
                 caches: Any) -> tuple:
        logits, caches = step(ids[:, -1], caches)
        log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        symbols = tf.where(ended, tf.zeros_like(start), tf.argmax(
            log_probs, axis=1, output_type=tf.int32))
        best = tf.reduce_max(log_probs, axis=1)
        scores += tf.where(ended, tf.zeros_like(best), best)
        return (i + 1, tf.concat([ids, symbols[:, None]], axis=1), scores,
                ended | tf.equal(symbols, EOS_ID) | (i + 1 >= lengths), caches)

    state = (tf.constant(0), start[:, None], tf.zeros(tf.shape(start)), lengths <= 0, caches)
    invariants = (tf.TensorShape([]), tf.TensorShape([start.shape[0], None]), start.shape,
                  start.shape, tf.nest.map_structure(_growing_shape, caches))
    _, ids, scores, _, _ = tf.while_loop(
        lambda i, ids, scores, ended, caches: ~tf.reduce_all(ended), one_step, state, invariants,
        parallel_iterations=1, back_prop=False)
    return ids, scores


def _growing_shape(cache: tf.Tensor) -> tf.TensorShape:
    """The static shape of a cache in the loop: axes that are empty before the first step grow."""
    return tf.TensorShape([size or None for size in cache.shape.as_list()])


def beam_search(step: Any, caches: Any, start: tf.Tensor, beams: int, lengths: tf.Tensor,
                alpha: float, first_only: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """The best sentences by log probability / ((5 + length) / 6) ^ alpha.

    Args:
      step: see `rpr.models.incremental.Step`: from the symbols chosen last, int32
        [batch * beams], to logits [batch * beams, symbols].
      caches: a nest of tensors [batch * beams, ...]; an axis of size 0 grows by one entry per step.
        The beams of a sentence are adjacent.
      start: int32 [batch], the symbols before the first step.
      beams: hypotheses of each sentence.
      lengths: int32 [batch], the most symbols of a sentence's hypotheses.
      alpha: exponent of the length penalty.
      first_only: the search for a sentence ends when its best hypothesis is certain, rather than
        all.

    Returns:
      int64 [batch, beams, steps + 1], the start symbol first, best hypotheses first, zeros after
      an end or the length limit; float32 [batch, beams], their scores. If no hypothesis of a
      sentence has ended, its unfinished ones are returned with their log probabilities. `MISSING`
      is the score where there are fewer hypotheses than beams.
    """
    batch = shape_list(start)[0]
    rows = tf.range(batch)[:, None]                          # [batch, 1]
    none = -float("inf")                                     # log probability of no hypothesis

    def penalty(steps: int | tf.Tensor) -> tf.Tensor:
        return tf.pow((5.0 + tf.cast(steps, tf.float32)) / 6.0, alpha)

    def take_best(scores: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        """The `beams` entries of each of `values` with the best scores, best first."""
        index = tf.nn.top_k(scores, beams)[1]                # [batch, beams]
        return [tf.gather(value, index, batch_dims=1) for value in values]

    def extend(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor, logits: tf.Tensor
               ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The 2 * beams best continuations: ids, scores, whether they end, and their beams."""
        logits = tf.cast(logits, tf.float32)
        width = min(2 * beams, logits.shape.as_list()[-1])
        log_probs, symbols = top_k(logits, width)            # [batch * beams, width]
        # The largest softmax value is at least 1 / symbols, so its logarithm is safe.
        largest = tf.gather(tf.nn.softmax(logits), symbols[:, :1], batch_dims=1)
        log_probs += tf.log(largest) - log_probs[:, :1]
        log_probs = tf.reshape(log_probs, [-1, beams, width]) + open_log_probs[:, :, None]
        scores, index = tf.nn.top_k(                         # [batch, 2 * beams]
            tf.reshape(log_probs / penalty(i + 1), [-1, beams * width]), 2 * beams)
        beam = index // width
        symbols = tf.gather(tf.reshape(symbols, [-1, beams * width]), index, batch_dims=1)
        symbols = tf.cast(symbols, tf.int64)
        ids = tf.concat([tf.gather(open_ids, beam, batch_dims=1), symbols[:, :, None]], axis=2)
        return ids, scores, tf.equal(symbols, EOS_ID), beam

    def searching(i: tf.Tensor, open_log_probs: tf.Tensor, ended_scores: tf.Tensor) -> tf.Tensor:
        """Whether a sentence's hypotheses may still change, bool [batch]."""
        reachable = open_log_probs[:, 0] / penalty(lengths)  # by the best open hypothesis
        worst = (tf.reduce_max if first_only else tf.reduce_min)(ended_scores, axis=1)
        return (i < lengths) & ~(worst > reachable)

    def one_step(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor,
                 ended_ids: tf.Tensor, ended_scores: tf.Tensor, caches: Any) -> tuple:
        last_symbols = tf.cast(tf.reshape(open_ids[:, :, -1], [-1]), tf.int32)
        logits, caches = step(last_symbols, caches)
        ids, scores, ends, beam = extend(i, open_ids, open_log_probs, logits)
        nowhere = tf.fill(tf.shape(scores), none)
        open_scores = tf.where(ends, nowhere, scores)
        next_ids, next_log_probs, beam = take_best(
            open_scores, ids, open_scores * penalty(i + 1), beam)
        cache_rows = tf.reshape(rows * beams + beam, [-1])
        caches = tf.nest.map_structure(lambda cache: tf.gather(cache, cache_rows), caches)
        open_ids, ended_ids = [tf.concat([x, tf.zeros_like(x[:, :, :1])], axis=2)
                               for x in (open_ids, ended_ids)]
        scores = tf.concat([ended_scores, tf.where(ends, scores, nowhere)], axis=1)
        next_ended = take_best(scores, tf.concat([ended_ids, ids], axis=1), scores)
        changes = searching(i, open_log_probs, ended_scores)
        hypotheses = [tf.where(changes, after, before) for after, before in zip(
            (next_ids, next_log_probs, *next_ended),
            (open_ids, open_log_probs, ended_ids, ended_scores), strict=True)]
        return i + 1, *hypotheses, caches

    # TensorFlow keeps int32 in host memory, and would copy all hypotheses to a GPU in each step.
    ids = tf.tile(tf.cast(start, tf.int64)[:, None, None], [1, beams, 1])
    log_probs = tf.tile([[0.0] + [none] * (beams - 1)], [batch, 1])
    state = (tf.constant(0), ids, log_probs, tf.zeros_like(ids),
             tf.fill([batch, beams], none), caches)
    shapes = (ids.shape[:2].concatenate(None), log_probs.shape)
    invariants = (tf.TensorShape([]), *shapes, *shapes,
                  tf.nest.map_structure(_growing_shape, caches))
    _, ids, log_probs, ended_ids, ended_scores, _ = tf.while_loop(
        lambda i, ids, log_probs, ended_ids, ended_scores, caches: tf.reduce_any(
            searching(i, log_probs, ended_scores)),
        one_step, state, invariants, parallel_iterations=1, back_prop=False)
    any_ended = tf.reduce_any(ended_scores > none, axis=1)
    return (tf.where(any_ended, ended_ids, ids),
            tf.maximum(tf.where(any_ended, ended_scores, log_probs), MISSING))
