"""Counts the n-grams that hypotheses share with their references, for many sentences at once.

Each distinct n-gram of a sentence's references has an id: its rank among the pairs (id of its first
n - 1 tokens, its last token). The id of the empty n-gram is the index of the sentence. The ids of a
sentence's n-grams are therefore consecutive, and no other sentence uses them. An n-gram of a
hypothesis is looked up only if its first n - 1 tokens are in the references.
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Tokens(NamedTuple):
    """The tokens of several lines, one line after the other.

    Attributes:
      ids: not negative, int64 [tokens].
      lengths: number of tokens of each line, int64 [lines].
    """
    ids: np.ndarray
    lengths: np.ndarray


def character_tokens(lines: Sequence[str]) -> Tokens:
    """The characters of each line, without white space."""
    texts = ["".join(line.split()) for line in lines]
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return Tokens(codes.astype(np.int64), np.array([len(text) for text in texts], np.int64))


def word_tokens(lines: Sequence[Sequence[str]], ids: dict[str, int]) -> Tokens:
    """The words of each line; `ids` gets those that it lacks."""
    return Tokens(np.array([ids.setdefault(word, len(ids)) for words in lines for word in words],
                           np.int64), np.array([len(words) for words in lines], np.int64))


def count_matches(hypotheses: Tokens, sentences: np.ndarray, references: Sequence[Tokens],
                  order: int) -> np.ndarray:
    """How many n-grams of each hypothesis are in the references of its sentence.

    An n-gram counts at most as often as it is in the reference that has it most often.

    Args:
      hypotheses: tokens of H hypotheses.
      sentences: index of the sentence of each hypothesis, int64 [H].
      references: tokens of the sentences in each reference.
      order: the largest n.

    Returns:
      int64 [H, order], for n from 1 to `order`.
    """
    indices = np.arange(len(references[0].lengths))
    vocabulary = 1 + max(int(tokens.ids.max(initial=0)) for tokens in (hypotheses, *references))
    expected = [_Ngrams(tokens, indices, vocabulary) for tokens in references]
    found = _Ngrams(hypotheses, sentences, vocabulary)
    owners = indices                                  # the sentence of each n-gram
    matches = np.zeros((len(sentences), order), np.int64)
    for n in range(1, order + 1):
        for ngrams in (found, *expected):
            ngrams.extend(n)
        known = np.unique(np.concatenate([ngrams.codes for ngrams in expected]))
        if not len(known):
            break
        for ngrams in (found, *expected):
            ngrams.look_up(known)
        most = np.max([np.bincount(ngrams.codes, minlength=len(known)) for ngrams in expected],
                      axis=0)
        owners = owners[known // vocabulary]
        sizes = np.bincount(owners, minlength=len(indices))
        matches[:, n - 1] = found.clipped_counts(most, sizes)
    return matches


class _Ngrams:
    """The n-grams of several lines for growing n, as far as they are known.

    Args:
      tokens: of the lines.
      sentences: index of the sentence of each line, int64 [lines].
      vocabulary: larger than each token.

    Attributes:
      codes: the id of each n-gram; after `extend`, the pair as one integer.
    """

    def __init__(self, tokens: Tokens, sentences: np.ndarray, vocabulary: int) -> None:
        self._ids, self._sentences, self._vocabulary = tokens.ids, sentences, vocabulary
        self._starts = np.arange(len(tokens.ids))
        self._lines = np.repeat(np.arange(len(sentences)), tokens.lengths)
        self._room = np.repeat(np.cumsum(tokens.lengths), tokens.lengths) - self._starts
        self.codes = sentences[self._lines]

    def extend(self, n: int) -> None:
        """Makes n-grams of the (n - 1)-grams that a token follows."""
        self._keep(self._room >= n)
        self.codes = self.codes * self._vocabulary + self._ids[self._starts + n - 1]

    def look_up(self, known: np.ndarray) -> None:
        """Replaces the codes by their ranks among the sorted known ones, and drops the others."""
        ranks = np.minimum(known.searchsorted(self.codes), len(known) - 1)
        is_known = known[ranks] == self.codes
        self.codes = ranks
        self._keep(is_known)

    def _keep(self, chosen: np.ndarray) -> None:
        self._starts, self._lines, self._room, self.codes = (
            array[chosen] for array in (self._starts, self._lines, self._room, self.codes))

    def clipped_counts(self, most: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The number of n-grams of each line, where each n-gram counts a limited number of times.

        Args:
          most: the limit of each n-gram, int64 [n-grams].
          sizes: number of distinct n-grams of each sentence's references, int64 [sentences].

        Returns:
          int64 [lines].
        """
        firsts = (np.cumsum(sizes) - sizes)[self._sentences]
        # A cell for each line and each n-gram id of its sentence.
        widths = sizes[self._sentences]
        ends = np.cumsum(widths)
        shifts = ends - widths - firsts
        times = np.bincount(self.codes + shifts[self._lines], minlength=int(ends[-1]))
        times = np.minimum(times, most[np.arange(len(times)) - np.repeat(shifts, widths)])
        sums = np.concatenate([[0], np.cumsum(times)])
        return sums[ends] - sums[ends - widths]
