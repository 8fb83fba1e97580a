"""Content to position and position to content, apart (He et al. 2021, DeBERTa, section 3.1).

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j, with DeBERTa's later logarithmic buckets.

The product of a word with the row of a bucket is computed once and laid out beside those of other
sentences (and heads), so that they go to the pairs together, as copies of stretches of memory, and
their gradients come back as sums of such.

Tried, and lost on CPU: for each word a product with its pairs' buckets as one-hot vectors (up to
twice the time, of the scheme with its attention), and products with a row for every distance,
skewed (likewise).
"""
import tensorflow.compat.v1 as tf

from rpr.nn import ops
from rpr.nn.ops import shape_list, transpose
from rpr.nn.projections import project, split_heads
from rpr.positions import buckets, skew
from rpr.positions import distances as relations
from rpr.positions.scheme import Scheme

# From how many sentences on the numbers of one head make a stretch; of fewer, those of all heads.
# Measured on two CPU cores, an encoder over absolute attention, the first way against the second:
# 2.05 against 2.44 for 128 sentences of 16 words, 1.91 against 2.15 for 32 of 64, 1.86 against 1.80
# for 16 of 256, 1.86 against 1.68 for 8 of 256, 3.5 against 1.7 for 2 of 1024.
SENTENCES = 16


def _reach(relation):
    """The least and the greatest distance i - j of a query i and a key j that it may look at."""
    n, m, offset, causal = relation[:4]
    return 0 if causal else offset - m + 1, offset + n - 1


def _bucket(distance, span, max_distance):
    return buckets.log_buckets(tf.convert_to_tensor(distance), span, max_distance)


def met(embeddings, relation, max_distance):
    """The rows of the buckets that occur: none other need be projected.

    Args:
      embeddings: [2 * span, ...], a row for each bucket from -span on.
      relation: a `rpr.positions.distances.Distances`.
      max_distance: see `rpr.positions.distances.log_buckets`.

    Returns:
      the rows for keys and the rows for queries, which meet minus those distances.
    """
    span, (nearest, furthest) = shape_list(embeddings)[0] // 2, _reach(relation)

    def rows(least, most):
        first, last = (_bucket(distance, span, max_distance) + span for distance in (least, most))
        others = shape_list(embeddings)[1:]
        # The gradient of embeddings[first:last + 1] takes longer.
        return tf.slice(embeddings, [first, *[0] * len(others)], [last + 1 - first, *others])

    return rows(nearest, furthest), rows(-furthest, -nearest)


