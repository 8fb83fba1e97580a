"""The runs of a study as jobs of Slurm, through submitit (the extra `slurm`).

Slurm schedules; nothing here does. A job is `rpr run`, which goes on from its last checkpoint, so a
job that meets its time limit or is preempted is put into the queue again as it is.
"""
import ast
import os
import subprocess
import sys

from rpr.utils import processes
from rpr.utils.errors import UserError

_MOST_TIMEOUTS = 1000                                 # a limit of an hour may serve a week


class RunJob:
    """What a job does; submitit pickles it.

    Args:
      argv: arguments of `rpr`.
      log: the file that its output is added to.
    """

    def __init__(self, argv, log):
        self.argv, self.log = argv, log

    def __call__(self):
        """Returns the exit code."""
        with open(self.log, "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rpr.cli", *self.argv], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, preexec_fn=processes.with_parent())
        return self._process.wait()

    def checkpoint(self):
        """Before Slurm takes the node away: stops, and says what to queue again."""
        from submitit.helpers import DelayedSubmission
        self._process.terminate()                     # its stage dies with it
        os.waitpid(self._process.pid, 0)              # Popen's lock: this interrupted its wait
        return DelayedSubmission(RunJob(self.argv, self.log))


class Cluster:
    """Queues `rpr` processes; used as a `pool.Pool` is. Leaving it leaves the jobs alone.

    Args:
      name: "slurm"; or "local", submitit's stand-in for it on one machine.
      folder: for submitit's files.
      parameters: `NAME=VALUE` strings, as submitit's AutoExecutor.update_parameters takes them.
    """

    def __init__(self, name, folder, parameters):
        try:
            import submitit
        except ModuleNotFoundError:
            raise UserError(f"--cluster={name} needs submitit: pip install '.[slurm]'") from None
        self._folder = folder
        try:
            self._executor = submitit.AutoExecutor(
                folder, cluster=name, **{f"{name}_max_num_timeout": _MOST_TIMEOUTS})
            self._parameters = dict(map(_setting, parameters))
            self._executor.update_parameters(**self._parameters)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(f"--cluster={name} --submitit_option {parameters}: {line}") from None
        self.running = []                             # [(key, job)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.running = []

    def start(self, key, argv, log, gpus):
        """Queues `rpr ARGV`, unless an earlier command did, and follows it."""
        note = os.path.join(self._folder, f"{os.path.basename(os.path.dirname(log))}.job")
        job = self._queued(note)
        if job is None:
            self._executor.update_parameters(**{
                "name": os.path.basename(note)[:-4], "gpus_per_node": gpus, **self._parameters})
            job = self._executor.submit(RunJob(argv, log))
            with open(note, "w", encoding="utf-8") as out:
                out.write(job.job_id)
        self.running.append((key, job))
        return True

    def _queued(self, note):
        """The job that a note names, if it is waiting or running."""
        if not os.path.exists(note):
            return None
        with open(note, encoding="utf-8") as text:
            job = self._executor._executor.job_class(self._folder, text.read())
        return None if job.done(force_check=True) else job

    def ended(self):
        """[(key, None)] of the jobs that ended since the last call."""
        over = [(key, job) for key, job in self.running if job.done()]
        self.running = [entry for entry in self.running if entry not in over]
        return [(key, None) for key, _ in over]


def _setting(text):
    name, is_setting, value = text.partition("=")
    if not is_setting:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
