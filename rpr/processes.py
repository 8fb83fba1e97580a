"""Processes that do not outlive the one that started them."""
import ctypes
import functools
import os
import signal


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
