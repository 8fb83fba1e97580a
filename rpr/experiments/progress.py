"""How far the runs of a study are: read from their directories, shown as a table or as lines."""
import os
import statistics
import time
from typing import Any, NamedTuple

from rich.live import Live
from rich.table import Table
from rich.text import Text

from rpr.evaluation import ALL_METRICS, LOSS_METRICS
from rpr.experiments.run_directory import last_stage
from rpr.experiments.run_directory import state as state_of
from rpr.experiments.sharing import training
from rpr.experiments.studies import StudyRun, Trainings, sources, trainings, unfinished
from rpr.utils import metrics_log
from rpr.utils.console import for_tables, printable, say, terminal
from rpr.utils.errors import UserError

_ORDER = ("running", "failed", "done", "waiting")     # in a table that does not show all runs


class Progress(NamedTuple):
    """How far one run is."""
    state: str                                        # waiting, running, done or failed
    stage: str = ""                                   # the last one that began
    step: int = 0                                     # of its training
    steps_per_second: float | None = None             # at the last record, as is the loss
    loss: float | None = None
    score: float | None = None                        # of the finished run, in its first metric
    # Of its finished stages and of the one that is running, without the earlier attempts of a stage
    # that was resumed.
    seconds: float = 0.0
    reason: str = ""                                  # why it failed
    is_trained: bool = False                          # to its last step


def of(study_run: StudyRun) -> Progress:
    """The progress of a run."""
    run_dir = study_run.run_dir
    try:
        state, status, scores = state_of(run_dir), run_dir.read_status(), run_dir.read_scores()
        train = metrics_log.last(run_dir.metrics).get("train", {}) if status else {}
    except UserError as error:                        # a damaged file
        return Progress("failed", reason=str(error))
    reasons = [entry.get("reason", "") for entry in status.values() if entry["state"] == "failed"]
    now = time.time()
    return Progress(
        state, last_stage(status), train.get("step", 0), train.get("steps_per_second"),
        train.get("loss"),
        scores.get(study_run.run.metric, {}).get("score") if "step" in scores else None,
        sum(entry.get("seconds", now - entry.get("started", now) if state == "running" else 0.0)
            for entry in status.values()),
        reasons[-1] if reasons and state not in ("done", "running") else "",
        status.get("train", {}).get("state") == "done")


def steps_to_train(runs: list[StudyRun], progress: dict[str, Progress], on_disk: Trainings
                   ) -> dict[str, int]:
    """{name of a run: the steps that it trains itself}; the rest is done, or another run's.

    `runs` are those that are not done, `on_disk` is what `studies.trainings` gives. Runs share
    trainings as `scheduler` lets them.
    """
    steps: dict[str, int] = {}
    planned = set()
    for study_run in sorted(runs, key=lambda study_run: -study_run.run.average_checkpoints):
        run, p = study_run.run, progress[study_run.name]
        key, own = (training(run), run.train_steps), 0
        if not p.is_trained:
            if study_run.run_dir.is_trained():        # to some step
                own = run.train_steps - p.step
            elif key not in planned:
                found = sources(study_run, on_disk)
                own = run.train_steps - (found[0][0].train_steps if found else 0)
        if own:
            planned.add(key)
        steps[study_run.name] = own
    return steps


def seconds_left(runs: list[StudyRun], progress: dict[str, Progress], max_parallel: int,
                 on_disk: Trainings) -> float | None:
    """An estimate of the seconds until all runs of a study have ended; None while none is done.

    It is the duration of whole runs, with decoding and scoring, scaled by training steps, without
    what is done and what other runs train. `on_disk` is what `studies.trainings` gives.
    """
    done = [(progress[study_run.name], study_run.run.train_steps) for study_run in runs
            if progress[study_run.name].state == "done"]
    per_step = [_seconds_spent(p) / steps for p, steps in done if p.seconds]
    if not per_step:
        return None
    whole = statistics.median(per_step)
    of_training = statistics.median([1 / p.steps_per_second for p, _ in done if p.steps_per_second]
                                    or [0.0])
    rest = [study_run for study_run in runs
            if progress[study_run.name].state in ("waiting", "running")]
    own, left = steps_to_train(rest, progress, on_disk), []
    for study_run in rest:
        p, steps = progress[study_run.name], study_run.run.train_steps
        of_others = steps - own[study_run.name] - p.step
        left.append(max(whole * steps - max(_seconds_spent(p), of_others * of_training), 0.0))
    return max(sum(left) / max(max_parallel, 1), max(left, default=0.0))


