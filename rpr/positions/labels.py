"""Vectors by the label of a pair of query and key: an edge, or the bucket of a distance.

A table has one row per label. No vector is made for a pair: the products of queries and rows are
computed once per label, and then copied to the pairs with the heads as the last axis.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, matmul_shared, shape_list, sum_rows


def score_term(q: tf.Tensor, table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The position term of equation (4) of Shaw et al. 2018: q_i . a^K_ij.

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      table: a^K, [labels, depth] shared by the heads, or [heads, labels, depth].
      labels: integers [batch|1, queries, keys]; a label beyond the table means a zero vector.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    table = _append_zero_row(table)
    by_label = matmul_shared(q, table, transpose_b=True)     # [batch, heads, queries, labels]
    return _labels_to_pairs(by_label, *_flat_labels(labels, table, q))


def value_term(weights: tf.Tensor, table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The position term of equation (3) of Shaw et al. 2018: sum_j alpha_ij a^V_ij.

    Args:
      weights: alpha, [batch, heads, queries, keys].
      table: a^V, [labels, depth] shared by the heads, or [heads, labels, depth].
      labels: as for `score_term`.

    Returns:
      [batch, heads, queries, depth] of the dtype of the weights.
    """
    table = _append_zero_row(table)
    return matmul_shared(_pairs_to_labels(
        weights, *_flat_labels(labels, table, weights)), table)


def pair_vectors(table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The row of each pair, for additive compatibility.

    Args:
      table: [labels, depth] shared by the heads, or [heads, labels, depth].
      labels: as for `score_term`.

    Returns:
      [batch, heads|1, queries, keys, depth].
    """
    table = _append_zero_row(table)
    vectors = gather_rows(table, _valid_labels(labels, table))
    return tf.transpose(vectors, [1, 0, 2, 3, 4]) if table.shape.rank == 3 else vectors[:, None]


def _append_zero_row(table: tf.Tensor) -> tf.Tensor:
    return tf.pad(table, [[0, 0]] * (table.shape.rank - 2) + [[0, 1], [0, 0]])


def _valid_labels(labels: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """The labels, with that of the last row, zero, for labels beyond the table: int64."""
    labels = tf.cast(labels, tf.int64)                       # int32 would be kept on the host
    last = tf.cast(shape_list(table)[-2] - 1, tf.int64)
    return tf.where_v2((labels < 0) | (labels >= last), last, labels)


def _flat_labels(labels: tf.Tensor, table: tf.Tensor, x: tf.Tensor
                 ) -> tuple[tf.Tensor, tf.Tensor]:
    """For each pair the index of its (example, query, label), and the number of such indices."""
    batch, (_, n, keys) = shape_list(x)[0], shape_list(labels)
    if labels.shape.as_list()[0] == 1:
        labels = tf.broadcast_to(labels, [batch, n, keys])
    rows = shape_list(table)[-2]
    first = tf.range(tf.cast(batch * n, tf.int64)) * tf.cast(rows, tf.int64)
    queries = tf.reshape(first, [batch, n, 1])
    return tf.reshape(queries + _valid_labels(labels, table), [-1]), batch * n * rows


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
