#!/usr/bin/env python3
"""How the cost of scoring and reporting grows with sentences, runs and steps.

Runs each command at growing sizes on made-up data, in a process of its own, and prints the CPU
seconds of all its processes, the peak memory of the largest, and the growth exponent of the CPU
seconds between the last two sizes (1: linear).

  scripts/bench_scale.py
  scripts/bench_scale.py --rows score cached_score --sizes 3000 30000 100000
"""
import argparse
import gzip
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORPUS = ROOT / "problems" / "libreoffice_help"
SEEDS = 2                                             # runs per arm in a report
REPORT = ["report", "study", "--skip_model_analysis"]
SCORE = ["score", "first.txt", "second.txt", "--reference=reference.txt"]


class Row(NamedTuple):
    """One command to measure.

    Attributes:
      description: what is measured, and what the sizes count.
      sizes: default sizes.
      prepare: writes the input of a size to a directory.
      argv: arguments of `rpr`.
      warm: run the command once before it is measured.
    """
    description: str
    sizes: tuple[int, ...]
    prepare: Callable[[pathlib.Path, int], None]
    argv: list[str]
    warm: bool = False


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--sizes", nargs="+", type=int, help="for all rows, in place of each row's")
    args = parser.parse_args()
    print("| | size | CPU seconds | peak memory, MB | exponent |\n"
          "| --- | ---: | ---: | ---: | ---: |")
    for name in args.rows:
        row = ROWS[name]
        before: tuple[int, float] | None = None
        for size in args.sizes or row.sizes:
            seconds, megabytes = measure(row, size)
            exponent = "" if before is None else (
                f"{math.log(seconds / before[1]) / math.log(size / before[0]):.2f}")
            print(f"| {row.description} | {size:,} | {seconds:.1f} | {megabytes:,.0f} "
                  f"| {exponent} |", flush=True)
            before = size, seconds


def measure(row: Row, size: int) -> tuple[float, float]:
    """CPU seconds of the command and its workers, and the peak memory of one process in MB."""
    with tempfile.TemporaryDirectory(prefix="rpr-bench-") as folder:
        row.prepare(pathlib.Path(folder), size)
        if row.warm:
            _run(row.argv, folder)
        return _run(row.argv, folder)


def _run(argv: Sequence[str], folder: str) -> tuple[float, float]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rpr.cli", *argv], cwd=folder, stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"rpr {' '.join(argv)} failed")
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
    reference = _corpus("train.en-de.de.gz", lines)
    _write(folder / "reference.txt", reference)
    _write(folder / "first.txt", damage(reference, 1))
    _write(folder / "second.txt", damage(reference, 2))


def _prepare_report(folder: pathlib.Path, runs: int) -> None:
    study = folder / "study"
    source, reference = (_corpus(f"test.en-de.{side}.gz", 789) for side in ("en", "de"))
    arms = []
    for arm in range(max(1, runs // SEEDS)):
        names = [f"arm{arm}-{seed}" for seed in range(SEEDS)]
        for seed, name in enumerate(names):
            _write_run(study / name, seed, source, reference, damage(reference, arm * SEEDS + seed))
        arms.append({"name": f"arm{arm}", "changes": {"num_heads": arm}, "paper_bleu": None,
                     "runs": [{"seed": seed, "directory": name}
                              for seed, name in enumerate(names)]})
    (study / "study.json").write_text(json.dumps({"baseline": "arm0", "arms": arms}))
    (study / "study.gin").write_text("study.baseline = 'arm0'\n")


def _write_run(run: pathlib.Path, seed: int, source: Sequence[str], reference: Sequence[str],
               hypotheses: Sequence[str], steps: int = 100) -> None:
    (run / "model").mkdir(parents=True)
    (run / "config.gin").write_text("run.problem = 'p'\nrun.hparams_set = 'h'\n"
                                    f"run.train_steps = {steps}\nrun.seed = {seed}\n")
    (run / "status.json").write_text(json.dumps({
        "train": {"state": "done", "seconds": 120.0},
        "score": {"state": "done", "started": 1.6e9, "seconds": 1.0}}))
    with (run / "metrics.jsonl").open("w") as events:
        events.write('{"event": "start", "step": 0, "parameters": 1000, "time": 0.0}\n')
        for step in range(1, steps + 1):
            events.write(f'{{"event": "train", "step": {step}, "loss": {9 / step + 1}, '
                         f'"steps_per_second": 4.0, "time": {step / 4}}}\n')
        events.write(f'{{"event": "eval", "step": {steps}, "loss": 2.0}}\n')
    (run / "model" / "hparams.json").write_text('{"max_length": 256}')
    for name, lines in (("source", source), ("reference", reference), ("hypotheses", hypotheses)):
        _write(run / f"{name}.test.txt", lines)
    (run / "scores.json").write_text(json.dumps({"step": steps, "exact": 1.0}))


def _prepare_steps(folder: pathlib.Path, steps: int) -> None:
    source, reference = (_corpus(f"test.en-de.{side}.gz", 100) for side in ("en", "de"))
    for seed in range(SEEDS):
        _write_run(folder / "study" / f"run{seed}", seed, source, reference,
                   damage(reference, seed), steps)


LINES, RUNS, STEPS = (3_000, 10_000, 30_000), (20, 60, 180), (10_000, 100_000, 1_000_000)
ROWS = {
    "score": Row("`rpr score`, 2 systems; lines", LINES, _prepare_score, SCORE),
    "bootstrap": Row("the same with `--paired_bootstrap`; lines", LINES, _prepare_score,
                     [*SCORE, "--paired_bootstrap"]),
    "cached_score": Row("`rpr score` again, from its cache; lines", LINES, _prepare_score,
                        [*SCORE, "--paired_bootstrap"], warm=True),
    "report": Row("`rpr report --skip_model_analysis` of 789 sentences; runs", RUNS,
                  _prepare_report, REPORT),
    "cached_report": Row("the same with cached statistics, as `rpr run` leaves them; runs", RUNS,
                         _prepare_report, REPORT, warm=True),
    "steps": Row("`rpr report` of two runs; records in metrics.jsonl", STEPS, _prepare_steps,
                 [*REPORT, "--baseline=run0"]),
    "status": Row("`rpr study --status`; runs", RUNS, _prepare_report,
                  ["study", "--status", "study"]),
}


if __name__ == "__main__":
    main()
