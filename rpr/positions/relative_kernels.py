"""rpr.positions.relative_kernels"""
import tensorflow.compat.v1 as tf

from rpr.nn import diagonals
from rpr.nn.ops import matmul_shared, shape_list, static_max, static_min, transpose
from rpr.positions import skew
from rpr.positions.buckets import clipped_labels


def _left(table):
    """The k of a table of 2k + 1 rows."""
    return table.shape.as_list()[-2] // 2


def _right(table, left):
    return table.shape.as_list()[-2] - 1 - left


def _scores_folded(q, k, table, layout, left):
    return tf.matmul(q, k + table[..., :1, :], transpose_b=True)


def _outputs_folded(weights, v, table, layout, left):
    return tf.matmul(weights, v + table[..., :1, :])


def _scores_banded(q, k, table, layout, left, exact):
    band = _Band(table, layout, left)
    if exact:                                                # else less a number for each query
        k = _add_row(k, band.base())
    return band.add(tf.matmul(q, k, transpose_b=True), _by_row(q, band.rows))


def _outputs_banded(weights, v, table, layout, left):
    band = _Band(table, layout, left)

    @tf.custom_gradient
    def function(weights, v, rows):
        sums = band.sums(weights)                            # [batch, heads, rows, len_q]

        def gradient(dz):
            return (band.add(tf.matmul(dz, v, transpose_b=True), _by_row(dz, rows)),
                    tf.matmul(weights, dz, transpose_a=True), _rows_gradient(sums, dz, rows))

        return tf.matmul(weights, v) + _of_rows(sums, rows), gradient

    return function(weights, _add_row(v, band.base()), band.rows)


class _Band:
    """What is left of a table and a layout once a tail is folded.

    Attributes:
      rows: what is added to the folded row, [(heads,) rows, depth]: for each diagonal of the band,
        the furthest to the right first; after them, where there is a right tail, the left one.
    """

    def __init__(self, table, layout, zero):
        n, m, offset, causal = layout[:4]
        right = _right(table, zero)
        # A band has a row on either side, in a table that has none too.
        left = static_max(1, static_min(zero, offset + n - 1))      # no distance is greater than that
        right = 0 if causal else static_max(1, static_min(right, m - 1 - offset))
        self._table, count = table, table.shape.as_list()[-2]
        self._lowest, self._highest = offset - left + 1, offset + right

        def one(labels):
            return tf.one_hot(tf.clip_by_value(labels, 0, count - 1), count,
                              dtype=table.dtype.base_dtype)

        self._base, self._tail = one(zero - left), None      # [len_q, len_k], 1 in the left tail
        rows = one(zero + right - tf.range(left + right))
        if not (causal or isinstance(right, int) and right == m - 1 - offset):
            # The right tail is folded, not the left: TensorFlow masks what lies above a diagonal.
            rows, self._base = tf.concat([rows[1:], self._base[None]], axis=0), rows[0]
            self._highest -= 1
            self._tail = tf.cast(layout.relative_positions() < self._lowest - offset, table.dtype)
        rows -= self._base
        self.rows = _combine(rows, table)

    def base(self):
        """The row that is folded, [(heads,) 1, depth]."""
        return _combine(self._base[None], self._table)

    def add(self, x, by_row):
        """Adds to each pair the numbers that its query has for its rows.

        Args:
          x: [batch, heads, len_q, len_k].
          by_row: [batch, heads, rows, len_q].

        Returns:
          [batch, heads, len_q, len_k].
        """
        if self._tail is None:
            return diagonals.add_band(x, by_row, self._lowest, self._highest)

        @tf.custom_gradient
        def function(x, by_row):
            y = tf.broadcast_to(by_row[:, :, -1, :, None], tf.shape(x))
            y = tf.linalg.band_part(y, -1, self._highest)    # in place, unlike a product
            y = diagonals.set_band(y, by_row[:, :, :-1], self._lowest, self._highest)
            return x + y, lambda dy: (dy, self.sums(dy))

        return function(x, by_row)

    def sums(self, x):
        """The transpose of `add`: [batch, heads, rows, len_q], x summed over the pairs of a row."""
        sums = diagonals.take_band(x, self._lowest, self._highest)
        if self._tail is None:
            return sums
        others = tf.reduce_sum(x * self._tail, axis=3)
        return tf.concat([sums, others[:, :, None]], axis=2)


def _combine(parts, table):
    """Products of parts, [rows, labels], with a table: [(heads,) rows, depth]. Slices and their
    differences would be a dozen operations, each with its gradient."""
    @tf.custom_gradient
    def function(table):
        return tf.matmul(parts, table), lambda dy: tf.matmul(parts, dy, transpose_a=True)

    return function(table)


