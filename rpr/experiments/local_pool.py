"""Processes on the devices of one machine, each with a lease on its own.

A process gets GPUs (CUDA_VISIBLE_DEVICES) or, without any, one core: TensorFlow starts as many
threads as its process may use cores, and a small model gains nothing from a second one. A GPU's
lease is a file lock, so that two pools on one machine share its GPUs; the kernel ends it with the
last process that holds it.
"""
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

from rpr.utils.errors import UserError
from rpr.utils.processes import with_parent


class Machine(NamedTuple):
    """Attributes:
      kind: "GPU" or "core".
      names: what may be used: GPUs as CUDA_VISIBLE_DEVICES names them, or numbers of cores.
    """
    kind: str
    names: list

    def max_parallel(self, runs):
        """How many of these runs go on at the same time."""
        gpus = max(run.worker_gpu for run in runs) if self.kind == "GPU" else 1
        return min(len(runs), len(self.names) // gpus)

    def check(self, runs):
        """Refuses runs that ask for more GPUs than there are."""
        for run in runs:
            if self.kind == "GPU" and run.worker_gpu > len(self.names):
                raise UserError(f"run.worker_gpu = {run.worker_gpu}: {len(self.names)} GPUs may be "
                                "used here")


def this_machine(devices=None, cores=None):
    """The machine's GPUs, or its cores where it has none.

    Args:
      devices: GPUs to use at most.
      cores: cores to use at most; not together with GPUs.
    """
    kind, names, flag, limit = "GPU", _gpus(), "devices", devices
    if cores is not None or not names and devices is None:
        kind, names = "core", sorted(os.sched_getaffinity(0))
        flag, limit = "cores", cores
    if limit is not None and not 1 <= limit <= len(names):
        raise UserError(f"--{flag}={limit}: there are {len(names)}")
    return Machine(kind, names[:limit])


def _gpus():
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, else all that the driver lists."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False)
    return listed.stdout.split() if not listed.returncode else []


class _Running(NamedTuple):
    key: object
    process: subprocess.Popen
    names: list
    locks: list


class Pool:
    """Starts `rpr` processes on a machine's devices. Leaving it ends them.

    Args:
      machine: a `Machine`.
    """

    STOP_SECONDS = 15.0

    def __init__(self, machine):
        self._machine = machine
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.running:                      # Ctrl-C: the run ends its stage, then itself
            job.process.send_signal(signal.SIGINT)
        for job in self.running:
            try:
                job.process.wait(self.STOP_SECONDS)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
        self.running = []

    def start(self, key, argv, log, gpus):
        """Starts `rpr ARGV`.

        Args:
          key: what `ended` calls it.
          argv: arguments.
          log: the file that its output is added to.
          gpus: how many it needs; a process without a GPU gets one core.

        Returns:
          False where too few devices are free.
        """
        leased = self._lease(gpus)
        if leased is None:
            return False
        names, locks = leased
        environment = dict(os.environ)
        if self._machine.kind == "GPU":
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(names)

        end_with_us = with_parent()

        def prepare():
            end_with_us()
            signal.signal(signal.SIGINT, signal.SIG_DFL)      # ignored below a shell's `&`
            if self._machine.kind == "core":
                os.sched_setaffinity(0, names)

        with open(log, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rpr.cli", *argv], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, env=environment, process_group=0, preexec_fn=prepare,
                pass_fds=[lock.fileno() for lock in locks])
        self.running.append(_Running(key, process, names, locks))
        return True

    def ended(self):
        """[(key, exit code)] of the processes that ended since the last call."""
        over = [job for job in self.running if job.process.poll() is not None]
        self.running = [job for job in self.running if job not in over]
        for job in over:
            for lock in job.locks:
                lock.close()
        return [(job.key, job.process.returncode) for job in over]

    def _lease(self, gpus):
        """Names and locks of free devices, or None."""
        taken = {name for job in self.running for name in job.names}
        free = [name for name in self._machine.names if name not in taken]
        if self._machine.kind == "core":
            return (free[:1], []) if free else None
        folder = os.path.join(tempfile.gettempdir(), f"rpr-gpus-{os.getuid()}")
        os.makedirs(folder, exist_ok=True)
        names, locks = [], []
        for name in free:
            if len(names) == gpus:
                break
            lock = open(os.path.join(folder, name), "w", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            names.append(name)
            locks.append(lock)
        if len(names) < gpus:
            for lock in locks:
                lock.close()
            return None
        return names, locks
