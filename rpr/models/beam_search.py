"""Beam search (Wu et al. 2016) with T2T's hypotheses and scores, and less work per step.

T2T copies the encoder's keys and values to every beam, gathers 2 * beams and then beams rows of
every cache per step, and normalizes all symbols of all beams before it selects the best. It goes on
with all sentences of a batch until the last search has ended. Here the beams of a sentence are
queries of one attention to its encoder, the caches are gathered once per step, sentences whose
search has ended are left out, and only the best symbols of each beam are normalized and compared.

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


def search(step: Any, caches: Any, sources: Any, lengths: tf.Tensor, beams: int, top_beams: int,
           alpha: float, prompts: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
    """The best sentences, in the form of T2T's `infer`; one beam is greedy search.

    Arguments are those of `beam_search`; `top_beams` hypotheses of each sentence are returned:
    {"outputs": int32 [batch, steps], "scores": float32 [batch]}, or [batch, top_beams, ...]. The
    model reads `prompts`, int32 [batch, longest] with zeros at the end, after the start symbol and
    before the hypotheses, which do not include them.
    """
    start, waits = tf.zeros_like(lengths), None              # T2T's symbol before the first
    if prompts is not None:
        waits = tf.math.count_nonzero(prompts, axis=1, dtype=tf.int32)
        step, caches, sources = _reading(step, caches, sources, prompts, waits, beams)
    if beams == 1:
        ids, scores = greedy_search(step, caches, sources, start, lengths, waits)
    else:
        ids, scores = beam_search(step, caches, sources, start, beams, lengths, alpha,
                                  top_beams == 1, waits)
    if waits is not None:
        ids = _without_waits(ids, waits)
    if beams == 1:
        return {"outputs": ids[:, 1:], "scores": scores}
    if top_beams == 1:
        return {"outputs": tf.cast(ids[:, 0, 1:], tf.int32), "scores": scores[:, 0]}
    return {"outputs": tf.cast(ids[:, :top_beams, 1:], tf.int32), "scores": scores[:, :top_beams]}


def _loop(one_step: Any, searching: Any, state: list[tf.Tensor], caches: Any, sources: Any,
          beams: int) -> list[tf.Tensor]:
    """The state of all sentences after their searches.

    When the searches for half of the sentences have ended, the others go on without them.

    Args:
      one_step: from the number of the step, the state, caches and sources to the next state and
        caches.
      searching: from the number of the step and the state to bool [sentences].
      state: tensors [batch, ...], whose last axis may grow.
      caches, sources, beams: see `beam_search`.
    """
    def shapes(tensors: Any, grow: bool) -> Any:
        """Of tensors in the loops: sentences become fewer; axes that are empty at first grow."""
        return tf.nest.map_structure(lambda x: tf.TensorShape(
            [None, *(None if grow else size or None for size in x.shape.as_list()[1:])]), tensors)

    def several_steps(i: tf.Tensor, results: list, kept: tf.Tensor, state: list, caches: Any,
                      sources: Any) -> tuple:
        """Goes on with the sentences `kept`, int32 [sentences], to the end of half of them."""
        def most_go_on(i: tf.Tensor, state: list, caches: Any) -> tf.Tensor:
            del caches
            ongoing = tf.cast(searching(i, *state), tf.int32)
            return 2 * tf.reduce_sum(ongoing) > tf.size(ongoing)

        def next_step(i: tf.Tensor, state: list, caches: Any) -> tuple:
            *state, caches = one_step(i, *state, caches, sources)
            return i + 1, state, caches

        i, state, caches = tf.while_loop(
            most_go_on, next_step, (i, state, caches),
            (tf.TensorShape([]), shapes(state, True), shapes(caches, False)),
            parallel_iterations=1, back_prop=False)
        results = [tf.tensor_scatter_nd_update(_widened(whole, part), kept[:, None], part)
                   for whole, part in zip(results, state, strict=True)]
        left = tf.where_v2(searching(i, *state))[:, 0]
        rows = tf.reshape(left[:, None] * beams + tf.range(beams, dtype=left.dtype), [-1])
        kept, state, sources = tf.nest.map_structure(
            lambda x: tf.gather(x, left), (kept, state, sources))
        return i, results, kept, state, tf.nest.map_structure(
            lambda x: tf.gather(x, rows), caches), sources

    kept = tf.range(tf.shape(state[0])[0])
    return tf.while_loop(
        lambda i, results, kept, *_: tf.size(kept) > 0, several_steps,
        (tf.constant(0), state, kept, state, caches, sources),
        (tf.TensorShape([]), shapes(state, True), tf.TensorShape([None]), shapes(state, True),
         shapes(caches, False), shapes(sources, False)),
        parallel_iterations=1, back_prop=False)[1]


def _widened(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """x with zeros at the end of its last axis, which becomes as long as y's."""
    if x.shape.rank == 1:
        return x
    shape = tf.shape(x)                                      # a GPU has no tf.pad for int64
    zeros = tf.zeros(tf.concat([shape[:-1], [tf.shape(y)[-1] - shape[-1]]], axis=0), x.dtype)
    return tf.concat([x, zeros], axis=-1)


