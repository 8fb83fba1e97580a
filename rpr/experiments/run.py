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

from rpr.experiments.config import FREE
from rpr.experiments.run_directory import stages
from rpr.utils import files, metrics_log
from rpr.utils.console import terminal
from rpr.utils.errors import LONGEST_REASON, REASON_PIPE, UserError
from rpr.utils.processes import with_parent


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
        status = files.read_json(where.status)
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
    scores = files.read_json(where.scores)
    if "step" not in scores:
        start = next(event for event in metrics_log.read(where.metrics) if event["event"] == "start")
        scores |= {"step": run.train_steps, "parameters": start["parameters"],
                   "seconds": {name: entry.get("seconds") for name, entry in status.items()}}
        files.write_atomically(where.scores, json.dumps(scores, indent=1) + "\n")


def _same_run(run, where):
    """Refuses a directory that holds a run of another configuration; a new one gets its config."""
    from rpr.experiments import config
    if not os.path.exists(where.config):
        files.write_atomically(where.config, config.as_gin(run))
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
    files.write_atomically(where.status, json.dumps(status, indent=1) + "\n")


def _copy_test_text(run, where):
    """The test split as datagen wrote it, so that the run's directory explains itself."""
    for name, target in (("source", where.source), ("reference", where.reference)):
        if not os.path.exists(target):
            shutil.copyfile(os.path.join(where.data_dir, f"{run.problem}.test.{name}.txt"),
                            target + ".part")
            os.replace(target + ".part", target)
