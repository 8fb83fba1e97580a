"""One run: the stages datagen, train, average, decode, score, in a directory of its own.

    RUN/config.gin                the resolved configuration
    RUN/status.json               stage -> state, input hash, seconds, attempts, why it failed
    RUN/metrics.jsonl             loss, steps/s, evaluations, one line an event (rpr.utils.metrics_log)
    RUN/model/                    T2T's output_dir: checkpoints, hparams.json, train.log, events
    RUN/average/                  the averaged checkpoint
    RUN/source.test.txt           what was translated, what it is compared with, and what came out
    RUN/reference.test.txt
    RUN/hypotheses.test.txt
    RUN/scores.json               BLEU, chrF, TER with their signatures, step, parameters, seconds

Each stage is a process of its own, since TensorFlow's graphs and GPU memory are process-wide. A
stage that was killed is repeated from what it had saved; a finished one never runs twice.
"""
import argparse
import collections
import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from rpr.utils import metrics_log
from rpr.utils.console import terminal
from rpr.utils.errors import LONGEST_REASON, REASON_PIPE, UserError
from rpr.utils.processes import with_parent


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run does. Everything else of it follows from this.

    Attributes:
      problem: T2T problem.
      hparams_set: T2T hparams set.
      train_steps: optimizer steps.
      model: T2T model.
      hparams: overrides, `name=value,...`.
      seed: of Python, NumPy and TensorFlow.
      checkpoint_steps: steps from checkpoint to checkpoint; divides `train_steps`.
      eval_seconds: evaluations on the development set are at least so long apart; the last
        checkpoint always is evaluated.
      eval_steps: batches of an evaluation at most.
      average: the last checkpoints that are averaged; 1 decodes the last one as it is.
      beam_size, alpha: beam search and its length penalty (Wu et al. 2016).
      decode_batch_size: sentences.
      test_set, language_pair: a test set of sacreBLEU, such as wmt14/full and en-de; empty for the
        problem's own test split.
      worker_gpu: GPUs, each with a batch of its own.
    """
    problem: str
    hparams_set: str
    train_steps: int
    model: str = "rpr_transformer"
    hparams: str = ""
    seed: int = 1
    checkpoint_steps: int = 1000
    eval_seconds: int = 600
    eval_steps: int = 100
    average: int = 1
    beam_size: int = 4
    alpha: float = 0.6
    decode_batch_size: int = 32
    test_set: str = ""
    language_pair: str = ""
    worker_gpu: int = 1

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type and not (field.type is float and type(value) is int):
                raise UserError(f"run.{field.name} = {value!r}: a {field.type.__name__} is needed")
        for name in ("train_steps", "checkpoint_steps", "eval_steps", "average", "beam_size",
                     "decode_batch_size", "worker_gpu"):
            if getattr(self, name) < 1:
                raise UserError(f"run.{name} = {getattr(self, name)}: at least 1")
        if self.train_steps % self.checkpoint_steps:
            raise UserError(f"run.checkpoint_steps = {self.checkpoint_steps}: it has to divide "
                            f"run.train_steps = {self.train_steps}")
        if self.average * self.checkpoint_steps > self.train_steps:
            raise UserError(f"run.average = {self.average}: a training of {self.train_steps} steps "
                            f"has {self.train_steps // self.checkpoint_steps} checkpoints")
        if bool(self.test_set) != bool(self.language_pair):
            raise UserError("run.test_set and run.language_pair go together")


# What may differ when a run is gone on with. Not the decoding batch: padding and the longest
# hypothesis depend on it.
FREE = {"eval_seconds": "--eval_throttle_seconds"}


class Stage(NamedTuple):
    """`rpr` with `argv` makes `output`; done when that is there and the process ended well."""
    name: str
    argv: list
    output: str


class Directory:
    """The files of a run.

    Args:
      path: the run's directory.
      data_dir: vocabulary and TFRecords; runs may share it.
    """

    def __init__(self, path, data_dir):
        self.path, self.data_dir = path, data_dir
        self.model = self.file("model")
        self.status, self.metrics = self.file("status.json"), self.file("metrics.jsonl")
        self.config, self.scores = self.file("config.gin"), self.file("scores.json")
        self.source, self.reference, self.hypotheses = (
            self.file(f"{name}.test.txt") for name in ("source", "reference", "hypotheses"))

    def file(self, *names):
        return os.path.join(self.path, *names)

    def checkpoint(self, run):
        """The checkpoint that the run's score is of, without suffix: averaged, or the last."""
        return self.file("average" if run.average > 1 else "model",
                         f"model.ckpt-{run.train_steps}")


