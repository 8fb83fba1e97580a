"""The banded algorithm for relative positions: few diagonals with rows of their own.

All pairs at a distance of k or more on one side share one row of the table, the common row b:

    q_i . (k_j + a_c)           =  q_i . (k_j + b)          +  q_i . (a_c - b)
    sum_j alpha_ij (v_j + a_c)  =  sum_j alpha_ij (v_j + b) +  sum_j alpha_ij (a_c - b)

For the values b is added to every v_j. For the scores q_i . b is left out where weights are a
softmax: it is a constant per query and cancels. The second terms are zero outside of a band of
diagonals, plus, in bidirectional attention, the clipped pairs of the other side, which share a
second row.

Only scores are moved between rows of the table and pairs, and no tensor of the size of the weights
is kept for the gradient.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import WithGradient, shape_list, static_max, static_min
from rpr.positions.layout import Layout


class Band:
    """The band of a table of clipped distances in a layout.

    In causal attention the common row is that of the clipped pairs on the left. In bidirectional
    attention it is that of the clipped pairs on the right, and those on the left have the last of
    `rows`.

    Attributes:
      rows: rows minus the common row, [(heads,) rows, depth]: one for each diagonal of the band,
        from the highest to the lowest, and one for the clipped pairs on the left, if there are any.
      common_row: [(heads,) 1, depth].
    """

    def __init__(self, table: tf.Tensor, layout: Layout, left_clip: int, right_clip: int) -> None:
        """Selects the rows of a table, [(heads,) left_clip + 1 + right_clip, depth].

        The layout has more than one query.
        """
        n, m = layout.queries, layout.keys
        offset, causal = layout.offset, layout.causal
        num_rows = table.shape.as_list()[-2]
        # The band has at least one diagonal on each side; no distance exceeds offset + n - 1.
        left = static_max(1, static_min(left_clip, offset + n - 1))
        right = 0 if causal else static_max(1, static_min(right_clip, m - 1 - offset))
        lowest, highest = offset - left + 1, offset + right

        def one_hot(labels: int | tf.Tensor) -> tf.Tensor:
            # A product with one-hot rows has a faster gradient than tf.gather.
            return tf.one_hot(tf.clip_by_value(labels, 0, num_rows - 1), num_rows,
                              dtype=table.dtype.base_dtype)

        rows = one_hot(left_clip + right - tf.range(left + right))
        common_row, self._left_mask = one_hot(left_clip - left), None
        if not (causal or isinstance(right, int) and right == m - 1 - offset):
            rows, common_row = tf.concat([rows[1:], common_row[None]], axis=0), rows[0]
            highest -= 1
            self._left_mask = tf.cast(              # [queries, keys], 1 for clipped pairs
                layout.relative_positions() < tf.cast(lowest - offset, tf.int64), table.dtype)
        self._diagonals = lowest, highest, n
        self.rows = tf.matmul(rows - common_row, table)
        self.common_row = tf.matmul(common_row[None], table)

    def add(self, x: tf.Tensor, by_row: tf.Tensor) -> tf.Tensor:
        """Adds to each pair in x the value that its query has for its row.

        x and the result are [batch, heads, queries, keys], `by_row` [batch, heads, rows, queries].
        """
        if self._left_mask is None:
            return add_band(x, by_row, *self._diagonals)

        @tf.custom_gradient
        def forward(x: tf.Tensor, by_row: tf.Tensor) -> WithGradient:
            y = tf.broadcast_to(by_row[:, :, -1, :, None], tf.shape(x))
            y = tf.linalg.band_part(y, -1, self._diagonals[1])      # works in place
            y = set_band(y, by_row[:, :, :-1], *self._diagonals)
            return x + y, lambda dy: (dy, self.sums(dy))

        return forward(x, by_row)

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        """Equation (3): sum_j alpha_ij (v_j + a^V_ij), see `rpr.positions.relative`.

        Its gradient by the weights is one tensor of their size: TensorFlow's own is the sum of
        three, one by v, one by the band and one by the clipped pairs on the left.
        """
        @tf.custom_gradient
        def forward(weights: tf.Tensor, v: tf.Tensor, rows: tf.Tensor) -> WithGradient:
            sums = self.sums(weights)

            def gradient(dz: tf.Tensor) -> tuple[tf.Tensor, ...]:
                drows = tf.reduce_sum(tf.matmul(sums, dz), axis=[0, 1][:4 - rows.shape.rank])
                return (self.add(tf.matmul(dz, v, transpose_b=True),
                                 tf.matmul(rows, dz, transpose_b=True)),
                        tf.matmul(weights, dz, transpose_a=True), drows)

            return tf.matmul(weights, v) + tf.matmul(sums, rows, transpose_a=True), gradient

        return forward(weights, v + self.common_row, self.rows)

    def sums(self, x: tf.Tensor) -> tf.Tensor:
        """Sums x over the pairs of each row, [batch, heads, rows, queries]: transpose of `add`."""
        sums = take_band(x, *self._diagonals)
        if self._left_mask is None:
            return sums
        left = tf.reduce_sum(x * self._left_mask, axis=3)
        return tf.concat([sums, left[:, :, None]], axis=2)


def add_band(x: tf.Tensor, band: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
             queries: int | tf.Tensor) -> tf.Tensor:
    """Adds to neighbouring diagonals of x and leaves the rest unchanged.

    Diagonal d contains the pairs of query i and key j with j - i = d. The gradient needs no tensor
    of the forward pass: it is dy for x and the band of dy for band.

    Args:
      x: [batch, heads, queries, keys].
      band: [batch, heads, highest - lowest + 1, queries], from the highest diagonal to the lowest.
        Entries beyond the first or last key are ignored.
      lowest, highest: diagonals, ints or int32 scalars, above -queries, and from 0 to keys - 1. At
        least one of the diagonals has an entry for every query.
      queries: an int or an int32 scalar. It is an argument, though it is the third axis of x:
        TensorFlow then computes the shapes once for all layers.
    """
    @tf.custom_gradient
    def forward(x: tf.Tensor, band: tf.Tensor) -> WithGradient:
        taken = _take_band(x, lowest, highest, queries)
        return (set_band(x, taken + band, lowest, highest, queries),
                lambda dy: (dy, take_band(dy, lowest, highest, queries)))
    return forward(x, band)


def take_band(x: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
              queries: int | tf.Tensor) -> tf.Tensor:
    """The diagonals of x, zero beyond the first and last key: the `band` of `add_band`."""
    @tf.custom_gradient
    def forward(x: tf.Tensor) -> WithGradient:
        return (_take_band(x, lowest, highest, queries),
                lambda dy: add_band(tf.zeros_like(x), dy, lowest, highest, queries))
    return forward(x)


def _take_band(x: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
               queries: int | tf.Tensor) -> tf.Tensor:
    y = tf.linalg.diag_part(x, k=tf.stack([lowest, highest]), align="LEFT_RIGHT")
    return tf.reshape(y, [-1, shape_list(x)[1], highest - lowest + 1, queries])


def set_band(x: tf.Tensor, band: tf.Tensor, lowest: int | tf.Tensor, highest: int | tf.Tensor,
             queries: int | tf.Tensor) -> tf.Tensor:
    """Replaces diagonals of x; in place if nothing else needs x. Args are those of `add_band`."""
    # TensorFlow has no axis of diagonals where there is only one.
    count, shape = highest - lowest + 1, [-1, shape_list(x)[1]]
    if isinstance(count, int):
        shape += [count, queries] if count > 1 else [queries]
    else:
        count = tf.fill([tf.cast(count > 1, tf.int32)], count)
        shape = tf.concat([shape, count, [queries]], axis=0)
    band = tf.reshape(band, shape)
    if isinstance(count, int) and not x.shape.is_fully_defined():
        # TensorFlow then expects the shape of one diagonal, so it must not know that of the band.
        band = tf.placeholder_with_default(band, None)
    y = tf.linalg.set_diag(x, band, k=tf.stack([lowest, highest]), align="LEFT_RIGHT")
    y.set_shape(x.shape)
    return y
