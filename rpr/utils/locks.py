"""Locks between processes: files that only this user can open."""
import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator

from rpr.utils.console import say
from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.files import open_nofollow

_ATTEMPTS, _PAUSE = 20, 0.05                          # `is_held` holds a lock briefly


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Lets one process at a time work on `path`. The lock file is `.NAME.lock` beside it."""
    directory, name = os.path.split(path)
    with lock(os.path.join(directory, f".{name.lstrip('.')}.lock")):
        yield


@contextlib.contextmanager
def lock(path: str, wait: bool = True) -> Iterator[int]:
    """Holds a lock file until the block or the process ends, even by kill -9.

    With `wait` it waits for a process that holds the lock, after a message; else it refuses. It
    also refuses a link or a pipe. Yields the file descriptor; a child process that inherits it
    shares the lock.
    """
    descriptor = open_nofollow(path, 0, 0o600)
    try:
        status = os.fstat(descriptor)
        if status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
            raise InvalidPath(path, "is a hard link or not a regular file; remove it")
        if status.st_uid == os.getuid():
            os.fchmod(descriptor, 0o600)              # it may exist with another mode
        _take_lock(descriptor, path, wait)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(path: str) -> bool:
    """Whether a process holds a lock file; False if it does not exist or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: str, wait: bool) -> None:
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_PAUSE)
    holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
    if not wait:
        raise UserError(f"{os.path.dirname(path)}: another process is using it: {holder}")
    say(f"waiting for {holder}, which holds {path}")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