def stages(run, where):
    """The stages of a run, in order.

    Args:
      run: a `Run`.
      where: its `Directory`.
    """
    step = run.train_steps
    problem = [f"--problem={run.problem}", f"--data_dir={where.data_dir}"]
    model = [f"--model={run.model}", f"--hparams_set={run.hparams_set}",
             f"--hparams={run.hparams}", f"--output_dir={where.model}",
             f"--worker_gpu={run.worker_gpu}"]
    every = run.checkpoint_steps
    yield Stage("datagen", ["datagen", *problem,
                            f"--tmp_dir={os.path.join(where.data_dir, 'download')}"],
                os.path.join(where.data_dir, f"{run.problem}.datagen.json"))
    yield Stage("train", ["train", *problem, *model, f"--train_steps={step}",
                          f"--random_seed={run.seed}", f"--local_eval_frequency={every}",
                          f"--iterations_per_loop={every}", f"--eval_steps={run.eval_steps}",
                          f"--eval_throttle_seconds={run.eval_seconds}",
                          f"--keep_checkpoint_max={run.average}",
                          f"--metrics_file={where.metrics}"],
                os.path.join(where.model, f"model.ckpt-{step}.index"))
    checkpoint = where.checkpoint(run)
    if run.average > 1:
        yield Stage("average", ["average", f"--model_dir={where.model}",
                                f"--output_dir={os.path.dirname(checkpoint)}", f"--n={run.average}",
                                f"--min_steps={step - (run.average - 1) * every}"],
                    checkpoint + ".index")
    what = [f"--decode_from_file={where.source}"]
    against = [f"--reference={where.reference}"]
    if run.test_set:
        against = what = [f"--test_set={run.test_set}", f"--language_pair={run.language_pair}"]
    yield Stage("decode", ["decode", *problem, *model, *what, f"--checkpoint_path={checkpoint}",
                           f"--decode_to_file={where.hypotheses}",
                           f"--decode_hparams=beam_size={run.beam_size},alpha={run.alpha},"
                           f"batch_size={run.decode_batch_size}",
                           f"--metrics_file={where.metrics}"], where.hypotheses)
    yield Stage("score", ["score", where.hypotheses, *against, f"--json={where.scores}"],
                where.scores)


def execute(run, where, data_checked=False):
    """Brings a run to its end; what is finished stays as it is.

    Args:
      run: a `Run`.
      where: its `Directory`.
      data_checked: datagen ran already; where its record is, it does not start again.

    Raises:
      UserError: the directory holds another run or is in use, or a stage failed.
    """
    os.makedirs(where.path, exist_ok=True)
    with open(where.file(".lock"), "a", encoding="utf-8") as lock:
        _take(lock, where)
        _same_run(run, where)
        status = metrics_log.read_json(where.status)
        before = ""
        for stage in stages(run, where):
            before = _input_hash(stage, before, where)
            if stage.name == "datagen" and data_checked and os.path.exists(stage.output):
                entry = status.get(stage.name, {})
                if (entry.get("state"), entry.get("input")) != ("done", before):
                    _note(status, where, stage.name, {"state": "done", "input": before,
                                                      "started": time.time(), "attempts": 0,
                                                      "seconds": 0.0})
            else:
                _do_stage(stage, before, status, where, lock)
            if stage.name == "datagen" and not run.test_set:
                _copy_test_text(run, where)
        _complete_scores(run, where, status)


def _take(lock, where):
    """Locks a run; the kernel lets go of it when the last of our processes is killed."""
    for attempt in reversed(range(20)):               # `state` holds it for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not attempt:
                raise UserError(f"{where.path}: another process is running it") from None
            time.sleep(0.05)