def _seconds_spent(p: Progress) -> float:
    """The duration of what a run has done, with the steps of earlier attempts."""
    return max(p.seconds, p.step / p.steps_per_second if p.steps_per_second else 0.0)


def table(runs: list[StudyRun], progress: dict[str, Progress], rows: int | None = None) -> Table:
    """The runs of a study as a table; a narrow terminal shortens their names, not the numbers.

    At most `rows` runs are shown (None: all), running and failed ones first.
    """
    if rows is not None and rows < len(runs):
        runs = sorted(runs, key=lambda study_run: _ORDER.index(progress[study_run.name].state)
                      )[:rows]
    shown = Table("run", box=None, pad_edge=False)
    shown.add_column("stage", no_wrap=True)
    metric = runs[0].run.metric
    for name in ("step", "steps/s", "loss", ALL_METRICS[metric].replace(" ", "\n", 1), "left"):
        shown.add_column(name, justify="right", no_wrap=True)
    decimals = 3 if metric in LOSS_METRICS else 1
    for study_run in runs:
        p = progress[study_run.name]
        shown.add_row(Text(printable(study_run.name), no_wrap=True, overflow="ellipsis"), _stage(p),
                      f"{p.step:,}/{study_run.run.train_steps:,}",
                      "" if p.steps_per_second is None else f"{p.steps_per_second:.2f}",
                      "" if p.loss is None else f"{p.loss:.3f}",
                      "" if p.score is None else f"{p.score:.{decimals}f}",
                      _training_left(p, study_run.run.train_steps))
    return shown


def _stage(p: Progress) -> Text:
    stage = printable(p.stage)
    return {"running": Text(stage or "begins"), "done": Text("done", style="green"),
            "waiting": Text("waiting", style="dim"),
            "failed": Text(f"{stage} failed".strip(), style="red")}[p.state]


