"""What relates query i to key j: the signed distance between them, and its clipped label.

Functions of tensors: they make no variables and serve graphs, eager programs and `tf.function`.
Lengths and offsets are Python integers where they are known and scalar tensors where not.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Distances(NamedTuple):
    """Query i stands at position `offset + i`, key j at position j: the distance is j - i - offset.

    The offset is said, never derived from the lengths, so that one query at step t gives the same
    numbers over t + 1 keys, over a cache of fixed length, and within the whole sentence.

    Attributes:
      queries: number of queries, an int or an int32 scalar.
      keys: number of keys, likewise.
      offset: position of the first query, likewise.
    """
    queries: int
    keys: int
    offset: int = 0


def shape_list(x):
    """The shape of `x` as a list: an int where it is static, an int32 scalar where it is not."""
    dynamic = None
    sizes = x.shape.as_list()
    for axis, size in enumerate(sizes):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            sizes[axis] = dynamic[axis]
    return sizes


def clip(distances, max_relative_position):
    """The labels of Shaw et al. 2018, section 3.2: clip(distance, -k, k) + k, in 0..2k.

    Args:
      distances: int32, any shape.
      max_relative_position: k, 0 or more.

    Returns:
      int32 of the same shape.
    """
    k = max_relative_position
    return tf.clip_by_value(distances, -k, k) + k


def pairs(relation):
    """The distance of every query and key: int32 [queries, keys]."""
    query = tf.range(relation.queries) + relation.offset
    return tf.range(relation.keys)[None, :] - query[:, None]


def to_pairs(by_label, relation, max_relative_position):
    """Gives every pair the value of its label.

    Only the 2k + 1 diagonals where labels differ are written one by one; what lies beyond them on
    either side is one value a query. Every query must stand among the keys
    (offset + queries <= keys), as it does in self-attention and on any cache.

    Args:
      by_label: [batch, heads, 2k + 1, queries].
      relation: a `Distances`.
      max_relative_position: k, an int of 0 or more or a scalar tensor of 1 or more.

    Returns:
      y: [batch, heads, queries, keys] with y[i, j] = by_label[label of (i, j), i].
    """
    @tf.custom_gradient
    def function(x):
        return (_to_pairs(x, relation, max_relative_position),
                lambda dy: to_labels(dy, relation, max_relative_position))
    return function(by_label)


def to_labels(by_pair, relation, max_relative_position):
    """Sums over the pairs of each label: the transpose of `to_pairs`, and its gradient.

    Args:
      by_pair: [batch, heads, queries, keys].
      relation: a `Distances`.
      max_relative_position: k, an int of 0 or more or a scalar tensor of 1 or more.

    Returns:
      y: [batch, heads, 2k + 1, queries], y[c, i] the sum of by_pair[i, j] over the j of label c.
    """
    @tf.custom_gradient
    def function(x):
        return (_to_labels(x, relation, max_relative_position),
                lambda dy: to_pairs(dy, relation, max_relative_position))
    return function(by_pair)


def reach(relation, max_relative_position):
    """The largest label that can occur: k where sentences are longer, else less, but never below 1.

    Args:
      relation: a `Distances`.
      max_relative_position: k, an int.

    Returns:
      0 where k is 0, else an int or a scalar tensor in 1..k.
    """
    k, furthest = max_relative_position, relation.keys - 1
    if k == 0 or isinstance(furthest, int):
        return min(k, max(furthest, 1)) if k else 0
    return tf.clip_by_value(furthest, 1, k)


def _to_pairs(x, relation, k):
    lowest, highest = _band(relation, k)
    shape = [*shape_list(x)[:2], *relation[:2]]

    def banded():
        ahead = pairs(relation) > 0
        y = tf.where_v2(ahead, x[:, :, 2 * k, :, None], x[:, :, 0, :, None])
        first, last = lowest - relation.offset + k, highest - relation.offset + k
        diagonals = tf.reverse(x[:, :, first:last + 1], [2])
        return tf.linalg.set_diag(_unshaped(y, lowest), _unshaped(diagonals, lowest),
                                  k=tf.stack([lowest, highest]), align="LEFT_RIGHT")

    def one_label():
        return tf.broadcast_to(x[:, :, k, :, None], shape)

    return tf.reshape(_either(lowest, highest, banded, one_label), shape)


def _to_labels(x, relation, k):
    lowest, highest = _band(relation, k)

    def banded():
        diagonals = tf.linalg.diag_part(_unshaped(x, lowest), k=tf.stack([lowest, highest]),
                                        align="LEFT_RIGHT")
        diagonals.set_shape([*x.shape[:2], None, None])
        y = tf.reverse(diagonals, [2])
        diagonal, zero = pairs(relation) + relation.offset, tf.zeros([], x.dtype)
        behind = tf.reduce_sum(tf.where_v2(diagonal < lowest, x, zero), axis=3)[:, :, None]
        ahead = tf.reduce_sum(tf.where_v2(diagonal > highest, x, zero), axis=3)[:, :, None]
        y = tf.concat([y[:, :, :1] + behind, y[:, :, 1:-1], y[:, :, -1:] + ahead], axis=2)
        first, last = lowest - relation.offset + k, highest - relation.offset + k
        return tf.pad(y, [[0, 0], [0, 0], [first, 2 * k - last], [0, 0]])

    def one_label():
        return tf.pad(tf.reduce_sum(x, axis=3)[:, :, None], [[0, 0], [0, 0], [k, k], [0, 0]])

    batch, heads, queries, _ = shape_list(x)
    return tf.reshape(_either(lowest, highest, banded, one_label),
                      [batch, heads, 2 * k + 1, queries])


def _band(relation, k):
    """The lowest and the highest diagonal (j - i) on which labels differ: ints or tensors."""
    n, m, offset = relation
    if all(isinstance(size, int) for size in (n, m, offset, k)):
        return max(offset - k, 1 - n), min(offset + k, m - 1)
    if isinstance(k, int) and k == 0:
        return offset, offset
    return tf.maximum(offset - k, 1 - n), tf.minimum(offset + k, m - 1)


def _either(lowest, highest, several, single):
    """Calls one function for several diagonals and one for a single one, which TF treats apart."""
    if lowest is highest or isinstance(lowest, int):
        return single() if lowest is highest or lowest == highest else several()
    return tf.cond(lowest < highest, several, single)


def _unshaped(x, bound):
    """Without static shape where the band has none: TF would take it for a single diagonal."""
    return x if isinstance(bound, int) else tf.placeholder_with_default(x, None)
