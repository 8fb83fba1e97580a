"""Skewing: from one score per distance to one score per pair of query and key, and back.

Huang et al. 2018, Music Transformer, section 3.4.1, extended to keys on both sides of the query. A
row of the skewed matrix is a row of the original shifted one place further to the left than the row
before, which padding and reshaping do without an index.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, matmul_shared, shape_list
from rpr.positions.layout import Layout


def skew(x: tf.Tensor, layout: Layout) -> tf.Tensor:
    """Moves scores by distance to the pairs of query and key that have these distances.

    Args:
      x: [..., queries, distances], for `layout.distances()`; or [..., 1, distances] where all
        queries have the same scores.
      layout: positions of queries and keys. If it is causal, the result is undefined for keys
        to the right of their query.

    Returns:
      [..., queries, keys] of the dtype of x.
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

    Args:
      x: [..., queries, keys]; if the layout is causal, 0 for keys to the right of their query.
      layout: positions of queries and keys.

    Returns:
      [..., queries, distances] of the dtype of x, for `layout.distances()`; 0 where a query has no
      key at a distance.
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
    """q_i . r_{j - i} for every query i and key j.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      rows: r, one for each of `layout.distances()`: [distances, depth] shared by the heads, or
        [heads, distances, depth].
      layout: positions of queries and keys.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    return skew(matmul_shared(q, rows, transpose_b=True), layout)
