"""Where queries and keys stand in a sequence."""
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf


class Layout(NamedTuple):
    """Positions of queries and keys: query i is at position `offset + i`, key j at position j.

    The relative position of a key is its position minus the query's, j - i - offset. The offset is
    explicit, so that one query at step t gets the same scores over t + 1 keys, over a cache of
    fixed length, and as part of the whole sentence. All queries lie within the range of the keys
    (offset + queries <= keys), as in self-attention with or without a cache.

    Lengths and offset are Python ints where they are static, and int32 scalars otherwise.

    Attributes:
      queries: number of queries.
      keys: number of keys.
      offset: position of the first query.
      causal: whether keys to the right of a query (j > offset + i) are masked. The mask itself is
        part of the attention bias; a scheme may return any score for masked pairs.
      edges: labels of directed edges from query i to key j, int32 [batch, queries, keys], 0 where
        there is no edge; None if the input is a plain sequence.
    """
    queries: int | tf.Tensor
    keys: int | tf.Tensor
    offset: int | tf.Tensor = 0
    causal: bool = False
    edges: tf.Tensor | None = None

    @property
    def is_single_query(self) -> bool:
        """Whether there is statically one query, as in a cached step of decoding."""
        return isinstance(self.queries, int) and self.queries == 1

    def query_positions(self) -> tf.Tensor:
        """The position of each query: int32 [queries]."""
        return tf.range(self.queries) + self.offset

    def relative_positions(self) -> tf.Tensor:
        """The position of each key relative to each query: int64 [queries, keys].

        TensorFlow keeps int32 in host memory, and would copy the matrix to a GPU.
        """
        keys, queries = (tf.cast(positions, tf.int64)
                         for positions in (tf.range(self.keys), self.query_positions()))
        return keys[None, :] - queries[:, None]

    def distances(self) -> tf.Tensor:
        """The relative positions that unmasked pairs can have, ascending: int32 [distances].

        The last entry is one more than the largest of them: `rpr.positions.skew` needs it.
        """
        count = self.keys + 1 if self.causal else self.queries + self.keys
        return tf.range(count) - (self.queries - 1) - self.offset


def clipped_labels(distances: tf.Tensor, left: int, right: int | None = None) -> tf.Tensor:
    """clip(distance, -left, right) + left (Shaw et al. 2018, section 3.2).

    Args:
      distances: position of the key minus that of the query, integers of any shape.
      left: clipping distance for keys to the left of the query, 0 or more.
      right: clipping distance for keys to the right; None: the same.

    Returns:
      integers of the same type and shape, in 0..left + right.
    """
    return tf.clip_by_value(distances, -left, left if right is None else right) + left


def t5_buckets(distances: tf.Tensor, num_buckets: int, max_distance: int,
               causal: bool) -> tf.Tensor:
    """T5's buckets: one per distance for short distances, logarithmic ones beyond.

    Raffel et al. 2020, section 2.1. Half of the buckets of a direction hold a single distance each.
    The other half divide the distances up to max_distance in equal ratios; the last one also takes
    everything beyond. In bidirectional attention keys to the right have the second half of all
    buckets.

    Args:
      distances: position of the key minus that of the query, int32, any shape.
      num_buckets: number of buckets, 4 or more.
      max_distance: distance at which the last bucket starts to be unbounded; larger than the number
        of single-distance buckets.
      causal: whether all buckets are for keys to the left; keys to the right get bucket 0.

    Returns:
      int32 of the same shape, in 0..num_buckets - 1.
    """
    side = num_buckets if causal else num_buckets // 2
    exact = side // 2
    distance = tf.maximum(-distances, 0) if causal else tf.abs(distances)
    log_bucket = exact - 1 + _log_scale(
        distance, exact, max_distance, side - exact, lambda x: math.ceil(x - 1e-9))
    bucket = tf.where(distance < exact, distance, tf.minimum(log_bucket, side - 1))
    return bucket if causal else bucket + side * tf.cast(distances > 0, tf.int32)


def log_buckets(distances: tf.Tensor, buckets_per_side: int, max_distance: int) -> tf.Tensor:
    """DeBERTa's signed buckets: one per distance up to buckets_per_side / 2, logarithmic beyond.

    These are the buckets of DeBERTa's code from version 2 on; He et al. 2021 clips the distance.

    Args:
      distances: integers of any shape.
      buckets_per_side: an even number, 4 or more.
      max_distance: all distances beyond it are in the last bucket; above buckets_per_side / 2.

    Returns:
      integers of the same type and shape, in -buckets_per_side..buckets_per_side - 1.
    """
    exact = buckets_per_side // 2
    distance = tf.abs(distances)
    log_bucket = exact + _log_scale(
        distance, exact, max_distance - 1, exact - 1, lambda x: math.floor(x + 1e-9) + 1)
    bucket = tf.sign(distances) * tf.where(distance <= exact, distance, log_bucket)
    return tf.clip_by_value(bucket, -buckets_per_side, buckets_per_side - 1)


def _log_scale(distance: tf.Tensor, start: int, end: int, steps: int,
               round_border: Callable[[float], int]) -> tf.Tensor:
    """How many of the steps + 1 geometrically spaced borders from start to end are reached.

    The borders are computed in Python: a float32 logarithm is off by one at some of them.
    """
    borders = [round_border(start * (end / start) ** (step / steps)) for step in range(steps + 1)]
    reached = tf.raw_ops.Bucketize(input=distance, boundaries=[float(x) for x in borders])
    return tf.cast(reached, distance.dtype)
