"""Checks of the files that a decoding reads and writes, made before a model is loaded."""
import os
from collections.abc import Iterable

from rpr.utils import files, schema
from rpr.utils.errors import InvalidPath, InvalidValue
from rpr.utils.interfaces import DecodeHParams
from rpr.utils.settings import Setting

MOST_ALPHA = 10                                       # beyond it ((5 + n) / 6)^alpha may overflow
# Ranges of T2T's decode hparams. A default here only gives the type.
_SEARCH = (Setting("beam_size", 0, minimum=1, maximum=1000),
           Setting("alpha", 0.0, minimum=0, maximum=MOST_ALPHA),
           Setting("batch_size", 0, minimum=0, maximum=100_000),
           Setting("extra_length", 0, minimum=0, maximum=100_000),
           Setting("num_samples", 0, minimum=-1), Setting("max_input_size", 0, minimum=-1))


def check_input(path: str) -> None:
    """Refuses an input that is missing, a directory, a pipe, empty or not UTF-8 text."""
    if not os.path.exists(path):
        raise InvalidPath(path, "no such file")
    if os.path.isdir(path):
        raise InvalidPath(path, "is a directory; expected a text file")
    files.refuse_pipe(path)
    if not os.path.getsize(path):
        raise InvalidPath(path, "it is empty")
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise InvalidPath(path, f"line {number} is not UTF-8 ({error.reason} at byte "
                                  f"{error.start + 1} of the line)") from None


def read_scored(path: str, has_source: bool) -> list[str]:
    """The lines of a file of UTF-8 text, without a byte order mark.

    Each must be a source, a tab and a target; with `has_source` false, a text without a tab.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = file.read().removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        tabs = line.count("\t")
        if has_source and tabs != 1:
            raise InvalidPath(path, f"line {number} has {tabs} tabs; a line is a source, a tab "
                              "and a target")
        if tabs and not has_source:
            raise InvalidPath(path, f"line {number} has a tab, but a language model has no "
                              "source; rpr perplexity takes text with tabs")
    return lines


def check_output(path: str, inputs: Iterable[str] = (), of_json: bool = False) -> None:
    """Refuses an output file that could not be written in the end, or that is not ours to write.

    The output must be none of `inputs`, the files that are read. `of_json`: it is JSON, or lines of
    JSON objects, and a file that is there must be, too.
    """
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise InvalidPath(path, "is a directory; expected a file")
    if not os.path.isdir(directory):
        raise InvalidPath(path, f"there is no directory {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidPath(path, f"the directory {directory} cannot be written")
    if os.path.isfile(path) and any(os.path.exists(source) and os.path.samefile(path, source)
                                    for source in inputs):
        raise InvalidPath(path, "is read and would be written; name another file")
    if of_json and os.path.isfile(path) and not _is_json(path):
        raise InvalidPath(path, "holds something other than JSON; name another file")


def _is_json(path: str) -> bool:
    """Whether a file is empty, JSON, or begins like a line of JSON, which a crash may have cut."""
    with open(path, "rb") as file:
        content = file.read(2)
        if content in (b"", b'{"'):
            return True
        try:
            schema.parse((content + file.read()).decode())
        except ValueError:
            return False
    return True


def check_search(decode_hparams: DecodeHParams) -> None:
    """Refuses T2T's decode hparams that are out of range."""
    for setting in _SEARCH:
        value = getattr(decode_hparams, setting.name)
        if not setting.accepts(value):
            raise InvalidValue("decode_hparams", f"{setting.name}={value}", "must be "
                               f"{setting.allowed()}")
    if not decode_hparams.delimiter:
        raise InvalidValue("decode_hparams", "delimiter=", "must not be empty")
