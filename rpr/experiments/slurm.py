"""The runs of a study as jobs of Slurm, through submitit (the extra `slurm`).

Slurm schedules. A job is `rpr run`, which resumes from its last checkpoint, so a job that reaches
its time limit or is preempted is queued again unchanged.
"""
import ast
import contextlib
import os
from typing import Any

from rpr.utils.errors import InvalidValue
from rpr.utils.files import open_append, write_atomically
from rpr.utils.processes import spawn

_MOST_TIMEOUTS = 1000                                 # with a limit of an hour: enough for weeks


class RunJob:
    """What a job does: `rpr ARGV`, whose output is appended to a log; submitit pickles it."""

    def __init__(self, argv: list[str], log: str) -> None:
        self.argv, self.log = argv, log
        self._process: Any = None                     # not started yet

    def __call__(self) -> int:
        """Runs it; returns the exit code."""
        with open_append(self.log) as out:
            self._process = spawn(self.argv, stdout=out, stderr=out)
        return self._process.wait()

    def checkpoint(self) -> Any:
        """Called before Slurm takes the node away: stops the run and returns the job to queue."""
        from submitit.helpers import DelayedSubmission
        if self._process:
            self._process.terminate()                 # its stage dies with it
            os.waitpid(self._process.pid, 0)          # this interrupts Popen.wait, which locks
        return DelayedSubmission(RunJob(self.argv, self.log))


class Cluster(contextlib.AbstractContextManager):
    """Queues `rpr` processes; used like a `local_pool.Pool`. Leaving its context leaves the jobs.

    `name` is "slurm", or "local": submitit's stand-in for it on one machine. `folder` is for
    submitit's files. `options` are NAME=VALUE, as AutoExecutor.update_parameters takes them.
    """

    def __init__(self, name: str, folder: str, options: list[str]) -> None:
        try:
            import submitit
        except ModuleNotFoundError:
            raise InvalidValue("cluster", name, "needs submitit: pip install -e '.[slurm]'"
                               ) from None
        self._folder = folder
        new = [path for path in (folder, os.path.dirname(folder)) if not os.path.exists(path)]
        try:
            self._options = dict(map(_parse_option, options))
            self._executor = submitit.AutoExecutor(
                folder, cluster=name, **{f"{name}_max_num_timeout": _MOST_TIMEOUTS})
            self._executor.update_parameters(**self._options)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            for path in new:                          # submitit has created it
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InvalidValue("submitit_option", " ".join(options), f"{name}: {line}") from None
        self.running: list[tuple[Any, Any]] = []      # (key, job)

    def __exit__(self, *_: Any) -> None:
        self.running = []

    def start(self, key: Any, argv: list[str], log: str, gpus: int) -> bool:
        """Queues `rpr ARGV`, unless an earlier command did, and follows it. Always True."""
        note = os.path.join(self._folder, f"{os.path.basename(os.path.dirname(log))}.job")
        job = self._queued(note)
        if job is None:
            self._executor.update_parameters(**{
                "name": os.path.basename(note)[:-4], "gpus_per_node": gpus, **self._options})
            job = self._executor.submit(RunJob(argv, log))
            write_atomically(note, job.job_id)
        self.running.append((key, job))
        return True

    def _queued(self, note: str) -> Any:
        """The job that a note names, if it is waiting or running."""
        if not os.path.exists(note):
            return None
        with open(note, encoding="utf-8") as text:
            job = self._executor._executor.job_class(self._folder, text.read())
        return None if job.done(force_check=True) else job

    def ended(self) -> list[tuple[Any, str]]:
        """[(key, its job, in words)] of the jobs that ended since the last call."""
        over = [(key, job) for key, job in self.running if job.done()]
        self.running = [entry for entry in self.running if entry not in over]
        return [(key, f"job {job.job_id}") for key, job in over]


def _parse_option(text: str) -> tuple[str, Any]:
    name, is_option, value = text.partition("=")
    if not is_option:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