def _training_left(p: Progress, steps: int) -> str:
    """The time to the end of a training that goes on, as text."""
    if p.state != "running" or p.stage != "train" or not p.steps_per_second:
        return ""
    minutes, seconds = divmod(int((steps - p.step) / p.steps_per_second), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def summary(runs: list[StudyRun], progress: dict[str, Progress], max_parallel: int,
            on_disk: Trainings) -> str:
    """One line: how many runs are done, and the time left; `on_disk`: see `seconds_left`."""
    states = [p.state for p in progress.values()]
    left = seconds_left(runs, progress, max_parallel, on_disk)
    return (f"{states.count('done')} of {len(runs)} runs done"
            + (f", {states.count('failed')} failed" if "failed" in states else "")
            + (f", about {left / 60:.0f} min left" if left else ""))


def plan(runs: list[StudyRun], max_parallel: int, measured: list[StudyRun], retry_failed: bool
         ) -> tuple[Table, str]:
    """What a study is going to do: a table of its arms, and a line about runs and hours.

    `measured` are runs of the same arms whose speed is known, such as those of a smoke test.
    """
    speeds: dict[str, float] = {}                     # {arm: seconds per step}
    for study_run in measured:
        p = of(study_run)
        if p.steps_per_second:
            speeds[study_run.arm] = 1 / p.steps_per_second
    progress = {study_run.name: of(study_run) for study_run in runs}
    for study_run in runs:                            # of whole runs: better
        p = progress[study_run.name]
        if p.state == "done" and p.seconds:
            speeds[study_run.arm] = _seconds_spent(p) / study_run.run.train_steps
    usual = statistics.median(speeds.values()) if speeds else None
    shown = Table("arm", "settings", box=None, pad_edge=False)
    for name in ("runs", "done", "to train", "hours"):
        shown.add_column(name, justify="right", no_wrap=True)
    steps = steps_to_train(unfinished(runs, retry_failed), progress, trainings(runs[0].study_dir))
    count, hours = sum(map(bool, steps.values())), []
    for arm in dict.fromkeys(study_run.arm for study_run in runs):
        of_arm = [study_run for study_run in runs if study_run.arm == arm]
        own = [left for study_run in of_arm if (left := steps.get(study_run.name))]
        per_step = speeds.get(arm, usual)
        needed = [per_step * left / 3600 for left in own] if per_step else []
        hours += needed
        changes = ", ".join(f"{name}={value}" for name, value in of_arm[0].changes.items())
        shown.add_row(Text(printable(arm)), Text(printable(changes)), str(len(of_arm)),
                      str(sum(progress[study_run.name].state == "done" for study_run in of_arm)),
                      str(len(own)),
                      f"{sum(needed):.1f}" if per_step else "")
    total = max(sum(hours) / max_parallel, max(hours, default=0.0))
    return shown, (f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, {count} "
                   f"{'training' if count == 1 else 'trainings'} to do, "
                   f"{max_parallel} at a time: "
                   + (f"about {total:.1f} hours" if speeds or not count else
                      "the hours are unknown until a run or a smoke test is done"))


class View:
    """Follows the runs of a study: as a table on a terminal, elsewhere as a line now and then."""

    TABLE_SECONDS = 2.0
    PLAIN_SECONDS = 30.0

    def __init__(self, runs: list[StudyRun], max_parallel: int, on_disk: Trainings) -> None:
        self._runs, self._max_parallel, self._on_disk = runs, max_parallel, on_disk
        self._progress: dict[str, Progress] = {}
        self._live = Live(console=terminal, auto_refresh=False) if terminal.is_terminal else None
        self._last = time.time()

    def __enter__(self) -> "View":
        if self._live:
            self._live.start()
            self._show()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._show()
            self._live.stop()

    def say(self, line: str) -> None:
        """Shows an event, with the time."""
        say(f"{time.strftime('%H:%M:%S')} {line}")

    def refresh(self) -> None:
        """Shows how far the runs are, unless that was done a moment ago."""
        if time.time() - self._last >= (self.TABLE_SECONDS if self._live else self.PLAIN_SECONDS):
            self._last = time.time()
            self._show()

    def _show(self) -> None:
        progress = self._progress
        for study_run in self._runs:
            known = progress.get(study_run.name)
            if not known or known.state != "done":    # a finished run stays so
                progress[study_run.name] = of(study_run)
        line = summary(self._runs, progress, self._max_parallel, self._on_disk)
        if self._live:
            # rich would cut off the lower rows, and the caption with them.
            shown = table(self._runs, progress, max(terminal.height - 4, 1))
            shown.caption, shown.caption_justify = line, "left"
            self._live.update(shown, refresh=True)
            return
        running = [f"{study_run.name} {p.stage} {p.step:,}/{study_run.run.train_steps:,}"
                   + (f" loss {p.loss:.3f}" if p.loss else "")
                   + (f" {p.steps_per_second:.2f} steps/s" if p.steps_per_second else "")
                   for study_run in self._runs for p in (progress[study_run.name],)
                   if p.state == "running"]
        self.say("; ".join([line, *running]))


def show(runs: list[StudyRun]) -> None:
    """Prints how far the runs are, once."""
    progress = {study_run.name: of(study_run) for study_run in runs}
    running = sum(p.state == "running" for p in progress.values())
    for_tables(terminal).print(table(runs, progress))
    try:
        on_disk = trainings(runs[0].study_dir)
    except UserError:                                 # a damaged file
        on_disk = {}
    say(summary(runs, progress, running, on_disk))
    for study_run in runs:
        if progress[study_run.name].reason:
            say(f"{os.path.relpath(study_run.run_dir.path)}: {progress[study_run.name].reason}")
