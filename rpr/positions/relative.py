"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

A table has one row for each label of a clipped distance, 2k + 1 in all. It is never expanded to one
vector per pair: queries and weights meet the rows themselves, and numbers alone go from labels to
pairs and back.
"""
import tensorflow.compat.v1 as tf

from rpr import relations
from rpr.positions.scheme import Scheme


def score_term(q, table, relation):
    """The second part of the numerator in equation (4): q_i . a^K_ij.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      relation: a `rpr.relations.Distances`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    rows, k = _reachable(table, relation)                    # [(heads,) labels, depth]
    if rows.shape.rank == 2:
        by_label = tf.einsum("rd,bhqd->bhrq", rows, q)       # one large product
    else:
        by_label = tf.matmul(rows, q, transpose_b=True)      # one a head
    return relations.to_pairs(by_label, relation, k)


def value_term(weights, table, relation):
    """The second part of the sum in equation (3): sum_j alpha_ij a^V_ij.

    Args:
      weights: alpha, [batch, heads, len_q, len_k].
      table: a^V, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      relation: a `rpr.relations.Distances`.

    Returns:
      [batch, heads, len_q, depth] of the dtype of the weights.
    """
    rows, k = _reachable(table, relation)
    by_label = relations.to_labels(weights, relation, k)     # [batch, heads, labels, len_q]
    if rows.shape.rank == 2:
        return tf.einsum("bhrq,rd->bhqd", by_label, rows)
    return tf.matmul(by_label, rows, transpose_a=True)


def _reachable(table, relation):
    """The rows whose labels can occur at these lengths, and the k that they stand for."""
    k = table.shape.as_list()[-2] // 2
    reached = relations.reach(relation, k)
    return table[..., k - reached:k + reached + 1, :], reached


class Relative(Scheme):
    """Learned vectors per clipped distance, added to keys and values (Shaw et al. 2018)."""

    def __init__(self, hparams, side):
        k = hparams.max_relative_position
        if k < 0:
            raise ValueError(f"max_relative_position={k}: the clipping distance is an integer of 0 "
                             "or more (0: one label for every distance)")
        heads = hparams.num_heads
        key_channels = hparams.attention_key_channels or hparams.hidden_size
        value_channels = hparams.attention_value_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [heads]
        self._keys = hparams.relative_keys and outer + [2 * k + 1, key_channels // heads]
        self._values = hparams.relative_values and outer + [2 * k + 1, value_channels // heads]

    def score_term(self, q, relation):
        if self._keys:
            return score_term(q, _table("keys", self._keys, q.dtype), relation)

    def value_term(self, weights, relation):
        if self._values:
            return value_term(weights, _table("values", self._values, weights.dtype), relation)


def _table(which, shape, dtype):
    """The variable that T2T's `dot_product_relative` has under this name."""
    with tf.variable_scope(f"dot_product_attention_relative/relative_positions_{which}") as scope:
        one = scope.initializer or tf.glorot_uniform_initializer()

        def initializer(shape, dtype, partition_info=None):
            """Each head's table as a shared one: of three axes it would take heads for fan-in."""
            return tf.stack([one(shape[1:], dtype) for _ in range(shape[0])])

        return tf.get_variable("embeddings", shape, dtype=dtype,
                               initializer=one if len(shape) == 2 else initializer)
