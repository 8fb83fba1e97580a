"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

A table has one row a_c for each label c of a clipped distance, 2k + 1 in all. Two identities spare
most of the work, one for keys and one for values:

    q_i . (k_j + a_c)           =  q_i . (k_j + a_0)          +  q_i . (a_c - a_0)
    sum_j alpha_ij (v_j + a_c)  =  sum_j alpha_ij (v_j + a_0) +  sum_j alpha_ij (a_c - a_0)

Whatever lies k or more to the left (c = 0) is folded into keys and values (into keys only where the
numbers themselves are asked for: a softmax does not see what all keys of a query get), and k
diagonals are left of a causal relation. Of a bidirectional one the right tail (c = 2k) is folded,
and what is left is one number a query for all other pairs and a band of 2k - 1 diagonals. Only
numbers go from rows of the table to pairs and back, and nothing of the size of the weights is kept
for the gradient. Where the band is as wide as the sentence, one vector for every pair and a product
for each query, as T2T has them, cost less, or, in a decoder and where each head has a table, one
product with the rows of all distances, skewed; `WAYS` says where.

Tried, and lost on CPU: expanding numbers from labels to pairs by a gather (laid out as `deberta`
and `graph` do it, 1.9 in an encoder at n = 256, k = 16, where the band took 1.7) or a one-hot
product; all 2n - 1 diagonals as one band (2.5 to 5.9 times absolute attention), or skewed in an
encoder whose heads share a table (2.1 to 3.3); the right tail as blocks of keys, which are columns
beside the keys in the main product (1.8 at n = 256, k = 16, where masked numbers take 1.6); Einsum
for products with the rows (twice the time of batched products); slices without a gradient of their
own (a tenth of the whole step); `tf.cond` for lengths that only the run knows (a tenth of the
attention); masks by MatrixBandPart where it cannot work in place.
"""
import functools

import numpy as np
import tensorflow.compat.v1 as tf

from rpr.positions import distances
from rpr.positions.distances import larger, reshape, shape_list, smaller, transpose
from rpr.positions.scheme import Scheme

# Up to which length a vector for every pair (T2T's way), and beyond it up to which length every
# distance, cost less than the band: rows of (k, length, length) for a direction and for tables that
# the heads share, or do not; between rows in proportion. Measured on two CPU cores with the
# functions of scripts/bench_attention, one way and another forced, at all these k and at lengths
# on either side of these.
WAYS = {
    ("causal", True): ((2, 0, 0), (16, 0, 36), (64, 0, 120), (128, 0, 240), (256, 0, 512)),
    ("causal", False): ((2, 0, 0), (16, 0, 24), (64, 0, 96), (128, 0, 224), (256, 0, 512)),
    ("bidirectional", True): ((2, 0, 0), (16, 44, 0), (64, 180, 0), (128, 304, 0), (256, 512, 0)),
    ("bidirectional", False): (
        (2, 0, 0), (16, 32, 0), (64, 76, 0), (128, 72, 192), (256, 72, 464)),
}


def scores(q, k, table, relation, left=None, exact=True):
    """The numerator of equation (4): q_i . (k_j + a^K_ij).

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      relation: a `rpr.positions.distances.Distances`.
      left: how many rows of the table are for keys to the left of the query, where they are not as
        many as for those to its right.
      exact: False where a softmax over the keys follows, which does not see what is added to all
        scores of a query: it may be left out then.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    left = _left(table) if left is None else left
    return _choose(table, relation, left, one=_scores_one, folded=_scores_folded,
                   banded=functools.partial(_scores_banded, exact=exact),
                   per_pair=_scores_per_pair, skewed=_scores_skewed)(q, k, table, relation, left)


def outputs(weights, v, table, relation, left=None):
    """Equation (3): sum_j alpha_ij (v_j + a^V_ij).

    Args:
      weights: alpha, [batch, heads, len_q, len_k].
      v: [batch, heads, len_k, depth].
      table: a^V, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      relation: a `rpr.positions.distances.Distances`.
      left: as for `scores`.

    Returns:
      [batch, heads, len_q, depth] of the dtype of the weights.
    """
    left = _left(table) if left is None else left
    return _choose(table, relation, left, one=_outputs_one, folded=_outputs_folded,
                   banded=_outputs_banded, per_pair=_outputs_per_pair, skewed=_outputs_skewed)(
                       weights, v, table, relation, left)


def _left(table):
    """The k of a table of 2k + 1 rows."""
    return table.shape.as_list()[-2] // 2


def _right(table, left):
    return table.shape.as_list()[-2] - 1 - left


