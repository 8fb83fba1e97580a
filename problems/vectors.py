"""Word vectors in fastText's text format.

The first line contains the number of vectors and their dimension. Every other line contains a word
and its vector, separated by spaces. The words are sorted by frequency.
"""
from collections.abc import Iterator, Sequence

import numpy as np

from rpr.problems import parallel_text
from rpr.utils import files
from rpr.utils.errors import UserError

UNKNOWN, END = "<unk>", "</s>"                        # unknown word; fastText's end of line


def dimension(path: str) -> int:
    """The dimension of the vectors of a file; raises UserError if it does not begin with it."""
    return _header(path, parallel_text.raw_lines(path))[1]


def read(path: str, most: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yields (line number, word, its vector as text) for at most `most` vectors; 0: for all.

    An error in the file is refused, with the line.
    """
    lines = parallel_text.raw_lines(path)
    count, size = _header(path, lines)
    last = min(most or count, count) + 1
    number = 1
    while number < last:
        line = next(lines, None)
        if line is None:
            raise UserError(f"{path}: it ends after {number - 1:,} vectors, its first line "
                            f"promises {count:,}")
        number += 1
        word, _, values = parallel_text.decode(line, path, number).rstrip().partition(" ")
        found_size = values.count(" ") + 1 if values else 0
        if found_size != size:
            raise UserError(f"{path}: line {number} has {found_size} numbers after its word, "
                            f"the first line says {size}")
        yield number, word, values


def table(path: str, words: Sequence[str]) -> np.ndarray:
    """The vectors of different words: float32 [words, dimension], NaN for those that a file lacks.

    A vector of one of the words that has something else than finite numbers is refused.
    """
    rows = {word: row for row, word in enumerate(words)}
    vectors = np.full([len(words), dimension(path)], np.nan, np.float32)
    for number, word, values in read(path):
        row = rows.pop(word, None)                    # a word's first vector counts
        if row is None:
            continue
        try:
            vectors[row] = np.array(values.split(" "), np.float32)
        except ValueError:
            raise UserError(f"{path}: line {number}: not numbers after '{word}'") from None
        if not np.isfinite(vectors[row]).all():
            raise UserError(f"{path}: line {number}: the vector of '{word}' is not finite")
        if not rows:
            break
    return vectors


def write(path: str, size: int, rows: Sequence[tuple[str, str]]) -> None:
    """Writes vectors of `size` numbers, (word, its vector as text): a whole file or none."""
    files.write_atomically(path, f"{len(rows)} {size}\n" + "".join(
        f"{word} {values}\n" for word, values in rows))


def _header(path: str, lines: Iterator[bytes]) -> tuple[int, int]:
    line = next(lines, b"")
    parts = line.split()
    # At most nine digits: Python refuses to convert thousands of digits. A vector has at most half
    # as many values as its line has bytes.
    if (len(parts) != 2 or not all(part.isdigit() and len(part) < 10 for part in parts)
            or not 0 < int(parts[1]) <= parallel_text.LONGEST_LINE // 2):
        raise UserError(f"{path}: line 1 is not '<number of vectors> <dimension>': "
                        f"{line[:40].decode(errors='replace').strip()!r}")
    return int(parts[0]), int(parts[1])
