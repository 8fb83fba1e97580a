"""Reads line-aligned parallel text: UTF-8, one sentence a line, gzip if the name ends in .gz."""
import codecs
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator

from rpr.utils.errors import UserError
from rpr.utils.files import atomic_path, refuse_pipe

# Bytes. A longer line is not a sentence, and a small gzip file may contain one that fills memory.
LONGEST_LINE = 2**20


def raw_lines(path: str) -> Iterator[bytes]:
    """Yields the lines of a file, with their newlines; decompressed if its name ends in .gz.

    Only a newline ends a line: corpora contain stray carriage returns and Unicode line separators,
    which would break the alignment. A byte order mark is dropped. A pipe, a damaged file and
    a line longer than LONGEST_LINE are refused.
    """
    number = 0
    try:
        if os.path.isdir(path):
            raise UserError(f"{path}: Is a directory")
        refuse_pipe(path)
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{path}: line {number:,} is longer than {LONGEST_LINE:,} "
                                    "bytes, the longest that is read")
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged after line {number:,} ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def read_pairs(source_path: str, target_path: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of lines of two files, stripped; refuses files of different lengths."""
    count = 0
    lines = zip(raw_lines(source_path), raw_lines(target_path), strict=True)
    try:
        for count, (source, target) in enumerate(lines, start=1):
            yield (decode(source, source_path, count).strip(),
                   decode(target, target_path, count).strip())
    except ValueError:                                # zip(strict=True)
        raise UserError(f"{source_path} and {target_path}: one ends after line {count:,}, the "
                        "other continues; they must be line-aligned") from None


def decode(line: bytes, path: str, number: int) -> str:
    """Decodes a line, `number` of a file, counted from 1; raises UserError if it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: line {number:,} is not UTF-8 ({error.reason})") from None


def write_pairs(pairs: Iterable[tuple[str, str]], source_path: str, target_path: str) -> int:
    """Writes two line-aligned files, each whole or not at all; returns the number of lines.

    Text with a newline, which would be two lines, is refused.
    """
    count = 0
    with atomic_path(source_path) as source_part, atomic_path(target_path) as target_part:
        with (open(source_part, "w", encoding="utf-8", newline="\n") as source_file,
              open(target_part, "w", encoding="utf-8", newline="\n") as target_file):
            for source, target in pairs:
                if "\n" in source or "\n" in target:
                    raise UserError(f"{os.path.basename(source_path)}: the text of pair "
                                    f"{count + 1:,} has a newline: {(source, target)!r:.80}")
                source_file.write(source + "\n")
                target_file.write(target + "\n")
                count += 1
    return count
