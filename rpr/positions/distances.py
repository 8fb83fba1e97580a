"""What relates query i to key j: their signed distance, its clipped label, its diagonal, an edge.

Functions of tensors: they make no variables and serve graphs, eager programs and `tf.function`.
Lengths and offsets are Python integers where they are known and scalar tensors where not.
"""
import math
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Distances(NamedTuple):
    """Query i stands at position `offset + i`, key j at position j: the distance is j - i - offset.

    The offset is said, never derived from the lengths, so that one query at step t gives the same
    numbers over t + 1 keys, over a cache of fixed length, and within the whole sentence. Every
    query stands among the keys (offset + queries <= keys), as in self-attention and on any cache.

    Attributes:
      queries: number of queries, an int or an int32 scalar.
      keys: number of keys, likewise.
      offset: position of the first query, likewise.
      causal: whether no query may look at a key behind it in the sentence (j > offset + i). The
        mask that forbids it is the caller's; what a scheme says of such pairs never matters.
      edges: labels of directed edges from query i to key j, int32 [batch, queries, keys], 0 where
        there is none; None where the elements are a sequence and nothing else.
    """
    queries: int
    keys: int
    offset: int = 0
    causal: bool = False
    edges: tf.Tensor | None = None


def shape_list(x):
    """The shape of `x` as a list: an int where it is static, an int32 scalar where it is not."""
    dynamic = None
    sizes = x.shape.as_list()
    for axis, size in enumerate(sizes):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            sizes[axis] = dynamic[axis]
    return sizes


def reshape(x, sizes):
    """`tf.reshape` to ints and scalars, where one scalar alone need not be computed, nor given."""
    if sum(not isinstance(size, int) for size in sizes) == 1:
        sizes = [size if isinstance(size, int) else -1 for size in sizes]
    return tf.reshape(x, sizes)


def transpose(x, order):
    """`tf.transpose`, faster on CPU where the last axis stays the last.

    Floats are moved as bits then: oneDNN, which would move floats, takes up to twice as long, and
    nine times for the few words of a step of decoding.
    """
    if x.dtype.base_dtype != tf.float32 or order[-1] != len(order) - 1:
        return tf.transpose(x, order)

    @tf.custom_gradient
    def move(x):
        y = tf.bitcast(tf.transpose(tf.bitcast(x, tf.int32), order), tf.float32)
        return y, lambda dy: transpose(dy, [order.index(axis) for axis in range(len(order))])

    return move(x)


def can_choose():
    """Whether `choose` serves here: not in a while_loop, where a Switch's gradient is that of the
    loop's own, nor where there is nothing but functions."""
    context = tf.get_default_graph()._get_control_flow_context()
    return not (tf.control_flow_v2_enabled() or context and context.GetWhileContext())


def choose(which, one, other, *given):
    """One function of what is given, or another, as it turns out when the graph runs.

    `tf.cond` would hand each tensor to either branch by itself, each with a gradient that is made
    of zeros where the other branch was taken, and add those up: a tenth of an attention layer.

    Args:
      which: a bool scalar, whether it is the first.
      one, other: functions of the tensors, sizes and whatever else is given; each returns a tensor,
        alike in shape and dtype. They must not take tensors from elsewhere that have gradients.
      given: what they are called with.

    Returns:
      the tensor.
    """
    def switch(x):
        if not tf.is_tensor(x):
            return x, x
        found = tf.raw_ops.Switch(data=x, pred=which)
        # Grappler takes one output for the other where it rewrites n + n.
        return tf.identity(found.output_true), tf.identity(found.output_false)

    for_one, for_other = zip(*(switch(x) for x in given), strict=True)
    return tf.raw_ops.Merge(inputs=[one(*for_one), other(*for_other)]).output


def clip(distances, left, right=None):
    """The labels of Shaw et al. 2018, section 3.2: clip(distance, -k, k) + k, in 0..2k.

    Args:
      distances: int32, any shape.
      left: the clipping distance of keys to the left of the query, 0 or more.
      right: that of keys to the right; None: the same.

    Returns:
      int32 of the same shape, in 0..left + right.
    """
    return tf.clip_by_value(distances, -left, left if right is None else right) + left


