"""report.html: tables and figures in one file that needs no network and no other file.

The layout is in page.html.jinja. jinja2 escapes every value there, after its control codes have
been replaced.
"""
import base64
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from rpr.report import columns
from rpr.report.escaping import plain
from rpr.report.results import StudyResults

MOST_EMBEDDED = 4_000_000                             # bytes of figures; the rest is linked
MOST_GIN = 100_000                                    # characters of the study's gin file
MOST_LINES = 200                                      # of a list of warnings or unfinished runs


class Picture(NamedTuple):
    """Attributes:
      title: heading of the figure.
      path: its SVG file, relative to the page.
      arm: name of the arm that it shows, or None for the whole study.
      wide: whether a narrow screen should scroll it instead of shrinking it.
    """
    title: str
    path: str
    arm: str | None
    wide: bool


def render_page(results: StudyResults, pictures: Sequence[Picture], directory: str,
                linked: Sequence[Picture] = ()) -> str:
    """The page as HTML.

    Args:
      results: with scores.
      pictures: those of single arms are folded, one block per arm.
      directory: where the page will be written.
      linked: figures of other models, which the page links.
    """
    models = _by_arm(pictures)
    facts = filter(None, (results.date, results.problem,
                          f"{results.sentences:,} test sentences" if results.sentences else "",
                          f"{results.documents:,} documents" if results.documents else ""))
    return _environment().get_template("page.html.jinja").render(
        results=results, facts=" · ".join(facts), most_lines=MOST_LINES,
        pictures=pictures, embedded=_embedded(pictures, directory), models=models,
        linked=_by_arm(linked), environments=list(_environments(results)),
        some_are_not_drawn=any(arm.done and arm.name not in models for arm in results.arms),
        gin_lines=results.study_gin[:MOST_GIN].split("\n"))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True,
        trim_blocks=True, finalize=lambda value: value if isinstance(value, Markup)
        else plain(str(value)))
    environment.globals |= {"tables": columns.tables, "rows": columns.rows, "zip": zip,
                            "notes": columns.notes, "signatures": columns.signatures,
                            "differences": differences}
    environment.filters |= {"number": _number, "signs": _signs, "heading": _heading}
    return environment


def _by_arm(pictures: Sequence[Picture]) -> dict[str, list[Picture]]:
    """The figures of single arms."""
    arms: dict[str, list[Picture]] = {}
    for picture in pictures:
        if picture.arm:
            arms.setdefault(picture.arm, []).append(picture)
    return arms


def _embedded(pictures: Sequence[Picture], directory: str) -> dict[str, str]:
    """{path: base64 of the SVG} of the figures for which there is room; the others are linked.

    As data URLs in an `img`, ids of several SVGs cannot collide.
    """
    room, found = MOST_EMBEDDED, {}
    for picture in sorted(pictures, key=lambda picture: picture.arm is not None):
        with open(os.path.join(directory, picture.path), "rb") as svg:
            data = base64.b64encode(svg.read()).decode("ascii")
        if len(data) <= room:
            room -= len(data)
            found[picture.path] = data
    return found


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _signs(text: str) -> str:
    """Differences with a minus sign instead of a hyphen."""
    text = text.replace(" [-", " [−").replace(", -", ", −")
    return "−" + text[1:] if re.match(r"-\d", text) else text


def _heading(text: str) -> str:
    """a^K with a superscript."""
    symbol = re.fullmatch(r"a\^([KV])", text)
    return Markup("a<sup>{}</sup>").format(symbol[1]) if symbol else _signs(text)


def differences(hypothesis: str, reference: str) -> Iterator[tuple[str, str]]:
    """The words of a hypothesis as (tag, words).

    The tag is "ins" for words that the reference does not have there, "del" for words of the
    reference that are missing, and empty for the others.
    """
    words, expected = hypothesis.split(), reference.split()
    for kind, low, high, from_, to in difflib.SequenceMatcher(
            None, expected, words, autojunk=False).get_opcodes():
        for tag, part in (("del", expected[low:high]), ("ins", words[from_:to])):
            if part and (kind != "equal" or tag == "ins"):
                yield "" if kind == "equal" else tag, " ".join(part)


def _environments(results: StudyResults) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """(number of runs made there, [(name, value)]) of each environment."""
    for index, environment in enumerate(results.environments):
        yield (sum(run.environment == index for arm in results.arms for run in arm.runs),
               list(_flatten(environment)))


def _flatten(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested dicts as ("outer inner", text)."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name} ")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{name}", text
