"""Checks of the files that a decoding reads and writes, made before a model is loaded."""
import math
import os
from typing import Any

from rpr.utils.errors import UserError


def check_input(path: str, flag: str) -> None:
    """Refuses an input that is not a file of UTF-8 text.

    Args:
      path: the file.
      flag: the flag that named it, for the message.

    Raises:
      UserError: it is missing, a directory, empty or not UTF-8.
    """
    if not os.path.exists(path):
        raise UserError(f"--{flag}={path}: there is no such file")
    if os.path.isdir(path):
        raise UserError(f"--{flag}={path}: it is a directory; a text file is needed")
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


def check_search(decode_hparams: Any, text: str) -> None:
    """Refuses settings of the search that cannot be meant.

    Args:
      decode_hparams: T2T's.
      text: of the flag --decode_hparams, for the message.

    Raises:
      UserError: a value is out of range.
    """
    lowest = {"beam_size": 1, "alpha": 0, "batch_size": 0, "extra_length": 0, "num_samples": -1,
              "max_input_size": -1}
    for name, least in lowest.items():
        value = getattr(decode_hparams, name)
        if not least <= value < math.inf:
            raise UserError(f"--decode_hparams={text}: {name}={value}; at least {least} and finite")