def _octaves(distances, exact, most, steps):
    """How many of the `steps` equal ratios from `exact` to `most` each distance has reached.

    Thresholds are computed once, in Python: a float32 logarithm is off by one at the borders.
    """
    reached = [exact * (most / exact) ** (step / steps) for step in range(steps + 1)]
    return lambda border: tf.reduce_sum(tf.cast(
        distances[..., None] >= tf.constant([border(x) for x in reached]), tf.int32), axis=-1)


def t5_buckets(distances, buckets, max_distance, causal):
    """Buckets of distance, ever wider (Raffel et al. 2020, section 2.1).

    Half of a direction's buckets are single distances, the other half split the rest up to
    max_distance in equal ratios; the last takes all beyond. Where both directions count, keys to
    the right have the second half of the buckets.

    Args:
      distances: int32, key's position less query's, any shape.
      buckets: how many, 4 or more.
      max_distance: the distance at which the last bucket ends, beyond the single ones.
      causal: whether keys to the right of a query do not count: they are in bucket 0.

    Returns:
      int32 of the same shape, in 0..buckets - 1.
    """
    side = buckets if causal else buckets // 2
    exact, away = side // 2, tf.maximum(-distances, 0) if causal else tf.abs(distances)
    wide = exact - 1 + _octaves(away, exact, max_distance, side - exact)(
        lambda x: math.ceil(x - 1e-9))
    bucket = tf.where(away < exact, away, tf.minimum(wide, side - 1))
    return bucket if causal else bucket + side * tf.cast(distances > 0, tf.int32)


def log_buckets(distances, span, max_distance):
    """Signed buckets of distance, single ones up to span / 2, then ever wider (DeBERTa's code, from
    version 2 on; He et al. 2021 has only single ones, clipped).

    Args:
      distances: int32, any shape.
      span: buckets a side, an even number, 4 or more.
      max_distance: the distance beyond which all are in the last bucket, above span / 2.

    Returns:
      int32 of the same shape, in -span..span - 1.
    """
    exact, away = span // 2, tf.abs(distances)
    wide = exact + _octaves(away, exact, max_distance - 1, exact - 1)(
        lambda x: math.floor(x + 1e-9) + 1)
    bucket = tf.sign(distances) * tf.where(away <= exact, away, wide)
    return tf.clip_by_value(bucket, -span, span - 1)


def positions(relation):
    """The position of every query: int32 [queries]."""
    return tf.range(relation.queries) + relation.offset


def pairs(relation):
    """The distance of every query and key: int32 [queries, keys]."""
    return tf.range(relation.keys)[None, :] - positions(relation)[:, None]


def span(relation):
    """The distances that a relation can have, ascending, and one more: int32 [distances].

    They are those that `by_pair` takes numbers of.
    """
    n, m, offset, causal = relation[:4]
    return tf.range(m + 1 if causal else n + m) - (n - 1) - offset


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


def sum_rows(x, places, count):
    """Adds rows up at their places: the transpose of `tf.gather`.

    Args:
      x: [rows, width]; sums of half precision are kept in float32, and returned as halves.
      places: int32 [rows], each in 0..count - 1.
      count: how many places there are.

    Returns:
      [count, width] of the dtype of x, 0 where no row came.
    """
    kind = tf.float32 if x.dtype in (tf.float16, tf.bfloat16) else x.dtype
    return tf.cast(tf.math.unsorted_segment_sum(tf.cast(x, kind), places, count), x.dtype)


def smaller(*sizes):
    """The least of some ints and int32 scalars: an int where all are, else a scalar."""
    known = [size for size in sizes if isinstance(size, int)]
    least = [min(known)] if known else []
    for size in sizes:
        if not isinstance(size, int):
            least = [tf.minimum(least[0], size) if least else size]
    return least[0]


def larger(*sizes):
    """The greatest of some ints and int32 scalars: an int where all are, else a scalar."""
    return -smaller(*[-size for size in sizes])


