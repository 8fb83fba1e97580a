"""Translation edit rate (Snover et al. 2006): sacreBLEU's edit counts, many times as fast.

TER moves blocks of words of the hypothesis as long as that reduces its edit distance from the
reference. sacreBLEU's search is that of Tercom, with a beam around the diagonal of the edit matrix
and a limit on the number of moves. The search here is the same, but the sentences of a block take
their rounds together, so that the edit distances of all moves are computed in batches.
"""
import collections
import itertools
from collections.abc import Iterator, Sequence

from rpr.evaluation.edit_matrices import edit_distances, edit_matrices

# sacreBLEU's limits; the beam is in `edit_matrices`.
LONGEST_BLOCK = 10                                    # words
FARTHEST_MOVE = 50                                    # words
MOST_MOVES = 1000                                     # tried in one sentence


def count_edits(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[int]:
    """Number of edits (moves, insertions, deletions, substitutions) of each pair.

    Args:
      pairs: words of a hypothesis, and words of its reference.
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
    """The search for the fewest edits of one hypothesis.

    Args:
      hypothesis, reference: words.

    Attributes:
      words: ids of the hypothesis after the moves so far.
      target: ids of the reference.
      moves: number of moves so far.
      distance: of `words` from `target`.
    """

    def __init__(self, hypothesis: Sequence[str], reference: Sequence[str]) -> None:
        ids: dict[str, int] = {}
        self.target = [ids.setdefault(word, len(ids)) for word in reference]
        self.words = [ids.setdefault(word, len(ids)) for word in hypothesis]
        self.moves = self._tried = 0
        self.distance = max(len(self.words), len(self.target))
        common = (collections.Counter(self.words) & collections.Counter(self.target)).total()
        self._least = self.distance - common          # whatever the order of the words

    def candidates(self, rows: list[list[int]]) -> list[list[int]]:
        """The words after each move worth trying.

        Tercom's order among moves that are equally good: the longest block, then the first, then
        the first place.

        Args:
          rows: edit matrix of `words` and `target`.
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
