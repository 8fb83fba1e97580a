"""Positions of queries and keys, and everything else that an attention layer tells a scheme."""
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """What a position scheme may know of one attention layer.

    By default query i is at position `offset + i` and key j at position j. The offset is explicit,
    so that one query at step t gets the same scores over t + 1 keys, over a cache of fixed length,
    and as part of the whole sentence. All queries of self-attention lie within the range of the
    keys (offset + queries <= keys), with or without a cache.

    Lengths and offset are Python ints where they are static, and int32 scalars otherwise.

    Attributes:
      queries: number of queries.
      keys: number of keys.
      offset: index of the first query.
      causal: whether keys to the right of a query (j > offset + i) are masked. The mask itself is
        `mask`; a scheme may return any score for masked pairs.
      edges: labels of directed edges from query i to key j, int32 [batch, queries, keys], 0 where
        there is no edge; None if the input is a plain sequence.
      query_at, key_at: positions other than the default, integers or floats, of shape [length] or
        [batch, length]; None: the default.
      unit_steps: whether the positions of all unmasked pairs differ as their indices do, as in
        packed batches. Fast algorithms need it, and `relative_positions` then uses the indices.
      mask: float [batch|1, heads|1, queries|1, keys], about -1e9 for masked pairs and 0 for others;
        None: no pair is masked.
      segments: int [batch, keys], the segment of each word of a packed batch, or None.
      ids: int32 [batch, queries], the symbols of the queries, or None if they are not known.
      x: [batch, queries, hidden], the input of the layer; in `place` the embedded words.
      layer: index of the layer in its stack, from 0.
      training: whether the graph trains the model.
      softmax: makes attention weights of logits where no scheme does, see `Scheme.normalize`.
      cache: the layer's cache in a step of decoding, changed in place; None: no cache.
      shared: what the layers of this pass share, see `Scheme.shared_by_layers`.
    """
    queries: int | tf.Tensor
    keys: int | tf.Tensor
    offset: int | tf.Tensor = 0
    causal: bool = False
    edges: tf.Tensor | None = None
    query_at: tf.Tensor | None = None
    key_at: tf.Tensor | None = None
    unit_steps: bool = True
    mask: tf.Tensor | None = None
    segments: tf.Tensor | None = None
    ids: tf.Tensor | None = None
    x: tf.Tensor | None = None
    layer: int = 0
    training: bool = False
    softmax: Callable[[tf.Tensor], tf.Tensor] = tf.nn.softmax
    cache: dict[str, tf.Tensor] | None = None
    shared: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def replace(self, **changes: Any) -> "Layout":
        """A copy with other values; it belongs to the same pass."""
        return dataclasses.replace(self, **changes)

    @property
    def is_single_query(self) -> bool:
        """Whether there is statically one query, as in a cached step of decoding."""
        return isinstance(self.queries, int) and self.queries == 1

    def query_positions(self) -> tf.Tensor:
        """The position of each query: [batch|1, queries]."""
        at = tf.range(self.queries) + self.offset if self.query_at is None else self.query_at
        return at[None] if at.shape.rank == 1 else at

    def key_positions(self) -> tf.Tensor:
        """The position of each key: [batch|1, keys]."""
        at = tf.range(self.keys) if self.key_at is None else self.key_at
        return at[None] if at.shape.rank == 1 else at

    def relative_positions(self) -> tf.Tensor:
        """The position of each key minus that of each query.

        [batch|1, 1, queries, keys], for all heads. Integers are int64: TensorFlow keeps int32 in
        host memory, and would copy the matrix to a GPU.
        """
        if self.unit_steps:
            keys, queries = tf.range(self.keys)[None], (tf.range(self.queries) + self.offset)[None]
        else:
            keys, queries = self.key_positions(), self.query_positions()
        dtype = tf.int64 if keys.dtype.is_integer and queries.dtype.is_integer else tf.float32
        keys, queries = tf.cast(keys, dtype), tf.cast(queries, dtype)
        return (keys[:, None, :] - queries[:, :, None])[:, None]

    def distances(self) -> tf.Tensor:
        """The relative positions that unmasked pairs can have, ascending: int32 [distances].

        The last entry is one more than the largest of them: `rpr.positions.pairs.skew` needs it.
        Raises ValueError if the positions are not consecutive (`unit_steps` is False).
        """
        if not self.unit_steps:
            raise ValueError("distances() needs consecutive positions (unit_steps): use "
                             "relative_positions()")
        count = self.keys + 1 if self.causal else self.queries + self.keys
        return tf.range(count) - (self.queries - 1) - self.offset


def whole(positions: tf.Tensor) -> tf.Tensor:
    """Positions or distances rounded to integers, for schemes with a table."""
    return positions if positions.dtype.is_integer else tf.cast(tf.round(positions), tf.int64)


def clipped_labels(distances: tf.Tensor, left: int, right: int) -> tf.Tensor:
    """clip(distance, -left, right) + left (Shaw et al. 2018, section 3.2).

    A distance is the position of the key minus that of the query, an integer; any shape.
    """
    return tf.clip_by_value(distances, -left, right) + left


def t5_buckets(distances: tf.Tensor, num_buckets: int, max_distance: int,
               causal: bool) -> tf.Tensor:
    """T5's buckets: one per distance for short distances, logarithmic ones beyond.

    Raffel et al. 2020, section 2.1. Half of the buckets of a direction hold a single distance each.
    The other half divide the distances up to max_distance in equal ratios; the last one also takes
    everything beyond. In bidirectional attention keys to the right have the second half of all
    buckets; in causal attention they get bucket 0.

    A distance is the position of the key minus that of the query, an integer; any shape. There are
    4 buckets or more, and max_distance is larger than the number of single-distance ones.
    """
    side = num_buckets if causal else num_buckets // 2
    exact = side // 2
    distance = tf.maximum(-distances, 0) if causal else tf.abs(distances)
    log_bucket = exact - 1 + _log_scale(
        distance, exact, max_distance, side - exact, lambda x: math.ceil(x - 1e-9))
    bucket = tf.where(distance < exact, distance, tf.minimum(log_bucket, side - 1))
    return bucket if causal else bucket + side * tf.cast(distances > 0, bucket.dtype)


def log_buckets(distances: tf.Tensor, buckets_per_side: int, max_distance: int) -> tf.Tensor:
    """DeBERTa's signed buckets: one per distance up to buckets_per_side / 2, logarithmic beyond.

    These are the buckets of DeBERTa's code from version 2 on; He et al. 2021 clips the distance.
    From integers of any shape to the same in -buckets_per_side..buckets_per_side - 1. All distances
    beyond max_distance, which is above buckets_per_side / 2, are in the last bucket.
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
