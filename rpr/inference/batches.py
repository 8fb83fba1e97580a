"""The batches of a file that is being decoded, each kept in a file of its own until all are done.

A killed decoding continues after its finished batches; several processes can share the batches.
"""
import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rpr.models.beam_search import EOS_ID
from rpr.utils import files, locks
from rpr.utils.errors import UserError

_KEY_FILE = "rpr-decode-key"                          # marks a folder as made here
_LOCK_FILE = f"{_KEY_FILE}.lock"
_OUR_FILES = re.compile(rf"\.?({_KEY_FILE}|\d+\.json)(\W.*)?")       # temporary names too
_Ids = TypeVar("_Ids", list[int], np.ndarray)


class Batches:
    """The batches of one decoding, in the folder OUTPUT.parts.

    Args:
      output: path of the text that they are joined to in the end.
      sentences: in the order in which they are cut into batches of `size`.
      settings: everything else that decides the hypotheses, as JSON values. Finished batches of
        other settings or sentences are discarded.
    """

    def __init__(self, output: str, sentences: Sequence[str], size: int,
                 settings: Sequence[Any]) -> None:
        self._output, self._folder = output, output + ".parts"
        self._batches = [sentences[first:first + size] for first in range(0, len(sentences), size)]
        self._key = hashlib.sha256(
            json.dumps([list(sentences), size, settings]).encode()).hexdigest()

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Makes the folder, or keeps the finished batches of an earlier call with equal settings.

        No other process can prepare the folder until the context ends. An error in it removes a
        folder without a finished batch. A folder that is not ours is refused.
        """
        if os.path.lexists(self._folder) and not self._is_ours():
            raise UserError(f"{self._folder} is there, but rpr decode did not make it: batches are "
                            "kept there while a file is decoded; rename it, or write to another "
                            "file")
        os.makedirs(self._folder, exist_ok=True)
        with locks.lock(os.path.join(self._folder, _LOCK_FILE), wait=False):
            key_file, key = os.path.join(self._folder, _KEY_FILE), None
            with contextlib.suppress(FileNotFoundError), open(key_file, encoding="utf-8") as text:
                key = text.read()                     # missing: killed before it was written
            if key != self._key:
                self._remove_files(but=(_KEY_FILE, _LOCK_FILE))
                files.write_atomically(key_file, self._key)
            try:
                yield
            except BaseException:
                if len(self.missing()) == len(self._batches):    # nothing to continue from
                    self._remove_files()
                    os.rmdir(self._folder)
                raise

    def _is_ours(self) -> bool:
        if os.path.islink(self._folder) or not os.path.isdir(self._folder):
            return False
        names = os.listdir(self._folder)
        return all(map(_OUR_FILES.fullmatch, names)) and (
            not names or any(_KEY_FILE in name for name in names))

    def _remove_files(self, but: Sequence[str] = ()) -> None:
        """Removes the files; the key file late, so that an interrupted removal can be repeated."""
        for name in sorted(set(os.listdir(self._folder)) - set(but),
                           key=lambda name: (name == _LOCK_FILE, name == _KEY_FILE)):
            os.unlink(os.path.join(self._folder, name))

    def path(self, number: int) -> str:
        """The file of a finished batch."""
        return os.path.join(self._folder, f"{number}.json")

    def missing(self, part: int = 0, parts: int = 1) -> list[int]:
        """Indices of the unfinished batches among part, part + parts, part + 2 * parts, ..."""
        return [number for number in range(part, len(self._batches), parts)
                if not os.path.exists(self.path(number))]

    def sentences(self, numbers: Sequence[int]) -> list[str]:
        """The sentences of some batches, in order."""
        return [sentence for number in numbers for sentence in self._batches[number]]

    def save(self, numbers: Sequence[int], predictions: Iterator[Mapping[str, np.ndarray]],
             as_text: Callable[[Mapping[str, np.ndarray]], str]) -> None:
        """Writes each batch as soon as all its predictions are there.

        `predictions` are for `sentences(numbers)`, with `outputs` int [length] or [beams, length].
        `as_text` gives the output line of one.
        """
        for number in numbers:
            batch = list(itertools.islice(predictions, len(self._batches[number])))
            best = [until_end(np.atleast_2d(prediction["outputs"])[0]) for prediction in batch]
            files.write_atomically(self.path(number), json.dumps(
                {"lines": list(map(as_text, batch)),
                 "tokens": int(sum(map(np.count_nonzero, best))),
                 "cut": sum(EOS_ID not in ids for ids in best)}))

    def tokens(self, numbers: Sequence[int]) -> int:
        """Tokens in the best hypotheses of finished batches."""
        return sum(self._read(number)["tokens"] for number in numbers)

    def count_cut(self) -> int:
        """Best hypotheses that stopped at the length limit; all batches must be finished."""
        return sum(self._read(number)["cut"] for number in range(len(self._batches)))

    def _read(self, number: int) -> dict[str, Any]:
        with open(self.path(number), encoding="utf-8") as text:
            return json.load(text)

    def assemble(self, positions: Mapping[int, int], delimiter: str) -> None:
        """Writes the output, with `delimiter` after each line, and removes the folder.

        `positions` is {line number in the output: index into the sentences}.
        """
        lines = [line for number in range(len(self._batches))
                 for line in self._read(number)["lines"]]
        files.write_atomically(self._output, "".join(
            lines[positions[number]] + delimiter for number in range(len(lines))))
        self._remove_files()
        os.rmdir(self._folder)


def until_end(ids: _Ids) -> _Ids:
    """Ids up to and including the first end mark, which ends the words of a source with edges.

    Without an end mark, padding at the end is left out, but at least one id remains.
    """
    array: np.ndarray = np.asarray(ids)
    last = [*np.flatnonzero(array == EOS_ID)[:1], *np.flatnonzero(array)[-1:], 0][0]
    return ids[:last + 1]


def one_line(text: str) -> str:
    """A hypothesis as one line of UTF-8.

    T2T's vocabularies write rare characters as numbers, such as `\\8364;`. A model can produce that
    of a line break, which becomes a space, or of half a surrogate pair, which becomes U+FFFD.
    """
    return re.sub("[\ud800-\udfff]", "\ufffd", re.sub("[\r\n]", " ", text))
