"""One run: the stages datagen, train, average, decode and score, in a directory of its own.

Each stage is a process, since TensorFlow's graphs and GPU memory belong to a process. A stage that
was killed resumes from what it had saved; a finished one never runs again.
"""
import collections
import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rpr.evaluation import length_warnings
from rpr.experiments import gin_files, provenance, run_directory, sharing
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory, Stage, data_record, dev_texts
from rpr.utils import files, locks, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import STOPPED, UserError
from rpr.utils.processes import reason_of, spawn_asking

# Flags of a stage that do not change its result, or name files whose content is recorded.
_MUTABLE_FLAGS = ("--eval_frequency", "--keep_checkpoint_every_n_steps", "--t2t_usr_dir")
_STOP_SECONDS = 10.0
_LOG_LINES = 5                                        # of a stage that gave no reason


def complete_run(run: Run, run_dir: RunDirectory, skip_datagen: bool = False,
                 training_of: str | None = None) -> None:
    """Runs the stages of a run, or a part of one, that are not finished.

    Refuses a directory that holds another run or is in use, and a corpus that changed. With
    `skip_datagen` the data has been generated and checked already. `training_of` is the directory
    of a run whose training this one shares, unless it has begun.
    """
    source, there = RunDirectory(training_of or "", run_dir.data_dir), None
    if training_of and not run_dir.is_trained():
        there = sharing.check(run, run_dir, source)
        provenance.check_corpus(run, source)
    os.makedirs(run_dir.path, exist_ok=True)
    with locks.lock(run_dir.lock, wait=False) as lock:
        for directory in (run_dir.path, run_dir.file("dev")):
            files.remove_temporary_files(directory)
        shutil.rmtree(run_dir.file(sharing.NEW), ignore_errors=True)    # of a killed command
        if run_dir.is_trained() and not skip_datagen:
            provenance.check_corpus(run, run_dir)     # more steps remove the scores of the last one
        _check_config(run, run_dir)
        if there and not run_dir.is_trained():
            sharing.take(run, there, run_dir, source)
            if sharing.decode_alike(run, there):
                Pipeline(run, run_dir, lock).take_dev_scores(Pipeline(there, source, lock))
            sharing.begin(run_dir)
        if not skip_datagen:
            provenance.check_corpus(run, run_dir)
        if not run_dir.is_trained():                  # these describe the training that counts
            files.remove(run_dir.file("environment.json"), run_dir.file("code.json"))
        provenance.record_code(run, run_dir)
        if "step" not in run_dir.read_scores():
            provenance.record_environment(run_dir)
        Pipeline(run, run_dir, lock).complete(skip_datagen)


