"""The order of the training data: which examples make up a batch, given the seed and its number.

Batches hold sentences of similar length: each length interval (bucket) has a batch size. A bucket
with fewer examples than its batch size joins the next longer one and takes its smaller batch size,
so that no batch has more sub-words than before. The last bucket joins the next shorter one. If
there are fewer examples than a batch has, a batch is as large as they allow.

The stream of a bucket is one random permutation of its examples after the other, one per epoch, cut
into batches. The batches that an epoch completes, of all buckets, are shuffled. Therefore

- every example is read once in each epoch of its bucket;
- examples that do not fill a batch at the end of an epoch begin a batch that the next epoch
  completes with other examples: no batch contains an example twice;
- all batches of a bucket have one size;
- any batch can be computed without those before it: a resumed training continues with the batch
  that would have come next.
"""
import bisect
import functools
from collections.abc import Sequence

import numpy as np

from rpr.nn.dropout import stable_hash

MOST_MORE_PADDING = 0.065                             # of all positions, see `few_boundaries`


def _filled(buckets: Sequence[tuple[np.ndarray, int]], devices: int
            ) -> list[tuple[np.ndarray, int]]:
    """Joins buckets, (examples, batch size) from short to long, until each fills a batch."""
    filled: list[tuple[np.ndarray, int]] = []
    waiting: list[np.ndarray] = []
    for ids, size in buckets:
        waiting.append(ids)
        if sum(map(len, waiting)) >= size:
            filled.append((np.concatenate(waiting), size))
            waiting = []
    if waiting:
        shorter = [filled.pop()[0]] if filled else []
        joined = np.concatenate(shorter + waiting)
        filled.append((joined, min(size, len(joined) // devices * devices)))
    return filled


def few_boundaries(sides: np.ndarray) -> list[int]:
    """The boundaries of few buckets with little padding, for batches that all have their bucket's
    shape.

    Dynamic programming over the histogram of lengths finds the best division into 1, 2, ...
    buckets. The first one is taken whose share of padding is at most MOST_MORE_PADDING above that
    of a bucket per length.

    `sides` has the lengths of source and target, int [examples, sides]. Returns ascending lengths
    of the longer side, as `DataOrder` takes them.
    """
    longer, group, counts = np.unique(sides.max(axis=1), return_inverse=True, return_counts=True)
    longest = np.zeros([len(longer), sides.shape[1]], np.int64)
    np.maximum.at(longest, group, sides)
    before = np.concatenate([[0], np.cumsum(counts)])
    # cost[j][i]: positions of one bucket of the lengths i to j.
    cost = [(before[j + 1] - before[:j + 1])
            * np.maximum.accumulate(longest[j::-1])[::-1].sum(axis=1) for j in range(len(longer))]
    least = sum(counts * longest.sum(axis=1))
    allowed = sides.sum() / max(sides.sum() / least - MOST_MORE_PADDING, 1e-9)
    best, cuts = np.array([column[0] for column in cost]), [np.zeros(len(longer), np.int64)]
    while best[-1] > allowed:
        # One more bucket, which begins at length i, after the best division of those before.
        totals = [np.concatenate([[column[0]], best[:j] + column[1:]])
                  for j, column in enumerate(cost)]
        cuts.append(np.array([total.argmin() for total in totals]))
        best = np.array([total.min() for total in totals])
    boundaries, last = [], len(longer) - 1
    for cut in cuts[:0:-1]:
        begin = cut[last]
        if begin:
            boundaries.append(int(longer[begin]))
            last = begin - 1
    return boundaries[::-1]


class DataOrder:
    """The batches of a training, numbered from 0.

    Args:
      examples: int [examples], their numbers.
      lengths: int [examples], the length of each.
      boundaries: ascending lengths; an example of at least `boundaries[i]` and less than
        `boundaries[i + 1]` belongs to bucket i + 1.
      batch_sizes: examples per batch of each bucket, one more than boundaries; none is larger than
        the one before.
      seed: training seed.
      devices: number of devices that share a batch. Each batch size is a multiple of it, and there
        are at least as many examples.
    """

    def __init__(self, examples: np.ndarray, lengths: np.ndarray, boundaries: Sequence[int],
                 batch_sizes: Sequence[int], seed: int, devices: int = 1) -> None:
        bucket_of = np.searchsorted(boundaries, lengths, side="right")
        members = [examples[bucket_of == bucket] for bucket in range(len(batch_sizes))]
        self._buckets = _filled([(ids, size) for ids, size in zip(members, batch_sizes, strict=True)
                                 if len(ids)], devices)
        self.buckets = [ids for ids, _ in self._buckets]
        self._seed = seed
        # Of an epoch and of the one before, whose last examples the first batches contain.
        self._permutation = functools.lru_cache(2 * len(self._buckets))(self._permuted)
        self._epoch = functools.lru_cache(1)(self._shuffled_batches)

    def bucket(self, number: int) -> int:
        """The index in `buckets` (the examples of each) of the bucket of a batch."""
        epoch = self._epoch_of(number)
        return int(self._epoch(epoch)[number - self._completed(epoch)][0])

    def batch(self, number: int) -> np.ndarray:
        """The examples of a batch, int [batch size]; 0 is the first batch of the training."""
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

    def _permuted(self, bucket: int, epoch: int) -> np.ndarray:
        """The examples of a bucket in the order of an epoch.

        It begins with examples that the epoch before has not put into the same batch. This moves
        examples of the last, unfilled batch only in buckets of less than two batches. There, the
        orders follow from the last epoch that began with a new batch.
        """
        ids, size = self._buckets[bucket]
        first = epoch
        while first * len(ids) % size and (first == epoch or len(ids) < 2 * size):
            first -= 1
        order = self._random(f"bucket {bucket}", first).permutation(ids)
        for each in range(first + 1, epoch + 1):
            following = self._random(f"bucket {bucket}", each).permutation(ids)
            if begun := each * len(ids) % size:
                unused = np.flatnonzero(~np.isin(following, order[-begun:]))[:size - begun]
                following = np.concatenate([following[unused], np.delete(following, unused)])
            order = following
        return order

    def _random(self, purpose: str, epoch: int) -> np.random.RandomState:
        """A generator of its own; NumPy guarantees that the numbers of RandomState never change."""
        word = stable_hash(self._seed, purpose, epoch)
        return np.random.RandomState([word & 0xffffffff, word >> 32])
