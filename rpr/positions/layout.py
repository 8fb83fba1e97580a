"""Where queries and keys stand in a sequence."""
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
