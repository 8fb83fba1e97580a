"""The terminal: messages, progress, and where the logs of TensorFlow and T2T go.

TensorFlow and T2T write hundreds of lines to the error stream, from Python and from C++. Its file
descriptor is redirected to a log file; our own messages go to the terminal.
"""
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from rpr.utils.files import named_errors, open_append

terminal = Console(stderr=True, markup=False, highlight=False, emoji=False)

_PIPE_WIDTH = 200                                     # of tables that no terminal shows

# C0 and C1 control codes, DEL, line separators, and marks that reorder text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, lines: bool = False) -> str:
    """Replaces control codes, which could command a terminal; `lines` keeps line feeds and tabs."""
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub("\N{REPLACEMENT CHARACTER}", str(text))


def say(text: str, style: str | None = None) -> None:
    """Prints lines on the error stream, without markup or control codes, in a style of rich."""
    terminal.print(printable(text, lines=True), style=style, soft_wrap=True, markup=False,
                   highlight=False, emoji=False)


def for_tables(console: Console) -> Console:
    """The console, wide enough for tables in a file or pipe, which gets every column unwrapped."""
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def write_traceback(error: BaseException) -> str:
    """Writes a traceback to the kept log of this process, else to a new file; returns its path."""
    path = QuietLogs.kept_path or _new_log()
    with open_append(path) as log:
        log.write("".join(traceback.format_exception(error)).encode(errors="replace"))
    return path


def _new_log() -> str:
    descriptor, path = tempfile.mkstemp(prefix="rpr-", suffix=".log")
    os.close(descriptor)
    return path


def keep_log(path: str) -> None:
    """Keeps the log of this process at `path`; nothing with --verbose, when there is none."""
    if QuietLogs.current:
        QuietLogs.current.keep(path)


class QuietLogs:
    """Sends the error stream to a log file; `terminal` keeps writing to the original stream.

    The log begins as a temporary file, because no directory may be created before the input has
    been checked. It has no name, so that a kill leaves nothing behind. `keep(path)` moves it.
    """

    current: "QuietLogs | None" = None                # that of this process
    kept_path: str | None = None                      # the log of this process that stays

    def __init__(self) -> None:
        QuietLogs.current = self
        self._out = os.dup(2)
        self._begun = tempfile.TemporaryFile()
        os.dup2(self._begun.fileno(), 2)
        terminal.file = os.fdopen(self._out, "w", buffering=1, closefd=False,
                                  errors="backslashreplace")

    def keep(self, path: str) -> None:
        """Appends the log so far to `path` and continues it there."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        sys.stderr.flush()
        with named_errors(path), open_append(path) as log:
            self._begun.seek(0)
            shutil.copyfileobj(self._begun, log)
            log.flush()
            os.dup2(log.fileno(), 2)
        self._begun.close()
        QuietLogs.kept_path = path

    def end(self, keep: bool = False) -> None:
        """Restores the error stream; `keep` gives a log without a path one."""
        if keep and not self._begun.closed:
            self.keep(_new_log())
        sys.stderr.flush()
        os.dup2(self._out, 2)
        self._begun.close()
        QuietLogs.current = None


class Task:
    """Progress of one task: a bar on a terminal, else a line every 30 seconds.

    It begins with the count `begun` and ends with `total` (None: unknown).
    """

    PLAIN_SECONDS = 30.0

    def __init__(self, name: str, total: int | None, unit: str, begun: int = 0) -> None:
        self._name, self._total, self._unit = printable(name), total, unit
        self._bar: Progress | None = None
        self._last_plain = time.time()
        if terminal.is_terminal:
            count = "{task.completed:,.0f}" + ("/{task.total:,.0f}" if total else "") + f" {unit}"
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(),
                TextColumn(count, markup=False), TextColumn("{task.fields[note]}", markup=False),
                TimeRemainingColumn(), TextColumn("left"), console=terminal)
            self._id = self._bar.add_task(self._name, total=total, completed=begun, note="")

    def __enter__(self) -> "Task":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, count: int, note: str = "", seconds_left: float | None = None) -> None:
        """Shows the count; `seconds_left` is for the lines, the bar estimates its own."""
        if self._bar:
            self._bar.update(self._id, completed=count, note=note)
        elif time.time() - self._last_plain >= self.PLAIN_SECONDS:
            self._last_plain = time.time()
            total = f"/{self._total:,}" if self._total else ""
            left = f", {seconds_left / 60:.1f} min left" if seconds_left is not None else ""
            say(f"{self._name}: {count:,}{total} {self._unit} {note}".rstrip() + left)
