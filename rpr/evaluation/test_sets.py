"""Reads lines of text, and test sets: those that sacreBLEU knows, and registered ones.

`register` copies a source and its references to $RPR_TEST_SETS (default:
~/.local/share/rpr/test_sets), where they are found by name, as sacreBLEU's are.
"""
import contextlib
import gzip
import hashlib
import http.client
import logging
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rpr.utils import files
from rpr.utils.errors import InvalidPath, InvalidValue, UserError, nearest

_MOST_BYTES = 1 << 28                                 # a small gzip file may hold gigabytes
LANGUAGE_PAIR = r"[a-z]{2,3}-[a-z]{2,3}"


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 text file (gzipped if its name ends in .gz), as sacreBLEU reads them.

    A byte order mark is no part of the first line.

    Raises:
      InvalidPath: the file is missing, empty, damaged, too large or not UTF-8.
    """
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as content:
            text = content.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InvalidPath(path, f"more than {_MOST_BYTES:,} bytes of text")
        *lines, rest = text.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidPath(path, f"not UTF-8 ({error.reason} at byte {error.start})") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidPath(path, getattr(error, "strerror", None) or str(error)) from None
    if rest:
        lines.append(rest)
    if not lines:
        raise InvalidPath(path, "it is empty")
    return [line.rstrip() for line in lines]


def digest(texts: Iterable[Sequence[str]]) -> str:
    """SHA-256 of the lines of one or several texts, by which they are recognized later."""
    text = "\n\n".join("\n".join(lines) for lines in texts)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def test_set_source(name: str, language_pair: str) -> list[str]:
    """The source lines of a test set, registered or of sacreBLEU, in their order."""
    directory = _registered(name, language_pair)
    if directory:
        return read_lines(os.path.join(directory, "source"))
    with _sacrebleu_data(name, language_pair) as dataset:
        return list(dataset.source(language_pair))


def test_set_references(name: str, language_pair: str) -> dict[str, list[str]]:
    """The references of a test set: {name: lines}."""
    directory = _registered(name, language_pair)
    if directory:
        return {file: read_lines(os.path.join(directory, file))
                for file in sorted(os.listdir(directory)) if file.startswith("reference.")}
    with _sacrebleu_data(name, language_pair) as dataset:
        return {os.path.basename(path): read_lines(path)
                for path in dataset.get_reference_files(language_pair)}


def test_set_documents(name: str, language_pair: str) -> list[str] | None:
    """The document of each sentence of a test set; None where it has no or a single document."""
    directory = _registered(name, language_pair)
    if directory:
        path = os.path.join(directory, "documents")
    else:
        with _sacrebleu_data(name, language_pair) as dataset:
            fields = dataset.fieldnames(language_pair)
            path = dict(zip(fields, dataset.get_files(language_pair), strict=True)).get("docid", "")
    return several_documents(read_lines(path)) if os.path.exists(path) else None


def several_documents(names: list[str]) -> list[str] | None:
    """The names, if they are of several documents: one shows nothing about others."""
    return names if len(set(names)) > 1 else None


def check_language_pair(language_pair: str) -> None:
    """Refuses what is not two language codes, such as en-de."""
    if not re.fullmatch(LANGUAGE_PAIR, language_pair):
        raise InvalidValue("language_pair", language_pair, "two language codes, such as en-de")


def check_test_set(name: str, language_pair: str) -> None:
    """Refuses a test set, or a language pair of it, that is neither sacreBLEU's nor registered."""
    if _registered(name, language_pair):
        return
    from sacrebleu.dataset import DATASETS
    if name not in DATASETS:
        raise InvalidValue("test_set", name, f"no such test set{nearest(name, DATASETS)}; "
                           "sacrebleu --list and rpr test-set list show all")
    pairs = DATASETS[name].langpairs
    if language_pair not in pairs:
        raise InvalidValue("language_pair", language_pair, f"{name} has {', '.join(sorted(pairs))}")


