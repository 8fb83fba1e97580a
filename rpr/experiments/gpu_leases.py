"""Leases of GPUs, so that the studies of all users of a machine share its GPUs.

A lease is a name in Linux's abstract socket namespace. It needs no file, so no permission, owner or
link can be wrong; the kernel frees it with the last process that holds it, and tells who holds it.
"""
import contextlib
import pwd
import socket
import struct

PREFIX = "\0rpr-gpu-"


def lease(gpu: str) -> socket.socket | None:
    """Leases a GPU.

    Args:
      gpu: as CUDA_VISIBLE_DEVICES names it.

    Returns:
      The lease, held until it is closed (child processes may inherit it), or None if another
      process holds it.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(_name(gpu))
    except OSError:
        held.close()
        return None
    held.listen(128)                                  # lets others ask for our credentials
    return held


def holder(gpu: str) -> str:
    """Who holds the lease of a GPU: "process 12 of USER", or "" if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, contextlib.suppress(OSError):
        asking.setblocking(False)
        asking.connect(_name(gpu))
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        with contextlib.suppress(KeyError):
            return f"process {pid} of {pwd.getpwuid(uid).pw_name}"
        return f"process {pid} of user {uid}"
    return ""


def _name(gpu: str) -> str:
    return f"{PREFIX}{gpu}"
