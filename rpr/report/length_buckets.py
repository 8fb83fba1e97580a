"""Groups the sentences of a test set by the length of their source."""
import dataclasses

import numpy as np

BUCKET_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
MAX_BUCKETS = 8                                       # of the most common lengths
MIN_SENTENCES, MIN_SHARE = 10, 0.02                   # of each bucket


@dataclasses.dataclass
class Bucket:
    """Sentences whose source has `low` to `high` units, both included."""
    low: int
    high: int
    sentences: int

    def contains(self, lengths: np.ndarray) -> np.ndarray:
        """bool [sentences]: which of the int [sentences] lengths fall into this bucket."""
        return (lengths >= self.low) & (lengths <= self.high)


def make_buckets(lengths: np.ndarray) -> list[Bucket]:
    """Divides lengths into buckets of one round width; merges those with few sentences.

    Args:
      lengths: int [sentences].

    Returns:
      Buckets in ascending order; each sentence falls into exactly one.
    """
    common = np.quantile(lengths, 0.98) - lengths.min()
    width = next((width for width in BUCKET_WIDTHS if common <= width * MAX_BUCKETS),
                 BUCKET_WIDTHS[-1])
    least = max(MIN_SENTENCES, MIN_SHARE * len(lengths))
    edges = range(int(lengths.min() - 1) // width * width, int(lengths.max()) + width, width)
    buckets: list[Bucket] = []
    low = edges[0] + 1
    for high in edges[1:]:
        bucket = _bucket(low, high, lengths)
        if bucket.sentences >= least:
            buckets.append(bucket)
            low = high + 1
    if low <= lengths.max():                          # too few are left for a bucket of their own
        first = buckets.pop().low if buckets else low
        buckets.append(_bucket(first, edges[-1], lengths))
    return buckets


def _bucket(low: int, high: int, lengths: np.ndarray) -> Bucket:
    bucket = Bucket(low, high, 0)
    bucket.sentences = int(bucket.contains(lengths).sum())
    return bucket
