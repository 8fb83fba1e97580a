"""Content to position and position to content, apart (He et al. 2021, DeBERTa, section 3.1).

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j, with DeBERTa's later logarithmic buckets.

Two terms, each with tables by head, cost 1.2 times T2T's relative attention in an encoder of 64
words and 1.6 to 1.9 times at 16, where the embeddings' projection weighs most; in a decoder of 64
about as much as T2T's, and from 256 words on less.
"""
import tensorflow.compat.v1 as tf

from rpr import relations
from rpr.positions import unclipped
from rpr.positions.scheme import Scheme
from rpr.relations import shape_list, transpose

# Up to how many numbers, len_k ** 2 * labels, the labels of all pairs are had as one-hot vectors.
# Measured on two CPU cores by scripts/bench_attention with one way and the other forced, over
# absolute attention: 2.4 against 3.0 at n = 256 and 2.7 against 3.2 at n = 512 (causal: 2.0 against
# 2.5, 2.4 against 2.6). Beyond that they would take too much memory.
PER_PAIR = 512 * 512 * 64


def _reach(relation):
    """The least and the greatest distance i - j of a query i and a key j that it may look at."""
    n, m, offset, causal = relation[:4]
    return 0 if causal else offset - m + 1, offset + n - 1


def _bucket(distance, span, max_distance):
    return relations.log_buckets(tf.convert_to_tensor(distance), span, max_distance)


def met(embeddings, relation, max_distance):
    """The rows of the buckets that occur: none other need be projected.

    Args:
      embeddings: [2 * span, ...], a row for each bucket from -span on.
      relation: a `rpr.relations.Distances`.
      max_distance: see `rpr.relations.log_buckets`.

    Returns:
      the rows for keys and the rows for queries, which meet minus those distances.
    """
    span, (nearest, furthest) = shape_list(embeddings)[0] // 2, _reach(relation)

    def rows(least, most):
        first, last = (_bucket(distance, span, max_distance) + span for distance in (least, most))
        return embeddings[first:last + 1]

    return rows(nearest, furthest), rows(-furthest, -nearest)


def score_terms(q, k, keys, queries, relation, span, max_distance):
    """q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i).

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      keys: k^r, [heads, labels, depth], projections of the rows for keys that `met` gives.
      queries: q^r, likewise of those for queries, scaled as q is.
      relation: a `rpr.relations.Distances`.
      span, max_distance: see `rpr.relations.log_buckets`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    def place(table, least):
        """From distances j - i to rows of a table; of pairs that a mask hides, to any."""
        first = _bucket(least, span, max_distance)
        return lambda distances: tf.clip_by_value(
            _bucket(-distances, span, max_distance) - first, 0, shape_list(table)[1] - 1)

    def by_distance(x, table, relation, row):
        rows = tf.gather(table, row(relations.span(relation)), axis=-2)
        return unclipped.score_term(x, rows, relation)

    def by_label(x, table, relation, row):
        rows = tf.one_hot(row(relations.span(relation)), shape_list(table)[1],
                          dtype=x.dtype.base_dtype)          # as wide as its label
        return unclipped.score_term(tf.matmul(x, table, transpose_b=True), rows, relation)

    n, m, offset, _ = relation[:4]
    if isinstance(n, int) and n == 1:
        nearest, furthest = _reach(relation)
        rows = tf.gather(
            queries, place(queries, -furthest)(offset - tf.range(m)), axis=-2)
        return (by_distance(q, keys, relation, place(keys, nearest))
                + tf.reduce_sum(k * rows, axis=3)[:, :, None])

    def both(term, order):
        """Both terms; `order`: which axes of one are batch, heads, who asks, and who answers."""
        batch, heads, asks, answers = order

        def way(q, k, keys, queries, *sizes):
            relation = relations.Distances(*sizes)
            nearest, furthest = _reach(relation)
            turned = relations.Distances(relation.keys, relation.queries, -relation.offset)
            to_place = term(q, keys, relation, place(keys, nearest))
            to_content = term(k, queries, turned, place(queries, -furthest))      # keys ask
            return (transpose(to_place, [batch, heads, asks, answers])
                    + transpose(to_content, [batch, heads, answers, asks]))

        return way

    given = q, k, keys, queries, *relation
    far = both(by_distance if 2 * span > q.shape.as_list()[3] else by_label, [0, 1, 2, 3])
    near, is_near = both(_per_pair, [1, 2, 0, 3]), 2 * m * m * span <= PER_PAIR
    if isinstance(m, int):
        return near(*given) if is_near else far(*given)
    return relations.choose(is_near, near, far, *given) if relations.can_choose() else far(*given)


def _per_pair(x, table, relation, row):
    """The numbers by label of those who ask, and for each of them a product with the labels that
    are met, as one-hot vectors.

    Args:
      x: [batch, heads, asking, depth].
      table: [heads, labels, depth].
      relation: a `rpr.relations.Distances` of who asks (queries) and who answers (keys).
      row: a function from distances to rows of the table.

    Returns:
      [asking, batch, heads, answering].
    """
    labels = row(relations.pairs(relation))                      # [asking, answering]
    by_label = transpose(tf.matmul(x, table, transpose_b=True), [2, 0, 1, 3])
    asking, batch, heads, count = shape_list(by_label)
    met = tf.one_hot(labels, count, dtype=x.dtype.base_dtype)    # [asking, answering, labels]
    terms = tf.matmul(tf.reshape(by_label, [asking, batch * heads, count]), met, transpose_b=True)
    return tf.reshape(terms, [asking, batch, heads, shape_list(labels)[1]])


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

        def project(which, rows):
            kernel = tf.get_variable(
                f"{which}/kernel", [self._hidden, heads * depth], dtype=q.dtype)
            table = tf.reshape(tf.matmul(rows, kernel), [-1, heads, depth])
            return transpose(table, [1, 0, 2])            # [heads, labels, depth]

        with tf.variable_scope("deberta"):
            for_keys, for_queries = self.once(relation, lambda: met(
                tf.get_variable("embeddings", [2 * self._span, self._hidden], dtype=q.dtype),
                relation, self._max_distance))
            keys, queries = project("k", for_keys), project("q", for_queries)
        q *= 3 ** -0.5
        return tf.matmul(q, k, transpose_b=True) + score_terms(
            q, k, keys, queries * (3 * depth) ** -0.5, relation, self._span, self._max_distance)