def _choose(table, relation, left, one, folded, banded, per_pair, skewed):
    """The function for this table and this relation; the only place where that is decided."""
    k = left if relation.causal else max(left, _right(table, left))
    length = relation.keys
    if isinstance(relation.queries, int) and relation.queries == 1:
        return one
    if k == 0:
        return folded
    clips, *limits = zip(*WAYS[
        "causal" if relation.causal else "bidirectional", table.shape.rank == 2], strict=True)
    ways, reached = [], 0
    for way, longest in zip((per_pair, skewed), limits, strict=True):
        longest = round(np.interp(k, clips, longest))
        if longest > reached:
            ways.append((longest, way))
            reached = longest
    if isinstance(length, int):
        return next((way for longest, way in ways if length <= longest), banded)
    chosen = banded
    if distances.can_choose():
        for longest, way in reversed(ways):
            chosen = _up_to(longest, length, way, chosen)
    return chosen


def _up_to(longest, length, short, long):
    """One way for sentences of up to so many keys, and another for longer ones."""
    def choose(x, y, table, relation, left):
        def way(one):
            return lambda x, y, table, *sizes: one(
                x, y, table, distances.Distances(*sizes), left)

        return distances.choose(
            length <= longest, way(short), way(long), x, y, table, *relation)

    return choose


# One label for all pairs (k = 0): nothing but the fold. Rows that a mask hides may come after it.

def _scores_folded(q, k, table, relation, left):
    return tf.matmul(q, k + table[..., :1, :], transpose_b=True)


def _outputs_folded(weights, v, table, relation, left):
    return tf.matmul(weights, v + table[..., :1, :])


# A band of diagonals.

def _scores_banded(q, k, table, relation, left, exact):
    band = _Band(table, relation, left)
    if exact:                                                # else less a number for each query
        k = _add_row(k, band.base())
    return band.add(tf.matmul(q, k, transpose_b=True), _by_row(q, band.rows))


def _outputs_banded(weights, v, table, relation, left):
    band = _Band(table, relation, left)

    @tf.custom_gradient
    def function(weights, v, rows):
        sums = band.sums(weights)                            # [batch, heads, rows, len_q]

        def gradient(dz):
            return (band.add(tf.matmul(dz, v, transpose_b=True), _by_row(dz, rows)),
                    tf.matmul(weights, dz, transpose_a=True), _rows_gradient(sums, dz, rows))

        return tf.matmul(weights, v) + _of_rows(sums, rows), gradient

    return function(weights, _add_row(v, band.base()), band.rows)


class _Band:
    """What is left of a table and a relation once a tail is folded.

    Attributes:
      rows: what is added to the folded row, [(heads,) rows, depth]: for each diagonal of the band,
        the furthest to the right first; after them, where there is a right tail, the left one.
    """

    def __init__(self, table, relation, zero):
        n, m, offset, causal = relation[:4]
        right = _right(table, zero)
        # A band has a row on either side, in a table that has none too.
        left = larger(1, smaller(zero, offset + n - 1))      # no distance is greater than that
        right = 0 if causal else larger(1, smaller(right, m - 1 - offset))
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
            self._tail = tf.cast(distances.pairs(relation) < self._lowest - offset, table.dtype)
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
            return distances.add_band(x, by_row, self._lowest, self._highest)

        @tf.custom_gradient
        def function(x, by_row):
            y = tf.broadcast_to(by_row[:, :, -1, :, None], tf.shape(x))
            y = tf.linalg.band_part(y, -1, self._highest)    # in place, unlike a product
            y = distances.set_band(y, by_row[:, :, :-1], self._lowest, self._highest)
            return x + y, lambda dy: (dy, self.sums(dy))

        return function(x, by_row)

    def sums(self, x):
        """The transpose of `add`: [batch, heads, rows, len_q], x summed over the pairs of a row."""
        sums = distances.take_band(x, self._lowest, self._highest)
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


# A vector for every pair, and one product a query.

def _vectors(table, relation, left):
    """The row of each pair: [(heads,) len_q, len_k, depth]."""
    labels = distances.clip(distances.pairs(relation), left, _right(table, left))
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


def _scores_per_pair(q, k, table, relation, left):
    terms = tf.matmul(_query_first(q, table), _vectors(table, relation, left), transpose_b=True)
    return tf.matmul(q, k, transpose_b=True) + _query_third(terms, shape_list(q)[:3], table)


def _outputs_per_pair(weights, v, table, relation, left):
    terms = tf.matmul(_query_first(weights, table), _vectors(table, relation, left))
    return tf.matmul(weights, v) + _query_third(terms, shape_list(weights)[:3], table)


# A number for every distance, moved to the pairs (Huang et al. 2018).

def product(x, rows, transpose_b=False):
    """Products with rows of a table: one of matrices where the heads share it, or one for each.

    Args:
      x: [batch, heads, len_q, channels].
      rows: [channels, found], or [heads, channels, found].
      transpose_b: whether the last two axes of the rows are the other way round.

    Returns:
      [batch, heads, len_q, found].
    """
    if rows.shape.rank == 3:
        return tf.matmul(x, rows[None], transpose_b=transpose_b)
    *outer, channels = shape_list(x)
    y = tf.matmul(tf.reshape(x, [-1, channels]), rows, transpose_b=transpose_b)
    return reshape(y, [*outer, shape_list(y)[1]])


