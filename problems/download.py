"""Downloads that resume, are checked, and are unpacked without trusting the archive.

RPR_MIRROR, a directory or a URL that holds the files under their own names, stands in for the
original hosts; the checks are the same.
"""
import contextlib
import dataclasses
import gzip
import hashlib
import os
import posixpath
import tarfile
import time
import zlib

import requests

from rpr.utils import console, files
from rpr.utils.errors import UserError

_CHUNK = 1 << 18
_ATTEMPTS = 5                                         # in a row that bring nothing
_WAIT_SECONDS = 1.0                                   # before the second attempt; then twice that
_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on the network.

    Attributes:
      url: where it comes from; its last part names it on disk and on a mirror.
      digest: what it must be: "sha256:..." (or "md5:...", where its publisher gives no better).
      size: in bytes; None where the publisher does not say.
    """
    url: str
    digest: str
    size: int | None = None

    @property
    def name(self):
        """The file's name."""
        return posixpath.basename(self.url)


def fetch(remote, tmp_dir):
    """The path of a file, downloaded unless it is there; always checked.

    Args:
      remote: a `Remote`.
      tmp_dir: where it is kept. A download that was stopped goes on from NAME.part.

    Raises:
      UserError: it cannot be had, or is not what it must be.
    """
    mirror = os.environ.get("RPR_MIRROR", "")
    if mirror and "://" not in mirror:
        path = os.path.join(os.path.expanduser(mirror), remote.name)
        if not os.path.isfile(path):
            raise UserError(f"RPR_MIRROR={mirror}: there is no {remote.name} in it")
        _check(remote, path)
        return path
    url = f"{mirror.rstrip('/')}/{remote.name}" if mirror else remote.url
    path = os.path.join(tmp_dir, remote.name)
    os.makedirs(tmp_dir, exist_ok=True)
    with files.locked(path):
        if os.path.exists(path):
            _check(remote, path)
            return path
        part = path + ".part"
        _download(url, part, remote.size)
        try:
            _check(remote, part)
        except UserError as error:
            os.unlink(part)
            raise UserError(f"{url}: {error}; the download is removed: try again; if that does not "
                            "help, the file there has changed") from None
        os.replace(part, path)
    return path


def _check(remote, path):
    size = os.path.getsize(path)
    if remote.size is not None and size != remote.size:
        raise UserError(f"{path} has {size:,} bytes, {remote.size:,} are expected")
    algorithm, expected = remote.digest.split(":")
    with open(path, "rb") as content:
        found = hashlib.file_digest(content, algorithm).hexdigest()
    if found != expected:
        raise UserError(f"{path} is not the file that is expected ({algorithm} {found}, not "
                        f"{expected})")


def _download(url, part, size):
    """Brings `part` to its end, through cut connections."""
    failures = 0
    with console.Task(posixpath.basename(url), size and size // 10**6, "MB") as task:
        while failures < _ATTEMPTS:
            before = os.path.getsize(part) if os.path.exists(part) else 0
            try:
                if _continue(url, part, before, task):
                    return
                reason = "the connection was cut"
            except requests.RequestException as error:
                reason = _reason(error)
            now = os.path.getsize(part) if os.path.exists(part) else 0
            failures = 0 if now > before else failures + 1
            if failures < _ATTEMPTS:
                time.sleep(_WAIT_SECONDS * 2 ** failures)
    raise UserError(f"cannot download {url}: {reason}; what was received is kept, the same command "
                    "goes on from there. RPR_MIRROR may name a directory or a URL that has it")


def _continue(url, part, offset, task):
    """Asks for the rest of a file; True when it is complete."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    # Without compression on the way, or offsets would not be those of the file.
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
        received = offset if resumed else 0           # a server without ranges sends it all
        expected = response.headers.get("Content-Length")
        end = received + int(expected) if expected else None
        # Else urllib3 throws away what arrived of a chunk before the cut; we count ourselves.
        response.raw.enforce_content_length = False
        with open(part, "ab" if resumed else "wb") as out:
            for chunk in response.iter_content(_CHUNK):
                out.write(chunk)
                received += len(chunk)
                task.update(received // 10**6)
        return end is None or received == end


def _reason(error):
    """The last and plainest cause of what requests wrapped."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return str(error) or type(error).__name__


def extract(archive, members, folder):
    """Unpacks some files of a tar archive, all or none.

    Only the named members are written, under their last names and as plain files, so that no
    archive can write elsewhere; one that tries to is refused as a whole.

    Args:
      archive: path of a tar archive, compressed or not.
      members: names within it.
      folder: where to; made if need be.

    Returns:
      {member: path}.

    Raises:
      UserError: the archive is damaged, hostile, or lacks a member.
    """
    paths = {member: os.path.join(folder, posixpath.basename(member)) for member in members}
    os.makedirs(folder, exist_ok=True)
    with files.locked(os.path.join(folder, "extract")), contextlib.ExitStack() as stack:
        if all(map(os.path.exists, paths.values())):
            return paths
        for path in paths.values():
            stack.callback(_remove, path + ".part")
        found = set()
        try:
            # As a stream: to its very end, so that a cut archive is found out.
            with tarfile.open(archive, "r|*") as tar:
                for member in tar:
                    _refuse_escape(archive, member)
                    name = posixpath.normpath(member.name)
                    if name in paths and member.isreg():
                        _write(tar.extractfile(member), paths[name] + ".part")
                        found.add(name)
        # A TypeError is tarfile's answer to a gzip header that is cut off.
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, TypeError) as error:
            raise UserError(f"{archive}: the archive is damaged ({error}): remove it and try "
                            "again") from None
        missing = sorted(set(paths) - found)
        if missing:
            raise UserError(f"{archive}: it does not hold {', '.join(missing)}")
        for path in paths.values():
            os.replace(path + ".part", path)
    return paths


def _refuse_escape(archive, member):
    names = [member.name] + ([member.linkname] if member.islnk() or member.issym() else [])
    if member.isdev() or any(posixpath.isabs(name) or ".." in name.split("/") for name in names):
        raise UserError(f"{archive}: refused: its member {' -> '.join(names)} reaches outside of "
                        "the archive")


def _write(source, path):
    with open(path, "wb") as out:
        while chunk := source.read(_CHUNK):
            out.write(chunk)


def _remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
