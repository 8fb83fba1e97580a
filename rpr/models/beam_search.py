"""Beam search (Wu et al. 2016): T2T's, with the same hypotheses and scores for less work a step.

T2T copies the encoder's keys and values to every beam, takes 2 * beams and then beams rows out of
every cache at each step, and normalises all symbols of all beams before it takes the best. Here the
beams of a sentence are queries of one attention to its encoder, a step takes from the caches once,
and only the best symbols of each beam are normalised and compared.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list

EOS_ID = 1                                                   # T2T's id of the end-of-sentence symbol
INFINITY = 1e7                                               # larger than any -log probability
GROUP = 64                                                   # symbols


def top_k(x, count):
    """`tf.nn.top_k` of many symbols, which compares each of them with the best so far.

    The best can only be in the groups whose own best are the best, which vectors find faster.

    Args:
      x: float32 [rows, symbols].
      count: how many, at most all the symbols.

    Returns:
      values and symbols, [rows, count], the best first; of equal ones the first.
    """
    symbols = x.shape.as_list()[1]
    if symbols < 4 * count * GROUP:
        return tf.nn.top_k(x, count)
    if symbols % GROUP:
        x = tf.pad(x, [[0, 0], [0, -symbols % GROUP]], constant_values=x.dtype.min)
    groups = tf.reshape(x, [-1, -(-symbols // GROUP), GROUP])
    where = tf.sort(tf.nn.top_k(tf.reduce_max(groups, axis=2), count)[1], axis=1)
    few = tf.gather(groups, where, batch_dims=1)             # [rows, count, GROUP]
    best, place = tf.nn.top_k(tf.reshape(few, [-1, count * GROUP]), count)
    return best, tf.gather(where, place // GROUP, batch_dims=1) * GROUP + place % GROUP


def search(step, caches, batch, length, beams, top_beams, alpha):
    """The best sentences, as T2T's `infer` gives them; a beam of 1 is the greedy search.

    Args:
      step, caches, length, beams, alpha: see `beam_search`.
      batch: sentences.
      top_beams: how many hypotheses of each are wanted.

    Returns:
      {"outputs": int32 [batch, steps], or with several top_beams [batch, top_beams, steps];
      "scores": float32 [batch] or [batch, top_beams]}.
    """
    start = tf.zeros([batch], tf.int32)                      # T2T's symbol before the first
    if beams == 1:
        ids, scores = greedy_search(step, caches, start, length, EOS_ID)
        return {"outputs": ids[:, 1:], "scores": scores}
    ids, scores = beam_search(step, caches, start, beams, length, alpha, EOS_ID, top_beams == 1)
    if top_beams == 1:
        return {"outputs": ids[:, 0, 1:], "scores": scores[:, 0]}
    return {"outputs": ids[:, :top_beams, 1:], "scores": scores[:, :top_beams]}


def greedy_search(step, caches, start, length, end):
    """The likeliest symbol at each step.

    Args:
      step, caches, start, length, end: see `beam_search`, with one beam.

    Returns:
      int32 [batch, steps + 1], the start symbol first, zeros after an end; the log probabilities,
      float32 [batch], of the symbols up to and with the end.
    """
    def one(i, ids, chances, ended, caches):
        logits, caches = step(ids[:, -1], caches)
        chance = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        symbols = tf.where(ended, tf.zeros_like(start), tf.argmax(
            chance, axis=1, output_type=tf.int32))
        best = tf.reduce_max(chance, axis=1)
        chances += tf.where(ended, tf.zeros_like(best), best)
        return (i + 1, tf.concat([ids, symbols[:, None]], axis=1), chances,
                ended | tf.equal(symbols, end), caches)

    state = (tf.constant(0), start[:, None], tf.zeros(tf.shape(start)),
             tf.zeros_like(start, tf.bool), caches)
    invariants = (tf.TensorShape([]), tf.TensorShape([start.shape[0], None]), start.shape,
                  start.shape, tf.nest.map_structure(_growing, caches))
    _, ids, chances, _, _ = tf.while_loop(
        lambda i, ids, chances, ended, caches: (i < length) & ~tf.reduce_all(ended), one, state,
        invariants, parallel_iterations=1, back_prop=False)
    return ids, chances


def _growing(cache):
    """The shape that a cache keeps from step to step."""
    return tf.TensorShape([size if axis != 2 else None
                           for axis, size in enumerate(cache.shape)])


def beam_search(step, caches, start, beams, length, alpha, end, first_only):
    """The best sentences, with the length penalty ((5 + length) / 6) ^ alpha.

    Args:
      step: a function of the symbols chosen last, int32 [batch * beams], and of the caches that
        gives logits [batch * beams, symbols] and the caches after this step.
      caches: a nest of [batch * beams, heads, 0, depth] that grow with each step, and of states of
        fewer dimensions that do not; the beams of a sentence are neighbours.
      start: int32 [batch], the symbols that the first step is given.
      beams: how many hypotheses of each sentence are kept.
      length: int32 scalar, most steps.
      alpha: exponent of the length penalty.
      end: the symbol that ends a sentence.
      first_only: whether to stop once the best hypothesis of every sentence is certain, rather
        than all of them.

    Returns:
      int32 [batch, beams, steps + 1], the start symbol first, best sentences first, zeros after an
      end; their scores, float32 [batch, beams]. A sentence of which no hypothesis ended gives those
      that are open, and their log probabilities.
    """
    batch = shape_list(start)[0]
    rows = tf.range(batch)[:, None]                          # [batch, 1]

    def penalty(steps):
        return tf.pow((5.0 + tf.cast(steps, tf.float32)) / 6.0, alpha)

    def pick(scores, *values):
        """The `beams` best by score of each of `values`, and where they stood."""
        where = tf.nn.top_k(scores, beams)[1]                # [batch, beams]
        return where, [tf.gather(value, where, batch_dims=1) for value in values]

    def one(i, open_ids, open_chances, ended_ids, ended_scores, caches):
        logits, caches = step(tf.reshape(open_ids[:, :, -1], [-1]), caches)
        logits = tf.cast(logits, tf.float32)
        wide = min(2 * beams, logits.shape.as_list()[-1])
        best, symbols = top_k(logits, wide)                  # [batch * beams, wide]
        # At its highest the softmax is 1 / symbols or more: its logarithm is safe.
        highest = tf.gather(tf.nn.softmax(logits), symbols[:, :1], batch_dims=1)
        best += tf.log(highest) - best[:, :1]
        best = tf.reshape(best, [-1, beams, wide]) + open_chances[:, :, None]
        scores, where = tf.nn.top_k(                         # [batch, 2 * beams]
            tf.reshape(best / penalty(i + 1), [-1, beams * wide]), 2 * beams)
        beam = where // wide
        symbols = tf.gather(tf.reshape(symbols, [-1, beams * wide]), where, batch_dims=1)
        ids = tf.concat([tf.gather(open_ids, beam, batch_dims=1), symbols[:, :, None]], axis=2)
        ends = tf.cast(tf.equal(symbols, end), tf.float32)

        _, (open_ids, open_chances, beam) = pick(
            scores - INFINITY * ends, ids, scores * penalty(i + 1), beam)
        places = tf.reshape(rows * beams + beam, [-1])       # rows of the caches
        caches = tf.nest.map_structure(lambda cache: tf.gather(cache, places), caches)
        ended_ids = tf.pad(ended_ids, [[0, 0], [0, 0], [0, 1]])
        scores = tf.concat([ended_scores, scores - INFINITY * (1.0 - ends)], axis=1)
        _, (ended_ids, ended_scores) = pick(scores, tf.concat([ended_ids, ids], axis=1), scores)
        return i + 1, open_ids, open_chances, ended_ids, ended_scores, caches

    def go_on(i, open_ids, open_chances, ended_ids, ended_scores, caches):
        del open_ids, ended_ids, caches
        possible = open_chances[:, 0] / penalty(length)      # the most that an open one can reach
        if first_only:
            certain = tf.reduce_max(ended_scores, axis=1) > possible
        else:
            certain = tf.reduce_min(ended_scores) > possible
        return (i < length) & ~tf.reduce_all(certain)

    ids = tf.tile(start[:, None, None], [1, beams, 1])
    chances = tf.tile([[0.0] + [-INFINITY] * (beams - 1)], [batch, 1])
    state = (tf.constant(0), ids, chances, tf.zeros_like(ids), tf.fill([batch, beams], -INFINITY),
             caches)
    shapes = (ids.shape[:2].concatenate(None), chances.shape)
    invariants = (tf.TensorShape([]), *shapes, *shapes,
                  tf.nest.map_structure(_growing, caches))
    _, ids, chances, ended_ids, ended_scores, _ = tf.while_loop(
        go_on, one, state, invariants, parallel_iterations=1, back_prop=False)
    some = tf.reduce_any(ended_scores > -INFINITY / 2, axis=1)
    return tf.where(some, ended_ids, ids), tf.where(some, ended_scores, chances)
