"""Translation edit rate (Snover et al. 2006): sacreBLEU's edit counts, several times as fast.

TER moves blocks of words of the hypothesis as long as that reduces its edit distance from the
reference. sacreBLEU's search is that of Tercom, with a beam around the diagonal of the edit matrix
and a limit on the number of moves. The search here is the same, but computes the edit distances of
all moves of a round together.
"""
import collections
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

# sacreBLEU's limits.
LONGEST_BLOCK = 10                                    # words
FARTHEST_MOVE = 50                                    # words
BEAM = 25                                             # words on each side of the diagonal
MOST_MOVES = 1000                                     # tried in one sentence

UNREACHED = 1 << 24                                   # distance of cells outside the beam


def count_edits(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Number of edits (moves, insertions, deletions, substitutions) between two lists of words."""
    if not reference:
        return len(hypothesis)
    ids: dict[str, int] = {}
    target = np.array([ids.setdefault(word, len(ids)) for word in reference], np.int32)
    words = [ids.setdefault(word, len(ids)) for word in hypothesis]
    common = (collections.Counter(words) & collections.Counter(target.tolist())).total()
    least = max(len(words), len(target)) - common     # whatever the order of the words
    moves = tried = 0
    rows = _edit_matrix(words, target)
    while rows[-1][-1] > least:
        candidates = list(itertools.islice(_moves(words, target.tolist(), rows),
                                           MOST_MOVES - tried))
        tried += len(candidates)
        if tried >= MOST_MOVES or not candidates:
            break
        best = _best_move(words, target, candidates, rows[-1][-1])
        if best is None:
            break
        words = best
        moves += 1
        rows = _edit_matrix(words, target)
    return moves + rows[-1][-1]


def _best_move(words: list[int], target: np.ndarray, candidates: list[tuple[int, int, int]],
               distance: int) -> list[int] | None:
    """The words after the move that reduces the distance most, or None.

    Tercom's order among equal moves: the longest block, then the first, then the first target.
    """
    distinct = list(dict.fromkeys(candidates))
    moved = [_move(words, *candidate) for candidate in distinct]
    distances = _edit_distances(np.array(moved, np.int32), target).tolist()
    best = min(range(len(distinct)), key=lambda index: (
        distances[index], -distinct[index][1], distinct[index][0], distinct[index][2]))
    return moved[best] if distances[best] < distance else None


def _moves(words: list[int], target: list[int], rows: list[list[int]]
           ) -> Iterator[tuple[int, int, int]]:
    """Moves worth trying, as (start of the block, its length, where it is inserted)."""
    aligned, word_errors, target_errors = _align(words, target, rows)
    places = collections.defaultdict(list)
    for place, word in enumerate(target):
        places[word].append(place)
    for start, word in enumerate(words):
        for place in places.get(word, ()):
            if abs(place - start) > FARTHEST_MOVE:
                continue
            longest = min(LONGEST_BLOCK, len(words) - start, len(target) - place)
            for length in range(1, longest + 1):
                if words[start + length - 1] != target[place + length - 1]:
                    break
                if (word_errors[start] == word_errors[start + length]
                        or target_errors[place] == target_errors[place + length]
                        or start <= aligned[place] < start + length):
                    continue
                previous = -1
                for offset in range(-1, length):
                    to = aligned[place + offset] + 1 if place + offset >= 0 else 0
                    if to != previous:
                        previous = to
                        yield start, length, to


def _move(words: list[int], start: int, length: int, to: int) -> list[int]:
    """The words with a block moved to before the word that was at `to`."""
    block = words[start:start + length]
    if to < start:
        return words[:to] + block + words[to:start] + words[start + length:]
    if to > start + length:
        return words[:start] + words[start + length:to] + block + words[to:]
    # Within itself the block moves by as many words, as in Tercom.
    return (words[:start] + words[start + length:length + to] + block + words[length + to:])


def _align(words: list[int], target: list[int], rows: list[list[int]]
           ) -> tuple[list[int], list[int], list[int]]:
    """The alignment that the edit matrix gives.

    Args:
      words, target: ids.
      rows: their edit matrix.

    Returns:
      for each target word the last hypothesis word aligned up to it (-1: none); the number of wrong
      hypothesis words before each position; the same for the target.
    """
    aligned = [-1] * len(target)
    word_wrong, target_wrong = [0] * len(words), [0] * len(target)
    i, j = len(words), len(target)
    while i or j:
        equal = i > 0 and j > 0 and words[i - 1] == target[j - 1]
        if i and j and rows[i - 1][j - 1] + (not equal) == rows[i][j]:
            aligned[j - 1] = i - 1                    # equal words, or a substitution
            word_wrong[i - 1] = target_wrong[j - 1] = int(not equal)
            i, j = i - 1, j - 1
        elif i and (j == 0 or rows[i - 1][j] + 1 == rows[i][j]):
            word_wrong[i - 1] = 1                     # a word to delete
            i -= 1
        else:
            aligned[j - 1] = i - 1                    # a word to insert
            target_wrong[j - 1] = 1
            j -= 1
    return (aligned, [0, *itertools.accumulate(word_wrong)],
            [0, *itertools.accumulate(target_wrong)])


def _bands(words: int, targets: int) -> Iterator[tuple[int, int]]:
    """The columns [low, high) of each row of the edit matrix that the beam reaches."""
    ratio = targets / words
    beam = math.ceil(ratio / 2 + BEAM) if BEAM < ratio / 2 else BEAM
    for row in range(1, words + 1):
        diagonal = math.floor(row * ratio)
        high = targets + 1 if row == words else min(targets + 1, diagonal + beam)
        yield max(0, diagonal - beam), high


def _edit_matrix(words: list[int], target: np.ndarray) -> list[list[int]]:
    """The edit matrix of one hypothesis: [words + 1][target + 1]."""
    columns = target.tolist()
    rows = [list(range(len(columns) + 1))]
    if not words:
        return rows
    for word, (low, high) in zip(words, _bands(len(words), len(columns)), strict=True):
        above, row = rows[-1], [UNREACHED] * (len(columns) + 1)
        left = UNREACHED
        for j in range(low, high):
            cost = above[j] + 1
            if j and above[j - 1] + (columns[j - 1] != word) < cost:
                cost = above[j - 1] + (columns[j - 1] != word)
            if left + 1 < cost:
                cost = left + 1
            row[j] = left = cost
        rows.append(row)
    return rows


def _edit_distances(batch: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Edit distances of equally long hypotheses: ids [batch, words] -> [batch]."""
    count, words = batch.shape
    # Distances minus their column: an insertion, one column to the right, then costs nothing.
    above = np.zeros((count, len(target) + 1), np.int32)
    row = np.full_like(above, UNREACHED)
    for index, (low, high) in enumerate(_bands(words, len(target))):
        first = max(low, 1)
        best = above[:, low:high] + 1
        substituted = above[:, first - 1:high - 1] - (
            batch[:, index, None] == target[first - 1:high - 1])
        np.minimum(best[:, first - low:], substituted, out=best[:, first - low:])
        np.minimum.accumulate(best, axis=1, out=row[:, low:high])
        row[:, :low], row[:, high:] = UNREACHED, UNREACHED
        above, row = row, above
    return above[:, -1] + len(target)
