"""Labelled, directed edges between any two elements (Shaw et al. 2018, sections 3.1 and 5).

A table has one row a_c for each label c; label 0 is that of a pair without an edge. Unlike the
label of a distance, the label of an edge differs between the examples of a batch.
"""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, matmul_shared, shape_list, sum_rows
from rpr.positions import relative
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import get_table
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def score_term(q: tf.Tensor, table: tf.Tensor, edges: tf.Tensor) -> tf.Tensor:
    """The position term of equation (4): q_i . a^K_ij.

    The products of queries and rows are computed once per label, [batch, heads, queries, labels],
    and then copied to the pairs with the heads as the last axis.

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      table: a^K, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: labels, int32 [batch, queries, keys]; a label beyond the table means a zero vector.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    table = _append_zero_row(table)
    by_label = matmul_shared(q, table, transpose_b=True)     # [batch, heads, queries, labels]
    return _labels_to_pairs(by_label, *_flat_labels(edges, table))


def value_term(weights: tf.Tensor, table: tf.Tensor, edges: tf.Tensor) -> tf.Tensor:
    """The position term of equation (3): sum_j alpha_ij a^V_ij.

    Args:
      weights: alpha, [batch, heads, queries, keys].
      table: a^V, [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: as for `score_term`.

    Returns:
      [batch, heads, queries, depth] of the dtype of the weights.
    """
    table = _append_zero_row(table)
    return matmul_shared(_pairs_to_labels(weights, *_flat_labels(edges, table)), table)


def pair_vectors(table: tf.Tensor, edges: tf.Tensor) -> tf.Tensor:
    """The row of each pair, for additive compatibility.

    Args:
      table: [labels, depth] shared by the heads, or [heads, labels, depth].
      edges: as for `score_term`.

    Returns:
      [batch, heads|1, queries, keys, depth].
    """
    table = _append_zero_row(table)
    vectors = gather_rows(table, _valid_labels(edges, table))
    return tf.transpose(vectors, [1, 0, 2, 3, 4]) if table.shape.rank == 3 else vectors[:, None]


def _append_zero_row(table: tf.Tensor) -> tf.Tensor:
    return tf.pad(table, [[0, 0]] * (table.shape.rank - 2) + [[0, 1], [0, 0]])


def _valid_labels(edges: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """The labels, with that of the last row, zero, for labels beyond the table: int64."""
    edges = tf.cast(edges, tf.int64)                         # int32 would be kept on the host
    last = tf.cast(shape_list(table)[-2] - 1, tf.int64)
    return tf.where_v2((edges < 0) | (edges >= last), last, edges)


def _flat_labels(edges: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """For each pair the index of its (example, query, label), and the number of such indices."""
    batch, n, _ = shape_list(edges)
    labels = shape_list(table)[-2]
    first = tf.range(tf.cast(batch * n, tf.int64)) * tf.cast(labels, tf.int64)
    queries = tf.reshape(first, [batch, n, 1])
    return tf.reshape(queries + _valid_labels(edges, table), [-1]), batch * n * labels


def _labels_to_pairs(by_label: tf.Tensor, indices: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """[batch, heads, queries, labels] -> [batch, heads, queries, keys]."""
    batch, heads, n, _ = shape_list(by_label)
    x = tf.reshape(tf.transpose(by_label, [0, 2, 3, 1]), [count, heads])
    y = tf.reshape(gather_rows(x, indices), [batch, n, -1, heads])
    return tf.transpose(y, [0, 3, 1, 2])


def _pairs_to_labels(by_pair: tf.Tensor, indices: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Sums over the pairs of a query with the same label: the transpose of `_labels_to_pairs`."""
    batch, heads, n, _ = shape_list(by_pair)
    x = tf.reshape(tf.transpose(by_pair, [0, 2, 3, 1]), [-1, heads])
    y = tf.reshape(sum_rows(x, indices, count), [batch, n, -1, heads])
    return tf.transpose(y, [0, 3, 1, 2])


@register("graph")
class Graph(relative.Relative):
    """Learned vectors per edge label; without edges, per clipped distance (Shaw et al. 2018)."""
    settings = (
        *relative.Relative.settings,
        Setting("num_edge_labels", 1, "edge labels of position=graph, label 0 (no edge) included",
                minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._labels = hparams.num_edge_labels
        self._may_have_edges = side == "inputs"
        if self._keys and self._may_have_edges:
            self.query_key_method = "score_term"

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        return super().scores(q, k, layout) if layout.edges is None else None

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor,
                        layout: Layout) -> tf.Tensor | None:
        return super().weighted_values(weights, v, layout) if layout.edges is None else None

    @property
    def replaces_weighted_sum(self) -> bool:
        return super().replaces_weighted_sum and not self._may_have_edges

    def score_term(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        if layout.edges is None or not self._keys:
            return None
        return score_term(q, self._edge_table("keys", self._keys, q.dtype), layout.edges)

    def value_term(self, weights: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        if layout.edges is None or not self._values:
            return None
        table = self._edge_table("values", self._values, weights.dtype)
        return value_term(weights, table, layout.edges)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        if layout.edges is None:
            return super().pair_vectors(layout, dtype)
        if not self._keys:
            return None
        return pair_vectors(self._edge_table("keys", self._keys, dtype), layout.edges)

    def _edge_table(self, name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
        *outer, _, depth = shape
        return get_table(f"graph/edge_{name}", [*outer, self._labels, depth], dtype)