def _reading(step: Any, caches: Any, sources: Any, prompts: tf.Tensor, waits: tf.Tensor,
             beams: int) -> tuple:
    """A step, caches and sources with which a search first reads prompts of `waits` symbols."""
    def reading_step(ids: tf.Tensor, caches: tuple, sources: tuple) -> tuple[tf.Tensor, tuple]:
        (steps, caches), (prompts, waits, sources) = caches, sources
        place = tf.minimum(tf.maximum(steps[0] - 1, 0), tf.shape(prompts)[1] - 1)
        reads = (steps > 0) & (steps <= tf.repeat(waits, beams))
        ids = tf.where(reads, tf.repeat(prompts[:, place], beams), ids)
        logits, caches = step(ids, caches, sources)
        return logits, (steps + 1, caches)

    steps = tf.zeros([shape_list(prompts)[0] * beams], tf.int32)
    return reading_step, (steps, caches), (prompts, waits, sources)


def _without_waits(ids: tf.Tensor, waits: tf.Tensor) -> tf.Tensor:
    """Ids [batch, ..., steps] without the first `waits` of them; zeros follow instead."""
    steps = tf.shape(ids)[-1]
    ids = tf.concat([ids, tf.zeros_like(ids[..., :1])], axis=-1)
    at = tf.minimum(tf.range(steps)[None] + waits[:, None], steps)
    ids = tf.gather(ids, at, axis=-1, batch_dims=1)
    return ids[..., :steps - tf.reduce_min(waits)]


