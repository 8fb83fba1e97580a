"""Checks of the files that a decoding reads and writes, made before a model is loaded."""
import os

from rpr.utils.errors import UserError
from rpr.utils.interfaces import DecodeHParams
from rpr.utils.settings import Setting

MOST_ALPHA = 10                                       # beyond it ((5 + n) / 6)^alpha may overflow
# Of T2T's decode hparams. A default here only gives the type.
_SEARCH = (Setting("beam_size", 0, minimum=1, maximum=1000),
           Setting("alpha", 0.0, minimum=0, maximum=MOST_ALPHA),
           Setting("batch_size", 0, minimum=0, maximum=100_000),
           Setting("extra_length", 0, minimum=0, maximum=100_000),
           Setting("num_samples", 0, minimum=-1), Setting("max_input_size", 0, minimum=-1))


def check_input(path: str, flag: str) -> None:
    """Refuses an input that is not a file of UTF-8 text.

    Args:
      path: the file.
      flag: the flag that named it, for the message.

    Raises:
      UserError: it is missing, a directory, a pipe, empty or not UTF-8.
    """
    if not os.path.exists(path):
        raise UserError(f"--{flag}={path}: there is no such file")
    if os.path.isdir(path):
        raise UserError(f"--{flag}={path}: it is a directory; a text file is needed")
    if not os.path.isfile(path):
        raise UserError(f"--{flag}={path}: it is a pipe or a device, which can be read only once; "
                        "write the text to a file")
    read = 0
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            read += len(line)
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise UserError(f"--{flag}={path}: line {number} is not UTF-8 ({error.reason} at "
                                f"byte {error.start + 1} of the line)") from None
    if not read:
        raise UserError(f"--{flag}={path}: it is empty")


def check_pairs(path: str, flag: str) -> None:
    """Refuses a text whose lines are not a source and a target, separated by a tab.

    Args:
      path: a file of UTF-8 text.
      flag: the flag that named it, for the message.

    Raises:
      UserError: names the first line that is not.
    """
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.count("\t") != 1:
                raise UserError(f"--{flag}={path}: line {number} has {line.count(chr(9))} tabs; a "
                                "line is a source, a tab and a target")


def check_output(path: str, flag: str) -> None:
    """Refuses an output file that could not be written in the end.

    Args:
      path: the file.
      flag: the flag that named it, for the message.

    Raises:
      UserError: it is a directory, or its directory is missing or cannot be written.
    """
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UserError(f"--{flag}={path}: it is a directory; a file is needed")
    if not os.path.isdir(directory):
        raise UserError(f"--{flag}={path}: there is no directory {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UserError(f"--{flag}={path}: the directory {directory} cannot be written")


def check_other(path: str, flag: str, source: str) -> None:
    """Refuses an output file that is the input, which would be lost.

    Args:
      path: the output file.
      flag: the flag that named it, for the message.
      source: the input file; it may be missing.

    Raises:
      UserError: both are the same file.
    """
    if os.path.isfile(path) and os.path.exists(source) and os.path.samefile(path, source):
        raise UserError(f"--{flag}={path}: it is the input; name another file")


def check_search(decode_hparams: DecodeHParams, text: str) -> None:
    """Refuses settings of the search that cannot be meant.

    Args:
      decode_hparams: T2T's.
      text: of the flag --decode_hparams, for the message.

    Raises:
      UserError: a value is out of range.
    """
    for setting in _SEARCH:
        error = setting.error(getattr(decode_hparams, setting.name))
        if error:
            raise UserError(f"--decode_hparams={text}: {error}")