def register(name: str, language_pair: str, source: str, references: Sequence[str],
             documents: str | None = None) -> str:
    """Registers a test set of plain text files, one sentence per line; returns its directory.

    Args:
      name, language_pair: by which it is found.
      source, references: paths of the text, UTF-8, .gz allowed.
      documents: path of a file with the name of each sentence's document.

    Raises:
      UserError: a name that is not allowed or taken by other text, files of unequal length.
    """
    from sacrebleu.dataset import DATASETS
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UserError(f"{name!r}: a name begins with a letter or digit and has at most 100 "
                        "letters, digits and . _ -")
    check_language_pair(language_pair)
    if name in DATASETS:
        raise UserError(f"{name}: sacreBLEU has a test set of this name; choose another one")
    paths = {"source": source, **{f"reference.{n}": path for n, path in enumerate(references)},
             **({"documents": documents} if documents else {})}
    texts = {file: read_lines(path) for file, path in paths.items()}
    for file, lines in texts.items():
        if len(lines) != len(texts["source"]):
            raise UserError(f"{paths[file]} has {len(lines)} lines, {source} has "
                            f"{len(texts['source'])}")
    directory = os.path.join(_root(), f"{name}.{language_pair}")
    if os.path.exists(directory):
        if {file: read_lines(os.path.join(directory, file))
                for file in sorted(os.listdir(directory))} != texts:
            raise UserError(f"{name} {language_pair} is registered with other text, in "
                            f"{directory}; choose another name, or remove that directory")
        return directory
    os.makedirs(_root(), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_root(), prefix=".") as temporary:
        os.chmod(temporary, 0o755)                    # others may read a shared collection
        for file, lines in texts.items():
            files.write_atomically(os.path.join(temporary, file),
                                   "".join(line + "\n" for line in lines))
        os.rename(temporary, directory)               # nothing is left to remove
    return directory


def registered() -> list[tuple[str, str, str]]:
    """Name, language pair and directory of each registered test set."""
    root = _root()
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    pairs = [(name.rpartition("."), name) for name in names
             if not name.startswith(".") and os.path.isdir(os.path.join(root, name))]
    return [(name, pair, os.path.join(root, file)) for (name, _, pair), file in pairs]


def _root() -> str:
    return os.environ.get("RPR_TEST_SETS") or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "rpr",
        "test_sets")


def _registered(name: str, language_pair: str) -> str | None:
    """The directory of a registered test set; None if there is none of that name."""
    pairs = {pair: directory for other, pair, directory in registered() if other == name}
    if not pairs:
        return None
    if language_pair not in pairs:
        raise InvalidValue("language_pair", language_pair, f"the registered test set {name} has "
                           f"{', '.join(pairs)}")
    directory = pairs[language_pair]
    for file in ("source", "reference.0"):
        if not os.path.isfile(os.path.join(directory, file)):
            raise UserError(f"{directory}: an incomplete test set: it has no file {file}; "
                            "remove it and register it again")
    return directory


def _cache_files(dataset: Any, language_pair: str) -> str:
    """The files from which sacreBLEU takes a test set without a network."""
    archives = [os.path.join(dataset._rawdir, dataset._get_tarball_filename(url))
                for url in dataset.data]
    wanted = "its archive" + "s" * (len(archives) > 1) + f" {', '.join(archives)}"
    with contextlib.suppress(Exception):              # some need the archive to know their fields
        texts = [dataset._get_txt_file_path(language_pair, field)
                 for field in dataset.fieldnames(language_pair)]
        wanted += f", or as plain text {', '.join(texts)}"
    return wanted


@contextlib.contextmanager
def _sacrebleu_data(name: str, language_pair: str) -> Iterator[Any]:
    """A test set of sacreBLEU; errors while it is fetched or unpacked become `UserError`s."""
    from sacrebleu.dataset import DATASETS
    check_test_set(name, language_pair)
    dataset = DATASETS[name]
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
        raise InvalidValue("test_set", name, "sacreBLEU could not get it from "
                           f"{' '.join(dataset.data)} ({reason}). Without a network it needs "
                           f"{_cache_files(dataset, language_pair)}; if the cache "
                           f"{dataset._outdir} is damaged, remove it") from None
    finally:
        logger.setLevel(level)
