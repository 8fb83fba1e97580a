"""Reads JSON, writes whole files or none, appends to logs, and checks paths.

Other users may write to the directories. Temporary files therefore have unpredictable names and are
created exclusively, and no write follows a symbolic link.
"""
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.schema import Schema, convert, parse

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")
# Of files that a record describes, by name: what `check_recorded` compares.
RECORDED: Schema = {"*": {"bytes": int, "sha256": str}}
_PATTERN = "*?[]\\"                                    # characters
_LONGEST_NAME, _LONGEST_PATH = 255, 3500              # bytes; 4,096 less the names in a directory


def read_json(path: str, schema: Schema = dict, remedy: str = "remove it and run again") -> Any:
    """Reads a JSON file and checks its structure (`rpr.utils.schema`); {} if there is no such file.

    `remedy` says what to do about a damaged file; it ends the error message.
    """
    try:
        with open_regular(path) as content:
            return convert(parse(content.read().decode()), schema)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; {remedy}") from None


def open_regular(path: str) -> BinaryIO:
    """Opens a file for reading; refuses a pipe or a device, which could keep a reader waiting."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        raise InvalidPath(path, "is a directory; expected a file" if stat.S_ISDIR(mode)
                          else "not a regular file")
    return os.fdopen(number, "rb")


def refuse_pipe(path: str) -> None:
    """Refuses text that is neither a regular file nor a directory, if it exists."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InvalidPath(path, "is a pipe or a device, which can be read only once; write the "
                          "text to a file")


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """An empty file in the same directory that replaces `path` when the block ends without error.

    A symbolic link at `path` is replaced, not followed. A device or pipe such as /dev/stdout is
    written directly; of one that leads to a file, that file is replaced.
    """
    path = os.fspath(path)
    with named_errors(path):
        absolute = os.path.abspath(path)
        if absolute.startswith("/dev/") and os.path.exists(path):
            if not os.path.isfile(path):
                yield path
                return
            if os.path.dirname(absolute) in ("/dev", "/dev/fd"):
                path = os.path.realpath(path)
        temporary, number = _create_beside(path)
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(number)


def write_atomically(path: str, content: str | bytes) -> None:
    """Writes a whole file (text as UTF-8) or none of it."""
    with atomic_path(path) as temporary, open(temporary, "wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)


def write_json(path: str, value: Any) -> None:
    """Writes a whole JSON file or none of it."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def remove(*paths: str) -> None:
    """Removes those of the files that are there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def remove_temporary_files(directory: str) -> None:
    """Removes the files of killed writers in a directory. Those of living writers are locked."""
    if os.path.islink(directory) or not os.path.isdir(directory):
        return
    for entry in os.scandir(directory):
        if not _TEMPORARY.fullmatch(entry.name):
            continue
        with contextlib.suppress(OSError):                # locked, removed, or a link
            number = os.open(entry.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)
            finally:
                os.close(number)


def _create_beside(path: str) -> tuple[str, int]:
    """Creates a locked file with a random name beside `path`; returns its path and descriptor."""
    directory, name = os.path.split(path)
    name = name.encode(errors="surrogateescape")[:100].decode(errors="ignore")
    while True:                                       # mkstemp would ignore the umask
        temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(FileExistsError):
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            with contextlib.suppress(OSError):        # a file system without locks
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(number).st_nlink:             # else removed before it was locked
                return temporary, number
            os.close(number)


def open_append(path: str) -> BinaryIO:
    """Opens a log for reading and appending; raises `UserError` for a symbolic link."""
    return os.fdopen(open_nofollow(path, os.O_APPEND, 0o666), "ab+")


def open_nofollow(path: str, flags: int, mode: int) -> int:
    """Opens or creates a file for reading and writing; raises `UserError` for a symbolic link."""
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link; expected a file") from None
        raise


def append_line(path: str, line: str) -> None:
    """Appends a line to a log, after ending a line that a crash cut off."""
    with named_errors(path), open_append(path) as log:
        size = os.fstat(log.fileno()).st_size
        is_cut = size and os.pread(log.fileno(), 1, size - 1) != b"\n"
        log.write((b"\n" if is_cut else b"") + line.encode() + b"\n")


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Adds the path to an error that does not name it, such as one of a write to an open file."""
    try:
        yield
    except OSError as error:
        name = os.path.basename(str(error.filename or ""))
        if not name or _TEMPORARY.fullmatch(name):
            error.filename = path
        raise


def below(directory: str, path: str) -> str:
    """Joins `directory` and a relative path; `UserError` if it leads out, even through links."""
    joined = os.path.join(directory, path)
    if os.path.isabs(path) or not is_below(directory, joined):
        raise UserError(f"{joined!r} is not inside {directory}")
    return joined


def is_below(directory: str, path: str) -> bool:
    """Whether a path is in a directory once all symbolic links are followed."""
    real = os.path.realpath(directory)
    return os.path.commonpath([real, os.path.realpath(path)]) == real


def refuse_unusable(path: str) -> None:
    """Refuses a directory of checkpoints or data that is too long, or a pattern to TensorFlow.

    TensorFlow looks for files that match the absolute path and then opens the path itself, so
    escaping does not help.
    """
    absolute = os.path.abspath(path)
    encoded = os.fsencode(absolute)
    for what, length, most in (("path", len(encoded), _LONGEST_PATH),
                               ("name", max(map(len, encoded.split(b"/"))), _LONGEST_NAME)):
        if length > most:
            raise UserError(f"{path[:60]}...: a {what} of {length:,} bytes; at most {most:,} are "
                            "possible")
    for character in _PATTERN:
        if character in absolute:
            raise InvalidPath(path, f"TensorFlow takes {character} in a path for a pattern; take "
                              "another directory")


def check_new_directory(path: str) -> None:
    """Refuses a path to write a directory to that is empty, or there and not an empty directory."""
    if not path:
        raise InvalidPath(path, "name a new directory")
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise InvalidPath(path, "is there already; name a new directory")


def sha256(path: str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def describe(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file, for a record."""
    return {"bytes": os.path.getsize(path), "sha256": sha256(path)}


def check_recorded(path: str, recorded: Mapping[str, Any] | None) -> None:
    """Refuses a file that is missing or differs from its record by `describe`, if there is one."""
    if recorded is None:
        return
    changed = "is missing" if not os.path.isfile(path) else "has changed" if (
        os.path.getsize(path) != recorded["bytes"] or sha256(path) != recorded["sha256"]) else ""
    if changed:
        raise UserError(f"{path} {changed} since the data next to it was made: restore it, or "
                        "remove the data and run rpr datagen")
