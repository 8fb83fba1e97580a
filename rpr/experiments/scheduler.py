"""Runs the runs of a study side by side, on the devices of this machine or as jobs of a cluster."""
import time
from typing import Any, Protocol

from rpr.experiments import progress
from rpr.experiments.studies import StudyRun, unfinished

_PAUSE = 0.5                                          # seconds between two looks at the processes


class Workers(Protocol):
    """Where processes run: `local_pool.Pool` or `slurm.Cluster`."""
    running: list[Any]

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def start(self, key: Any, argv: list[str], log: str, gpus: int) -> bool:
        """Starts `rpr ARGV`; False if no device is free."""

    def ended(self) -> list[tuple[Any, int | None]]:
        """[(key, exit code)] of the processes that ended since the last call."""


def run_all(runs: list[StudyRun], workers: Workers, max_parallel: int, flags: list[str],
            retry_failed: bool) -> list[StudyRun]:
    """Completes the runs of a study; returns those that are not done.

    Args:
      runs, workers: the runs, and where they run.
      max_parallel: how many run at the same time.
      flags: further flags of `rpr run`.
      retry_failed: whether failed runs are tried again.
    """
    waiting = unfinished(runs, retry_failed)
    with progress.View(runs, max_parallel) as view, workers:
        while waiting or workers.running:
            for study_run, code in workers.ended():
                state = study_run.state()
                if state == "running":                # another pool was faster
                    waiting.append(study_run)
                else:
                    reason = progress.of(study_run).reason
                    ending = (f"failed: {reason}" if reason else
                              f"ended with exit code {code}; see {study_run.log}")
                    view.say(f"{study_run.name}: {'done' if state == 'done' else ending}")
            _start_some(waiting, workers, view, flags, retry_failed)
            view.refresh()
            time.sleep(_PAUSE)
    return [study_run for study_run in runs if study_run.state() != "done"]


def _start_some(waiting: list[StudyRun], workers: Workers, view: progress.View, flags: list[str],
                retry_failed: bool) -> None:
    """Starts runs until no device is free; removes them from `waiting`."""
    for study_run in list(waiting):
        state = study_run.state()
        if state == "running":                        # by another pool
            continue
        run, run_dir = study_run.run, study_run.run_dir
        argv = ["run", run_dir.config, f"--run_dir={run_dir.path}",
                f"--data_dir={run_dir.data_dir}", *flags]
        if run.usr_dir:
            argv.append(f"--t2t_usr_dir={run.usr_dir}")
        if state == "done" or state == "failed" and not retry_failed:
            waiting.remove(study_run)                 # another pool finished it
        elif workers.start(study_run, argv, study_run.log, run.worker_gpu):
            waiting.remove(study_run)
            view.say(f"{study_run.name}: begins")
        else:
            break


