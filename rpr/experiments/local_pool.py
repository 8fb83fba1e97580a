"""Processes on the devices of one machine; each has devices of its own.

A process gets GPUs (CUDA_VISIBLE_DEVICES) or, on a machine without any, one core: TensorFlow starts
as many threads as its process may use cores, and a small model gains nothing from a second one.
Devices are leased, so that several studies share them. Cores whose leases others hold are used if
no other is free.
"""
import contextlib
import os
import pwd
import signal
import socket
import struct
import subprocess
from collections.abc import Hashable, Iterable
from typing import Any, BinaryIO, NamedTuple

from rpr.experiments.config import Run
from rpr.utils.console import say
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.files import open_append
from rpr.utils.processes import reason_of, spawn_asking, visible_gpus

PREFIX = "\0rpr-"


class Machine(NamedTuple):
    """The devices that may be used."""
    kind: str                                         # "GPU" or "core"
    names: list[Any]                                  # as in CUDA_VISIBLE_DEVICES, or core numbers
    limit: int                                        # the most that are used at the same time

    def max_parallel(self, runs: list[Run]) -> int:
        """How many of these runs can run at the same time."""
        gpus = max(run.worker_gpu for run in runs) if self.kind == "GPU" else 1
        return min(len(runs), self.limit // gpus)

    def check(self, runs: Iterable[Run]) -> None:
        """Refuses runs that ask for more GPUs than there are."""
        most = self.limit if self.kind == "GPU" else 1
        for run in runs:
            if run.worker_gpu > most:
                raise UserError(f"run.worker_gpu = {run.worker_gpu}: at most {most} here; this "
                                f"machine's devices are {self.kind}s")


def this_machine(devices: int | None = None, cores: int | None = None) -> Machine:
    """The machine's GPUs, of which at most `devices` are used; its cores if it has no GPU.

    If `cores`, the most of them that are used, is given, no GPU is used.
    """
    names: list[Any] = visible_gpus()
    kind, flag, limit = "GPU", "devices", devices
    if cores is not None or not names and devices is None:
        kind, flag, limit, names = "core", "cores", cores, sorted(os.sched_getaffinity(0))
    if limit is not None and not 1 <= limit <= len(names):
        raise InvalidValue(flag, limit, f"there are {len(names)}")
    return Machine(kind, names, limit or len(names))


class _Running(NamedTuple):
    key: Hashable
    process: subprocess.Popen
    reason: BinaryIO                                  # for `processes.reason_of`
    names: list[Any]
    leases: list[socket.socket]


class Pool(contextlib.AbstractContextManager):
    """Starts `rpr` processes on a machine's devices. Leaving its context ends them."""

    STOP_SECONDS = 15.0

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._told = False
        self.running: list[_Running] = []

    def __exit__(self, *_: Any) -> None:
        for job in self.running:                      # as Ctrl-C does: its stage ends first
            job.process.send_signal(signal.SIGINT)
        for job in self.running:
            try:
                job.process.wait(self.STOP_SECONDS)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
            job.reason.close()
            _close(job.leases)
        self.running = []

    def start(self, key: Any, argv: list[str], log: str, gpus: int) -> bool:
        """Starts `rpr ARGV`; False if too few devices are free.

        `ended` names it by `key`. Its output is appended to the file `log`. On a machine without
        GPUs it gets one core, whatever `gpus` says.
        """
        leased = self._lease(gpus)
        if leased is None:
            return False
        names, leases = leased
        on_gpus = self._machine.kind == "GPU"
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(names) if on_gpus else ""}

        def before() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)      # a shell's `&` ignores it
            if not on_gpus:
                os.sched_setaffinity(0, names)

        with open_append(log) as out:
            process, reason = spawn_asking(
                argv, stdout=out, stderr=out, env=environment, process_group=0, before=before,
                pass_fds=[lease.fileno() for lease in leases])
        self.running.append(_Running(key, process, reason, names, leases))
        return True

    def ended(self) -> list[tuple[Any, str]]:
        """[(key, how it ended, in words)] of the processes that ended since the last call."""
        over = [job for job in self.running if job.process.poll() is not None]
        self.running = [job for job in self.running if job not in over]
        for job in over:
            _close(job.leases)
        return [(job.key, reason_of(job.reason) or f"exit code {job.process.returncode}")
                for job in over]

    def _lease(self, gpus: int) -> tuple[list[Any], list[socket.socket]] | None:
        """Names and leases of free devices, or None if there are too few.

        Says once who holds the GPUs that a pool without processes waits for.
        """
        kind, names, limit = self._machine
        taken = {name for job in self.running for name in job.names}
        free = [name for name in names if name not in taken]
        count = gpus if kind == "GPU" else 1
        if len(taken) + count > limit:
            return None
        leases: dict[Any, socket.socket] = {}
        for name in free:
            held = lease(kind, name) if len(leases) < count else None
            if held:
                leases[name] = held
        if len(leases) == count:
            return list(leases), list(leases.values())
        _close(list(leases.values()))
        if kind == "core":                            # two processes share it, slowly
            return free[:1], []
        if not (self._told or self.running):
            self._told = True
            holders = dict.fromkeys(filter(None, (lease_holder(kind, name) for name in free)))
            say(f"waiting for GPUs, held by {', '.join(holders) or 'other processes'}")
        return None


def _close(leases: list[socket.socket]) -> None:
    for lease in leases:
        lease.close()


def lease(kind: str, name: Any) -> socket.socket | None:
    """The lease of a device, held until it is closed; None if another process has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(_address(kind, name))
    except OSError:
        held.close()
        return None
    held.listen(128)                                  # lets others ask for our credentials
    return held


def _address(kind: str, name: Any) -> str:
    return f"{PREFIX}{kind.lower()}-{name}"


def lease_holder(kind: str, name: Any) -> str:
    """Who holds the lease of a device: "process 12 of USER", or "" if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking, contextlib.suppress(OSError):
        asking.setblocking(False)
        asking.connect(_address(kind, name))
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        with contextlib.suppress(KeyError):
            return f"process {pid} of {pwd.getpwuid(uid).pw_name}"
        return f"process {pid} of user {uid}"
    return ""
