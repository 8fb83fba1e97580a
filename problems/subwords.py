"""T2T's sub-word encoding: the same ids, computed faster, and bounded cost for long words."""
import re
from typing import Any

from tensor2tensor.data_generators import text_encoder

# Characters. T2T counts every substring of every word, so its time and memory grow with the square
# of the longest word. A longer word counts as its beginning.
LONGEST_COUNTED_WORD = 100

# T2T's tokens: runs of letters and digits (str.isalnum), and runs of anything else. A single space
# between two words is implied.
_find_tokens = re.compile(r"[^\W_]+|(?! [^\W_])[\W_]+|\A ").findall
_find_long_words = re.compile(rf"[^\W_]{{{LONGEST_COUNTED_WORD + 1},}}"
                              rf"|[\W_]{{{LONGEST_COUNTED_WORD + 1},}}")
# Tokens whose ids are cached. The number of different tokens grows with the text.
_CACHE_SIZE = 2**18


def shorten_long_words(text: str) -> list[str]:
    """Cuts words to LONGEST_COUNTED_WORD characters, for building a vocabulary.

    Returns:
      The shortened text, then each character that it lost: a vocabulary contains every character
      of its text.
    """
    lost: set[str] = set()

    def shorten(match: re.Match[str]) -> str:
        lost.update(match[0][LONGEST_COUNTED_WORD:])
        return match[0][:LONGEST_COUNTED_WORD]

    short = _find_long_words.sub(shorten, text)
    return [short, *sorted(lost - set(short))]


class SubwordEncoder(text_encoder.SubwordTextEncoder):
    """T2T's `SubwordTextEncoder` with tokens found by a regular expression and cached ids.

    T2T examines every character in Python; this is where stock t2t-datagen spends its time.

    Args:
      filename: the vocabulary.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._ids = _Cache(self._token_ids)

    def encode(self, s: str) -> list[int]:
        ids: list[int] = []
        for token in _find_tokens(text_encoder.native_to_unicode(s)):
            ids += self._ids[token]
        return ids

    def _token_ids(self, token: str) -> list[int]:
        return self._escaped_token_to_subtoken_ids(
            text_encoder._escape_token(token, self._alphabet))


class _Cache(dict):
    """Results of a function by argument; emptied when it is full."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, argument: str) -> list[int]:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        value = self[argument] = self._compute(argument)
        return value
