"""Beam search (Wu et al. 2016) with T2T's hypotheses and scores, and less work per step.

T2T copies the encoder's keys and values to every beam, gathers 2 * beams and then beams rows of
every cache per step, and normalizes all symbols of all beams before it selects the best. Here the
beams of a sentence are queries of one attention to its encoder, the caches are gathered once per
step, and only the best symbols of each beam are normalized and compared.
"""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list

EOS_ID = 1                                                   # T2T's end-of-sentence symbol
INFINITY = 1e7                                               # above any -log probability
GROUP_SIZE = 64                                              # symbols


def top_k(x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.nn.top_k` that is faster for many symbols.

    The top k lie in the k groups with the largest maxima, and group maxima vectorize well.

    Args:
      x: float32 [rows, symbols].
      count: k, at most `symbols`.

    Returns:
      values and symbols, [rows, count], best first; ties in the order of the symbols.
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


def search(step: Any, caches: Any, batch: int | tf.Tensor, length: int | tf.Tensor, beams: int,
           top_beams: int, alpha: float) -> dict[str, tf.Tensor]:
    """The best sentences, in the form of T2T's `infer`; one beam is greedy search.

    Args:
      step, caches, length, beams, alpha: see `beam_search`.
      batch: sentences.
      top_beams: hypotheses of each sentence to return.

    Returns:
      {"outputs": int32 [batch, steps], or [batch, top_beams, steps] for several top_beams;
      "scores": float32 [batch] or [batch, top_beams]}.
    """
    start = tf.zeros([batch], tf.int32)                      # T2T's symbol before the first
    if beams == 1:
        ids, scores = greedy_search(step, caches, start, length, EOS_ID)
        return {"outputs": ids[:, 1:], "scores": scores}
    ids, scores = beam_search(step, caches, start, beams, length, alpha, EOS_ID, top_beams == 1)
    if top_beams == 1:
        return {"outputs": tf.cast(ids[:, 0, 1:], tf.int32), "scores": scores[:, 0]}
    return {"outputs": tf.cast(ids[:, :top_beams, 1:], tf.int32), "scores": scores[:, :top_beams]}


def greedy_search(step: Any, caches: Any, start: tf.Tensor, length: int | tf.Tensor,
                  end: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the most probable symbol at each step.

    Args:
      step, caches, start, length, end: see `beam_search`, with one beam.

    Returns:
      int32 [batch, steps + 1], the start symbol first, zeros after an end;
      float32 [batch], log probabilities of the symbols up to and including the end.
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
                ended | tf.equal(symbols, end), caches)

    state = (tf.constant(0), start[:, None], tf.zeros(tf.shape(start)),
             tf.zeros_like(start, tf.bool), caches)
    invariants = (tf.TensorShape([]), tf.TensorShape([start.shape[0], None]), start.shape,
                  start.shape, tf.nest.map_structure(_growing_shape, caches))
    _, ids, scores, _, _ = tf.while_loop(
        lambda i, ids, scores, ended, caches: (i < length) & ~tf.reduce_all(ended), one_step,
        state, invariants, parallel_iterations=1, back_prop=False)
    return ids, scores


def _growing_shape(cache: tf.Tensor) -> tf.TensorShape:
    """The static shape of a cache in the loop: axis 2 grows."""
    return tf.TensorShape([size if axis != 2 else None
                           for axis, size in enumerate(cache.shape)])


def beam_search(step: Any, caches: Any, start: tf.Tensor, beams: int, length: int | tf.Tensor,
                alpha: float, end: int, first_only: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """The best sentences by log probability / ((5 + length) / 6) ^ alpha.

    Args:
      step: see `rpr.models.incremental.Step`: from the symbols chosen last, int32
        [batch * beams], to logits [batch * beams, symbols].
      caches: a nest of tensors [batch * beams, heads, 0, depth], which grow by one entry per step,
        and of states with fewer dimensions, which do not grow. The beams of a sentence are
        adjacent.
      start: int32 [batch], the symbols before the first step.
      beams: hypotheses of each sentence.
      length: int32 scalar, the maximum number of steps.
      alpha: exponent of the length penalty.
      end: the end-of-sentence symbol.
      first_only: stop when the best hypothesis of every sentence is certain, rather than all.

    Returns:
      int64 [batch, beams, steps + 1], the start symbol first, best hypotheses first, zeros after
      an end; float32 [batch, beams], their scores. If no hypothesis of a sentence has ended, its
      unfinished ones are returned with their log probabilities.
    """
    batch = shape_list(start)[0]
    rows = tf.range(batch)[:, None]                          # [batch, 1]

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
        return ids, scores, tf.cast(tf.equal(symbols, end), tf.float32), beam

    def one_step(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor,
                 ended_ids: tf.Tensor, ended_scores: tf.Tensor, caches: Any) -> tuple:
        last_symbols = tf.cast(tf.reshape(open_ids[:, :, -1], [-1]), tf.int32)
        logits, caches = step(last_symbols, caches)
        ids, scores, ends, beam = extend(i, open_ids, open_log_probs, logits)
        open_ids, open_log_probs, beam = take_best(
            scores - INFINITY * ends, ids, scores * penalty(i + 1), beam)
        cache_rows = tf.reshape(rows * beams + beam, [-1])
        caches = tf.nest.map_structure(lambda cache: tf.gather(cache, cache_rows), caches)
        ended_ids = tf.concat([ended_ids, tf.zeros_like(ended_ids[:, :, :1])], axis=2)
        scores = tf.concat([ended_scores, scores - INFINITY * (1.0 - ends)], axis=1)
        ended_ids, ended_scores = take_best(
            scores, tf.concat([ended_ids, ids], axis=1), scores)
        return i + 1, open_ids, open_log_probs, ended_ids, ended_scores, caches

    def unfinished(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor,
                   ended_ids: tf.Tensor, ended_scores: tf.Tensor, caches: Any) -> tf.Tensor:
        del open_ids, ended_ids, caches
        reachable = open_log_probs[:, 0] / penalty(length)   # by the best open hypothesis
        if first_only:
            certain = tf.reduce_max(ended_scores, axis=1) > reachable
        else:
            certain = tf.reduce_min(ended_scores) > reachable
        return (i < length) & ~tf.reduce_all(certain)

    # TensorFlow keeps int32 in host memory, and would copy all hypotheses to a GPU in each step.
    ids = tf.tile(tf.cast(start, tf.int64)[:, None, None], [1, beams, 1])
    log_probs = tf.tile([[0.0] + [-INFINITY] * (beams - 1)], [batch, 1])
    state = (tf.constant(0), ids, log_probs, tf.zeros_like(ids),
             tf.fill([batch, beams], -INFINITY), caches)
    shapes = (ids.shape[:2].concatenate(None), log_probs.shape)
    invariants = (tf.TensorShape([]), *shapes, *shapes,
                  tf.nest.map_structure(_growing_shape, caches))
    _, ids, log_probs, ended_ids, ended_scores, _ = tf.while_loop(
        unfinished, one_step, state, invariants, parallel_iterations=1, back_prop=False)
    any_ended = tf.reduce_any(ended_scores > -INFINITY / 2, axis=1)
    return tf.where(any_ended, ended_ids, ids), tf.where(any_ended, ended_scores, log_probs)
