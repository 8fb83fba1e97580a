"""Runs the runs of a study side by side, on the devices of this machine or as jobs of a cluster.

Of the runs that share a training, one trains. The others wait for its end and take its checkpoints.
"""
import time
from typing import Any

from rpr.experiments import progress, sharing, studies
from rpr.experiments.local_pool import Pool
from rpr.experiments.slurm import Cluster
from rpr.experiments.studies import StudyRun

_PAUSE = 0.5                                          # seconds between two looks at the processes


def run_all(runs: list[StudyRun], workers: Pool | Cluster, max_parallel: int, flags: list[str],
            retry_failed: bool) -> list[StudyRun]:
    """Completes the runs of a study, with further `flags` of `rpr run`; returns those not done.

    `max_parallel` is for estimates of time.
    """
    queue = _Queue(runs, workers, flags, retry_failed)
    with progress.View(runs, max_parallel, queue.trainings) as view, workers:
        while queue.waiting or workers.running:
            for study_run, ending in workers.ended():
                state = study_run.state()
                if state == "running":                # another pool was faster
                    queue.waiting.append(study_run)
                else:
                    reason = progress.of(study_run).reason
                    view.say(f"{study_run.name}: " + (
                        "done" if state == "done" else f"failed: {reason}" if reason else
                        f"ended ({ending}); see {study_run.log}"))
            for study_run in queue.start_some():
                view.say(f"{study_run.name}: begins")
            view.refresh()
            time.sleep(_PAUSE)
    return [study_run for study_run in runs if study_run.state() != "done"]


class _Queue:
    """The runs that wait for a device, or for the training that they share."""

    def __init__(self, runs: list[StudyRun], workers: Pool | Cluster, flags: list[str],
                 retry_failed: bool) -> None:
        self.waiting = studies.unfinished(runs, retry_failed)
        self._workers, self._flags, self._retry_failed = workers, flags, retry_failed
        self.trainings = studies.trainings(runs[0].study_dir)
        # {run: those that may train what it would train, before it does}. The first keeps the most
        # checkpoints, so that every average can be made.
        self._before: dict[str, list[StudyRun]] = {}
        same: dict[Any, list[StudyRun]] = {}
        for study_run in sorted(runs, key=lambda study_run: -study_run.run.average_checkpoints):
            key = (sharing.training(study_run.run), study_run.run.train_steps)
            group = same.setdefault(key, [])
            self._before[study_run.name] = list(group)
            group.append(study_run)

    def start_some(self) -> list[StudyRun]:
        """Starts runs until no device is free; returns them."""
        started = []
        for study_run in list(self.waiting):
            state = study_run.state()
            if state == "done" or state == "failed" and not self._retry_failed:
                self.waiting.remove(study_run)        # another pool finished it
            elif state != "running":
                argv = self._command(study_run)
                if argv and not self._workers.start(study_run, argv, study_run.log,
                                                    study_run.run.worker_gpu):
                    break
                if argv:
                    self.waiting.remove(study_run)
                    started.append(study_run)
        return started

    def _command(self, study_run: StudyRun) -> list[str] | None:
        """The arguments of `rpr`; None while another run trains what this one needs."""
        run, run_dir = study_run.run, study_run.run_dir
        argv = ["run", run_dir.config, f"--run_dir={run_dir.path}",
                f"--data_dir={run_dir.data_dir}", *self._flags]
        if run.usr_dir:
            argv.append(f"--t2t_usr_dir={run.usr_dir}")
        if run_dir.is_trained():
            return argv
        sources = studies.sources(study_run, self.trainings)
        if not sources or sources[0][0].train_steps < run.train_steps:
            under_way = [*self.waiting, *(job[0] for job in self._workers.running)]
            if any(other in under_way or other.state() == "running"
                   for other in self._before[study_run.name]):
                return None
        return [*argv, *(f"--training_of={source.path}" for _, source in sources[:1])]
