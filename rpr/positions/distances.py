"""What relates query i to key j: their signed distance, its clipped label, its diagonal, an edge.

Functions of tensors: they make no variables and serve graphs, eager programs and `tf.function`.
Lengths and offsets are Python integers where they are known and scalar tensors where not.
"""
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
