"""report.html: tables and figures in one file that needs no network and no other file."""
import base64
import difflib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from rpr.report import columns, tables
from rpr.report.escaping import to_html
from rpr.report.results import Sample, StudyResults
from rpr.utils.console import printable

MOST_EMBEDDED = 4_000_000                             # bytes of figures; the rest is linked
MOST_GIN = 100_000                                    # characters of the study's gin file
MOST_LINES = 200                                      # of a list of warnings or unfinished runs

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 0 auto;
       max-width: 72rem; padding: 1rem clamp(0.75rem, 3vw, 2rem) 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; font-size: 0.9rem; }
a { color: #0b57a4; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; white-space: nowrap; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.25rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid #dde2e8; }
th { border-bottom: 2px solid #8a94a0; }
th.arm, td.arm { text-align: left; }
tr.baseline { background: #f1f5f9; }
tr.unfinished { color: #77808a; }
sup { line-height: 0; }
figure { margin: 0.5rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; }
@media (max-width: 45rem) { img.wide { max-width: none; width: 45rem; } }
details { margin: 0.75rem 0; border: 1px solid #dde2e8; border-radius: 6px;
          padding: 0.4rem 0.8rem; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: 0.85rem; }
.small { font-size: 0.85rem; color: #4b5560; }
.samples td { white-space: normal; text-align: left; vertical-align: top; }
.samples td.arm { min-width: 12rem; }
ins { background: #fde2d3; text-decoration: none; }
del { background: #e4e9ee; color: #77808a; }
.warning { border-left: 4px solid #d9822b; padding: 0.25rem 0.75rem; background: #fdf6ee; }
"""


class Picture(NamedTuple):
    """Attributes:
      title: heading of the figure.
      path: of its SVG file, relative to the page.
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
    title = to_html(results.title)
    body = "\n".join(_parts(results, pictures, directory, linked))
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n"
            f"<h1>{title}</h1>\n{body}\n</body></html>\n")


def _parts(results: StudyResults, pictures: Sequence[Picture], directory: str,
           linked: Sequence[Picture]) -> Iterator[str]:
    """The blocks of the page, in order."""
    facts = [results.date, results.problem,
             f"{results.sentences:,} test sentences" if results.sentences else "",
             f"{results.documents:,} documents" if results.documents else ""]
    yield f'<p class="small">{to_html(" · ".join(filter(None, facts)))}</p>'
    yield _warning("Look at these translations before you trust the scores:", results.warnings)
    yield tables.to_html(results)
    yield _warning("Not done, and not in the scores:", results.unfinished)
    lines = [to_html(note.text) for note in columns.notes(results)]
    lines += [f"<code>{to_html(line)}</code>" for line in columns.signatures(results)]
    yield f'<p class="small">{"<br>".join(lines)}</p>'
    embed = _Embedder(directory)
    for picture in pictures:
        if not picture.arm:
            yield f"<h2>{to_html(picture.title)}</h2>{embed(picture)}"
    if results.samples:
        yield "<h2>Sample translations</h2>" + "".join(map(_sample, results.samples))
        yield ('<p class="small"><ins>Words</ins> that the reference does not have there; '
               "<del>words</del> of the reference that are missing.</p>")
    arms = dict.fromkeys(picture.arm for picture in pictures if picture.arm)
    if arms or linked:
        yield "<h2>The trained models</h2>"
    for arm in arms:
        yield f"<details><summary>{to_html(arm)}</summary>" + "".join(
            f"<h3>{to_html(picture.title)}</h3>{embed(picture)}"
            for picture in pictures if picture.arm == arm) + "</details>"
    yield _links(linked)
    if (arms or linked) and any(arm.done and arm.name not in arms for arm in results.arms):
        yield ('<p class="small">Figures of other models: <code>rpr report DIR '
               "--plot_model=ARM</code>.</p>")
    yield _corpus(results)
    yield _environments(results)
    if results.study_gin:
        yield ("<h2>The study</h2><details><summary>study.gin</summary>"
               f"<pre>{_preformatted(results.study_gin[:MOST_GIN])}</pre></details>")


def _links(pictures: Sequence[Picture]) -> str:
    """Links to the figures of other models, a line per arm."""
    lines = [f"<li>{to_html(arm)}: " + ", ".join(
        f'<a href="{to_html(quote(picture.path))}">{to_html(picture.title)}</a>'
        for picture in pictures if picture.arm == arm) + "</li>"
        for arm in dict.fromkeys(picture.arm for picture in pictures if picture.arm)]
    return (f"<details><summary>Models drawn by earlier reports</summary><ul>{''.join(lines)}</ul>"
            "</details>") if lines else ""


class _Embedder:
    """Figures as data URLs while there is room in the page, then as links.

    Inside an `img`, ids of several SVGs cannot collide.
    """

    def __init__(self, directory: str) -> None:
        self._directory, self._room = directory, MOST_EMBEDDED

    def __call__(self, picture: Picture) -> str:
        title = to_html(picture.title)
        with open(os.path.join(self._directory, picture.path), "rb") as svg:
            data = base64.b64encode(svg.read()).decode("ascii")
        if len(data) > self._room:
            return f'<p><a href="{to_html(quote(picture.path))}">{title}</a></p>'
        self._room -= len(data)
        kind = ' class="wide"' if picture.wide else ""
        return (f'<figure><img{kind} alt="{title}" src="data:image/svg+xml;base64,{data}">'
                "</figure>")


def _warning(heading: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = [*lines[:MOST_LINES], *([f"and {len(lines) - MOST_LINES:,} more"]
                                    if len(lines) > MOST_LINES else [])]
    items = "".join(f"<li>{to_html(line)}</li>" for line in shown)
    return f'<div class="warning">{heading}<ul>{items}</ul></div>'


def _sample(sample: Sample) -> str:
    """A table with source, reference and translations of one sentence."""
    rows = [("source", to_html(sample.source)), ("reference", to_html(sample.reference))]
    rows += [(to_html(arm), mark_differences(hypothesis, sample.reference))
             for arm, hypothesis in sample.hypotheses.items()]
    body = "".join(f'<tr><td class="arm">{name}</td><td>{text}</td></tr>' for name, text in rows)
    return f'<div class="table samples"><table><tbody>{body}</tbody></table></div>'


def mark_differences(hypothesis: str, reference: str) -> str:
    """The hypothesis as HTML: extra words in <ins>, missing words of the reference in <del>."""
    words, expected = hypothesis.split(), reference.split()
    parts = []
    for kind, low, high, from_, to in difflib.SequenceMatcher(
            None, expected, words, autojunk=False).get_opcodes():
        missing, present = (to_html(" ".join(part)) for part in
                            (expected[low:high], words[from_:to]))
        if kind == "equal":
            parts.append(present)
        else:
            parts += [f"<del>{missing}</del>"] if missing else []
            parts += [f"<ins>{present}</ins>"] if present else []
    return " ".join(parts)


def _corpus(results: StudyResults) -> str:
    """The files that the data was made from."""
    if not results.corpus:
        return ""
    body = "".join(
        f'<tr><td class="arm">{to_html(name)}</td><td class="arm">{to_html(facts.get("path", ""))}'
        f'</td><td>{_count(facts.get("lines"))}</td>'
        f'<td class="arm"><code>{to_html(str(facts.get("sha256", "")))}</code></td></tr>'
        for name, facts in results.corpus.items())
    return ('<h2>The data</h2><div class="table"><table><thead><tr><th class="arm">set</th>'
            '<th class="arm">file</th><th>lines</th><th class="arm">SHA-256</th></tr></thead>'
            f"<tbody>{body}</tbody></table></div>")


def _count(lines: Any) -> str:
    return f"{lines:,}" if isinstance(lines, int) else ""


def _environments(results: StudyResults) -> str:
    """Machine, versions and commit of each environment, with the number of runs made there."""
    blocks = []
    for index, environment in enumerate(results.environments):
        runs = sum(run.environment == index for arm in results.arms for run in arm.runs)
        body = "".join(f'<tr><td class="arm">{to_html(name)}</td><td class="arm">{to_html(value)}'
                       "</td></tr>" for name, value in flatten(environment))
        blocks.append(f'<details><summary>environment of {runs:,} run{"s" * (runs != 1)}</summary>'
                      f'<div class="table"><table><tbody>{body}</tbody></table></div></details>')
    return "<h2>Software and machine</h2>" + "".join(blocks) if blocks else ""


def flatten(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested dicts as ("outer inner", text)."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name} ")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield f"{prefix}{name}", text


def _preformatted(text: str) -> str:
    return "\n".join(to_html(line) for line in printable(text, lines=True).split("\n"))
