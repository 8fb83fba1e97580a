"""Batched edit-distance matrices of pairs of word lists, limited to Tercom's beam.

Cell [i, j] of an edit matrix is the edit distance of the first i words from the first j targets.
The cells of an anti-diagonal (equal i + j) do not depend on each other, so one array operation
computes them for a whole batch of pairs.
"""
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

BEAM = 25                                             # words on each side of the diagonal
CELLS = 1 << 16                                       # of a batch, in one anti-diagonal
KEPT_CELLS = 1 << 22                                  # of a batch whose matrices are kept

Pair = tuple[Sequence[int], Sequence[int]]            # ids of the words, ids of the targets


def edit_distances(pairs: Sequence[Pair]) -> list[int]:
    """The edit distance of each pair of non-empty lists, within the beam."""
    distances = np.zeros(len(pairs), np.int64)
    for batch in _batches(pairs):
        distances[batch.indices] = _fill(batch, keep=False)[0]
    return distances.tolist()


def edit_matrices(pairs: Sequence[Pair]) -> Iterator[tuple[int, list[list[int]]]]:
    """The edit matrix of each pair of non-empty lists, in any order.

    Yields:
      index of the pair, and its matrix [words + 1][targets + 1]; a cell outside the beam has a
      number larger than any distance.
    """
    for batch in _batches(pairs, keep=True):
        _, diagonals = _fill(batch, keep=True)
        for place, index in enumerate(batch.indices):
            words, targets = pairs[index]
            columns = np.arange(len(targets) + 1)
            rows = np.arange(len(words) + 1)[:, None]
            yield index, diagonals[rows + columns, columns, place].tolist()


class _Batch(NamedTuple):
    """Attributes:
      indices: of the pairs, by ascending total length.
      words: [most words, pairs], -1 where a list has ended.
      targets: [most targets, pairs], -2 where a list has ended.
      word_counts, target_counts: lengths of the lists, [pairs].
    """
    indices: list[int]
    words: np.ndarray
    targets: np.ndarray
    word_counts: np.ndarray
    target_counts: np.ndarray


def _batches(pairs: Sequence[Pair], keep: bool = False) -> Iterator[_Batch]:
    """Pairs of similar total length."""
    order = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index])))
    start = 0
    while start < len(order):
        end, most_targets = start, 0
        while end < len(order):
            words, targets = pairs[order[end]]
            most_targets = max(most_targets, len(targets))
            cells = (end - start + 1) * (most_targets + 1)
            if end > start and (cells > CELLS or keep and cells * (
                    len(words) + len(targets) + 1) > KEPT_CELLS):
                break
            end += 1
        indices = order[start:end]
        yield _Batch(indices, *(_padded([pairs[index][side] for index in indices], fill)
                                for side, fill in ((0, -1), (1, -2))),
                     *(np.array([len(pairs[index][side]) for index in indices])
                       for side in (0, 1)))
        start = end


def _padded(lists: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    """Lists of ids as the columns of an array, int32 [longest, lists]."""
    longest = max(map(len, lists))
    rows = [[*ids, *[fill] * (longest - len(ids))] for ids in lists]
    return np.array(rows, np.int32).T.copy()


def _fill(batch: _Batch, keep: bool) -> tuple[np.ndarray, np.ndarray]:
    """Computes the matrices of a batch.

    Returns:
      the distances [pairs]; the anti-diagonals [i + j, j, pairs] (only the last three unless
      `keep`).
    """
    totals = batch.word_counts + batch.target_counts
    height, width, last = len(batch.words), len(batch.targets), int(totals[-1])
    kind = np.int16 if height + width < np.iinfo(np.int16).max // 2 else np.int32
    unreached = np.iinfo(kind).max // 2
    depth = last + 1 if keep else 3
    diagonals = np.full((depth, width + 1, len(totals)), unreached, kind)
    diagonals[0, 0] = 0
    beam = _beam(batch)
    low, high = beam[:, ::-1]                         # as i falls where j rises
    narrow = bool((low > 0).any() or (high <= batch.target_counts).any())
    rows, sums = np.arange(height + 1), np.arange(last + 1)
    first_rows = (rows + beam[1].max(axis=1)).searchsorted(sums, "right")
    last_rows = (rows + beam[0].min(axis=1)).searchsorted(sums, "right") - 1
    ends = totals.searchsorted(sums, "right")
    backward, columns = batch.words[::-1], np.arange(width + 1)[:, None]
    distances = np.zeros(len(totals), np.int64)
    for total in range(1, last + 1):
        going = slice(ends[total - 1] if not keep else 0, None)
        start, stop = total - int(last_rows[total]), total - int(first_rows[total]) + 1
        cells, above, corner = (diagonals[(total - back) % depth, :, going] for back in range(3))
        shift = height - total                        # of column j, where rows are in reverse
        first, end = max(start, 1), min(stop, total)
        np.minimum(above[first:stop], above[first - 1:stop - 1], out=cells[first:stop])
        if start == 0:
            cells[0] = above[0]
        cells[start:stop] += 1
        substituted = corner[first - 1:end - 1] + (
            backward[shift + first:shift + end, going] != batch.targets[first - 1:end - 1, going])
        np.minimum(cells[first:end], substituted, out=cells[first:end])
        if narrow:
            span = slice(shift + start, shift + stop)
            outside = (columns[start:stop] < low[span, going]) | (
                columns[start:stop] >= high[span, going])
            cells[start:stop][outside] = unreached
        cells[max(start - 1, 0):start] = cells[stop:stop + 1] = unreached
        ended = np.arange(ends[total - 1], ends[total])
        distances[ended] = diagonals[total % depth, batch.target_counts[ended], ended]
    return distances, diagonals


def _beam(batch: _Batch) -> np.ndarray:
    """First column of each row that the beam reaches, and the one after the last.

    Returns:
      int64 [2, rows, pairs]. Row 0 has the cells that row 1 needs.
    """
    rows = np.arange(len(batch.words) + 1)[:, None]
    width = len(batch.targets) + 1
    ratios = batch.target_counts / batch.word_counts
    beams = np.where(BEAM < ratios / 2, np.ceil(ratios / 2 + BEAM), BEAM)
    diagonal = np.floor(rows * ratios)
    low = np.clip(diagonal - beams, 0, width)
    high = np.where(rows >= batch.word_counts, width, np.minimum(width, diagonal + beams))
    high[0] = high[1]
    return np.array([low, high], np.int64)
