#!/usr/bin/env python3
"""How the cost of scoring and reporting grows with sentences, runs and steps.

Runs each command at growing sizes on made-up data, in a process of its own, and prints the CPU
seconds of all its processes, the peak memory of the largest, and the growth exponent of the CPU
seconds between the last two sizes (1: linear).

  scripts/bench_scale.py
  scripts/bench_scale.py --rows score long_score --sizes 3000 30000 100000
"""
import argparse
import gzip
import json
import math
import os
import pathlib
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rpr.cli.arguments import number
from rpr.experiments import config, run_directory, studies
from rpr.utils import processes

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORPUS = ROOT / "problems" / "libreoffice_help"
SEEDS = 2                                             # runs per arm in a report
STEPS = 100                                           # of a run
SCORE = ["score", "first.txt", "second.txt", "--reference=reference.txt"]


class Row(NamedTuple):
    """One command to measure.

    Attributes:
      description: what is measured, and what the sizes count.
      sizes: default sizes.
      prepare: writes the input of a size to a directory.
      argv: arguments of `rpr`.
    """
    description: str
    sizes: tuple[int, ...]
    prepare: Callable[[pathlib.Path, int], None]
    argv: list[str]


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--sizes", nargs="+", type=number(SEEDS),
                        help="for all rows, in place of each row's")
    args = parser.parse_args()
    print("| | size | CPU seconds | peak memory, MB | exponent |\n"
          "| --- | ---: | ---: | ---: | ---: |")
    for name in args.rows:
        row = ROWS[name]
        before: tuple[int, float] | None = None
        for size in args.sizes or row.sizes:
            seconds, megabytes = measure(row, size)
            exponent = "" if before is None or before[0] == size else (
                f"{math.log(seconds / before[1]) / math.log(size / before[0]):.2f}")
            print(f"| {row.description} | {size:,} | {seconds:.1f} | {megabytes:,.0f} "
                  f"| {exponent} |", flush=True)
            before = size, seconds


def measure(row: Row, size: int) -> tuple[float, float]:
    """CPU seconds of the command and its workers, and the peak memory of one process in MB."""
    with tempfile.TemporaryDirectory(prefix="rpr-bench-") as folder:
        row.prepare(pathlib.Path(folder), size)
        return _run(row.argv, folder)


def _run(argv: Sequence[str], folder: str) -> tuple[float, float]:
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            processes.command(argv), cwd=folder, stdout=subprocess.DEVNULL, stderr=messages,
            env=os.environ | {"PYTHONPATH": str(ROOT)})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            messages.seek(0)
            raise SystemExit(f"rpr {' '.join(argv)} failed: {messages.read().decode()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def damage(lines: Sequence[str], seed: int) -> list[str]:
    """Lines as a model may translate them: words are missing, replaced or in another order."""
    dice = random.Random(seed)
    damaged = []
    for line in lines:
        words = [word for word in line.split() if dice.random() > 0.15]
        words = [word if dice.random() > 0.2 else dice.choice(words) for word in words]
        if len(words) > 3:
            start = dice.randrange(len(words) - 2)
            words[start:start + 2] = reversed(words[start:start + 2])
        damaged.append(" ".join(words) or ".")
    return damaged


def _corpus(name: str, lines: int) -> list[str]:
    with gzip.open(CORPUS / name, "rt", encoding="utf-8") as text:
        corpus = [line.rstrip("\n") for line in text]
    return [corpus[number % len(corpus)] for number in range(lines)]


def _write(path: pathlib.Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _prepare_score(folder: pathlib.Path, lines: int) -> None:
    """Two systems and a reference of 13 words per line."""
    _write_systems(folder, _corpus("train.en-de.de.gz", lines))


def _prepare_long_lines(folder: pathlib.Path, lines: int) -> None:
    """The same with 26 words per line, as in news."""
    corpus = _corpus("train.en-de.de.gz", 2 * lines)
    _write_systems(folder, list(map(" ".join, zip(corpus[::2], corpus[1::2], strict=True))))


def _write_systems(folder: pathlib.Path, reference: Sequence[str]) -> None:
    _write(folder / "reference.txt", reference)
    _write(folder / "first.txt", damage(reference, 1))
    _write(folder / "second.txt", damage(reference, 2))


def _prepare_report(folder: pathlib.Path, runs: int) -> None:
    """A study of finished runs."""
    run = config.Run(problem="translate_ende_libreoffice", hparams_set="rpr_small",
                     train_steps=STEPS, checkpoint_steps=STEPS)
    arms = {f"heads{number}": {"num_heads": number} for number in range(1, runs // SEEDS + 1)}
    settings = config.Study(baseline="heads1", arms=arms, seeds=tuple(range(SEEDS)))
    source, reference = (_corpus(f"test.en-de.{side}.gz", 789) for side in ("en", "de"))
    for place, study_run in enumerate(studies.prepare(settings, run, str(folder / "study"))):
        _write_run(study_run.run_dir, source, reference, damage(reference, place))


def _write_run(run_dir: run_directory.RunDirectory, source: Sequence[str],
               reference: Sequence[str], hypotheses: Sequence[str]) -> None:
    """Writes what a finished run leaves, with a training record per step."""
    os.makedirs(run_dir.model)
    records = [{"event": "start", "step": 0, "parameters": 1000, "time": 0.0},
               *({"event": "train", "step": step, "loss": 9 / step + 1, "steps_per_second": 4.0,
                  "time": step / 4} for step in range(1, STEPS + 1)),
               {"event": "eval", "step": STEPS, "loss": 2.0}]
    for path, text in (
            (run_dir.status, json.dumps({
                "train": {"state": "done", "seconds": 120.0},
                "score": {"state": "done", "started": 1.6e9, "seconds": 1.0}})),
            (run_dir.metrics, "".join(json.dumps(record) + "\n" for record in records)),
            (run_dir.file("model", "hparams.json"), '{"max_length": 256}'),
            (run_dir.scores, json.dumps({"step": STEPS, "exact": 1.0})),
            (run_dir.lock, "")):
        pathlib.Path(path).write_text(text, encoding="utf-8")
    for path, lines in zip(run_dir.test_files(), (source, reference, hypotheses), strict=True):
        _write(pathlib.Path(path), lines)


LINES, RUNS = (3_000, 30_000, 100_000), (20, 60, 1000)
ROWS = {
    "score": Row("`rpr score`, 2 systems; lines", LINES, _prepare_score, SCORE),
    "long_score": Row("`rpr score`, 2 systems of 26 words per line; lines", LINES,
                      _prepare_long_lines, SCORE),
    "report": Row("`rpr report --skip_model_analysis` of 789 sentences; runs", RUNS,
                  _prepare_report, ["report", "study", "--skip_model_analysis"]),
    "status": Row("`rpr study --status`; runs", RUNS, _prepare_report,
                  ["study", "--status", "study"]),
}


if __name__ == "__main__":
    main()
