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
      max_relative_position: k, an int of 0 or more.

    Returns:
      int32 of the same shape.
    """
    k = max_relative_position
    return tf.clip_by_value(distances, -k, k) + k


def pairs(relation):
    """The distance of every query and key: int32 [queries, keys]."""
    query = tf.range(relation.queries) + relation.offset
    return tf.range(relation.keys)[None, :] - query[:, None]


def diagonals(relation):
    """The distance on each diagonal of `pairs`, ascending: int32 [queries + keys].

    The first one, which no pair has, makes the skew below exact for any lengths, one query too.
    """
    n = relation.queries
    return tf.range(n + relation.keys) - (n + relation.offset)


def from_diagonals(x, relation):
    """Reads a value for each diagonal as a value for each key (the skew of Huang et al. 2018).

    Args:
      x: [..., queries, queries + keys], the last axis ordered as `diagonals`.
      relation: a `Distances`.

    Returns:
      y: [..., queries, keys] with y[i, j] = x[i, j - i + queries].
    """
    n, m = relation.queries, relation.keys
    outer = shape_list(x)[:-2]
    # In rows one cell shorter each row begins one cell earlier than the row before.
    flat = tf.reshape(x, outer + [n * (n + m)])[..., n:]
    return tf.reshape(flat, outer + [n, n + m - 1])[..., :m]


def to_diagonals(x, relation):
    """The transpose of `from_diagonals`: the value of each key at its diagonal, zeros elsewhere.

    Args:
      x: [..., queries, keys].
      relation: a `Distances`.

    Returns:
      y: [..., queries, queries + keys] with y[i, j - i + queries] = x[i, j].
    """
    n, m = relation.queries, relation.keys
    outer = shape_list(x)[:-2]
    keep = [[0, 0]] * len(outer)
    rows = tf.pad(x, keep + [[0, 0], [0, n - 1]])
    flat = tf.pad(tf.reshape(rows, outer + [n * (n + m - 1)]), keep + [[n, 0]])
    return tf.reshape(flat, outer + [n, n + m])