def add_band(x, band, lowest, highest):
    """Adds to neighbouring diagonals of x, and leaves the rest as it is.

    Diagonal d holds the pairs with j - i = d. Saves nothing for its gradient, which is dy by x and
    the band of dy by the band.

    Args:
      x: [batch, heads, queries, keys].
      band: [batch, heads, highest - lowest + 1, queries], from the highest diagonal to the lowest.
        What stands beyond the first or the last key is left out.
      lowest: the lowest diagonal, an int or an int32 scalar, above -queries.
      highest: the highest, likewise, not below 0, and below keys; one diagonal at least can be
        seen by all the queries.

    Returns:
      [batch, heads, queries, keys].
    """
    @tf.custom_gradient
    def function(x, band):
        return (set_band(x, _take_band(x, lowest, highest) + band, lowest, highest),
                lambda dy: (dy, take_band(dy, lowest, highest)))
    return function(x, band)


def take_band(x, lowest, highest):
    """The diagonals of x as `add_band` takes them, zero beyond the first and the last key.

    Args and the shape of what it returns are those of `add_band`.
    """
    @tf.custom_gradient
    def function(x):
        return (_take_band(x, lowest, highest),
                lambda dy: add_band(tf.zeros_like(x), dy, lowest, highest))
    return function(x)


def _take_band(x, lowest, highest):
    batch, heads, queries, _ = shape_list(x)
    y = tf.linalg.diag_part(x, k=tf.stack([lowest, highest]), align="LEFT_RIGHT")
    return tf.reshape(y, [batch, heads, highest - lowest + 1, queries])


def set_band(x, band, lowest, highest):
    """x with other diagonals, as `add_band` takes them; in place where nothing else needs x."""
    # One diagonal alone has no axis of its own in TensorFlow.
    shape = batch, heads, count, queries = shape_list(band)
    if isinstance(count, int):
        shape = shape if count > 1 else [batch, heads, queries]
    else:
        count = tf.fill([tf.cast(count > 1, tf.int32)], count)
        shape = tf.concat([[batch, heads], count, [queries]], axis=0)
    y = tf.linalg.set_diag(x, tf.reshape(band, shape), k=tf.stack([lowest, highest]),
                           align="LEFT_RIGHT")
    return tf.reshape(y, shape_list(x))


def split_edges(ids):
    """Takes apart words and edges that came as one row of numbers, as a line of text gives them.

    A row is the ids of the words and the end of sentence (1), then for each edge its two places and
    its label, each 2 more than it is, another 1, and zeros.

    Args:
      ids: int32 [batch, length].

    Returns:
      the words with their 1, int32 [batch, words], and the labels of the edges between them,
      int32 [batch, words, words].
    """
    ends = tf.equal(ids, 1)
    word = tf.equal(tf.cumsum(tf.cast(ends, tf.int32), axis=1, exclusive=True), 0) & (ids > 0)
    words = tf.ragged.boolean_mask(ids, word).to_tensor()
    edges = tf.ragged.boolean_mask(ids, ~word & (ids > 1)).to_tensor(default_value=2) - 2
    return words, dense_edges(edges, shape_list(words)[1])


def dense_edges(triples, length):
    """The matrix of edges that are given as triples.

    Args:
      triples: integers [batch, 3 * edges], (i, j, label) after each other, each (i, j) once; a
        triple whose label is 0, or with a place at `length` or beyond it, is left out.
      length: number of elements.

    Returns:
      int32 [batch, length, length], 0 where there is no edge.
    """
    batch = shape_list(triples)[0]
    triples = tf.reshape(tf.cast(triples, tf.int32), [batch, -1, 3])
    example = tf.broadcast_to(tf.range(batch)[:, None, None], tf.shape(triples[..., :1]))
    places = tf.concat([example, triples[..., :2]], axis=2)  # [batch, edges, 3]
    there = tf.reduce_max(triples[..., :2], axis=2) < length
    return tf.scatter_nd(tf.boolean_mask(places, there),
                         tf.boolean_mask(triples[..., 2], there), [batch, length, length])
