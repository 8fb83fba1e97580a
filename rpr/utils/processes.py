"""Processes, and folders, that do not outlive the one that made them."""
import atexit
import ctypes
import functools
import os
import shutil
import signal
import tempfile


def temporary_directory(purpose):
    """The path of a new folder that goes when this process ends, unless that is killed."""
    path = tempfile.mkdtemp(prefix=f"rpr-{purpose}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def with_parent():
    """What a process that is started here calls first, to be killed when this one dies."""
    return functools.partial(die_with, os.getpid())


def die_with(parent):
    """For a new process: it is killed when its parent dies, even by kill -9, or has died already.

    Args:
      parent: the process id of the one that started it.
    """
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:                        # it died before that
        os._exit(1)
