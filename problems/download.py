"""Downloads that resume and are verified, and archives that are unpacked without trusting them.

RPR_MIRROR, a directory or a URL that has the files under their own names, replaces the original
hosts. The checks are the same.
"""
import atexit
import contextlib
import dataclasses
import fcntl
import functools
import glob
import gzip
import hashlib
import os
import posixpath
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import requests

from rpr.utils import console, locks
from rpr.utils.errors import UserError

_CHUNK_BYTES = 1 << 18
_ATTEMPTS = 5                                         # in a row that receive nothing
_WAIT_SECONDS = 1.0                                   # doubles with each attempt in vain
_TIMEOUT_SECONDS = 60
_LARGEST_UNKNOWN = 10**8                              # bytes, of a file without a published size
_SMALL, _MOST_EXPANSION = 10**8, 50                   # bytes; of the members of an archive


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on the network; the last part of its address is its name on disk and on a mirror."""
    url: str
    digest: str                                       # "sha256:...", or "md5:..."
    size: int | None = None                           # in bytes; None: not published

    @property
    def name(self) -> str:
        """The file's name."""
        return posixpath.basename(self.url)


def default_directory() -> str:
    """The directory of downloads of this user, who alone may write to it; all share T2T's."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "rpr")


def fetch(remote: Remote, tmp_dir: str) -> str:
    """Downloads a file to tmp_dir unless it is there; returns its path.

    Its content is verified in either case; other content is refused. An interrupted download
    continues from NAME.part.
    """
    mirror = os.environ.get("RPR_MIRROR", "")
    if mirror and "://" not in mirror:
        path = os.path.join(os.path.expanduser(mirror), remote.name)
        if not os.path.isfile(path):
            raise UserError(f"RPR_MIRROR={mirror}: there is no {remote.name} in it")
        _verify(remote, path)
        return path
    if mirror and not re.match(r"https?://[^/]", mirror):
        raise UserError(f"RPR_MIRROR={mirror}: neither a directory nor an http or https URL")
    url = f"{mirror.rstrip('/')}/{remote.name}" if mirror else remote.url
    path = os.path.join(tmp_dir, remote.name)
    os.makedirs(tmp_dir, exist_ok=True)
    with locks.locked(path):
        if os.path.exists(path):
            _verify(remote, path)
            return path
        part = path + ".part"
        _download(url, part, remote.size)
        try:
            _verify(remote, part)
        except UserError as error:
            os.unlink(part)
            raise UserError(f"{url}: {error}; the download was removed: try again; if that does "
                            "not help, the file on the server has changed") from None
        os.replace(part, path)
    return path


@functools.cache
def fetch_members(archive: Remote, members: tuple[str, ...], tmp_dir: str) -> list[str]:
    """The paths of some members of a tar archive, which is downloaded if needed.

    Only the archive has a digest. Each process therefore unpacks it into a new directory, which is
    removed when the process ends: unpacked files that lie in `tmp_dir` may be somebody else's.
    """
    path = fetch(archive, tmp_dir)
    os.makedirs(tmp_dir, exist_ok=True)
    prefix = f".{archive.name}.files-"
    with locks.locked(os.path.join(tmp_dir, archive.name)):
        for folder in glob.glob(os.path.join(glob.escape(tmp_dir), prefix + "*")):
            _remove_unless_used(folder)
        folder = tempfile.mkdtemp(prefix=prefix, dir=tmp_dir)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        # Kept open, so that other processes see that this one uses the directory.
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    return list(extract(path, members, folder).values())


def _remove_unless_used(folder: str) -> None:
    """Removes what a killed process unpacked."""
    with contextlib.suppress(OSError):                # somebody uses it, or it is no directory
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)


def refuse_foreign(path: str) -> None:
    """Refuses a file or directory, if it exists, that another user could have written.

    That is one that belongs to another user (but root), that everybody may write to, or that is a
    symbolic link.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        reason = "it is a symbolic link"
    elif status.st_uid not in (0, os.geteuid()):
        reason = "it belongs to another user"
    elif status.st_mode & stat.S_IWOTH:
        reason = "every user may write to it"
    else:
        return
    raise UserError(f"{path} is not trusted: {reason}; remove it or take another "
                    "directory (tmp_dir)")


def _verify(remote: Remote, path: str) -> None:
    size = os.path.getsize(path)
    if remote.size is not None and size != remote.size:
        raise UserError(f"{path} has {size:,} bytes, {remote.size:,} are expected")
    algorithm, expected = remote.digest.split(":")
    with open(path, "rb") as content:
        digest = hashlib.file_digest(content, algorithm).hexdigest()
    if digest != expected:
        raise UserError(f"{path} is not the file that is expected ({algorithm} {digest}, not "
                        f"{expected})")


