"""Processes and temporary directories that end with the process that made them."""
import atexit
import ctypes
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from rpr.utils.errors import LONGEST_REASON, REASON_PIPE

_PR_SET_PDEATHSIG = 1


def command(argv: Sequence[str], module: str = "rpr.cli.__main__") -> list[str]:
    """The command line of `rpr ARGV`, or of another module, which is safe in any directory.

    -P keeps Python from importing modules of the working directory. The module is given by its
    path because TensorFlow takes the word after -m for a directory, and loads libraries below it.
    """
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin, module
    return [sys.executable, "-P", os.path.abspath(spec.origin), *argv]


def spawn(argv: Sequence[str], *, module: str = "rpr.cli.__main__",
          before: Callable[[], None] | None = None, env: Mapping[str, str] | None = None,
          pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen:
    """Starts `rpr ARGV`, or another module, as a process that dies with this one, even by kill -9.

    `before` is called in the new process before it becomes Python. `options` are those of
    `subprocess.Popen`; by default, the standard input is empty.
    """
    parent, environment = os.getpid(), {**(os.environ if env is None else env)}
    if environment.get(REASON_PIPE) not in [str(number) for number in pass_fds]:
        environment.pop(REASON_PIPE, None)            # that of this process

    def prepare() -> None:
        die_with(parent)
        if before:
            before()

    return subprocess.Popen(command(argv, module), preexec_fn=prepare, env=environment,
                            pass_fds=pass_fds, **{"stdin": subprocess.DEVNULL, **options})


def spawn_asking(argv: Sequence[str], *, pass_fds: Sequence[int], env: dict[str, str],
                 **options: Any) -> tuple[subprocess.Popen, BinaryIO]:
    """Does what `spawn` does; the pipe that it returns too is for `reason_of`."""
    reader, pipe = os.pipe()
    try:
        return spawn(argv, pass_fds=(*pass_fds, pipe), env={**env, REASON_PIPE: str(pipe)},
                     **options), open(reader, "rb", buffering=0)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(pipe)


def reason_of(pipe: BinaryIO) -> str:
    """Why a process of `spawn_asking`, which has ended, failed; "" if it did not say so."""
    with pipe:
        os.set_blocking(pipe.fileno(), False)         # a process that it left may hold it
        return (pipe.read(4 * LONGEST_REASON) or b"").decode(errors="replace")


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies; ends it if the parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def temporary_directory(purpose: str) -> str:
    """A new directory that is removed when this process ends, unless by a kill."""
    path = tempfile.mkdtemp(prefix=f"rpr-{purpose}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def directory_to_write(path: str, purpose: str) -> str:
    """The directory, or a new temporary one if it cannot be written."""
    return path if os.access(path, os.W_OK) else temporary_directory(purpose)


def visible_gpus() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES up to a -1; if it is not set, all that the driver lists."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = map(str.strip, chosen.split(","))
        return list(filter(None, itertools.takewhile(lambda name: name != "-1", names)))
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False)
    return listed.stdout.split() if not listed.returncode else []
