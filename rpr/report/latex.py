r"""The results as a LaTeX table for \usepackage{booktabs}."""
import re
from collections.abc import Sequence

from rpr.report import escaping
from rpr.report.columns import SYMBOLS, Column, columns, notes, rows, signatures
from rpr.report.results import StudyResults

_COSTS = ("parameters", "speed")                      # shown by default


def to_latex(results: StudyResults, chosen: Sequence[Column] = ()) -> str:
    """A table with caption and label; signatures, warnings and unfinished runs are comments.

    Args:
      results: with scores.
      chosen: columns; default: results, differences, parameters and relative speed.
    """
    chosen = chosen or [column for column in columns(results)
                        if column.group != "cost" or column.key in _COSTS]
    align = "".join("l" if column.group == "arm" else "r" for column in chosen)
    lines = [_comment(line) for line in [
        *signatures(results), *results.warnings, *(f"not done: {line}"
                                                   for line in results.unfinished)]]
    lines += [r"\begin{table}", r"  \centering", rf"  \begin{{tabular}}{{{align}}}",
              r"    \toprule",
              "    " + " & ".join(_heading(column) for column in chosen) + r" \\",
              r"    \midrule"]
    lines += ["    " + " & ".join(_cell(column, cell) for column, cell
                                  in zip(chosen, cells, strict=True)) + r" \\"
              for cells in rows(chosen)]
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_caption(results, chosen)}}}",
              rf"  \label{{{_label(results)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return "% " + escaping.plain(text)


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


def _caption(results: StudyResults, chosen: Sequence[Column]) -> str:
    """The notes on the chosen columns."""
    keys = {column.key for column in chosen}
    lines = [_math_p(escaping.to_latex(note.text)) for note in notes(results)
             if keys & set(note.keys)]
    return " ".join(lines) or escaping.to_latex(results.title)


def _math_p(text: str) -> str:
    """The letter p as a symbol, together with what it is compared with."""
    text = re.sub(r"\bp ≤ (0\.\d+)", r"$p \\le \1$", text)
    return re.sub(r"(?<![\w$\\])p(?=( \(Holm\)|:|-value|$))", "$p$", text)


def _label(results: StudyResults) -> str:
    return "tab:" + (re.sub(r"[^A-Za-z0-9]+", "-", results.title).strip("-") or "results")
