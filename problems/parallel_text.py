"""problems.parallel_text"""
import gzip
import zlib

from rpr.utils.errors import UserError


def open_bytes(path):
    """Opens a file to read bytes, gzipped where the name ends in .gz."""
    return gzip.open(path) if path.endswith(".gz") else open(path, "rb")


def read_pairs(source_path, target_path):
    """The pairs of two line-aligned UTF-8 text files (.gz is understood), stripped.

    Only a newline ends a line: corpora hold stray carriage returns and line separators, which
    would break the alignment.

    Raises:
      UserError: one file is longer than the other, damaged, or not UTF-8.
    """
    count = 0
    with open_bytes(source_path) as source_file, open_bytes(target_path) as target_file:
        lines = zip(source_file, target_file, strict=True)
        while True:
            try:
                pair = next(lines)
                source, target = (line.decode("utf-8").strip() for line in pair)
            except StopIteration:
                return
            except UnicodeDecodeError as error:
                raise UserError(f"{source_path} or {target_path}: line {count + 1} is not UTF-8 "
                                f"({error.reason})") from None
            except ValueError:                        # zip(strict=True)
                raise UserError(f"{source_path} and {target_path}: one ends after line {count}, "
                                "the other goes on; they must be line-aligned") from None
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise UserError(f"{source_path} or {target_path}: damaged after line {count} "
                                f"({error})") from None
            count += 1
            yield source, target
