"""Labelled, directed edges between any two elements (Shaw et al. 2018, sections 3.1 and 5).

A table has one row a_c for each label c, label 0 being that of a pair without an edge. Unlike a
distance, a label is the pair's own in every example of a batch. The terms are numbers by label,
[batch, heads, len_q, labels]; laid out with the heads last they go to the pairs as copies of
stretches of memory, and come back as sums of such: on CPU, with the attention, 0.7 to 1 times what
products with the labels as one-hot vectors take.
"""
import tensorflow.compat.v1 as tf

from rpr.nn import ops
from rpr.nn.ops import shape_list
from rpr.positions import relative, relative_kernels, scheme


def scores(q, table, edges):
    """The term of equation (4): q_i . a^K_ij.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      table: a^K, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: int32 [batch, len_q, len_k], labels; one beyond the table counts as a vector of zeros.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    table = _and_none(table)
    by_label = relative_kernels.product(q, table, transpose_b=True)  # [batch, heads, len_q, labels]
    return _to_pairs(by_label, *_rows(edges, table))


def outputs(weights, table, edges):
    """The term of equation (3): sum_j alpha_ij a^V_ij.

    Args:
      weights: alpha, [batch, heads, len_q, len_k].
      table: a^V, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: as for `scores`.

    Returns:
      [batch, heads, len_q, depth] of the dtype of the weights.
    """
    table = _and_none(table)
    return relative_kernels.product(_to_labels(weights, *_rows(edges, table)), table)


def _and_none(table):
    """The table and a row of zeros."""
    return tf.pad(table, [[0, 0]] * (table.shape.rank - 2) + [[0, 1], [0, 0]])


def _rows(edges, table):
    """Which of all queries' numbers by label is whose: [batch * len_q * len_k], and how many."""
    batch, n, _ = shape_list(edges)
    labels = shape_list(table)[-2]                           # the last one is that of no vector
    edges = tf.where_v2((edges < 0) | (edges >= labels), labels - 1, edges)
    queries = tf.reshape(tf.range(batch * n) * labels, [batch, n, 1])
    return tf.reshape(queries + edges, [-1]), batch * n * labels


def _to_pairs(by_label, rows, count):
    """[batch, heads, len_q, labels] -> [batch, heads, len_q, len_k]."""
    batch, heads, n, _ = shape_list(by_label)                # the rows say len_k

    @tf.custom_gradient
    def function(by_label):
        x = tf.reshape(tf.transpose(by_label, [0, 2, 3, 1]), [count, heads])
        y = tf.reshape(tf.gather(x, rows), [batch, n, -1, heads])
        return tf.transpose(y, [0, 3, 1, 2]), lambda dy: _to_labels(dy, rows, count)

    return function(by_label)


def _to_labels(by_pair, rows, count):
    """The transpose of `_to_pairs`: sums over the pairs of a query that have the same label."""
    batch, heads, n, _ = shape_list(by_pair)

    @tf.custom_gradient
    def function(by_pair):
        x = tf.reshape(tf.transpose(by_pair, [0, 2, 3, 1]), [-1, heads])
        y = tf.reshape(ops.sum_rows(x, rows, count), [batch, n, -1, heads])
        return tf.transpose(y, [0, 3, 1, 2]), lambda dy: _to_pairs(dy, rows, count)

    return function(by_pair)


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
        return scheme.table(f"graph/edge_{which}", [*outer, self._labels, depth], dtype)
