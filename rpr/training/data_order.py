"""The order of the training data: which examples make up a batch, given the seed and its number.

Batches hold sentences of similar length: each length interval (bucket) has a batch size. The stream
of a bucket is one random permutation of its examples after the other, one per epoch, cut into
batches. The batches that an epoch completes, of all buckets, are shuffled. So every example is read
once in each epoch, no batch is smaller than the others of its bucket, and any batch can be computed
without those before it: a resumed training continues with the batch that would have come next.
"""
import bisect
import functools
from collections.abc import Sequence

import numpy as np

from rpr.nn.dropout import stable_hash


class DataOrder:
    """The batches of a training, numbered from 0.

    Args:
      examples: int [examples], what they are called.
      lengths: int [examples], the length of each.
      boundaries: ascending lengths; an example of at least `boundaries[i]` and less than
        `boundaries[i + 1]` belongs to bucket i + 1.
      batch_sizes: examples per batch of each bucket, one more than boundaries.
      seed: of the training.
    """

    def __init__(self, examples: np.ndarray, lengths: np.ndarray, boundaries: Sequence[int],
                 batch_sizes: Sequence[int], seed: int) -> None:
        bucket_of = np.searchsorted(boundaries, lengths, side="right")
        members = [examples[bucket_of == bucket] for bucket in range(len(batch_sizes))]
        self._buckets = [(ids, size) for ids, size in zip(members, batch_sizes, strict=True)
                         if len(ids)]
        self._seed = seed
        # Of an epoch and of the one before, whose last examples the first batches contain.
        self._permutation = functools.lru_cache(2 * len(self._buckets))(self._permute)
        self._epoch = functools.lru_cache(1)(self._shuffled_batches)

    def batch(self, number: int) -> np.ndarray:
        """The examples of a batch.

        Args:
          number: 0 is the first batch of the training.

        Returns:
          int [batch size], of the `examples`.
        """
        epoch = self._epoch_of(number)
        bucket, index = self._epoch(epoch)[number - self._completed(epoch)]
        ids, size = self._buckets[bucket]
        epochs, places = np.divmod(np.arange(index * size, (index + 1) * size), len(ids))
        return np.concatenate([self._permutation(bucket, int(each))[places[epochs == each]]
                               for each in np.unique(epochs)])

    def _completed(self, epochs: int) -> int:
        """How many batches the first epochs complete."""
        return sum(epochs * len(ids) // size for ids, size in self._buckets)

    def _epoch_of(self, number: int) -> int:
        """The epoch that completes a batch."""
        enough = min((number + 1) * size // len(ids) + 1 for ids, size in self._buckets)
        return bisect.bisect_right(range(enough), number,
                                   key=lambda epoch: self._completed(epoch + 1))

    def _shuffled_batches(self, epoch: int) -> np.ndarray:
        """The batches that an epoch completes: int [batches, 2], bucket and index in it."""
        pairs = [(bucket, index) for bucket, (ids, size) in enumerate(self._buckets)
                 for index in range(epoch * len(ids) // size, (epoch + 1) * len(ids) // size)]
        return self._random("batches", epoch).permutation(np.array(pairs, np.int64))

    def _permute(self, bucket: int, epoch: int) -> np.ndarray:
        return self._random(f"bucket {bucket}", epoch).permutation(self._buckets[bucket][0])

    def _random(self, purpose: str, epoch: int) -> np.random.RandomState:
        """A generator of its own; NumPy guarantees that the numbers of RandomState never change."""
        word = stable_hash(self._seed, purpose, epoch)
        return np.random.RandomState([word & 0xffffffff, word >> 32])
