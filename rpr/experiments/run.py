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

from rpr.experiments.config import MUTABLE_FIELDS
from rpr.experiments.run_directory import stages
from rpr.utils import files, metrics_log
from rpr.utils.console import terminal
from rpr.utils.errors import LONGEST_REASON, REASON_PIPE, UserError
from rpr.utils.processes import with_parent


def complete_run(run, run_dir, skip_datagen=False):
    """Brings a run to its end; what is finished stays as it is.

    Args:
      run: a `Run`.
      run_dir: its `RunDirectory`.
      skip_datagen: datagen ran already; where its record is, it does not start again.

    Raises:
      UserError: the directory holds another run or is in use, or a stage failed.
    """
    os.makedirs(run_dir.path, exist_ok=True)
    with open(run_dir.file(".lock"), "a", encoding="utf-8") as lock:
        _take(lock, run_dir)
        _same_run(run, run_dir)
        status = files.read_json(run_dir.status)
        before = ""
        for stage in stages(run, run_dir):
            before = _input_hash(stage, before, run_dir)
            if stage.name == "datagen" and skip_datagen and os.path.exists(stage.output):
                entry = status.get(stage.name, {})
                if (entry.get("state"), entry.get("input")) != ("done", before):
                    _note(status, run_dir, stage.name, {"state": "done", "input": before,
                                                      "started": time.time(), "attempts": 0,
                                                      "seconds": 0.0})
            else:
                _do_stage(stage, before, status, run_dir, lock)
            if stage.name == "datagen" and not run.test_set:
                _copy_test_text(run, run_dir)
        _complete_scores(run, run_dir, status)


def _take(lock, run_dir):
    """Locks a run; the kernel lets go of it when the last of our processes is killed."""
    for attempt in reversed(range(20)):               # `state` holds it for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not attempt:
                raise UserError(f"{run_dir.path}: another process is running it") from None
            time.sleep(0.05)


def make_data(run, run_dir):
    """Runs the datagen stage of a run alone.

    Raises:
      UserError: it failed.
    """
    stage = next(stages(run, run_dir))
    os.makedirs(run_dir.data_dir, exist_ok=True)
    code, _ = _run_process(stage.argv)
    if code:
        raise UserError(f"{run_dir.data_dir}: datagen of {run.problem} failed with exit code "
                        f"{code}")


def _complete_scores(run, run_dir, status):
    """Adds to the scores what they are the scores of, and what they took."""
    scores = files.read_json(run_dir.scores)
    if "step" not in scores:
        start = next(event for event in metrics_log.read(run_dir.metrics) if event["event"] == "start")
        scores |= {"step": run.train_steps, "parameters": start["parameters"],
                   "seconds": {name: entry.get("seconds") for name, entry in status.items()}}
        files.write_atomically(run_dir.scores, json.dumps(scores, indent=1) + "\n")


def _same_run(run, run_dir):
    """Refuses a directory that holds a run of another configuration; a new one gets its config."""
    from rpr.experiments import config
    if not os.path.exists(run_dir.config):
        files.write_atomically(run_dir.config, config.as_gin(run))
        return
    refuse_another(run, config.load_run(run_dir.config), run_dir.path, "--run_dir")


def refuse_another(run, there, path, flag):
    """Refuses to go on with `there`, the run of a directory, as `run`; shows the difference."""
    different = [f"{name} = {asked!r} (there: {getattr(there, name)!r})"
                 for name, asked in dataclasses.asdict(run).items()
                 if asked != getattr(there, name) and name not in MUTABLE_FIELDS]
    if different:
        raise UserError(f"{path} holds another run: {', '.join(different)}; take another {flag}, "
                        "or the configuration in it")


def _input_hash(stage, before, run_dir):
    """Names what a stage does, wherever its directories lie."""
    told = [arg.replace(run_dir.path, "RUN").replace(run_dir.data_dir, "DATA") for arg in stage.argv
            if arg.split("=")[0] not in MUTABLE_FIELDS.values()]
    return hashlib.sha256(json.dumps([before, told]).encode()).hexdigest()[:16]


def _do_stage(stage, input_hash, status, run_dir, lock):
    entry = status.get(stage.name, {})
    if (entry.get("input"), entry.get("state")) == (input_hash, "done") and os.path.exists(
            stage.output):
        terminal.print(f"{run_dir.path}: {stage.name} is done", style="dim", highlight=False)
        return
    began = time.time()
    attempts = entry.get("attempts", 0) + 1 if entry.get("input") == input_hash else 1
    entry = {"state": "running", "input": input_hash, "started": began, "attempts": attempts}
    _note(status, run_dir, stage.name, entry)
    again = f" (attempt {attempts})" if attempts > 1 else ""
    terminal.print(f"{run_dir.path}: {stage.name}{again}", style="bold", highlight=False)
    code, reason = _run_process(stage.argv, lock.fileno())
    entry["seconds"] = round(time.time() - began, 1)
    if code or not os.path.exists(stage.output):
        how = f"ended without making {stage.output}"
        if code:
            how = f"failed with exit code {code}" if code > 0 else (
                f"was killed by {signal.Signals(-code).name}")
        reason = reason or "\n".join([how, *_last_lines(run_dir, began)])
        _note(status, run_dir, stage.name, {**entry, "state": "failed", "code": code,
                                          "reason": reason})
        raise UserError(f"{run_dir.path}: stage {stage.name} {how}")
    _note(status, run_dir, stage.name, {**entry, "state": "done"})


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


def _last_lines(run_dir, since, count=5):
    """The end of the log that a stage wrote, for one that could not say why it died."""
    logs = [log for folder in (run_dir.model, run_dir.file("average"), run_dir.data_dir)
            for log in glob.glob(os.path.join(glob.escape(folder), "*.log"))
            if os.path.getmtime(log) >= since]
    if not logs:
        return []
    with open(max(logs, key=os.path.getmtime), encoding="utf-8", errors="replace") as lines:
        return [line.rstrip()[:300] for line in collections.deque(lines, count)]


def _note(status, run_dir, name, entry):
    status[name] = entry
    files.write_atomically(run_dir.status, json.dumps(status, indent=1) + "\n")


def _copy_test_text(run, run_dir):
    """The test split as datagen wrote it, so that the run's directory explains itself."""
    for name, target in (("source", run_dir.source), ("reference", run_dir.reference)):
        if not os.path.exists(target):
            shutil.copyfile(os.path.join(run_dir.data_dir, f"{run.problem}.test.{name}.txt"),
                            target + ".part")
            os.replace(target + ".part", target)
