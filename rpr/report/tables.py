"""The results as tables: on a terminal, in Markdown, CSV, JSON, LaTeX, and for TensorBoard."""
import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rpr.evaluation import ALL_METRICS
from rpr.evaluation.significance import ArmScore, Comparison
from rpr.report.columns import (
    SYMBOLS,
    Column,
    columns,
    csv_text,
    latex_text,
    markdown_text,
    more_tables,
    notes,
    plain,
    rows,
    signatures,
    size_of_test_set,
    tables,
)
from rpr.report.results import BEYOND, StudyResults
from rpr.utils import files

if TYPE_CHECKING:
    from rich.console import Console

EVENTS = "events.out.tfevents.0.hparams"              # TensorBoard looks for tfevents
_CSV_FIELDS = ["paper_bleu", "parameters", "steps", "steps_per_second", "model_tflops", "mfu",
               "relative_speed", "train_minutes", "exact", "loss", "letters"]
_OF_LOOKS = ["looked", "answer"]
# Columns of results.tex by importance, before and after the other metrics. It has those that fit
# into LaTeX's \textwidth, in points.
_FIRST_COLUMNS = ("difference", "p_holm", "rank", "answer")
_LAST_COLUMNS = ("loss", "parameters", "seeds", "p", "paper", "speed")
_TEXT_WIDTH, _COLUMN_GAP = 345.0, 12.0
_TEXT_GAP = 3                                         # between columns on a terminal, in cells


def write_tables(results: StudyResults, path: str, chosen: Sequence[Column] = ()) -> None:
    """Writes PATH/results.{json,csv,md,tex} and results_by_length.csv, if lengths are known.

    `chosen` are the columns of results.md and results.tex; empty: the default ones.
    """
    files.remove_temporary_files(path)
    for suffix, text in (("json", to_json(results)), ("csv", to_csv(results)),
                         ("md", to_markdown(results, chosen)), ("tex", to_latex(results, chosen))):
        files.write_atomically(os.path.join(path, f"results.{suffix}"), text)
    by_length = os.path.join(path, "results_by_length.csv")
    if any(run.by_length for run in results.done):
        files.write_atomically(by_length, lengths_to_csv(results))
    elif os.path.lexists(by_length) and not any(arm.by_length for arm in results.arms):
        os.remove(by_length)                          # of an earlier report


def print_tables(console: "Console", results: StudyResults) -> None:
    """Prints tables, signatures, notes and warnings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text
    for title, chosen in tables(results):
        heading: Text | None = Text(plain(f"{results.title}: {title}"))
        for part in _parts(chosen, console.width):
            table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            for column in part:
                # A narrow terminal wraps the names of the arms and cuts no value.
                is_name = column.group == "arm"
                table.add_column(Text(plain(column.heading)), no_wrap=not is_name,
                                 overflow="fold", justify="left" if is_name else "right")
            for arm, cells in zip(results.arms, rows(part), strict=True):
                table.add_row(*(Text(plain(cell)) for cell in cells),
                              style=None if arm.done else "dim")
            console.print(table)
            heading = None
    for line in signatures(results) + [note.text for note in notes(results)]:
        console.print(Text(plain(line)), soft_wrap=True)
    for line in results.warnings + results.unfinished:
        console.print(Text(plain(line), style="yellow"), soft_wrap=True)


def _parts(chosen: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """Divides columns into tables that fit the width, where one has the arms' names in each."""
    from rich.cells import cell_len

    def needed(column: Column) -> int:
        most = width if column.group != "arm" else width // (3 if column.key == "model" else 6)
        return _TEXT_GAP + min(most, max(map(cell_len, (column.heading, *column.cells))))

    names = [column for column in chosen if column.key == "model"] or [
        column for column in chosen if column.group == "arm"]
    part, taken = list(names), sum(map(needed, names))
    for column in chosen:
        if column in names:
            continue
        if taken + needed(column) > width + 1 and len(part) > len(names):
            yield part
            part, taken = list(names), sum(map(needed, names))
        part.append(column)
        taken += needed(column)
    yield part


