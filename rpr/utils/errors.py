"""Errors that the command line answers with one line, and how a process reports why it failed."""
import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any

# Environment variable: the file descriptor of a pipe for failure reasons, which works when the disk
# is full.
REASON_PIPE = "RPR_REASON_PIPE"
LONGEST_REASON = 2000                                 # characters
STOPPED = 130                                         # exit code of a command that SIGINT ended

_KEPT = "finished stages and checkpoints are kept"
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.EEXIST: "is a file; expected a directory",
               errno.EISDIR: "is a directory; expected a file",
               errno.ENOTDIR: "one of its parents is a file, not a directory"}
# TensorFlow's errors of a path, such as "/proc/x; No such file or directory".
_PATH_ERROR = re.compile(r"([^;\n]*); (" + "|".join(map(os.strerror, (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG))) + ")")

_PROJECT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Where no code of the user's own is.
_NOT_OWN = tuple(os.path.realpath(path) + os.sep for path in (
    _PROJECT, *(os.path.join(_PROJECT, name) for name in ("problems", "hparams")), sys.prefix,
    sys.base_prefix, os.path.dirname(os.__file__)))


class UserError(Exception):
    """Bad input, in one line with the file or setting, its value and what is allowed."""


class InvalidValue(UserError):
    """A setting that is missing (value None) or has a value that is not allowed.

    `rpr.cli` turns its name into the flag. `problem` is what is wrong, or what is allowed.
    """

    def __init__(self, name: str, value: object, problem: str = "") -> None:
        super().__init__(name, value, problem)        # so that pickle copies it
        self.name, self.value, self.problem = name, value, problem

    def spelled(self, name: str, equals: str = "=") -> str:
        """The message with this name of the setting."""
        assigned = f"{name} is missing" if self.value is None else f"{name}{equals}{self.value}"
        return f"{assigned}: {self.problem}" if self.problem else assigned

    def __str__(self) -> str:
        return self.spelled(self.name)


class InvalidPath(UserError):
    """A path that cannot be used, as given, and why. `rpr.cli` adds the flag that gave it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def nearest(name: str, names: Iterable[str]) -> str:
    """"; nearest: NAME, ..." to end a message about an unknown name; "" if none is near."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


def send_failure_reason(reason: str | BaseException) -> None:
    """Tells the parent process, if it listens, why this process fails: a line, or an exception."""
    pipe = os.environ.get(REASON_PIPE)
    if pipe:
        if isinstance(reason, BaseException):
            reason = "".join(traceback.format_exception(reason)[-2:]).strip()
        os.write(int(pipe), reason[:LONGEST_REASON].encode(errors="replace"))


def places(error: BaseException) -> list[tuple[str, Any]]:
    """(file, line) of the frames of an error, and of what cannot be parsed; the innermost last."""
    found = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        found.append((error.filename or "", error.lineno))
    return found


def own_code_error(error: BaseException) -> str | None:
    """One line on an error in the user's own code: file, line and message; None for another error.

    The line is the innermost one outside of Python, its packages and this project. TensorFlow's
    errors of a running graph name the lines that built the operation.
    """
    named = re.findall(r'File "([^"]+)", line (\d+)', str(error))
    own = [place for place in [*places(error), *named] if os.path.isabs(place[0])
           and not os.path.realpath(place[0]).startswith(_NOT_OWN)
           and not re.search("/(site|dist)-packages/", place[0])]
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{own[-1][0]}, line {own[-1][1]}: {type(error).__name__}: {first}" if own else None


def resource_error(error: BaseException) -> str | None:
    """One line on a full or read-only disk, an unusable path, too little memory, or a part of
    TensorFlow 1 that is gone; else None."""
    if _is_out_of_memory(error):
        return f"out of memory; {_KEPT}"
    if (isinstance(error, ModuleNotFoundError) and str(error.name).startswith("tensorflow.contrib")
            or isinstance(error, AttributeError) and "DummyModule" in str(error)):    # of T2T
        return "T2T's code needs tf.contrib here, which TensorFlow 2 does not have"
    if isinstance(error, OSError):
        if error.errno in _CANNOT_WRITE:
            return f"{error.filename or 'cannot write'}: {os.strerror(error.errno)}; {_KEPT}"
        if error.filename and error.errno:
            return f"{error.filename}: {_IN_THE_WAY.get(error.errno) or os.strerror(error.errno)}"
        if str(error.strerror).startswith("No usable temporary directory"):    # of `tempfile`
            return f"{error.strerror}: set TMPDIR to one with room"
        return None
    for line in str(error).splitlines():              # TensorFlow has its own classes of errors
        if "OOM when allocating" in line:
            return f"out of memory: {line.strip()}; a smaller batch_size needs less"
        if any(os.strerror(number) in line for number in _CANNOT_WRITE):
            return f"{line.strip()}; {_KEPT}"
    path = _PATH_ERROR.match(str(error))
    return f"{path[1]}: {path[2]}" if path else None


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether Python, NumPy or the loader of libraries got no memory, or caused this error so."""
    return error is not None and (
        isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        or isinstance(error, ImportError) and "failed to map segment" in str(error)
        or _is_out_of_memory(error.__cause__ or error.__context__))
