"""Buckets of the test set by the length of the source."""
import dataclasses

import numpy as np

from rpr.report import model_analysis

WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
WANTED = 8                                            # buckets, about
LEAST = 0.02                                          # of the sentences, in any bucket


@dataclasses.dataclass
class Bucket:
    """Sentences of `low` to `high` units, both included, and how many they are."""
    low: int
    high: int
    sentences: int

    def holds(self, lengths):
        """Which of [sentences] lengths lie in it: [sentences] bool."""
        return (lengths >= self.low) & (lengths <= self.high)


def buckets(lengths):
    """Buckets of equal widths that are easy to read; those too small are joined to a neighbour.

    Args:
      lengths: [sentences], whole numbers.

    Returns:
      a list of `Bucket`s, ascending; together they hold every sentence.
    """
    common = np.quantile(lengths, 0.98) - lengths.min()
    width = next((width for width in WIDTHS if common <= width * WANTED), WIDTHS[-1])
    least = max(10, LEAST * len(lengths))
    edges = range(int(lengths.min() - 1) // width * width, int(lengths.max()) + width, width)
    found, low = [], edges[0] + 1
    for high in edges[1:]:
        bucket = Bucket(low, high, 0)
        bucket.sentences = int(bucket.holds(lengths).sum())
        if bucket.sentences >= least:
            found.append(bucket)
            low = high + 1
    if low <= lengths.max():                          # a last one that is too small
        last = found.pop() if found else Bucket(low, 0, 0)
        last.high = edges[-1]
        last.sentences = int(last.holds(lengths).sum())
        found.append(last)
    return found


def of(source, places):
    """The lengths of the source: in the model's sub-words where a run was looked into, else words.

    Args:
      source: lines.
      places: `experiment.Directory`s of the runs.

    Returns:
      [sentences] int, and the unit's name. Sub-words count the end of the sentence, as max_length
      does.
    """
    for at in places:
        found = model_analysis.load(at)
        if "source_lengths" in found and len(found["source_lengths"]) == len(source):
            return found["source_lengths"], "sub-words"
    return np.array([len(line.split()) for line in source]), "words"