def markdown_rows(some_columns: Sequence[Column]) -> list[str]:
    """The lines of a table of these columns."""
    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(map(markdown_text, cells)) + " |"
    return [row(column.heading for column in some_columns),
            "| " + " | ".join("---" if column.group == "arm" else "---:"
                              for column in some_columns) + " |",
            *map(row, rows(some_columns))]


def to_markdown(results: StudyResults, chosen: Sequence[Column] = ()) -> str:
    """One table of the chosen columns (default: all), with signatures and notes below it."""
    shown = chosen or columns(results)
    keys = {column.key for column in shown}
    lines = [*markdown_rows(shown), "", *(f"`{line}`  " for line in signatures(results))]
    for block in ([markdown_text(note.text) for note in notes(results)
                   if keys & set(note.keys)],
                  [f"- **{markdown_text(line)}**" for line in results.warnings],
                  [f"- {markdown_text(line)}" for line in results.unfinished]):
        lines += ["", *block] if block else []
    for title, more in more_tables(results) if not chosen else ():
        lines += ["", f"{markdown_text(title)}:", "", *markdown_rows(more)]
    return "\n".join(lines) + "\n"


def to_json(results: StudyResults) -> str:
    """Everything, unrounded; the points of curves take a line each."""
    text = json.dumps(dataclasses.asdict(results), indent=1)
    return re.sub(r"\[\n +(-?[\d.e+-]+),\n +(-?[\d.e+-]+)\n +\]", r"[\1, \2]", text) + "\n"


def to_csv(results: StudyResults) -> str:
    """A row per arm, rounded no further; scores of several runs are joined by semicolons."""
    metrics = [*results.metrics,
               *([BEYOND] if any(BEYOND in arm.scores for arm in results.arms) else [])]
    # difference, difference_low, ...
    of_score = {field.name: field.name for field in dataclasses.fields(ArmScore)}
    of_difference = {field.name: f"difference_{field.name}".removesuffix("_difference")
                     for field in dataclasses.fields(Comparison)}
    settings = [name for name in results.setting_names if name != "name"]
    fields = _CSV_FIELDS + (_OF_LOOKS if results.looks else [])
    header = ["name", *settings, "runs", "done", *fields,
              *(f"{metric}_{name}" for metric in metrics
                for name in (*of_score.values(), *of_difference.values())),
              *(f"{metric}_runs" for metric in metrics)]
    lines: list[Any] = [header]
    for arm in results.arms:
        row: dict[str, Any] = {**arm.settings, "name": arm.name, "runs": len(arm.runs),
                               "done": len(arm.done)}
        row |= {name: getattr(arm, name) for name in fields}
        for metric in metrics:
            row |= {f"{metric}_{column}": getattr(part, name) for part, names in (
                (arm.scores.get(metric), of_score),
                (arm.differences.get(metric), of_difference))
                if part for name, column in names.items()}
            row[f"{metric}_runs"] = ";".join(str(run.scores[metric]) for run in arm.done
                                             if metric in run.scores)
        lines.append([row.get(name) for name in header])
    return _csv(lines)


def lengths_to_csv(results: StudyResults) -> str:
    """A row per finished run and length bucket, unrounded."""
    return _csv([["name", "seed", "low", "high", "sentences", results.metric], *(
        [arm.name, run.seed, bucket.low, bucket.high, bucket.sentences, score]
        for arm in results.arms for run in arm.done
        for bucket, score in zip(results.buckets, run.by_length, strict=False))])


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(csv_text, line) for line in lines)
    return out.getvalue()


