"""rpr.positions.skew"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list
from rpr.positions import relative_kernels, skew


def by_pair(x, relation):
    """Brings numbers by distance to the pairs of query and key that are so far apart.

    Each row of the result is a row of x moved one place further to the left: Huang et al. 2018,
    section 3.4.1, for keys on either side of the query.

    Args:
      x: [..., queries, distances], for the distances of `span`; or [..., 1, distances], where all
        queries have the same numbers.
      relation: a `Distances`. Where it is causal, nothing is said of pairs that look ahead.

    Returns:
      [..., queries, keys] of the dtype of x.
    """
    *outer, rows, _ = shape_list(x)
    n, m = relation.queries, relation.keys
    if isinstance(n, int) and n == 1:
        return x[..., :m]
    if isinstance(rows, int) and rows == 1:
        return _alike(x, relation)
    width = m if relation.causal else n + m - 1              # of a row, once it is one shorter

    @tf.custom_gradient
    def move(x):
        y = tf.reshape(x, [*outer, n * (width + 1)])[..., n - 1:n - 1 + n * width]
        y = tf.reshape(y, [*outer, n, width])
        # The gradient takes a tenth of slices' own.
        return y if relation.causal else y[..., :m], lambda dy: by_distance(dy, relation)

    return move(x)


def _alike(x, relation):
    """`by_pair` where all queries have the same numbers, [..., 1, distances].

    Rows are no wider than in a decoder: a query's last keys find their numbers at the beginning
    of the next row, where nothing of that row's own is needed.
    """
    *outer, _, count = shape_list(x)
    n, m, *_ = relation

    @tf.custom_gradient
    def spread(x):
        own = tf.range(m + 1) >= n - 1 - tf.range(n)[:, None]        # [queries, keys + 1]
        y = tf.gather(x[..., :m + 1], tf.zeros([n], tf.int32), axis=-2)      # tf.tile is slower
        if not relation.causal:
            last = tf.pad(x[..., m + 1:], [[0, 0]] * (len(outer) + 1) + [[0, m + 2 - n]])
            y = tf.where_v2(own, y, last)
        y = tf.reshape(y, [*outer, n * (m + 1)])[..., n - 1:n - 1 + n * m]

        def gradient(dy):
            dx = tf.pad(tf.reshape(dy, [*outer, n * m]), [[0, 0]] * len(outer) + [[n - 1, 1]])
            dx = tf.reshape(dx, [*outer, n, m + 1])
            every = tf.reduce_sum(dx, axis=-2, keepdims=True)
            if relation.causal:
                return every
            dx = tf.reduce_sum(dx * tf.cast(own, dx.dtype), axis=-2, keepdims=True)
            return tf.concat([dx, (every - dx)[..., :count - m - 1]], axis=-1)

        return tf.reshape(y, [*outer, n, m]), gradient

    return spread(x)


def by_distance(x, relation):
    """Brings numbers of pairs to their distances: the transpose of `by_pair`.

    Args:
      x: [..., queries, keys]; where the relation is causal, 0 for pairs that look ahead.
      relation: a `Distances`.

    Returns:
      [..., queries, distances] of the dtype of x, for the distances of `span`; 0 where a query
      meets no key.
    """
    *outer, n, m = shape_list(x)
    width = m if relation.causal else n + m - 1              # as in `by_pair`

    @tf.custom_gradient
    def move_back(x):
        before = n - 1 if relation.causal else 0
        if not relation.causal:
            x = tf.pad(x, [[0, 0]] * (len(outer) + 1) + [[n - 1, 0]])
        y = tf.reshape(x, [*outer, n * width])
        y = tf.pad(y, [[0, 0]] * len(outer) + [[before, n - before]])
        return tf.reshape(y, [*outer, n, width + 1]), lambda dy: by_pair(dy, relation)

    return move_back(x)


def score_term(q, rows, relation):
    """q_i . r_{j - i}, for every query i and key j.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      rows: r, one for each distance of `rpr.positions.distances.span`, [distances, depth] shared by the
        heads, or [heads, distances, depth].
      relation: a `rpr.positions.distances.Distances`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    return skew.by_pair(relative_kernels.product(q, rows, transpose_b=True), relation)