def greedy_search(step: Any, caches: Any, sources: Any, start: tf.Tensor, lengths: tf.Tensor,
                  waits: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the most probable symbol at each step; arguments are those of `beam_search`.

    Returns int32 [batch, steps + 1], the start symbol first, zeros after an end or the length
    limit, and float32 [batch], log probabilities of the symbols before these zeros.
    """
    def one_step(i: tf.Tensor, ids: tf.Tensor, scores: tf.Tensor, lengths: tf.Tensor,
                 waits: tf.Tensor, caches: Any, sources: Any) -> tuple:
        logits, caches = step(ids[:, -1], caches, sources)
        log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        goes_on = (i < lengths) & (i >= waits)
        best, symbols = tf.reduce_max(log_probs, axis=1), tf.argmax(
            log_probs, axis=1, output_type=tf.int32)
        symbols = tf.where(goes_on, symbols, tf.zeros_like(symbols))
        scores += tf.where(goes_on, best, tf.zeros_like(best))
        lengths = tf.where(tf.equal(symbols, EOS_ID), tf.fill(tf.shape(lengths), i + 1), lengths)
        return tf.concat([ids, symbols[:, None]], axis=1), scores, lengths, waits, caches

    waits = tf.zeros_like(lengths) if waits is None else waits
    ids, scores, _, _ = _loop(
        one_step, lambda i, ids, scores, lengths, waits: i < lengths,
        [start[:, None], tf.zeros(tf.shape(start)), lengths + waits, waits], caches, sources, 1)
    return ids, scores


def beam_search(step: Any, caches: Any, sources: Any, start: tf.Tensor, beams: int,
                lengths: tf.Tensor, alpha: float, first_only: bool,
                waits: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """The best sentences by log probability / ((5 + length) / 6) ^ alpha.

    Args:
      step: see `rpr.models.incremental.Step`: from the symbols chosen last, int32
        [batch * beams], to logits [batch * beams, symbols]. It is also called for a part of the
        batch.
      caches: a nest of tensors [batch * beams, ...]; an axis of size 0 grows by one entry per step.
        The beams of a sentence are adjacent.
      sources: a nest of tensors [batch, ...] that the step reads, such as the encoder's keys.
      start: int32 [batch], the symbols before the first step.
      beams: hypotheses of each sentence.
      lengths: int32 [batch], the most symbols of a sentence's hypotheses.
      alpha: exponent of the length penalty.
      first_only: the search for a sentence ends when its best hypothesis is certain, rather than
        all.
      waits: int32 [batch], the steps before the one that chooses a sentence's first symbol.

    Returns:
      int64 [batch, beams, steps + 1], the start symbol first, best hypotheses first, zeros after
      an end or the length limit; float32 [batch, beams], their scores. If no hypothesis of a
      sentence has ended, its unfinished ones are returned with their log probabilities. `MISSING`
      is the score where there are fewer hypotheses than beams.
    """
    batch = shape_list(start)[0]
    none = -float("inf")                                     # log probability of no hypothesis
    has_prompts = waits is not None
    waits = waits if has_prompts else tf.zeros_like(lengths)

    def penalty(steps: int | tf.Tensor) -> tf.Tensor:
        return tf.pow((5.0 + tf.cast(steps, tf.float32)) / 6.0, alpha)

    def take_best(scores: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        """The `beams` entries of each of `values` with the best scores, best first."""
        index = tf.nn.top_k(scores, beams)[1]                # [batch, beams]
        return [tf.gather(value, index, batch_dims=1) for value in values]

    def extend(norm: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor, logits: tf.Tensor
               ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The 2 * beams best continuations: ids, scores, whether they end, and their beams.

        Scores are log probabilities divided by `norm`.
        """
        logits = tf.cast(logits, tf.float32)
        width = min(2 * beams, logits.shape.as_list()[-1])
        log_probs, symbols = top_k(logits, width)            # [batch * beams, width]
        # The largest softmax value is at least 1 / symbols, so its logarithm is safe.
        largest = tf.gather(tf.nn.softmax(logits), symbols[:, :1], batch_dims=1)
        log_probs += tf.log(largest) - log_probs[:, :1]
        log_probs = tf.reshape(log_probs, [-1, beams, width]) + open_log_probs[:, :, None]
        scores, index = tf.nn.top_k(                         # [batch, 2 * beams]
            tf.reshape(log_probs, [-1, beams * width]) / norm, 2 * beams)
        beam = index // width
        symbols = tf.gather(tf.reshape(symbols, [-1, beams * width]), index, batch_dims=1)
        symbols = tf.cast(symbols, tf.int64)
        ids = tf.concat([tf.gather(open_ids, beam, batch_dims=1), symbols[:, :, None]], axis=2)
        return ids, scores, tf.equal(symbols, EOS_ID), beam

    def searching(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor,
                  ended_ids: tf.Tensor, ended_scores: tf.Tensor, lengths: tf.Tensor,
                  waits: tf.Tensor) -> tf.Tensor:
        """Whether a sentence's hypotheses may still change, bool [batch]."""
        del open_ids, ended_ids
        # By the best open hypothesis:
        reachable = open_log_probs[:, 0] / penalty(lengths - waits)
        worst = (tf.reduce_max if first_only else tf.reduce_min)(ended_scores, axis=1)
        return (i < lengths) & ~(worst > reachable)

    def one_step(i: tf.Tensor, open_ids: tf.Tensor, open_log_probs: tf.Tensor,
                 ended_ids: tf.Tensor, ended_scores: tf.Tensor, lengths: tf.Tensor,
                 waits: tf.Tensor, caches: Any, sources: Any) -> tuple:
        last_symbols = tf.cast(tf.reshape(open_ids[:, :, -1], [-1]), tf.int32)
        logits, caches = step(last_symbols, caches, sources)
        norm = penalty(tf.maximum(i + 1 - waits, 1)[:, None] if has_prompts else i + 1)
        ids, scores, ends, beam = extend(norm, open_ids, open_log_probs, logits)
        nowhere = tf.fill(tf.shape(scores), none)
        open_scores = tf.where(ends, nowhere, scores)
        next_ids, next_log_probs, beam = take_best(
            open_scores, ids, open_scores * norm, beam)
        rows = tf.reshape(tf.range(tf.size(lengths))[:, None] * beams + beam, [-1])
        caches = tf.nest.map_structure(lambda cache: tf.gather(cache, rows), caches)
        open_ids, ended_ids = [tf.concat([x, tf.zeros_like(x[:, :, :1])], axis=2)
                               for x in (open_ids, ended_ids)]
        scores = tf.concat([ended_scores, tf.where(ends, scores, nowhere)], axis=1)
        next_ended = take_best(scores, tf.concat([ended_ids, ids], axis=1), scores)
        changes = (i >= waits) & searching(i, open_ids, open_log_probs, ended_ids, ended_scores,
                                           lengths, waits)
        hypotheses = [tf.where(changes, after, before) for after, before in zip(
            (next_ids, next_log_probs, *next_ended),
            (open_ids, open_log_probs, ended_ids, ended_scores), strict=True)]
        return *hypotheses, lengths, waits, caches

    # TensorFlow keeps int32 in host memory, and would copy all hypotheses to a GPU in each step.
    ids = tf.tile(tf.cast(start, tf.int64)[:, None, None], [1, beams, 1])
    log_probs = tf.tile([[0.0] + [none] * (beams - 1)], [batch, 1])
    ids, log_probs, ended_ids, ended_scores, _, _ = _loop(one_step, searching, [
        ids, log_probs, tf.zeros_like(ids), tf.fill([batch, beams], none), lengths + waits, waits],
        caches, sources, beams)
    any_ended = tf.reduce_any(ended_scores > none, axis=1)
    return (tf.where(any_ended, ended_ids, ids),
            tf.maximum(tf.where(any_ended, ended_scores, log_probs), MISSING))
