"""Runs `rpr` commands and scripts in forks of one process that has imported TensorFlow and T2T.

A command then starts in a twentieth of a second of processor time instead of four seconds. A fork
differs from a new process in what happened before: the imports, and the environment variables that
Python and TensorFlow read while they are imported.
"""
import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command ended; `returncode` is None if it was killed because it took too long."""
    returncode: int | None
    stdout: str
    stderr: str


class CommandServer:
    """A process that runs commands for the tests of this one, one at a time. Both end together."""

    def __init__(self):
        self._process = subprocess.Popen([sys.executable, "-P", __file__], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, argv, *, script=None, cwd=None, env=None, stdin="", seconds=300.0):
        """Runs `rpr ARGV`, or a Python script with these arguments.

        Args:
          argv: strings.
          script: its path.
          cwd: directory to run in, else the current one.
          env: the whole environment, else that of this process.
          stdin: text of the standard input.
          seconds: after which the command is killed.
        """
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "in"), "w", encoding="utf-8") as text:
                text.write(stdin)
            self._process.stdin.write(json.dumps({
                "argv": argv, "script": script and str(script), "cwd": str(cwd or os.getcwd()),
                "env": dict(os.environ if env is None else env), "folder": folder,
                "seconds": seconds}) + "\n")
            self._process.stdin.flush()
            code = json.loads(self._process.stdout.readline())
            out, err = (open(os.path.join(folder, name), encoding="utf-8", errors="replace").read()
                        for name in ("out", "err"))
        return Ended(code, out, err)


def preload():
    """Imports what takes long, but no module that defines flags: commands define them."""
    from rpr.t2t import compat
    compat.install()
    import rpr
    rpr.register()
    from tensor2tensor.utils import decoding, trainer_lib  # noqa: F401

    from rpr.report import plots  # noqa: F401


def become(command):
    """In a fork: runs the command and ends."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(command["cwd"])
        os.environ.clear()
        os.environ.update(command["env"])
        for number, (name, flags) in enumerate((("in", os.O_RDONLY),
                                                ("out", os.O_WRONLY | os.O_CREAT),
                                                ("err", os.O_WRONLY | os.O_CREAT))):
            descriptor = os.open(os.path.join(command["folder"], name), flags, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        tempfile.tempdir = None                       # of this environment, not of the server's
        code = run(command["script"], command["argv"])
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)                           # the interpreter takes a second to end itself


def run(script, argv):
    """The exit code of a command, or of a script; the argument of `sys.exit` may be a message."""
    sys.argv = [script or "rpr", *argv]
    try:
        if script:
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")
            return 0
        from rpr import cli
        from rpr.utils import console
        console.terminal.file = sys.stderr
        return cli.main(argv)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def wait(child, seconds):
    """The exit code of a fork; None if it was killed."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def serve():
    """Answers each command, a line of JSON on the standard input, with a line: its exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)                                     # nothing else may write between the answers
    preload()
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if not child:
            become(command)
        answers.write(json.dumps(wait(child, command["seconds"])) + "\n")


if __name__ == "__main__":
    serve()