def _by_distance(table, relation, left):
    """The row of each distance of `relations.span`: [(heads,) distances, depth]."""
    labels = distances.clip(distances.span(relation), left, _right(table, left))
    return tf.gather(table, labels, axis=-2)


def _scores_skewed(q, k, table, relation, left):
    terms = product(q, _by_distance(table, relation, left), transpose_b=True)
    return tf.matmul(q, k, transpose_b=True) + distances.by_pair(terms, relation)


def _outputs_skewed(weights, v, table, relation, left):
    rows = _by_distance(table, relation, left)
    return tf.matmul(weights, v) + product(distances.by_distance(weights, relation), rows)


# One query, as in a cached step of decoding.

def _window(table, relation, zero):
    """Which rows one query meets: rows [(heads,) labels, depth] of neighbouring keys, how many
    keys lie left of those (all of the first row), and how many right (all of the last)."""
    n, m, offset, causal = relation[:4]
    left = smaller(zero, offset)
    right = 0 if causal else smaller(_right(table, zero), m - n - offset)
    return table[..., zero - left:zero + right + 1, :], offset - left, m - n - offset - right


def _scores_one(q, k, table, relation, left):
    rows, left, right = _window(table, relation, left)
    by_key = product(q, rows, transpose_b=True)         # [batch, heads, 1, labels]
    batch, heads = shape_list(q)[:2]
    term = tf.concat([tf.broadcast_to(by_key[..., :1], [batch, heads, 1, left]), by_key,
                      tf.broadcast_to(by_key[..., -1:], [batch, heads, 1, right])], axis=3)
    return tf.matmul(q, k, transpose_b=True) + term


def _outputs_one(weights, v, table, relation, left):
    rows, left, right = _window(table, relation, left)
    end = relation.keys - right
    near = weights[..., left:end]                            # [batch, heads, 1, labels]
    z = tf.matmul(weights, v) + product(near, rows)
    z += tf.reduce_sum(weights[..., :left], axis=3, keepdims=True) * rows[..., :1, :]
    if not relation.causal:
        z += tf.reduce_sum(weights[..., end:], axis=3, keepdims=True) * rows[..., -1:, :]
    return z


# Where T2T's `dot_product_relative` has its tables.
_SCOPE = "dot_product_attention_relative/relative_positions"


class Relative(Scheme):
    """Learned vectors per clipped distance, added to keys and values (Shaw et al. 2018)."""
    additive = True

    def __init__(self, hparams, side):
        k = hparams.max_relative_position
        if k < 0:
            raise ValueError(f"max_relative_position={k}: the clipping distance is an integer of 0 "
                             "or more (0: one label for every distance)")
        clips = []
        for name in ("max_relative_position_left", "max_relative_position_right"):
            clips.append(hparams.get(name))
            if clips[-1] < -1:
                raise ValueError(f"{name}={clips[-1]}: the clipping distance on that side is an "
                                 "integer of 0 or more, or -1 for max_relative_position")
        self._left, right = (k if clip == -1 else clip for clip in clips)
        heads, rows = hparams.num_heads, self._left + right + 1
        key_channels = hparams.attention_key_channels or hparams.hidden_size
        value_channels = hparams.attention_value_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [heads]
        self._keys = hparams.relative_keys and outer + [rows, key_channels // heads]
        self._values = hparams.relative_values and outer + [rows, value_channels // heads]
        self.product = "whole" if self._keys else None

    def scores(self, q, k, relation):
        if self._keys:
            rows = table(f"{_SCOPE}_keys", self._keys, q.dtype)
            return scores(q, k, rows, relation, self._left, exact=False)

    def vectors(self, relation, dtype):
        if self._keys:
            rows = table(f"{_SCOPE}_keys", self._keys, dtype)
            return _vectors(rows, relation, self._left)

    def outputs(self, weights, v, relation):
        if self._values:
            rows = table(f"{_SCOPE}_values", self._values, weights.dtype)
            return outputs(weights, v, rows, relation, self._left)


def table(name, shape, dtype):
    """A variable `name/embeddings` of vectors by label, [labels, depth] or [heads, labels, depth],
    initialised as T2T does it for `dot_product_relative`."""
    with tf.variable_scope(name) as scope:
        one = scope.initializer or tf.glorot_uniform_initializer()

        def initializer(shape, dtype, partition_info=None):
            """Each head's table as a shared one: of three axes it would take heads for fan-in."""
            return tf.stack([one(shape[1:], dtype) for _ in range(shape[0])])

        return tf.get_variable("embeddings", shape, dtype=dtype,
                               initializer=one if len(shape) == 2 else initializer)
