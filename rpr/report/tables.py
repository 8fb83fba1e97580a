"""The results as tables: on a terminal, in Markdown, CSV, JSON and LaTeX."""
import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rpr.evaluation.significance import ArmScore, Comparison
from rpr.report import escaping
from rpr.report.columns import (
    SYMBOLS,
    Column,
    columns,
    length_columns,
    length_title,
    notes,
    rows,
    signatures,
    tables,
    tuning_columns,
    tuning_title,
)
from rpr.report.results import BEYOND, FIELDS, StudyResults
from rpr.utils import files

if TYPE_CHECKING:
    from rich.console import Console

_CSV_FIELDS = ["paper_bleu", "parameters", "steps", "steps_per_second", "relative_speed",
               "train_minutes", "exact", "loss", "letters"]
# Columns of results.tex by importance. It has those that fit into LaTeX's \textwidth, in points.
_LATEX_COLUMNS = ("difference", "p_holm", "rank", "chrf", "loss", "parameters", "seeds", "p",
                  "paper", "speed")
_TEXT_WIDTH, _COLUMN_GAP = 345.0, 12.0


def write_tables(results: StudyResults, path: str, chosen: Sequence[Column] = ()) -> None:
    """Writes PATH/results.{json,csv,md,tex} and results_by_length.csv.

    `chosen` are the columns of results.md and results.tex; empty: the default ones.
    """
    for suffix, text in (("json", to_json(results)), ("csv", to_csv(results)),
                         ("md", to_markdown(results, chosen)), ("tex", to_latex(results, chosen))):
        files.write_atomically(os.path.join(path, f"results.{suffix}"), text)
    if any(run.by_length for arm in results.arms for run in arm.done):
        files.write_atomically(os.path.join(path, "results_by_length.csv"),
                               lengths_to_csv(results))


def print_tables(console: "Console", results: StudyResults) -> None:
    """Prints tables, signatures, notes and warnings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text
    for title, chosen in tables(results):
        table = Table(title=Text(escaping.plain(f"{results.title}: {title}")),
                      title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in chosen:
            # A narrow terminal wraps the names of the arms and cuts no value.
            is_name = column.group == "arm"
            table.add_column(Text(escaping.plain(column.heading)), no_wrap=not is_name,
                             overflow="fold", justify="left" if is_name else "right")
        for arm, cells in zip(results.arms, rows(chosen), strict=True):
            table.add_row(*(Text(escaping.plain(cell)) for cell in cells),
                          style=None if arm.done else "dim")
        console.print(table)
    for line in signatures(results) + [note.text for note in notes(results)]:
        console.print(Text(escaping.plain(line)), soft_wrap=True)
    for line in results.warnings + results.unfinished:
        console.print(Text(escaping.plain(line), style="yellow"), soft_wrap=True)


def markdown_rows(some_columns: Sequence[Column]) -> list[str]:
    """The lines of a table of these columns."""
    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(map(escaping.to_markdown, cells)) + " |"
    return [row(column.heading for column in some_columns),
            "| " + " | ".join("---" if column.group == "arm" else "---:"
                              for column in some_columns) + " |",
            *map(row, rows(some_columns))]


def to_markdown(results: StudyResults, chosen: Sequence[Column] = ()) -> str:
    """One table of the chosen columns (default: all), with signatures and notes below it."""
    shown = chosen or columns(results)
    keys = {column.key for column in shown}
    lines = [*markdown_rows(shown), "", *(f"`{line}`  " for line in signatures(results))]
    for block in ([escaping.to_markdown(note.text) for note in notes(results)
                   if keys & set(note.keys)],
                  [f"- **{escaping.to_markdown(line)}**" for line in results.warnings],
                  [f"- {escaping.to_markdown(line)}" for line in results.unfinished]):
        lines += ["", *block] if block else []
    for title, more in ((length_title(results), length_columns(results)),
                        (tuning_title(results), tuning_columns(results))):
        if more and not chosen:
            lines += ["", f"{escaping.to_markdown(title)}:", "", *markdown_rows(more)]
    return "\n".join(lines) + "\n"


def to_json(results: StudyResults) -> str:
    """Everything, unrounded; the points of curves take a line each."""
    text = json.dumps(dataclasses.asdict(results), indent=1)
    return re.sub(r"\[\n +(-?[\d.e+-]+),\n +(-?[\d.e+-]+)\n +\]", r"[\1, \2]", text) + "\n"


def to_csv(results: StudyResults) -> str:
    """A row per arm, unrounded; scores of several runs are joined by semicolons."""
    out = io.StringIO()
    metrics = [*dict.fromkeys([*FIELDS, *results.metrics])]
    if any(arm.score(BEYOND) for arm in results.arms):
        metrics.append(BEYOND)
    metric_fields = [f"{metric}_{name}" for metric in metrics
                     for name in (*_names(ArmScore), *_names(Comparison, "difference_"))]
    settings = dict.fromkeys(name for arm in results.arms for name in arm.settings)
    settings.pop("name", None)
    header = ["name", *settings, "runs", "done", *_CSV_FIELDS, *metric_fields,
              *(f"{metric}_runs" for metric in metrics)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escaping.to_csv, header))
    for arm in results.arms:
        row: dict[str, Any] = {**arm.settings, "name": arm.name, "runs": len(arm.runs),
                               "done": len(arm.done)}
        row |= {name: getattr(arm, name) for name in _CSV_FIELDS}
        for metric in metrics:
            for part, prefix in ((arm.score(metric), ""),
                                 (arm.difference(metric), "difference_")):
                if part:
                    row |= {f"{metric}_{_column(name, prefix)}": value
                            for name, value in dataclasses.asdict(part).items()}
            row[f"{metric}_runs"] = ";".join(
                str(getattr(run, metric) if metric in FIELDS else run.scores.get(metric, ""))
                for run in arm.done)
        writer.writerow([escaping.to_csv(row.get(name)) for name in header])
    return out.getvalue()


def lengths_to_csv(results: StudyResults) -> str:
    """A row per finished run and length bucket, unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "seed", "low", "high", "sentences", results.metric])
    for arm in results.arms:
        for run in arm.done:
            for bucket, score in zip(results.buckets, run.by_length, strict=False):
                writer.writerow([escaping.to_csv(arm.name), run.seed, bucket.low, bucket.high,
                                 bucket.sentences, score])
    return out.getvalue()