@tf.custom_gradient
def _add_row(x, row):
    """Adds a row of the table, [(heads,) 1, depth], to [batch, heads, length, depth]."""
    def gradient(dy):
        # TensorFlow sums along batch and length together by way of a transposition.
        by_row = tf.reduce_sum(dy, axis=2, keepdims=True)
        return dy, tf.reduce_sum(by_row, axis=[0, 1][:4 - row.shape.rank])

    return x + row, gradient


def _by_row(x, rows):
    """Products of [batch, heads, len_q, depth] with rows: [batch, heads, rows, len_q]."""
    return tf.matmul(rows, x, transpose_b=True)


def _of_rows(by_row, rows):
    """Sums of rows weighed by [batch, heads, rows, len_q]: [batch, heads, len_q, depth]."""
    return tf.matmul(by_row, rows, transpose_a=True)


def _rows_gradient(by_row, dz, rows):
    """The gradient of `_of_rows` by the rows."""
    return tf.reduce_sum(tf.matmul(by_row, dz), axis=[0, 1][:4 - rows.shape.rank])


def _vectors(table, layout, left):
    """The row of each pair: [(heads,) len_q, len_k, depth]."""
    labels = clipped_labels(layout.relative_positions(), left, _right(table, left))
    if table.shape.rank == 3:
        return tf.gather(table, labels, axis=1)
    count, depth = table.shape.as_list()

    @tf.custom_gradient
    def gather(table):                                       # TensorFlow's gradient is sparse
        return tf.gather(table, labels), lambda dy: tf.math.unsorted_segment_sum(
            tf.reshape(dy, [-1, depth]), tf.reshape(labels, [-1]), count)

    return gather(table)


def _query_first(x, table):
    """[batch, heads, len_q, depth] -> [len_q, batch * heads, depth], where each head has its table
    [heads, len_q, batch, depth]."""
    batch, heads, n, depth = shape_list(x)
    if table.shape.rank == 2:
        return tf.reshape(transpose(x, [2, 0, 1, 3]), [n, batch * heads, depth])
    return transpose(x, [1, 2, 0, 3])


def _query_third(x, shape, table):
    """The inverse of `_query_first`; `shape` is that of the result, but for its last axis."""
    if table.shape.rank == 2:
        batch, heads, n = shape
        x = tf.reshape(x, [n, batch, heads, shape_list(x)[-1]])
        return transpose(x, [1, 2, 0, 3])
    return transpose(x, [2, 0, 1, 3])


def _scores_per_pair(q, k, table, layout, left):
    terms = tf.matmul(_query_first(q, table), _vectors(table, layout, left), transpose_b=True)
    return tf.matmul(q, k, transpose_b=True) + _query_third(terms, shape_list(q)[:3], table)


def _outputs_per_pair(weights, v, table, layout, left):
    terms = tf.matmul(_query_first(weights, table), _vectors(table, layout, left))
    return tf.matmul(weights, v) + _query_third(terms, shape_list(weights)[:3], table)


def _by_distance(table, layout, left):
    """The row of each distance of `relations.span`: [(heads,) distances, depth]."""
    labels = clipped_labels(layout.distances(), left, _right(table, left))
    return tf.gather(table, labels, axis=-2)


def _scores_skewed(q, k, table, layout, left):
    terms = matmul_shared(q, _by_distance(table, layout, left), transpose_b=True)
    return tf.matmul(q, k, transpose_b=True) + skew.skew(terms, layout)


def _outputs_skewed(weights, v, table, layout, left):
    rows = _by_distance(table, layout, left)
    return tf.matmul(weights, v) + matmul_shared(skew.unskew(weights, layout), rows)


def _window(table, layout, zero):
    """Which rows one query meets: rows [(heads,) labels, depth] of neighbouring keys, how many
    keys lie left of those (all of the first row), and how many right (all of the last)."""
    n, m, offset, causal = layout[:4]
    left = static_min(zero, offset)
    right = 0 if causal else static_min(_right(table, zero), m - n - offset)
    return table[..., zero - left:zero + right + 1, :], offset - left, m - n - offset - right


def _scores_one(q, k, table, layout, left):
    rows, left, right = _window(table, layout, left)
    by_key = matmul_shared(q, rows, transpose_b=True)         # [batch, heads, 1, labels]
    batch, heads = shape_list(q)[:2]
    term = tf.concat([tf.broadcast_to(by_key[..., :1], [batch, heads, 1, left]), by_key,
                      tf.broadcast_to(by_key[..., -1:], [batch, heads, 1, right])], axis=3)
    return tf.matmul(q, k, transpose_b=True) + term


def _outputs_one(weights, v, table, layout, left):
    rows, left, right = _window(table, layout, left)
    end = layout.keys - right
    near = weights[..., left:end]                            # [batch, heads, 1, labels]
    z = tf.matmul(weights, v) + matmul_shared(near, rows)
    z += tf.reduce_sum(weights[..., :left], axis=3, keepdims=True) * rows[..., :1, :]
    if not layout.causal:
        z += tf.reduce_sum(weights[..., end:], axis=3, keepdims=True) * rows[..., -1:, :]
    return z
