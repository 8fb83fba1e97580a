"""From scores by distance or by label to scores by pair of query and key, and back.

Skewing (Huang et al. 2018, Music Transformer, section 3.4.1) is extended to keys on both sides of
the query. A row of the skewed matrix is a row of the original shifted one place further to the left
than the row before, which padding and reshaping do without an index.

A label is that of an edge, or the bucket of a distance; a table has one row per label. No vector is
made for a pair: the products of queries and rows are computed once per label, and then copied to
the pairs with the heads as the last axis.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, gather_rows, matmul_shared, shape_list, sum_rows
from rpr.positions.layout import Layout


def skew(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Moves scores by distance to the pairs of query and key that have these distances.

    From [..., queries, distances], for `layout.distances()`, or [..., 1, distances] where all
    queries have the same scores, to [..., queries, keys]. In a causal layout the result is
    undefined for keys to the right of their query.
    """
    *outer, rows, columns = shape_list(x)
    n, m = layout.queries, layout.keys
    if layout.is_single_query:
        return x[..., :m]
    if isinstance(rows, int) and rows == 1:
        x = tf.broadcast_to(x, [*outer, n, columns])
    width = m if layout.causal else n + m - 1                # of a row after reshaping

    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        y = tf.reshape(x, [*outer, n * (width + 1)])[..., n - 1:n - 1 + n * width]
        y = tf.reshape(y, [*outer, n, width])
        return y if layout.causal else y[..., :m], lambda dy: unskew(dy, layout)

    return forward(x)


def unskew(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Moves values of pairs to their distances: the transpose of `skew`.

    From [..., queries, keys] to [..., queries, distances], for `layout.distances()`: 0 where a
    query has no key at a distance. In a causal layout x is 0 for keys to the right of their query.
    """
    *outer, n, m = shape_list(x)
    width = m if layout.causal else n + m - 1                # as in `skew`

    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        before = n - 1 if layout.causal else 0
        if not layout.causal:
            x = tf.pad(x, [[0, 0]] * (len(outer) + 1) + [[n - 1, 0]])
        y = tf.reshape(x, [*outer, n * width])
        y = tf.pad(y, [[0, 0]] * len(outer) + [[before, n - before]])
        return tf.reshape(y, [*outer, n, width + 1]), lambda dy: skew(dy, layout)

    return forward(x)


def scores_by_distance(q: tf.Tensor, rows: tf.Tensor, layout: Layout) -> tf.Tensor:
    """q_i . r_{j - i} for every query i and key j: [batch, heads, queries, keys].

    q is [batch, heads, queries, depth], scaled by the caller; r has a row for each of
    `layout.distances()`: [distances, depth] shared by the heads, or [heads, distances, depth].
    """
    return skew(matmul_shared(q, rows, transpose_b=True), layout)


def score_term(q: tf.Tensor, table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The position term of equation (4) of Shaw et al. 2018: q_i . a^K_ij for each pair.

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      table: a^K, [labels, depth] shared by the heads, or [heads, labels, depth].
      labels: integers [batch|1, queries, keys]; a label beyond the table means a zero vector.
    """
    table = _append_zero_row(table)
    indices, count = _flat_labels(labels, table, q)
    batch, heads, n, _ = shape_list(q)
    by_label = matmul_shared(q, table, transpose_b=True)     # [batch, heads, queries, labels]
    x = tf.reshape(tf.transpose(by_label, [0, 2, 3, 1]), [count, heads])
    y = tf.reshape(gather_rows(x, indices), [batch, n, -1, heads])
    return tf.transpose(y, [0, 3, 1, 2])


def value_term(weights: tf.Tensor, table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The position term of equation (3) of Shaw et al. 2018: sum_j alpha_ij a^V_ij.

    The weights alpha are [batch, heads, queries, keys]; table (a^V) and labels as for `score_term`.
    The result is [batch, heads, queries, depth].
    """
    table = _append_zero_row(table)
    indices, count = _flat_labels(labels, table, weights)
    batch, heads, n, _ = shape_list(weights)
    x = tf.reshape(tf.transpose(weights, [0, 2, 3, 1]), [-1, heads])
    y = tf.reshape(sum_rows(x, indices, count), [batch, n, -1, heads])
    return matmul_shared(tf.transpose(y, [0, 3, 1, 2]), table)


def pair_vectors(table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The row of each pair, [batch, heads|1, queries, keys, depth], for additive compatibility.

    Arguments as for `score_term`.
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
