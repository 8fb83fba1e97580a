"""Processes that do not outlive the one that started them."""
import ctypes
import signal


def die_with_parent():
    """For a new process: it is killed when its parent dies, even by kill -9."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