def _download(url: str, part: str, size: int | None) -> None:
    """Completes the file `part`, across broken connections."""
    limit = _LARGEST_UNKNOWN if size is None else size
    failures, reason = 0, ""
    with console.Task(posixpath.basename(url), size and size // 10**6, "MB") as task:
        while failures < _ATTEMPTS:
            before = _size(part)
            try:
                if _continue(url, part, before, limit, task):
                    return
                reason = "the connection was cut"
            except requests.RequestException as error:
                reason = _root_cause(error)
            failures = 0 if _size(part) > before else failures + 1
            if failures < _ATTEMPTS:
                time.sleep(_WAIT_SECONDS * 2 ** failures)
    raise UserError(f"cannot download {url}: {reason}; what was received is kept, the same command "
                    "continues from there. RPR_MIRROR may name a directory or a URL that has it")


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _continue(url: str, part: str, offset: int, limit: int, task: console.Task) -> bool:
    """Requests a file after the `offset` bytes that `part` has; returns whether that was all."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    # Without compression during the transfer, which would change the offsets.
    headers["Accept-Encoding"] = "identity"
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as response:
        if response.status_code == 416:               # nothing after the offset
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if total == str(offset):
                return True
            os.unlink(part)
            return False
        if 400 <= response.status_code < 500:
            raise UserError(f"cannot download {url}: HTTP {response.status_code} "
                            f"{response.reason}. RPR_MIRROR may name a directory or a URL that "
                            "has it")
        response.raise_for_status()
        resumed = (response.status_code == 206 and
                   response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"))
        received = offset if resumed else 0           # a server without ranges sends the whole file
        expected = response.headers.get("Content-Length", "")
        end = received + int(expected) if expected.isdecimal() else None
        _refuse_excess(url, part, end or 0, limit)
        # Otherwise urllib3 drops what arrived of a chunk before the cut. We count ourselves.
        response.raw.enforce_content_length = False
        with _open_part(part, append=resumed) as out:
            for chunk in response.iter_content(_CHUNK_BYTES):
                received += len(chunk)
                _refuse_excess(url, part, received, limit)
                out.write(chunk)
                task.update(received // 10**6)
        return end is None or received == end


def _refuse_excess(url: str, part: str, size: int, limit: int) -> None:
    if size > limit:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise UserError(f"{url}: the server sends more than the {limit:,} bytes that are expected; "
                        "the download was stopped and removed")


def _open_part(path: str, append: bool) -> BinaryIO:
    """Opens a partial download for writing; no symbolic link, and no pipe without a reader."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                                 | (os.O_APPEND if append else os.O_TRUNC), 0o644), "wb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _root_cause(error: BaseException) -> str:
    """The innermost and plainest of the errors that requests wrapped."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return str(error) or type(error).__name__


def extract(archive: str, members: Sequence[str], folder: str) -> dict[str, str]:
    """Unpacks some files of a tar archive into an empty folder of this process: {member: path}.

    A damaged archive is refused, one that lacks a member, one with a member that leads out of the
    folder, and one whose members are much larger than the archive.
    """
    paths: dict[str, str] = {}
    room = max(_SMALL, _MOST_EXPANSION * os.path.getsize(archive))
    try:
        # As a stream, to its very end: this detects a truncated archive.
        with tarfile.open(archive, "r|*") as tar:
            for entry in tar:
                member = tarfile.data_filter(entry, folder)
                room -= member.size
                if room < 0:
                    raise UserError(f"{archive} is refused: its members are more than "
                                    f"{_MOST_EXPANSION} times as large as the archive")
                name = posixpath.normpath(member.name)
                if name in members and member.isreg():
                    tar.extract(member, folder, set_attrs=False, filter="data")
                    paths[name] = os.path.join(folder, name)
    except tarfile.FilterError as error:
        raise UserError(f"{archive} is refused: its member {error.tarinfo.name!r} points outside, "
                        "or is a device") from None
    # tarfile raises TypeError for a truncated gzip header.
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, TypeError) as error:
        raise UserError(f"{archive}: the archive is damaged ({error}): remove it and try again"
                        ) from None
    missing = sorted(set(members) - set(paths))
    if missing:
        raise UserError(f"{archive}: it does not contain {', '.join(missing)}")
    return {member: paths[member] for member in members}