def score_terms(q, k, keys, queries, relation, span, max_distance):
    """q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i).

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      keys: k^r, [heads, labels, depth], projections of the rows for keys that `met` gives.
      queries: q^r, likewise of those for queries, scaled as q is.
      relation: a `rpr.positions.distances.Distances`.
      span, max_distance: see `rpr.positions.distances.log_buckets`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    def label(table, distances, least):
        """Rows of a table, whose first is that of the least; of pairs that a mask hides, any."""
        first = _bucket(least, span, max_distance)
        return tf.clip_by_value(
            _bucket(distances, span, max_distance) - first, 0, shape_list(table)[1] - 1)

    if isinstance(relation.queries, int) and relation.queries == 1:
        nearest, furthest = _reach(relation)
        to_place = tf.gather(keys, label(keys, -relations.span(relation), nearest), axis=1)
        to_content = tf.gather(
            queries, label(queries, relations.pairs(relation)[0], -furthest), axis=1)
        return (skew.score_term(q, to_place, relation)
                + tf.reduce_sum(k * to_content, axis=3)[:, :, None])

    def of_pairs(by_label):
        def function(q, k, keys, queries, *sizes):
            relation = relations.Distances(*sizes)
            n, m, distances = relation.queries, relation.keys, relations.pairs(relation)
            nearest, furthest = _reach(relation)
            return tf.reshape(_bring(
                by_label(q, keys), label(keys, -distances, nearest) * n + tf.range(n)[:, None],
                by_label(k, queries), label(queries, distances, -furthest) * m + tf.range(m)),
                [*shape_list(q)[:2], n, m])

        return function

    batch, given = shape_list(q)[0], (q, k, keys, queries, *relation)
    if isinstance(batch, int):
        return of_pairs(_by_head if batch >= SENTENCES else _by_sentence)(*given)
    if not ops.can_choose():
        return of_pairs(_by_sentence)(*given)
    return ops.choose(
        batch >= SENTENCES, of_pairs(_by_head), of_pairs(_by_sentence), *given)


def _by_head(x, table):
    """Products of words and rows: [heads, labels * words, batch].

    Args:
      x: [batch, heads, words, depth].
      table: [heads, labels, depth].
    """
    batch, heads, words, depth = shape_list(x)
    x = tf.reshape(transpose(x, [1, 2, 0, 3]), [heads, words * batch, depth])
    return tf.reshape(tf.matmul(table, x, transpose_b=True), [heads, -1, batch])


def _by_sentence(x, table):
    """The same, but as [1, labels * words, batch * heads]."""
    batch, heads = shape_list(x)[:2]
    y = tf.matmul(table[None], x, transpose_b=True)          # [batch, heads, labels, words]
    return tf.transpose(tf.reshape(y, [batch * heads, -1]))[None]


def _bring(by_query, query_rows, by_key, key_rows):
    """For each pair the sum of a number of its query and one of its key.

    Args:
      by_query: [groups, rows, width], groups of heads and as many numbers a row as there are
        sentences and heads in a group.
      query_rows: int32 [len_q, len_k], the row of each pair.
      by_key, key_rows: likewise.

    Returns:
      [width, groups, len_q, len_k].
    """
    @tf.custom_gradient
    def function(by_query, by_key):
        y = tf.gather(by_query, query_rows, axis=1) + tf.gather(by_key, key_rows, axis=1)
        groups, n, m, width = shape_list(y)

        def gradient(dy):
            dy = tf.transpose(tf.reshape(dy, [width, groups * n * m]))

            def sums(x, rows):
                count = shape_list(x)[1]
                rows = (tf.range(groups) * count)[:, None] + tf.reshape(rows, [-1])
                found = ops.sum_rows(dy, tf.reshape(rows, [-1]), groups * count)
                return tf.reshape(found, [groups, count, width])

            return sums(by_query, query_rows), sums(by_key, key_rows)

        y = tf.transpose(tf.reshape(y, [groups * n * m, width]))
        return tf.reshape(y, [width, groups, n, m]), gradient

    return function(by_query, by_key)


class Deberta(Scheme):
    """Content to position and position to content, in log buckets of distance (He et al. 2021)."""
    product = "whole"

    def __init__(self, hparams, side):
        self._hidden, self._span = hparams.hidden_size, hparams.deberta_buckets
        self._max_distance = hparams.deberta_max_distance
        if self._span < 4 or self._span % 2:
            raise ValueError(f"deberta_buckets={self._span}: position=deberta needs an even "
                             "number a side, 4 or more")
        if self._max_distance <= self._span // 2 + 1:
            raise ValueError(f"deberta_max_distance={self._max_distance}: the widest bucket ends "
                             "beyond the single ones, above deberta_buckets / 2 + 1 = "
                             f"{self._span // 2 + 1}")

    def scores(self, q, k, relation):
        heads, depth = shape_list(q)[1], q.shape.as_list()[3]
        with tf.variable_scope("deberta"):
            rows = self.once(relation, lambda: met(
                tf.get_variable("embeddings", [2 * self._span, self._hidden], dtype=q.dtype),
                relation, self._max_distance))
            keys, queries = (                                # [heads, labels, depth]
                split_heads(project(table[None], heads * depth, name), heads)[0]
                for name, table in zip("kq", rows, strict=True))
        q *= 3 ** -0.5
        return tf.matmul(q, k, transpose_b=True) + score_terms(
            q, k, keys, queries * (3 * depth) ** -0.5, relation, self._span, self._max_distance)
