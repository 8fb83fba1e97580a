"""Escapes text of any origin for each format of a report.

Names of arms, settings and directories, failure reasons, translations and sub-words come from
files that somebody else may have written. Each function makes such a text safe for one format;
control codes are replaced in all of them. The page's template escapes HTML (`html_page`).
"""
import re

from rpr.utils.console import printable

# A spreadsheet evaluates cells that start so; some take ";" for the end of a cell.
_FORMULA = re.compile("(^|;[ \"']*)(?=[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20])")
_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
          "`": r"\textasciigrave{}", '"': "{''}", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\le$",
          "|": r"\textbar{}\allowbreak{}", "<": r"\textless{}", ">": r"\textgreater{}",
          **{sign: "\\" + sign for sign in "&%$#_{}"}}


def plain(text: str) -> str:
    """Text without control codes and without code points that UTF-8 cannot encode."""
    return printable(text).encode("utf-8", "replace").decode()


def to_csv(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; values other than text stay as they are."""
    if not isinstance(value, str):
        return value
    return _FORMULA.sub(r"\1'", plain(value))


def to_markdown(text: str) -> str:
    """Text of a Markdown paragraph or table cell: no link, no HTML, no emphasis, no new column.

    An underscore inside a word has no meaning there and is kept, as most settings have one.
    """
    text = re.sub(r"([\\`*\[\]|~!])", r"\\\1", plain(text))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_latex(text: str) -> str:
    r"""Text of LaTeX's text mode, also after `\\`, where `[` and `*` would begin an argument."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in plain(text))
    return re.sub(r"^([\[*])", r"{\1}", escaped)


def to_figure(text: str) -> str:
    """A label of a Matplotlib figure: `$` begins no formula, a leading `_` does not hide it."""
    text = plain(text).replace("$", r"\$")
    return " " + text if text.startswith("_") else text
