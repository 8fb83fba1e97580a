"""The results as tables: on a terminal, in Markdown, LaTeX, HTML, CSV and JSON."""
import csv
import dataclasses
import html
import io
import json
import re
from typing import TYPE_CHECKING

from rpr.evaluation.significance import Estimate
from rpr.report.columns import SYMBOLS, columns, notes, rows, signatures, tables
from rpr.report.results import StudyResults

if TYPE_CHECKING:
    from rich.console import Console


def print_tables(console: "Console", results: StudyResults) -> None:
    """Prints tables, signatures and notes."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    for title, chosen in tables(results):
        table = Table(title=escape(f"{results.title}: {title}"), title_justify="left",
                      box=box.SIMPLE_HEAD, pad_edge=False)
        for column in chosen:
            # A narrow terminal wraps the names of the arms and cuts no value.
            is_name = column.group == "arm"
            table.add_column(escape(column.name), no_wrap=not is_name, overflow="fold",
                             justify="left" if is_name else "right")
        for arm, cells in zip(results.arms, rows(chosen), strict=True):
            table.add_row(*map(escape, cells), style=None if arm.done else "dim")
        console.print(table)
    for line in signatures(results) + notes(results):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in results.unfinished:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def to_markdown(results: StudyResults) -> str:
    """One table, with signatures and notes below it."""
    def row(cells):
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    chosen = columns(results)
    lines = [row(column.name for column in chosen),
             row("---" if column.group == "arm" else "---:" for column in chosen),
             *map(row, rows(chosen)), "",
             *(f"`{line}`  " for line in signatures(results))]
    for block in (notes(results), [f"- {line}" for line in results.unfinished]):
        lines += ["", *block] if block else []
    return "\n".join(lines) + "\n"


def to_html(results: StudyResults) -> str:
    """The tables as HTML fragments, each in a block that scrolls by itself."""
    blocks = []
    for title, chosen in tables(results):
        head = "".join(f'<th class="{column.group}">{_html(column.name)}</th>' for column in chosen)
        body = ""
        for arm, cells in zip(results.arms, rows(chosen), strict=True):
            kind = ("baseline" if arm.name == results.baseline else "") if arm.done else (
                "unfinished")
            body += f'<tr class="{kind}">' + "".join(
                f'<td class="{column.group}">{_html(cell)}</td>'
                for column, cell in zip(chosen, cells, strict=True)) + "</tr>\n"
        blocks.append(f'<div class="table"><table><caption>{_html(title)}</caption>\n'
                      f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n")
    return "".join(blocks)


def _html(text: str) -> str:
    """Escaped text; a^K with a superscript, differences with a minus sign."""
    text = html.escape(text).replace(" [-", " [−").replace(", -", ", −")
    text = "−" + text[1:] if text.startswith("-") else text
    return re.sub(r"\^(\w)", r"<sup>\1</sup>", text)


def to_latex(results: StudyResults) -> str:
    """A table for \\usepackage{booktabs}: results and relative speed."""
    chosen = [column for column in columns(results)
              if column.group != "cost" or column.name in ("parameters", "speed")]
    align = "".join("l" if column.group == "arm" else "r" for column in chosen)
    lines = [r"\begin{table}", r"  \centering", rf"  \begin{{tabular}}{{{align}}}",
             r"    \toprule",
             "    " + " & ".join(_latex(column.name) for column in chosen) + r" \\",
             r"    \midrule"]
    lines += ["    " + " & ".join(map(_latex, cells)) + r" \\" for cells in rows(chosen)]
    caption = " ".join([*notes(results), *(f"{line}." for line in signatures(results))])
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_latex(caption)}}}",
              r"\end{table}"]
    return "".join(f"% not done: {' '.join(line.split())}\n"
                   for line in results.unfinished) + "\n".join(lines) + "\n"


_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
          "±": r"$\pm$", "|": r"\textbar{}\allowbreak{}", "<": r"\textless{}",
          ">": r"\textgreater{}", **{sign: "\\" + sign for sign in "&%$#_{}"}}


def _latex(text: str) -> str:
    """Text escaped for LaTeX; symbols and signed numbers in math mode."""
    if text in SYMBOLS.values() or text == "p":
        return f"${text}$"
    escaped = "".join(_LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.-])[-+](?=\d)", lambda sign: f"${sign[0]}$", escaped)


def to_json(results: StudyResults) -> str:
    """Everything, unrounded."""
    return json.dumps(results.as_dict(), indent=1) + "\n"


def to_csv(results: StudyResults) -> str:
    """A row per arm, unrounded; scores of several runs are joined by semicolons."""
    out = io.StringIO()
    metrics = [f"{metric}_{field.name}" for metric in ("bleu", "chrf")
               for field in dataclasses.fields(Estimate)]
    training = ["paper_bleu", "parameters", "steps", "steps_per_second", "relative_speed",
                "train_minutes", "exact", "loss"]
    settings = [name for name in results.arms[0].settings if name != "name"]
    writer = csv.DictWriter(out, ["name", *settings, "runs", "done", *training, *metrics,
                                  "bleu_runs", "chrf_runs"], lineterminator="\n")
    writer.writeheader()
    for arm in results.arms:
        row = {**arm.settings, "name": arm.name, "runs": len(arm.runs), "done": len(arm.done)}
        row |= {name: getattr(arm, name) for name in training}
        for metric in ("bleu", "chrf"):
            if getattr(arm, metric):
                row |= {f"{metric}_{name}": value for name, value
                        in dataclasses.asdict(getattr(arm, metric)).items()}
            row[f"{metric}_runs"] = ";".join(str(getattr(run, metric)) for run in arm.done)
        writer.writerow(row)
    return out.getvalue()
