"""Translation edit rate (Snover et al. 2006): sacreBLEU's edit counts, many times as fast.

TER moves blocks of words of the hypothesis as long as that reduces its edit distance from the
reference. sacreBLEU's search is that of Tercom, with a beam around the diagonal of the edit matrix
and a limit on the number of moves. The search here is the same, but the sentences of a block take
their rounds together, so that the edit distances of all moves are computed in batches.
"""
import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# sacreBLEU's limits.
LONGEST_BLOCK = 10                                    # words
FARTHEST_MOVE = 50                                    # words
MOST_MOVES = 1000                                     # tried in one sentence
BEAM = 25                                             # words on each side of the diagonal
CELLS = 1 << 16                                       # of a batch, in one anti-diagonal
KEPT_CELLS = 1 << 22                                  # of a batch whose matrices are kept

Pair = tuple[Sequence[int], Sequence[int]]            # ids of the words, ids of the targets


def count_edits(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[int]:
    """Number of edits (moves, insertions, deletions, substitutions) of each pair.

    A pair has the words of a hypothesis and those of its reference.
    """
    searches = [_Search(hypothesis, reference) for hypothesis, reference in pairs]
    active = [search for search in searches if search.words and search.target]
    while active:
        current = [(search.words, search.target) for search in active]
        tried = [(active[index], candidates) for index, rows in edit_matrices(current)
                 if (candidates := active[index].candidates(rows))]
        distances = iter(edit_distances([(words, search.target) for search, candidates in tried
                                         for words in candidates]))
        active = [search for search, candidates in tried
                  if search.choose(candidates, list(itertools.islice(distances, len(candidates))))]
    return [search.moves + search.distance for search in searches]


class _Search:
    """The search for the fewest edits of one hypothesis; words are ids."""

    def __init__(self, hypothesis: Sequence[str], reference: Sequence[str]) -> None:
        ids: dict[str, int] = {}
        self.target = [ids.setdefault(word, len(ids)) for word in reference]
        self.words = [ids.setdefault(word, len(ids)) for word in hypothesis]    # moved so far
        self.moves = self._tried = 0
        self.distance = max(len(self.words), len(self.target))                # from the target
        common = (collections.Counter(self.words) & collections.Counter(self.target)).total()
        self._least = self.distance - common          # whatever the order of the words

    def candidates(self, rows: list[list[int]]) -> list[list[int]]:
        """The words after each move worth trying; `rows` is the edit matrix.

        Tercom's order among moves that are equally good: the longest block, then the first, then
        the first place.
        """
        self.distance = rows[-1][-1]
        if self.distance <= self._least:
            return []
        moves = list(itertools.islice(_moves(self.words, self.target, rows),
                                      MOST_MOVES - self._tried))
        self._tried += len(moves)
        if self._tried >= MOST_MOVES:
            return []
        distinct = sorted(set(moves), key=lambda move: (-move[1], move[0], move[2]))
        return [_move(self.words, *move) for move in distinct]

    def choose(self, candidates: list[list[int]], distances: list[int]) -> bool:
        """Makes the best move; returns False if none reduces the distance."""
        least = min(distances)
        if least >= self.distance:
            return False
        self.words = candidates[distances.index(least)]
        self.moves += 1
        return True


def _moves(words: list[int], target: list[int], rows: list[list[int]]
           ) -> Iterator[tuple[int, int, int]]:
    """Moves worth trying, as (start of the block, its length, where it is inserted)."""
    aligned, word_errors, target_errors = _align(words, target, rows)
    places = collections.defaultdict(list)
    for place, word in enumerate(target):
        places[word].append(place)
    for start, word in enumerate(words):
        if word_errors[start] == word_errors[min(start + LONGEST_BLOCK, len(words))]:
            continue                                  # no block from here has an error
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


def edit_distances(pairs: Sequence[Pair], beam: float = BEAM) -> list[int]:
    """The edit distance of each pair of non-empty lists, within a beam around the diagonal."""
    distances = np.zeros(len(pairs), np.int64)
    for batch in _batches(pairs):
        distances[batch.indices] = _fill(batch, False, beam)[0]
    return distances.tolist()


def edit_matrices(pairs: Sequence[Pair]) -> Iterator[tuple[int, list[list[int]]]]:
    """Yields index and edit matrix [words + 1][targets + 1] of each pair of non-empty lists.

    They come in any order. A cell outside the beam has a number larger than any distance.
    """
    for batch in _batches(pairs, keep=True):
        _, diagonals = _fill(batch, True, BEAM)
        for place, index in enumerate(batch.indices):
            words, targets = pairs[index]
            columns = np.arange(len(targets) + 1)
            rows = np.arange(len(words) + 1)[:, None]
            yield index, diagonals[rows + columns, columns, place].tolist()


class _Batch(NamedTuple):
    """Pairs by ascending total length."""
    indices: list[int]
    words: np.ndarray                                 # [most words, pairs], -1 after the end
    targets: np.ndarray                               # [most targets, pairs], -2 after the end
    word_counts: np.ndarray                           # [pairs]
    target_counts: np.ndarray


def _batches(pairs: Sequence[Pair], keep: bool = False) -> Iterator[_Batch]:
    """Pairs of similar total length."""
    order, start = sorted(range(len(pairs)), key=lambda index: sum(map(len, pairs[index]))), 0
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


def _fill(batch: _Batch, keep: bool, beam: float) -> tuple[np.ndarray, np.ndarray]:
    """The distances [pairs], and the anti-diagonals [i + j, j, pairs] (unless `keep` the last 3).
    """
    totals = batch.word_counts + batch.target_counts
    height, width, last = len(batch.words), len(batch.targets), int(totals[-1])
    kind = np.int16 if height + width < np.iinfo(np.int16).max // 2 else np.int32
    unreached = np.iinfo(kind).max // 2
    depth = last + 1 if keep else 3
    diagonals = np.full((depth, width + 1, len(totals)), unreached, kind)
    diagonals[0, 0] = 0
    reached = _reached(batch, beam)
    low, high = reached[:, ::-1]                      # as i falls where j rises
    narrow = bool((low > 0).any() or (high <= batch.target_counts).any())
    rows, sums = np.arange(height + 1), np.arange(last + 1)
    first_rows = (rows + reached[1].max(axis=1)).searchsorted(sums, "right")
    last_rows = (rows + reached[0].min(axis=1)).searchsorted(sums, "right") - 1
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


def _reached(batch: _Batch, beam: float) -> np.ndarray:
    """The first column of each row in the beam, and the one after the last: [2, rows, pairs]."""
    rows = np.arange(len(batch.words) + 1)[:, None]
    width = len(batch.targets) + 1
    ratios = batch.target_counts / batch.word_counts
    beams = np.where(beam < ratios / 2, np.ceil(ratios / 2 + beam), beam)
    diagonal = np.floor(rows * ratios)
    low = np.clip(diagonal - beams, 0, width)
    high = np.where(rows >= batch.word_counts, width, np.minimum(width, diagonal + beams))
    high[0] = high[1]                                 # the cells that row 1 needs
    return np.array([low, high], np.int64)