def state(where):
    """"running" (a process holds its lock), "done", "failed" or "waiting".

    A stage that a signal ended did not fail: it waits to be gone on with.
    """
    try:
        with open(where.file(".lock"), encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except FileNotFoundError:
        return "waiting"
    if "step" in metrics_log.read_json(where.scores):
        return "done"
    failed = any(entry["state"] == "failed" and entry["code"] >= 0
                 for entry in metrics_log.read_json(where.status).values())
    return "failed" if failed else "waiting"


def make_data(run, where):
    """Runs the datagen stage of a run alone.

    Raises:
      UserError: it failed.
    """
    stage = next(stages(run, where))
    os.makedirs(where.data_dir, exist_ok=True)
    code, _ = _run_process(stage.argv)
    if code:
        raise UserError(f"{where.data_dir}: datagen of {run.problem} failed with exit code "
                        f"{code}")


def _complete_scores(run, where, status):
    """Adds to the scores what they are the scores of, and what they took."""
    scores = metrics_log.read_json(where.scores)
    if "step" not in scores:
        start = next(event for event in metrics_log.read(where.metrics) if event["event"] == "start")
        scores |= {"step": run.train_steps, "parameters": start["parameters"],
                   "seconds": {name: entry.get("seconds") for name, entry in status.items()}}
        metrics_log.write_atomically(where.scores, json.dumps(scores, indent=1) + "\n")


def _same_run(run, where):
    """Refuses a directory that holds a run of another configuration; a new one gets its config."""
    from rpr.experiments import config
    if not os.path.exists(where.config):
        metrics_log.write_atomically(where.config, config.as_gin(run))
        return
    refuse_another(run, config.load_run(where.config), where.path, "--run_dir")


def refuse_another(run, there, path, flag):
    """Refuses to go on with `there`, the run of a directory, as `run`; shows the difference."""
    different = [f"{name} = {asked!r} (there: {getattr(there, name)!r})"
                 for name, asked in dataclasses.asdict(run).items()
                 if asked != getattr(there, name) and name not in FREE]
    if different:
        raise UserError(f"{path} holds another run: {', '.join(different)}; take another {flag}, "
                        "or the configuration in it")


def _input_hash(stage, before, where):
    """Names what a stage does, wherever its directories lie."""
    told = [arg.replace(where.path, "RUN").replace(where.data_dir, "DATA") for arg in stage.argv
            if arg.split("=")[0] not in FREE.values()]
    return hashlib.sha256(json.dumps([before, told]).encode()).hexdigest()[:16]


def _do_stage(stage, input_hash, status, where, lock):
    entry = status.get(stage.name, {})
    if (entry.get("input"), entry.get("state")) == (input_hash, "done") and os.path.exists(
            stage.output):
        terminal.print(f"{where.path}: {stage.name} is done", style="dim", highlight=False)
        return
    began = time.time()
    attempts = entry.get("attempts", 0) + 1 if entry.get("input") == input_hash else 1
    entry = {"state": "running", "input": input_hash, "started": began, "attempts": attempts}
    _note(status, where, stage.name, entry)
    again = f" (attempt {attempts})" if attempts > 1 else ""
    terminal.print(f"{where.path}: {stage.name}{again}", style="bold", highlight=False)
    code, reason = _run_process(stage.argv, lock.fileno())
    entry["seconds"] = round(time.time() - began, 1)
    if code or not os.path.exists(stage.output):
        how = f"ended without making {stage.output}"
        if code:
            how = f"failed with exit code {code}" if code > 0 else (
                f"was killed by {signal.Signals(-code).name}")
        reason = reason or "\n".join([how, *_last_lines(where, began)])
        _note(status, where, stage.name, {**entry, "state": "failed", "code": code,
                                          "reason": reason})
        raise UserError(f"{where.path}: stage {stage.name} {how}")
    _note(status, where, stage.name, {**entry, "state": "done"})


def _run_process(argv, *inherited):
    """Runs `rpr ARGV`; a Ctrl-C ends it, and so does our own death, even by kill -9.

    Returns:
      its exit code, and what it said about its failure.
    """
    reason, pipe = os.pipe()
    process = subprocess.Popen(
        # -P: a folder named problems where the user stands must not hide ours.
        [sys.executable, "-P", "-m", "rpr.cli", *argv], pass_fds=(*inherited, pipe),
        env={**os.environ, REASON_PIPE: str(pipe)}, process_group=0, preexec_fn=with_parent())
    os.close(pipe)
    try:
        code = process.wait()
        os.set_blocking(reason, False)
        with contextlib.suppress(BlockingIOError):
            return code, os.read(reason, 4 * LONGEST_REASON).decode()
        return code, ""
    except BaseException:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        os.close(reason)


def _last_lines(where, since, count=5):
    """The end of the log that a stage wrote, for one that could not say why it died."""
    logs = [log for folder in (where.model, where.file("average"), where.data_dir)
            for log in glob.glob(os.path.join(glob.escape(folder), "*.log"))
            if os.path.getmtime(log) >= since]
    if not logs:
        return []
    with open(max(logs, key=os.path.getmtime), encoding="utf-8", errors="replace") as lines:
        return [line.rstrip()[:300] for line in collections.deque(lines, count)]


def _note(status, where, name, entry):
    status[name] = entry
    metrics_log.write_atomically(where.status, json.dumps(status, indent=1) + "\n")


def _copy_test_text(run, where):
    """The test split as datagen wrote it, so that the run's directory explains itself."""
    for name, target in (("source", where.source), ("reference", where.reference)):
        if not os.path.exists(target):
            shutil.copyfile(os.path.join(where.data_dir, f"{run.problem}.test.{name}.txt"),
                            target + ".part")
            os.replace(target + ".part", target)


def main(argv):
    """`rpr run GIN [--run_dir=DIR] [--data_dir=DIR] [--set run.NAME=VALUE ...]`."""
    parser = argparse.ArgumentParser(
        prog="rpr run", description="One run: datagen, train, average, decode, score. Stop it when "
        "you like: the same command goes on from the last checkpoint.")
    parser.add_argument("gin", help="the file that describes the run (gin/*.gin)")
    parser.add_argument("--run_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--data_dir", help="vocabulary and TFRecords; default: data/ beside the "
                        "run's directory, so that runs beside each other share it")
    parser.add_argument("--set", action="append", default=[], metavar="run.NAME=VALUE",
                        help="a setting that wins over the file; may be repeated")
    parser.add_argument("--data_checked", action="store_true", help="do not start datagen where "
                        "its record is: rpr study ran it")
    args = parser.parse_args(argv)
    from rpr.experiments import config
    run = config.load_run(args.gin, args.set)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    run_dir = os.path.abspath(args.run_dir or os.path.join("runs", name))
    data_dir = os.path.abspath(args.data_dir or os.path.join(os.path.dirname(run_dir), "data"))
    execute(run, Directory(run_dir, data_dir), args.data_checked)
    terminal.print(f"{run_dir}: done", style="bold green", highlight=False)
