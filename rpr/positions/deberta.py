"""Content to position and position to content, apart (He et al. 2021, DeBERTa, section 3.1).

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j, with DeBERTa's later logarithmic buckets.

Two terms, each with tables by head, cost 1.2 times T2T's relative attention in an encoder of 64
words and twice as much at 16, where two fifths of what they add is the projection of the buckets'
embeddings; from 256 words on, and in a decoder from 64 on, less than T2T's.
"""
import tensorflow.compat.v1 as tf

from rpr import relations
from rpr.positions import unclipped
from rpr.positions.scheme import Scheme
from rpr.relations import shape_list

# Up to how many numbers, len_k ** 2 * labels, the labels of all pairs are had as one-hot vectors.
# Measured on two CPU cores by scripts/bench_attention with one way and the other forced, over
# absolute attention: 2.4 against 3.0 at n = 256 and 2.7 against 3.2 at n = 512 (causal: 2.0 against
# 2.5, 2.4 against 2.6). Beyond that they would take too much memory.
PER_PAIR = 512 * 512 * 64


def score_terms(q, k, keys, queries, relation, max_distance):
    """q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i).

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      keys: k^r, [heads, 2 * span, depth], a row for each bucket from -span on.
      queries: q^r, likewise, scaled as q is.
      relation: a `rpr.relations.Distances`.
      max_distance: see `rpr.relations.log_buckets`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    n, m, offset, causal = relation[:4]
    span = shape_list(keys)[-2] // 2

    def label(distances):                                    # of query less key, from 0 on
        return relations.log_buckets(distances, span, max_distance) + span

    if isinstance(n, int) and n == 1:
        by_content = unclipped.score_term(
            q, tf.gather(keys, label(-relations.span(relation)), axis=-2), relation)
        places = tf.gather(queries, label(tf.range(m) - offset), axis=-2)
        return by_content + tf.reduce_sum(k * places, axis=3)[:, :, None]
    turned = relations.Distances(m, n, -offset)              # keys ask, queries answer

    def skewed():
        def term(x, table, relation):
            labels = label(-relations.span(relation))
            if 2 * span > x.shape.as_list()[3]:
                return unclipped.score_term(x, tf.gather(table, labels, axis=-2), relation)
            rows = tf.one_hot(labels, 2 * span, dtype=x.dtype.base_dtype)    # as wide as its label
            return unclipped.score_term(tf.matmul(x, table, transpose_b=True), rows, relation)
        return term(q, keys, relation) + tf.transpose(term(k, queries, turned), [0, 1, 3, 2])

    def per_pair():
        least, most = label(0 if causal else 1 - m), label(m - 1)    # no others are met
        by_content = _per_pair(
            q, keys[:, least:most + 1], label(-relations.pairs(relation)) - least)
        least, most = label(1 - m), label(0 if causal else m - 1)
        by_position = _per_pair(
            k, queries[:, least:most + 1], label(-relations.pairs(turned)) - least)
        return tf.transpose(by_content, [1, 2, 0, 3]) + tf.transpose(by_position, [1, 2, 3, 0])

    if isinstance(m, int):
        return per_pair() if 2 * m * m * span <= PER_PAIR else skewed()
    if tf.control_flow_v2_enabled():
        return skewed()
    return tf.cond(2 * m * m * span <= PER_PAIR, per_pair, skewed)


def _per_pair(x, table, labels):
    """The numbers by label of those who ask, and for each of them a product with the labels that
    are met, as one-hot vectors.

    Args:
      x: [batch, heads, asking, depth].
      table: [heads, labels, depth].
      labels: int32 [asking, answering]; one beyond the table counts as zero.

    Returns:
      [asking, batch, heads, answering].
    """
    by_label = tf.transpose(tf.matmul(x, table, transpose_b=True), [2, 0, 1, 3])
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

        def rows(which):
            """One projection of the embeddings: [heads, 2 * span, depth]."""
            kernel = tf.get_variable(
                f"{which}/kernel", [self._hidden, heads * depth], dtype=q.dtype)
            table = tf.reshape(tf.matmul(embeddings, kernel), [2 * self._span, heads, depth])
            return tf.transpose(table, [1, 0, 2])

        with tf.variable_scope("deberta"):
            embeddings = self.once(relation, lambda: tf.get_variable(
                "embeddings", [2 * self._span, self._hidden], dtype=q.dtype))
            keys, queries = rows("k"), rows("q")
        q *= 3 ** -0.5
        return tf.matmul(q, k, transpose_b=True) + score_terms(
            q, k, keys, queries * (3 * depth) ** -0.5, relation, self._max_distance)
