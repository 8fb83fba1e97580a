"""Content to position and position to content, apart (He et al. 2021, DeBERTa, section 3.1).

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j, with DeBERTa's later logarithmic buckets.
"""
import tensorflow.compat.v1 as tf

from rpr import relations
from rpr.positions import unclipped
from rpr.positions.scheme import Scheme
from rpr.relations import shape_list


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
    def rows(table, distances):                              # key less query: -(i - j)
        span = table.shape.as_list()[-2] // 2
        return tf.gather(table, relations.log_buckets(-distances, span, max_distance) + span,
                         axis=-2)                            # its gradient is dense

    by_content = unclipped.score_term(q, rows(keys, relations.span(relation)), relation)
    n, m, offset = relation[:3]
    if isinstance(n, int) and n == 1:
        by_position = tf.reduce_sum(k * rows(queries, offset - tf.range(m)), axis=3)[:, :, None]
        return by_content + by_position
    turned = relations.Distances(m, n, -offset)              # keys ask, queries answer
    by_position = unclipped.score_term(k, rows(queries, relations.span(turned)), turned)
    return by_content + tf.transpose(by_position, [0, 1, 3, 2])


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