def _names(kind: Any, prefix: str = "") -> list[str]:
    return [_column(field.name, prefix) for field in dataclasses.fields(kind)]


def _column(name: str, prefix: str) -> str:
    """difference, difference_low, ...: the difference itself needs no prefix."""
    return name if prefix.startswith(name) else prefix + name


def to_latex(results: StudyResults, chosen: Sequence[Column] = ()) -> str:
    """A table with a short caption, a label, and notes below; it needs the package booktabs.

    Signatures, warnings and unfinished runs are comments. Without chosen columns it has those that
    fit into the width of a page.
    """
    chosen = chosen or _fitting(results)
    align = "".join("l" if column.group == "arm" else "r" for column in chosen)
    lines = ["% " + escaping.plain(line) for line in [
        *signatures(results), *results.warnings,
        *(f"not done: {line}" for line in results.unfinished)]]
    lines += [r"\begin{table}", r"  \centering\small", rf"  \begin{{tabular}}{{{align}}}",
              r"    \toprule",
              "    " + " & ".join(_heading(column) for column in chosen) + r" \\",
              r"    \midrule"]
    lines += ["    " + " & ".join(_cell(column, cell) for column, cell
                                  in zip(chosen, cells, strict=True)) + r" \\"
              for cells in rows(chosen)]
    keys = {column.key for column in chosen}
    below = [_math_p(escaping.to_latex(note.text)) for note in notes(results)
             if keys & set(note.keys)]
    caption = escaping.to_latex(results.title + (
        f": {results.sentences:,} test sentences" if results.sentences else ""))
    lines += [r"    \bottomrule", r"  \end{tabular}",
              *([r"  \par\smallskip",
                 rf"  \parbox{{\textwidth}}{{\footnotesize {' '.join(below)}}}"] if below else ()),
              rf"  \caption{{{caption}}}", rf"  \label{{{_label(results)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _fitting(results: StudyResults) -> list[Column]:
    """The most important columns that fit side by side into the width of a page.

    Settings identify the arms where there are no names, and come last where there are.
    """
    available = columns(results)
    settings = [column.key for column in available
                if column.group == "arm" and column.key != "model"]
    has_names = any(column.key == "model" for column in available)
    order = [*(["model"] if has_names else settings), results.metric, *_LATEX_COLUMNS,
             *(settings if has_names else ())]
    width, taken = 0.0, set[str]()
    for key in order:
        column = next((column for column in available if column.key == key), None)
        if column:
            needed = _COLUMN_GAP + max(map(_points, (column.heading, *column.cells)))
            if width + needed <= _TEXT_WIDTH or not taken:
                width += needed
                taken.add(key)
    return [column for column in available if column.key in taken]


def _points(text: str) -> float:
    """The width of text in \\small Computer Modern, in points: of each letter, at least."""
    return sum(3.1 if letter in " .,:;|'()[]ijlt" else 8.6 if letter in "±+-<≤−×%&@mwMW" else
               7.2 if letter.isupper() or letter == "=" else 5.2 for letter in text)


def _heading(column: Column) -> str:
    if column.heading in SYMBOLS.values():
        return f"${column.heading}$"
    return _math_p(escaping.to_latex(column.heading))


def _cell(column: Column, text: str) -> str:
    """A cell; values of p and signed numbers in math mode."""
    escaped = escaping.to_latex(text)
    if column.group == "arm":
        return escaped
    if column.key in ("p", "p_holm") and text:
        return f"${escaping.plain(text)}$"
    return re.sub(r"(?<![\w.-])[-+](?=\d)", lambda sign: f"${sign[0]}$", escaped)


def _math_p(text: str) -> str:
    """The letter p as a symbol, together with what it is compared with."""
    return re.sub(r"(?<![\w$\\])p(?=( \(Holm\)|:|-value|$))", "$p$", text)


def _label(results: StudyResults) -> str:
    return "tab:" + (re.sub(r"[^A-Za-z0-9]+", "-", results.title).strip("-") or "results")
