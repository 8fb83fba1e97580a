"""Labelled, directed edges between any two elements (Shaw et al. 2018, sections 3.1 and 5).

A table has one row a_c for each label c, label 0 being that of a pair without an edge. Unlike a
distance, a label is the pair's own in every example of a batch, so that the terms are numbers by
label, [batch, heads, len_q, labels], brought to the pairs, and back, by a product with the labels
as one-hot vectors.
"""
import tensorflow.compat.v1 as tf

from rpr.positions import relative
from rpr.relations import transpose


def scores(q, table, edges):
    """The term of equation (4): q_i . a^K_ij.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      table: a^K, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: int32 [batch, len_q, len_k], labels; one beyond the table counts as a vector of zeros.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    by_label = tf.matmul(q, table, transpose_b=True)         # [batch, heads, len_q, labels]
    term = tf.matmul(_swap(by_label), _one_hot(edges, table), transpose_b=True)
    return _swap(term)                                       # [batch, len_q, heads, len_k] before


def outputs(weights, table, edges):
    """The term of equation (3): sum_j alpha_ij a^V_ij.

    Args:
      weights: alpha, [batch, heads, len_q, len_k].
      table: a^V, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: as for `scores`.

    Returns:
      [batch, heads, len_q, depth] of the dtype of the weights.
    """
    by_label = _swap(tf.matmul(_swap(weights), _one_hot(edges, table)))
    return tf.matmul(by_label, table)


def _swap(x):
    """[batch, heads, len_q, ...] <-> [batch, len_q, heads, ...]."""
    return transpose(x, [0, 2, 1, 3])


def _one_hot(edges, table):
    """[batch, len_q, len_k, labels]."""
    return tf.one_hot(edges, table.shape.as_list()[-2], dtype=table.dtype.base_dtype)


class Graph(relative.Relative):
    """Learned vectors per edge label; without edges, per clipped distance (Shaw et al. 2018)."""

    def __init__(self, hparams, side):
        super().__init__(hparams, side)
        self._labels = hparams.edge_labels
        if self._labels < 1:
            raise ValueError(f"edge_labels={self._labels}: position=graph needs the number of "
                             "labels, 1 or more, label 0 (no edge) included")
        if self._keys and side == "inputs":                  # where the edges are: beside another
            self.product = "term"

    def scores(self, q, k, relation):
        if relation.edges is None:
            return super().scores(q, k, relation)

    def outputs(self, weights, v, relation):
        if relation.edges is None:
            return super().outputs(weights, v, relation)

    def score_term(self, q, k, relation):
        if relation.edges is not None and self._keys:
            return scores(q, self._edge_table("keys", self._keys, q.dtype), relation.edges)

    def vectors(self, relation, dtype):
        if relation.edges is None:
            return super().vectors(relation, dtype)
        if self._keys:
            rows = self._edge_table("keys", self._keys, dtype)
            vectors = tf.gather(rows, relation.edges, axis=-2)   # [(heads,) batch, n, n, depth]
            return tf.transpose(vectors, [1, 0, 2, 3, 4]) if self._keys[2:] else vectors[:, None]

    def value_term(self, weights, relation):
        if relation.edges is not None and self._values:
            return outputs(weights, self._edge_table("values", self._values, weights.dtype),
                           relation.edges)

    def _edge_table(self, which, shape, dtype):
        *outer, _, depth = shape
        return relative.table(f"graph/edge_{which}", [*outer, self._labels, depth], dtype)
