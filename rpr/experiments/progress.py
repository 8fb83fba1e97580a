"""How far the runs of a study are: read from their directories, shown on a terminal or as lines."""
import os
import statistics
import time
from typing import NamedTuple

from rich.live import Live
from rich.table import Table
from rich.text import Text

from rpr.utils import files, metrics_log
from rpr.utils.console import terminal


class Progress(NamedTuple):
    """How far one run is.

    Attributes:
      state: "waiting", "running", "done" or "failed".
      stage: the last one that began, or "".
      step: of its training.
      steps_per_second, loss: of the last record, or None.
      bleu: of the finished run, else T2T's approximation on the development set (of 0 to 1, here
        times 100) at the last evaluation, else None.
      seconds: what its stages took that ended.
      reason: why it failed, or "".
    """
    state: str
    stage: str
    step: int
    steps_per_second: float | None
    loss: float | None
    bleu: float | None
    seconds: float
    reason: str


def of(member):
    """The progress of a `StudyRun`."""
    run_dir, state = member.run_dir, member.state()
    status, scores = (files.read_json(path) for path in (run_dir.status, run_dir.scores))
    last = metrics_log.last(run_dir.metrics)
    train, bleu = last.get("train", {}), last.get("eval", {}).get("approx_bleu_score")
    reasons = [entry["reason"] for entry in status.values() if entry["state"] == "failed"]
    return Progress(
        state, next(reversed(status), ""), train.get("step", 0), train.get("steps_per_second"),
        train.get("loss"), scores["bleu"]["score"] if scores else bleu and 100 * bleu,
        sum(entry.get("seconds", 0.0) for entry in status.values()),
        "" if state in ("done", "running") else reasons[-1] if reasons else "")


def seconds_left(found, progress, max_parallel):
    """An estimate of the time until all runs have ended, or None before any has a speed.

    Args:
      found: `StudyRun`s.
      progress: {member's name: `Progress`}.
      max_parallel: how many runs go on at the same time.
    """
    speeds = [p.steps_per_second for p in progress.values() if p.steps_per_second]
    if not speeds:
        return None
    whole = [p.seconds for p in progress.values() if p.state == "done"]
    left = []
    for member in found:
        p = progress[member.name]
        if p.state in ("waiting", "running"):
            steps = member.run.train_steps
            speed = p.steps_per_second or statistics.median(speeds)
            begun = p.step / steps
            left.append(statistics.median(whole) * (1 - begun) if whole else (
                (steps - p.step) / speed))
    return max(sum(left) / max(max_parallel, 1), max(left, default=0.0))


def table(found, progress, rows=None):
    """The runs as a rich table; a narrow terminal cuts the hash off their names, not a number.

    Args:
      rows: how many runs to show at most: then those that run or failed come first. None: all.
    """
    if rows is not None and rows < len(found):
        order = ("running", "failed", "done", "waiting")
        found = sorted(found, key=lambda member: order.index(progress[member.name].state))[:rows]
    shown = Table(box=None, pad_edge=False)
    shown.add_column("run")
    shown.add_column("stage", no_wrap=True)
    for name in ("step", "steps/s", "loss", "BLEU", "left"):
        shown.add_column(name, justify="right", no_wrap=True)
    for member in found:
        p = progress[member.name]
        stage = {"running": p.stage or "begins", "done": "[green]done", "waiting": "[dim]waiting",
                 "failed": f"[red]{p.stage} failed"}[p.state]
        shown.add_row(Text(member.name, no_wrap=True, overflow="ellipsis"), stage,
                      f"{p.step:,}/{member.run.train_steps:,}",
                      *("" if value is None else f"{value:{form}}" for value, form in (
                          (p.steps_per_second, ".2f"), (p.loss, ".3f"))),
                      "" if p.bleu is None else f"{p.bleu:.1f}" if p.state == "done" else
                      f"[dim]~{p.bleu:.1f}", _left(p, member.run.train_steps))
    return shown


def _left(p, steps):
    """The time to the end of a training that goes on, as text."""
    if p.state != "running" or p.stage != "train" or not p.steps_per_second:
        return ""
    minutes, seconds = divmod(int((steps - p.step) / p.steps_per_second), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def summary(found, progress, max_parallel):
    """One line: how many runs are done, and the time left."""
    states = [p.state for p in progress.values()]
    left = seconds_left(found, progress, max_parallel)
    return (f"{states.count('done')} of {len(found)} runs done"
            + (f", {states.count('failed')} failed" if "failed" in states else "")
            + (f", about {left / 60:.0f} min left" if left else ""))


class View:
    """A table that follows the runs on a terminal; in a log or a pipe a line now and then.

    Args:
      found: `StudyRun`s.
      max_parallel: how many of them run at the same time.
    """

    TABLE_SECONDS = 2.0
    PLAIN_SECONDS = 30.0

    def __init__(self, found, max_parallel):
        self._found, self._max_parallel = found, max_parallel
        self._live = Live(console=terminal, auto_refresh=False) if terminal.is_terminal else None
        self._last = time.time()

    def __enter__(self):
        if self._live:
            self._live.start()
            self._show()
        return self

    def __exit__(self, *_):
        if self._live:
            self._show()
            self._live.stop()

    def say(self, line):
        """Shows what happened."""
        terminal.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, soft_wrap=True,
                       markup=False)

    def refresh(self):
        """Shows how far the runs are, if that was long ago."""
        if time.time() - self._last >= (self.TABLE_SECONDS if self._live else self.PLAIN_SECONDS):
            self._last = time.time()
            self._show()

    def _show(self):
        progress = {member.name: of(member) for member in self._found}
        line = summary(self._found, progress, self._max_parallel)
        if self._live:
            # rich would cut the lower rows off, and the caption with them.
            shown = table(self._found, progress, max(terminal.height - 3, 1))
            shown.caption, shown.caption_justify = line, "left"
            self._live.update(shown, refresh=True)
            return
        running = [f"{member.name} {p.stage} {p.step:,}/{member.run.train_steps:,}"
                   + (f" loss {p.loss:.3f} {p.steps_per_second:.2f} steps/s" if p.loss else "")
                   for member in self._found for p in (progress[member.name],)
                   if p.state == "running"]
        self.say("; ".join([line, *running]))


def show(found):
    """Prints how far the runs are, once."""
    progress = {member.name: of(member) for member in found}
    running = sum(p.state == "running" for p in progress.values())
    terminal.print(table(found, progress))
    terminal.print(summary(found, progress, running), highlight=False)
    for member in found:
        if progress[member.name].reason:
            terminal.print(f"{os.path.relpath(member.run_dir.path)}: {progress[member.name].reason}",
                           highlight=False, soft_wrap=True, markup=False)
