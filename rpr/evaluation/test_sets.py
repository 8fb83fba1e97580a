"""Reads lines of text and the test sets that sacreBLEU knows."""
import contextlib
import difflib
import gzip
import http.client
import logging
import os
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

from rpr.utils.errors import UserError


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 text file (gzipped if its name ends in .gz), as sacreBLEU reads them.

    Raises:
      UserError: the file is missing, empty, damaged or not UTF-8.
    """
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as text:
            lines = [line.rstrip() for line in text]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not lines:
        raise UserError(f"{path}: it is empty")
    return lines


def test_set_source(name: str, language_pair: str) -> list[str]:
    """The source lines of a test set that `sacrebleu --list` shows, in their order."""
    with _sacrebleu_data(name, language_pair) as dataset:
        return list(dataset.source(language_pair))


def test_set_references(name: str, language_pair: str) -> dict[str, list[str]]:
    """The references of a test set: {name: lines}."""
    with _sacrebleu_data(name, language_pair) as dataset:
        return {os.path.basename(path): read_lines(path)
                for path in dataset.get_reference_files(language_pair)}


@contextlib.contextmanager
def _sacrebleu_data(name: str, language_pair: str) -> Iterator[Any]:
    """A test set of sacreBLEU; errors while it is fetched or unpacked become `UserError`s."""
    from sacrebleu.dataset import DATASETS
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=4, cutoff=0.5)
        raise UserError(f"--test_set={name}: no such test set"
                        + (f"; nearest: {', '.join(near)}" if near else "")
                        + "; sacrebleu --list shows all")
    dataset = DATASETS[name]
    if language_pair not in dataset.langpairs:
        raise UserError(f"--language_pair={language_pair}: {name} has "
                        f"{', '.join(sorted(dataset.langpairs))}")
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield dataset
    except UserError:
        raise
    except (OSError, SystemExit, ValueError, SyntaxError, AssertionError, tarfile.TarError,
            http.client.HTTPException) as error:
        reason = "a damaged download" if isinstance(error, SystemExit) else str(error)
        raise UserError(
            f"--test_set={name}: sacreBLEU could not get it from {' '.join(dataset.data)} "
            f"({reason}); its cache is {dataset._outdir} (below $SACREBLEU): without a network, "
            "copy it from a machine that has one; if it is damaged, remove it") from None
    finally:
        logger.setLevel(level)