def to_latex(results: StudyResults, chosen: Sequence[Column] = ()) -> str:
    """A table with a short caption, a label, and notes below; it needs the package booktabs.

    Signatures, warnings and unfinished runs are comments. Without chosen columns it has those that
    fit into the width of a page.
    """
    chosen = chosen or _fitting(results)
    align = "".join("l" if column.group == "arm" else "r" for column in chosen)
    lines = ["% " + plain(line) for line in [
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
    below = [_math_p(latex_text(note.text)) for note in notes(results)
             if keys & set(note.keys)]
    caption = latex_text(": ".join(filter(None, (results.title, size_of_test_set(results)))))
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
    order = [*(["model"] if has_names else settings), results.metric, *_FIRST_COLUMNS,
             *results.metrics[1:], *_LAST_COLUMNS, *(settings if has_names else ())]
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
    return _math_p(latex_text(column.heading))


def _cell(column: Column, text: str) -> str:
    """A cell; values of p and signed numbers in math mode."""
    escaped = latex_text(text)
    if column.group == "arm":
        return escaped
    if column.key in ("p", "p_holm") and text:
        return f"${plain(text)}$"
    return re.sub(r"(?<![\w.-])[-+](?=\d)", lambda sign: f"${sign[0]}$", escaped)


def _math_p(text: str) -> str:
    """The letter p as a symbol, together with what it is compared with."""
    return re.sub(r"(?<![\w$\\])p(?=( \(Holm\)|:|-value|$))", "$p$", text)


def _label(results: StudyResults) -> str:
    return "tab:" + (re.sub(r"[^A-Za-z0-9]+", "-", results.title).strip("-") or "results")


def write_events(results: StudyResults, path: str) -> None:
    """Writes event files for TensorBoard's HParams plugin: `tensorboard --logdir DIR`.

    RUN/model already contains the scalars of the training. Here each run that has started becomes a
    session of the plugin with its test scores, in RUN/events.*; sessions are grouped by arm, so
    that the plugin averages over seeds. DIR/events.* describes the study.
    """
    # Not TensorFlow, which takes seconds to import.
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
    states = {"done": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE,
              "running": api_pb2.STATUS_RUNNING}
    tags = [f"test/{ALL_METRICS[name]}" for name in results.metrics] + ["steps_per_second"]
    settings = {"arm": [plain(arm.name) for arm in results.arms], **{
        plain(name): _of_one_type([arm.settings.get(name) for arm in results.arms])
        for name in results.setting_names}}
    hparams = [summary_v2.HParam(name, summary_v2.Discrete({*values} - {None}))
               for name, values in settings.items() if any(value is not None for value in values)]
    metrics = [summary_v2.Metric(tag, display_name=tag) for tag in tags]
    metrics.append(summary_v2.Metric("loss", "model/eval", display_name="development loss"))
    _write_event(path, summary_v2.hparams_config_pb(hparams, metrics, 0).value)
    for arm, *values in zip(results.arms, *settings.values(), strict=True):
        start = summary_v2.hparams_pb({name: value for name, value in zip(
            settings, values, strict=True) if value is not None}, plain(arm.name), 0)
        for run in arm.runs:
            is_outside = run.path.startswith(os.pardir)   # compared with, but of another study
            if run.state in states and not is_outside:
                found = [*map(run.scores.get, results.metrics), run.steps_per_second]
                scores = [Summary.Value(tag=tag, simple_value=value) for tag, value
                          in zip(tags, found, strict=True) if value is not None]
                data = plugin_data_pb2.HParamsPluginData(
                    session_end_info=plugin_data_pb2.SessionEndInfo(status=states[run.state]))
                end = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, tensor=metadata.NULL_TENSOR,
                                    metadata=metadata.create_summary_metadata(data))
                _write_event(os.path.join(path, run.path), [*start.value, *scores, end],
                             arm.steps or 0)


def _of_one_type(values: Sequence[Any]) -> Sequence[Any]:
    """The values: True and False, or numbers as floats, or text."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return values
    convert = float if types <= {int, float} else lambda value: plain(str(value))
    return [None if value is None else convert(value) for value in values]


def _write_event(directory: str, values: Sequence[Any], step: int = 0) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter
    with files.atomic_path(os.path.join(directory, EVENTS)) as path, open(path, "wb") as out:
        writer = RecordWriter(out)
        for event in (event_pb2.Event(file_version="brain.Event:2"),
                      event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values))):
            writer.write(event.SerializeToString())
