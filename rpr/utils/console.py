"""What a person sees: a quiet terminal, progress, and where the logs went.

TensorFlow and T2T write hundreds of lines to the error stream, from Python and from C++. They go to
a log file, at the level of the file descriptor; what this project has to say goes to the terminal
itself.
"""
import os
import shutil
import sys
import tempfile
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

terminal = Console(stderr=True)


class QuietLogs:
    """Sends the error stream to a log file and `terminal` to where it went before.

    The log begins in a temporary file, since the directory that it belongs to is not known, and
    must not be made, before the input has been checked; `keep(path)` then moves it there.
    """

    def __init__(self):
        self._out = os.dup(2)
        descriptor, self.path = tempfile.mkstemp(prefix="rpr-", suffix=".log")
        os.dup2(descriptor, 2)
        os.close(descriptor)
        terminal.file = os.fdopen(self._out, "w", buffering=1, closefd=False)
        self._kept = False

    def keep(self, path):
        """Goes on writing the log at the end of `path`, with what it holds by now."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        sys.stderr.flush()
        with open(self.path, "rb") as begun, open(path, "ab") as log:
            shutil.copyfileobj(begun, log)
            log.flush()
            os.dup2(log.fileno(), 2)
        os.unlink(self.path)
        self.path, self._kept = path, True

    def end(self, keep=False):
        """Gives the error stream back; a log that found no place is removed, or kept."""
        sys.stderr.flush()
        os.dup2(self._out, 2)
        if not (self._kept or keep):
            os.unlink(self.path)


class Task:
    """A progress line: a bar on a terminal, a plain line now and then in a log or a pipe.

    Args:
      name: what is being done.
      total: the count at which it is done; None where that is not known.
      unit: what is counted.
      begun: how many were done before, at no time of ours.
    """

    PLAIN_SECONDS = 30.0

    def __init__(self, name, total, unit, begun=0):
        self._name, self._total, self._unit = name, total, unit
        self._bar = None
        self._last_plain = time.time()
        if terminal.is_terminal:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
                TextColumn("{task.completed:,.0f}" + ("/{task.total:,.0f}" if total else "")
                           + f" {unit}"),
                TextColumn("{task.fields[note]}"), TimeRemainingColumn(), TextColumn("left"),
                console=terminal)
            self._id = self._bar.add_task(name, total=total, completed=begun, note="")

    def __enter__(self):
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._bar:
            self._bar.stop()

    def update(self, count, note="", seconds_left=None):
        """Shows that `count` are done; `seconds_left` only serves the plain form."""
        if self._bar:
            self._bar.update(self._id, completed=count, note=note)
        elif time.time() - self._last_plain >= self.PLAIN_SECONDS:
            self._last_plain = time.time()
            total = f"/{self._total:,}" if self._total else ""
            left = f", {seconds_left / 60:.1f} min left" if seconds_left is not None else ""
            terminal.print(f"{self._name}: {count:,}{total} {self._unit} {note}{left}",
                           highlight=False, soft_wrap=True)
