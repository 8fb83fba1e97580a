"""Checks new runs before anything is written, in a process of its own: TensorFlow stays there."""
import multiprocessing
import os
from collections.abc import Iterable
from concurrent import futures

from rpr.experiments import provenance
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory
from rpr.utils.console import QuietLogs
from rpr.utils.processes import with_parent


def check_new_runs(runs: Iterable[tuple[Run, RunDirectory]]) -> None:
    """Refuses new runs that name a model, problem, hparams set or hparam that does not exist.

    Args:
      runs: with their directories; a run whose directory has its configuration is not new.

    Raises:
      UserError: names what does not exist, or a text file that is missing.
    """
    new = [run for run, run_dir in runs if not os.path.exists(run_dir.config)]
    for run in new:
        provenance.text_files(run)
    if new:
        context = multiprocessing.get_context("spawn")
        with futures.ProcessPoolExecutor(1, context, with_parent()) as process:
            process.submit(_check, new).result()


def _check(runs: list[Run]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    logs = QuietLogs()
    try:
        from rpr.t2t import compat
        compat.install()                              # before anything imports T2T
        from rpr.t2t import preflight
    finally:
        logs.end()
    preflight.check_runs(runs)