def run_command(argv: Sequence[str], environment: Mapping[str, str], *inherited: int,
                show: Callable[[str], None] | None = None) -> tuple[int, str]:
    """Runs `rpr ARGV` as a process. Ctrl-C ends it, and so does our own death, even by kill -9.

    `environment` has variables besides those of this process; `inherited` are file descriptors.
    `show` takes the lines of its output; None: they go where ours do. Returns its exit code,
    negative if a signal ended it, and why it failed.
    """
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                               "text": True, "errors": "replace"} if show else {}
    process, reason = spawn_asking(argv, pass_fds=inherited, process_group=0, stdin=None,
                                   env={**os.environ, **environment}, **options)
    try:
        if show:
            for line in process.stdout or ():
                show(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()
        reason.close()
        raise
    return -signal.SIGINT if code == STOPPED else code, reason_of(reason)


def _check_config(run: Run, run_dir: RunDirectory) -> None:
    """Refuses a directory that holds another run; one that was not trained becomes this run.

    A training goes on to more steps if its learning rate allows that.
    """
    if os.path.exists(run_dir.config):
        there = gin_files.load_run(run_dir.config)
        if run_dir.is_trained():
            sharing.refuse_another(run, there, run_dir.path)
            if run.train_steps > there.train_steps:
                problem = sharing.more_steps_obstacle(run_dir)
                if problem:
                    raise UserError(f"{run_dir.path} cannot go on from {there.train_steps} to "
                                    f"run.train_steps = {run.train_steps}: {problem}; take another "
                                    "directory")
                Pipeline(run, run_dir, 0).take_dev_scores(Pipeline(there, run_dir, 0))
                files.remove(run_dir.scores)          # of the old last step, as are the averages
                shutil.rmtree(run_dir.file("average"), ignore_errors=True)
        elif there.identity() != run.identity():
            texts = [path for kind in ("source", "reference", "documents")
                     for path in glob.glob(f"{glob.escape(run_dir.path)}/{kind}.*.txt")]
            files.remove(*texts, run_dir.data, run_dir.status, run_dir.metrics)
            for directory in (run_dir.model, run_dir.file("dev")):
                shutil.rmtree(directory, ignore_errors=True)
    update_config(run, run_dir)


def update_config(run: Run, run_dir: RunDirectory) -> None:
    """Writes the configuration; a finished run with new test sets or metrics is no longer done.

    It keeps its scores if other metrics would mean that it is trained or translated again.
    """
    if os.path.exists(run_dir.config):
        there = gin_files.load_run(run_dir.config)
        if there == run:
            return
        if run_directory.new_test_sets(run, run_dir) or (there.metrics != run.metrics
                                           and "average" in Pipeline(run, run_dir, 0).removable()):
            files.remove(run_dir.scores)
    files.write_atomically(run_dir.config, gin_files.as_gin(run))


class Pipeline:
    """The stages of a run whose directory is locked; they inherit the descriptor of the lock."""

    def __init__(self, run: Run, run_dir: RunDirectory, lock: int) -> None:
        self.run, self.run_dir, self._lock = run, run_dir, lock
        self.status = run_dir.read_status()
        self.stages = list(run_directory.stages(run, run_dir))
        self.hashes: dict[str, str] = {}              # of the input of each stage
        before = ""
        for stage in self.stages:
            if stage.name.split()[0] == "decode":     # not of the test sets before this one
                before = self.hashes.get("average") or self.hashes["train"]
            before = self.hashes[stage.name] = self._input_hash(stage, before)

    def complete(self, skip_datagen: bool) -> None:
        """Runs the stages that are not finished; see `complete_run`."""
        run, run_dir, removable = self.run, self.run_dir, self.removable()
        for stage in self.stages:
            if stage.name == "datagen" and skip_datagen and os.path.exists(stage.output):
                if not self.is_done(stage):
                    self._note(stage, {"state": "done", "started": time.time(), "attempts": 0,
                                       "seconds": 0.0})
            else:
                self._do(stage, stage.name in removable)
            if stage.name == "datagen":
                provenance.record_corpus(run, run_dir)
                copy_test_texts(run, run_dir)
                check_dev_texts(run, run_dir)
        self._score_checkpoints()
        self._complete_scores()

    def _input_hash(self, stage: Stage, before: str) -> str:
        """Identifies what a stage does, wherever the directories are, after the stage `before`."""
        argv = [arg for arg in stage.argv if arg.split("=")[0] not in _MUTABLE_FLAGS]
        for path, name in ((self.run_dir.path, "RUN"), (self.run_dir.data_dir, "DATA")):
            argv = [re.sub(rf"{re.escape(path)}(?=/|$)", name, arg) for arg in argv]
        return hashlib.sha256(json.dumps([before, argv]).encode()).hexdigest()[:16]

    def removable(self) -> set[str]:
        """The stages whose output may be gone, since no stage needs it any more.

        A run that is decoded may lose its checkpoints. One that is not, and was copied without
        them, is trained again.
        """
        is_done = {stage.name: self.is_done(stage) for stage in self.stages}
        if all(done for name, done in is_done.items() if name.split()[0] == "decode"):
            return {"train", "average"}
        return {"train"} if is_done.get("average") else set()

    def is_done(self, stage: Stage, is_removable: bool = False) -> bool:
        """Whether a stage has ended well, with this input, and its output is there."""
        entry = self.status.get(stage.name, {})
        return (entry.get("input") == self.hashes[stage.name] and entry.get("state") == "done"
                and (is_removable or os.path.exists(stage.output)))

    def _do(self, stage: Stage, is_removable: bool = False) -> None:
        """Runs a stage, unless it is done."""
        path = self.run_dir.path
        if self.is_done(stage, is_removable):
            gone = "" if os.path.exists(stage.output) else "; what it made has been removed since"
            say(f"{path}: {stage.name} is done{gone}", style="dim")
            return
        entry, began = self.status.get(stage.name, {}), time.time()
        is_same = entry.get("input") == self.hashes[stage.name]
        attempts = entry.get("attempts", 0) + 1 if is_same else 1
        entry = {"state": "running", "started": began, "attempts": attempts}
        self._note(stage, entry)
        say(f"{path}: {stage.name}" + (f" (attempt {attempts})" if attempts > 1 else ""), "bold")
        code, reason = run_command(stage.argv, self.run.environment(), self._lock)
        entry["seconds"] = round(time.time() - began, 1)
        if not code and os.path.exists(stage.output):
            self._note(stage, {**entry, "state": "done"})
            return
        ending = (f"was killed by {signal.Signals(-code).name}" if code < 0 else
                  f"failed with exit code {code}" if code else
                  f"ended without making {stage.output}")
        reason = reason or "\n".join([ending, *self._last_lines(began)])
        self._note(stage, {**entry, "state": "failed", "code": code, "reason": reason})
        raise UserError(f"{path}: stage {stage.name} {ending}")

    def _last_lines(self, since: float) -> list[str]:
        """The end of the log that a stage wrote after the time `since`."""
        logs = [log for directory in (self.run_dir.model, self.run_dir.file("average"),
                                      self.run_dir.data_dir)
                for log in glob.glob(os.path.join(glob.escape(directory), "*.log"))
                if os.path.getmtime(log) >= since]
        if not logs:
            return []
        with open(max(logs, key=os.path.getmtime), encoding="utf-8", errors="replace") as lines:
            return [line.rstrip()[:300] for line in collections.deque(lines, _LOG_LINES)]

    def _note(self, stage: Stage, entry: dict[str, Any]) -> None:
        self.status[stage.name] = {**entry, "input": self.hashes[stage.name]}
        files.write_json(self.run_dir.status, self.status)

    def _score_checkpoints(self) -> None:
        """Scores the development set with the checkpoints that were kept, and removes them."""
        gone, steps = [], self.run.bleu_steps()
        for step in steps:
            os.makedirs(self.run_dir.file("dev"), exist_ok=True)
            checkpoint = self.run_dir.kept_checkpoint(step)
            planned = self._dev_stages(step)
            if not (os.path.exists(checkpoint + ".index") or self.is_done(planned[0])):
                gone.append(step)
                continue
            for stage in planned:
                self._do(stage)
            files.remove(*glob.glob(glob.escape(checkpoint) + ".*"))
        with contextlib.suppress(OSError):            # what is not empty stays
            os.rmdir(os.path.dirname(self.run_dir.kept_checkpoint(0)))
        if gone:
            say(f"{self.run_dir.path}: no development BLEU at {len(gone)} of {len(steps)} steps: "
                "these checkpoints are gone (run.bleu_frequency was set after they were replaced, "
                "or another run trained)", style="yellow")

    def _dev_stages(self, step: int) -> list[Stage]:
        """Decoding and scoring of the development set; fills in the hashes of their input."""
        planned = run_directory.dev_stages(self.run, self.run_dir, step)
        before = self.hashes["train"]
        for stage in planned:
            before = self.hashes[stage.name] = self._input_hash(stage, before)
        return planned

    def take_dev_scores(self, other: "Pipeline") -> None:
        """Takes over the development scores of the same training, decoded in the same way."""
        for step in sorted({*self.run.bleu_steps()} & {*other.run.bleu_steps()}):
            for stage, done in zip(self._dev_stages(step), other._dev_stages(step), strict=True):
                if not other.is_done(done):
                    break
                if stage.output != done.output:
                    os.makedirs(os.path.dirname(stage.output), exist_ok=True)
                    sharing.link(done.output, stage.output)
                self._note(stage, other.status[stage.name])

    def _complete_scores(self) -> None:
        """Adds the step, the number of parameters and the duration of each stage to the scores.

        Says if hypotheses are empty, stop at the length limit, or are too short.
        """
        run_dir, scores = self.run_dir, self.run_dir.read_scores()
        if "step" in scores:
            return
        parameters = next((event.get("parameters") for event in metrics_log.events(run_dir.metrics)
                           if event["event"] == "start"), None)
        scores |= {"step": self.run.train_steps, "parameters": parameters,
                   "seconds": {name: entry.get("seconds") for name, entry in self.status.items()}}
        files.write_json(run_dir.scores, scores)
        if self.run.is_language_model:
            return
        with open(run_dir.hypotheses, encoding="utf-8", errors="replace") as lines:
            words = [bool(line.strip()) for line in lines]
        cut = metrics_log.last(run_dir.metrics).get("decode", {}).get("cut")
        penalty = re.search(r"BP = ([\d.]+)", scores.get("bleu", {}).get("details", ""))
        for warning in length_warnings(len(words), words.count(False), cut,
                                       float(penalty[1]) if penalty else None):
            say(f"{run_dir.path}: warning: {warning}", style="yellow")


def lacks_test_text(run: Run, run_dir: RunDirectory) -> bool:
    """Whether a test text of the problem is missing, as in a run that was copied without it."""
    return not all(os.path.exists(path) for test_set in _test_sets_of_problem(run)
                   for path in run_dir.test_files(test_set)[:2])


def copy_test_texts(run: Run, run_dir: RunDirectory) -> None:
    """Copies the problem's test sets from the data: so the run's directory is self-contained."""
    recorded = _recorded_texts(run, run_dir)
    for test_set in _test_sets_of_problem(run):
        source, reference, _ = run_dir.test_files(test_set)
        for kind, target in (("source", source), ("reference", reference),
                             ("documents", run_dir.documents_file(test_set))):
            if os.path.exists(target):
                continue
            text = os.path.join(run_dir.data_dir, f"{run.problem}.{test_set}.{kind}.txt")
            files.check_recorded(text, recorded.get(os.path.basename(text)))
            if os.path.exists(text):
                with files.atomic_path(target) as temporary:
                    shutil.copyfile(text, temporary)
            elif kind != "documents":
                raise UserError(f"run.test_sets: {run.problem} has no test set {test_set} (there "
                                f"is no {text})")


def _recorded_texts(run: Run, run_dir: RunDirectory) -> dict[str, Any]:
    """What the data's record says of its texts, by name; {} if it is older."""
    record = files.read_json(data_record(run, run_dir.data_dir), {"texts?": files.RECORDED})
    return record.get("texts", {})


def _test_sets_of_problem(run: Run) -> list[str]:
    """The test sets whose text is the problem's, not sacreBLEU's."""
    return [test_set or "test" for test_set in ("", *run.test_sets)
            if not any(run_directory.sacrebleu_test_set(run, test_set))]


def check_dev_texts(run: Run, run_dir: RunDirectory) -> None:
    """Refuses run.bleu_frequency for data without the text of a development set, or with other."""
    for text in dev_texts(run, run_dir) if run.bleu_frequency else ():
        files.check_recorded(text, _recorded_texts(run, run_dir).get(os.path.basename(text)))
        if not os.path.exists(text):
            raise UserError(f"run.bleu_frequency: {run.problem} has no text of a development set "
                            f"(there is no {text})")
