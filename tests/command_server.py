"""Runs `rpr` commands and scripts in forks of one process that has imported TensorFlow and T2T.

A command then starts in a twentieth of a second of processor time instead of four seconds, and so
do the stages of `rpr run` and the runs of `rpr study`. A fork differs from a new process in what
happened before: the imports, and the environment variables that Python and TensorFlow read while
they are imported.
"""
import atexit
import contextlib
import ctypes
import functools
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

# Commands whose own processes have neither flags of T2T nor graphs, so that a fork is like new.
PARENTS = {"run", "study", "verify"}
POPEN = subprocess.Popen


class Ended(NamedTuple):
    """How a command ended; `returncode` is None if it was killed because it took too long."""
    returncode: int | None
    stdout: str
    stderr: str


class CommandServer:
    """A process that runs commands for the tests of this one. Both end together."""

    def __init__(self):
        self._process = subprocess.Popen([sys.executable, "-P", __file__], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         start_new_session=True, preexec_fn=functools.partial(
                                             signal.signal, signal.SIGINT, signal.SIG_DFL))

    def ask(self, **request):
        """The answer to a request, see `serve`."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, argv, *, script=None, cwd=None, env=None, stdin=""):
        """Starts `rpr ARGV`, or a Python script with these arguments; returns a `Command`.

        Args:
          argv: arguments.
          script: its path.
          cwd: directory to run in, else the current one.
          env: the whole environment, else that of this process.
          stdin: text of the standard input.
        """
        return Command(self, stdin, argv=list(map(str, argv)), script=script and str(script),
                       cwd=str(cwd or os.getcwd()), env=dict(os.environ if env is None else env))

    def run(self, argv, *, seconds=300.0, **options):
        """Does what `start` does and waits for the end, or kills the command after `seconds`."""
        command = self.start(argv, **options)
        if command.wait(seconds) is None:
            os.killpg(command.pid, signal.SIGKILL)
            self.ask(wait=command.pid, seconds=60)
        return Ended(command.returncode, command.read("out"), command.read("err"))

    def processes(self):
        """[(pid, pid of its parent, name)] of what runs, such as "rpr train", in no order."""
        command = ["ps", "-s", str(self._process.pid), "-o", "pid=,ppid=,stat=,comm="]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = (line.split(maxsplit=3) for line in listed.splitlines())
        return [(int(pid), int(parent), name) for pid, parent, state, name in rows
                if state[0] != "Z" and int(pid) != self._process.pid]


class Command:
    """A command that was started: `pid`, and `returncode`, None until `wait` has seen the end."""

    def __init__(self, server, stdin, **request):
        self._server, self.returncode = server, None
        self._folder = tempfile.TemporaryDirectory()
        with open(os.path.join(self._folder.name, "in"), "w", encoding="utf-8") as text:
            text.write(stdin)
        self.pid = server.ask(folder=self._folder.name, **request)

    def wait(self, seconds=300.0):
        """Waits for the end, so long at most; returns the exit code, None if it still runs."""
        if self.returncode is None:
            self.returncode = self._server.ask(wait=self.pid, seconds=seconds)
        return self.returncode

    def poll(self):
        """The exit code, None if it still runs."""
        return self.wait(0)

    def kill(self):
        """kill -9; returns the exit code."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def read(self, name):
        """What it wrote so far: "out" or "err"."""
        with open(os.path.join(self._folder.name, name), encoding="utf-8",
                  errors="replace") as text:
            return text.read()


class Fork(subprocess.Popen):
    """The process of an `rpr` command that another one starts: a fork instead of a new Python."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       startupinfo, creationflags, shell, *descriptors_and_more):
        if args[:2] != [sys.executable, "-P"]:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                                   startupinfo, creationflags, shell, *descriptors_and_more)
            return
        ours = p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = descriptors_and_more[:6]
        process_group = descriptors_and_more[-1]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            atexit._clear()                           # what this process does at its end
            become(args[2], args[3:], cwd, env, (p2cread, c2pwrite, errwrite), pass_fds,
                   process_group, preexec_fn)
        self._child_created = True
        self._close_pipe_fds(*ours)


def preload():
    """Imports what takes long, but no module that defines flags: commands define them."""
    from rpr.t2t import compat
    compat.install()
    import rpr
    rpr.register()
    from tensor2tensor.utils import decoding, trainer_lib  # noqa: F401

    from rpr.report import plots  # noqa: F401


def become(script, argv, cwd, env, streams, kept=(), process_group=0, before=None):
    """In a fork: runs a command, or a script, and ends.

    Args:
      script: its path, else `rpr` runs.
      argv: arguments.
      cwd, env: directory and whole environment, None: as they are.
      streams: descriptors of the standard input, output and error stream; -1: as it is.
      kept: the only other descriptors that stay open.
      process_group: of `os.setpgid`; -1: none.
      before: called before anything of the command.
    """
    code = 1
    try:
        if process_group >= 0:
            os.setpgid(0, process_group)
        for number, descriptor in enumerate(streams):
            if descriptor >= 0:
                os.dup2(descriptor, number)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in kept:
                with contextlib.suppress(OSError):        # that of the list itself
                    os.close(descriptor)
        os.chdir(cwd or ".")
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if before:
            before()
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)    # as Python begins
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        tempfile.tempdir = None                       # of this environment, not of the server's
        code = run(script, argv)
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
    from rpr import cli
    from rpr.utils import console
    try:
        if script and script != os.path.join(os.path.dirname(cli.__file__), "__main__.py"):
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")
            return 0
        console.terminal.file = sys.stderr
        subprocess.Popen = Fork if argv and argv[0] in PARENTS else POPEN
        pr_set_name = 15                              # what `ps` shows
        ctypes.CDLL(None).prctl(pr_set_name, " ".join(["rpr", *argv[:1]])[:15].encode())
        return cli.main(argv)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def begin(folder, argv, script, cwd, env):
    """Starts a command, whose streams are the files in, out and err of a folder; its pid."""
    streams = [os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT, 0o600)
               for name in ("in", "out", "err")]
    child = os.fork()
    if not child:
        become(script, argv, cwd, env, streams)
    for stream in streams:
        os.close(stream)
    return child


def wait(child, seconds):
    """The exit code of a fork; None if it runs longer than so many seconds."""
    deadline = time.time() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.time() >= deadline:
            return None
        time.sleep(0.005)


def serve():
    """Answers requests, lines of JSON on the standard input, with lines of JSON.

    `wait` and `seconds` are answered with the exit code; the arguments of `begin` with the pid.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)                                     # nothing else may write between the answers
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(
            wait(request["wait"], request["seconds"]) if "wait" in request else begin(**request)
        ) + "\n")


if __name__ == "__main__":
    serve()
