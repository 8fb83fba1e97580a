"""Runs beside each other: a table with significance, and their training curves.

`collect` makes the record, a list of `Row`s; the tables and the picture are views of it.
"""
import argparse
import csv
import dataclasses
import io
import json
import os
import statistics

from rpr import config, experiment, metrics, scoring
from rpr.errors import UserError


@dataclasses.dataclass
class Row:
    """One run.

    Attributes:
      name: the run's directory.
      parameters: trainable.
      steps: of the checkpoint that was decoded.
      steps_per_second: median over the training, of the time inside a step alone.
      train_minutes: wall time of the train stage's last attempt.
      bleu, chrf: sacreBLEU's, 0 to 100.
      p_value: paired bootstrap of BLEU against the baseline; None for the baseline.
      bleu_signature, chrf_signature: sacreBLEU's.
    """
    name: str
    parameters: int
    steps: int
    steps_per_second: float
    train_minutes: float
    bleu: float
    chrf: float
    p_value: float | None
    bleu_signature: str
    chrf_signature: str


COLUMNS = {
    "model": lambda row: row.name,
    "parameters": lambda row: f"{row.parameters:,}",
    "steps": lambda row: f"{row.steps:,}",
    "steps/s": lambda row: f"{row.steps_per_second:.2f}",
    "minutes": lambda row: f"{row.train_minutes:.1f}",
    "BLEU": lambda row: f"{row.bleu:.1f}",
    "chrF": lambda row: f"{row.chrf:.1f}",
    "p": lambda row: "baseline" if row.p_value is None else f"{row.p_value:.4f}",
}


def run_directories(path):
    """The run directories directly below a path, finished or not, by name."""
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such directory")
    found = [os.path.join(path, name) for name in sorted(os.listdir(path))
             if os.path.exists(os.path.join(path, name, "config.gin"))]
    if not found:
        raise UserError(f"{path}: no run in it (a directory with a config.gin)")
    return found


def collect(path, baseline):
    """The record of all runs below a path, the baseline first.

    Args:
      path: a directory of runs.
      baseline: the name of one of them.

    Returns:
      a list of `Row`s.

    Raises:
      UserError: no such baseline, an unfinished run, or runs that were scored on different text.
    """
    wheres = {os.path.basename(run): experiment.Directory(run, "") for run in run_directories(path)}
    if baseline not in wheres:
        raise UserError(f"--baseline={baseline}: one of {', '.join(wheres)}")
    names = [baseline, *(name for name in wheres if name != baseline)]
    for name in names:
        if not os.path.exists(wheres[name].scores):
            raise UserError(f"{wheres[name].path} has no scores yet: rpr run goes on with it")
    runs = {name: config.load_run(wheres[name].config) for name in names}
    systems = {name: scoring.read_lines(wheres[name].hypotheses) for name in names}
    scored = scoring.score(systems, _references(runs, wheres), ("bleu", "chrf"),
                           paired="bootstrap" if len(names) > 1 else None)
    return [_row(system, runs[system.name], wheres[system.name]) for system in scored]


def _references(runs, wheres):
    """The references that all runs share."""
    first, *others = runs
    if runs[first].test_set:
        for name in others:
            if (runs[name].test_set, runs[name].language_pair) != (
                    runs[first].test_set, runs[first].language_pair):
                raise UserError(f"{wheres[name].path} was scored on other text than {first}")
        return scoring.test_set_references(runs[first].test_set, runs[first].language_pair)
    lines = scoring.read_lines(wheres[first].reference)
    for name in others:
        if runs[name].test_set or scoring.read_lines(wheres[name].reference) != lines:
            raise UserError(f"{wheres[name].path} was scored on other text than {first}")
    return {wheres[first].reference: lines}


def _row(system, run, where):
    events = metrics.read(where.metrics)
    speeds = [event["steps_per_second"] for event in events if event["event"] == "train"]
    bleu, chrf = system.scores["bleu"], system.scores["chrf"]
    with open(where.status, encoding="utf-8") as text:
        status = json.load(text)
    return Row(
        name=system.name, parameters=next(e["parameters"] for e in events if e["event"] == "start"),
        steps=run.train_steps, steps_per_second=round(statistics.median(speeds), 3),
        train_minutes=round(status["train"]["seconds"] / 60, 2), bleu=bleu.score, chrf=chrf.score,
        p_value=bleu.p_value, bleu_signature=bleu.signature, chrf_signature=chrf.signature)


def as_markdown(rows):
    """The table as Markdown, with the signatures below it."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- " + "| ---: " * (len(COLUMNS) - 1) + "|"]
    lines += ["| " + " | ".join(cell(row) for cell in COLUMNS.values()) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"`{line}`  " for line in signatures(rows))]) + "\n"


def signatures(rows):
    """Each signature that the scores of these rows carry, once."""
    return list(dict.fromkeys(f"{name} {signature}" for row in rows for name, signature in (
        ("BLEU", row.bleu_signature), ("chrF", row.chrf_signature))))


def as_csv(rows):
    """The record as CSV, unrounded."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in dataclasses.fields(Row)])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    return out.getvalue()


def plot_curves(path, target):
    """Training and development loss of all runs below a path, as a PNG.

    Args:
      path: a directory of runs.
      target: the PNG's path.
    """
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (loss, development) = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True)
    for run in run_directories(path):
        events = metrics.read(os.path.join(run, "metrics.jsonl"))
        for axes, kind in ((loss, "train"), (development, "eval")):
            points = [(e["step"], e["loss"]) for e in events if e["event"] == kind]
            if kind == "train":
                points = _smooth(points)
            axes.plot(*zip(*points, strict=True), label=os.path.basename(run),
                      marker="o" if kind == "eval" else None, markersize=3.5)
    loss.set_title("training (mean of 10 records)")
    development.set_title("development set")
    for axes in (loss, development):
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats per sub-word)")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    os.makedirs(os.path.dirname(target), exist_ok=True)
    figure.savefig(target + ".part", dpi=130, format="png")
    os.replace(target + ".part", target)


def _smooth(points, width=10):
    windows = [points[max(0, end - width):end] for end in range(1, len(points) + 1)]
    return [(window[-1][0], statistics.fmean(loss for _, loss in window)) for window in windows]


def main(argv):
    """`rpr report DIR [--baseline=NAME]`."""
    parser = argparse.ArgumentParser(
        prog="rpr report", description="The runs below DIR as a table with paired significance "
        "(also results.{md,csv,json} in DIR), and their training curves (plots/curves.png).")
    parser.add_argument("dir", help="a directory of run directories")
    parser.add_argument("--baseline", required=True, help="the run that the others are tested "
                        "against: the name of its directory")
    args = parser.parse_args(argv)
    from rich.console import Console
    from rich.table import Table
    rows = collect(args.dir, args.baseline)
    table = Table(title=args.dir)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for cell in COLUMNS.values()))
    console = Console()
    console.print(table)
    for line in signatures(rows):
        console.print(line, highlight=False, soft_wrap=True)
    record = [dataclasses.asdict(row) for row in rows]
    for name, text in (("results.json", json.dumps(record, indent=1) + "\n"),
                       ("results.md", as_markdown(rows)), ("results.csv", as_csv(rows))):
        metrics.write_atomically(os.path.join(args.dir, name), text)
    picture = os.path.join(args.dir, "plots", "curves.png")
    plot_curves(args.dir, picture)
    console.print(f"training curves: {picture}", highlight=False, soft_wrap=True)
