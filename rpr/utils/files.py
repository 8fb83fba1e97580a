"""rpr.utils.files"""
import contextlib
import fcntl
import hashlib
import json
import os


def read_json(path):
    """What a JSON file holds; an empty dict where there is none."""
    try:
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except FileNotFoundError:
        return {}


def write_atomically(path, text):
    """Writes a whole file or none of it."""
    with _named(path):
        try:
            with open(path + ".part", "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(path + ".part", path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path + ".part")
            raise


@contextlib.contextmanager
def _named(path):
    """A write to an open file fails without saying which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def sha256(path):
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path):
    """One process at a time; another waits. The kernel lets go of it, even after kill -9."""
    folder, name = os.path.split(path)
    with open(os.path.join(folder, f".{name.lstrip('.')}.lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
