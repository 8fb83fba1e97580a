"""Word vectors in fastText's text format.

The first line says how many vectors there are and of how many numbers; each of the others holds a
word and its numbers, separated by spaces. The words are in the order of their frequency.
"""
import gzip
import itertools
import zlib

import numpy as np

from problems import parallel_text
from rpr.utils import files
from rpr.utils.errors import UserError

UNKNOWN, END = "<unk>", "</s>"                       # of a vocabulary; fastText's end of a line
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def dimension(path):
    """How many numbers the vectors of a file have.

    Raises:
      UserError: there is no such file, or its first line does not say it.
    """
    with _lines(path) as lines:
        return _header(path, lines)[1]


def read(path, most=0):
    """The words of a file and their numbers, one after the other.

    Args:
      path: UTF-8 text; .gz is understood.
      most: how many at most, from the first on; 0: all.

    Yields:
      (number of the line, word, its numbers as text).

    Raises:
      UserError: a line is not UTF-8 or has another number of numbers; the file is damaged or ends
        too early. It names the line.
    """
    number = 1
    with _lines(path) as lines:
        count, size = _header(path, lines)
        end = min(most or count, count)
        try:
            for number, line in enumerate(itertools.islice(lines, end), start=2):
                word, _, values = line.decode("utf-8").rstrip().partition(" ")
                if values.count(" ") + 1 != size or not values:
                    found = values.count(" ") + 1 if values else 0
                    raise UserError(f"{path}: line {number} has {found} numbers after its word, "
                                    f"the first line says {size}")
                yield number, word, values
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: line {number} is not UTF-8 ({error.reason})") from None
        except _DAMAGED as error:
            raise UserError(f"{path}: damaged after line {number} ({error})") from None
    if number - 1 < end:
        raise UserError(f"{path}: it ends after {number - 1:,} vectors, its first line says "
                        f"{count:,}")


def table(path, words):
    """The vectors of some words.

    Args:
      path: as for `read`.
      words: a list of different words.

    Returns:
      float32 [words, dimension]; NaN in the rows of words that the file lacks.

    Raises:
      UserError: as `read`; what stands after one of the words is not a finite number.
    """
    places = {word: place for place, word in enumerate(words)}
    found = np.full([len(words), dimension(path)], np.nan, np.float32)
    for number, word, values in read(path):
        place = places.pop(word, None)                # the first of a word that comes twice
        if place is None:
            continue
        try:
            found[place] = np.array(values.split(" "), np.float32)
        except ValueError:
            raise UserError(f"{path}: line {number}: not numbers after '{word}'") from None
        if not np.isfinite(found[place]).all():
            raise UserError(f"{path}: line {number}: a number of '{word}' is not finite")
        if not places:
            break
    return found


def write(path, size, rows):
    """Writes a file of vectors, whole or not at all.

    Args:
      path: the file.
      size: how many numbers a vector has.
      rows: a list of (word, its numbers as text).
    """
    files.write_atomically(path, f"{len(rows)} {size}\n" + "".join(
        f"{word} {values}\n" for word, values in rows))


def _lines(path):
    try:
        return parallel_text.open_bytes(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _header(path, lines):
    try:
        line = next(lines, b"")
    except _DAMAGED as error:
        raise UserError(f"{path}: damaged ({error})") from None
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) < 1:
        raise UserError(f"{path}: line 1 is not '<how many vectors> <how many numbers each>': "
                        f"{line[:40].decode(errors='replace').strip()!r}")
    return tuple(map(int, parts))
