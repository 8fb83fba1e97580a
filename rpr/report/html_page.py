"""report.html: tables and figures in one file that needs no network and no other file."""
import base64
import html
import os
from collections.abc import Sequence
from typing import NamedTuple

from rpr.report import columns, figures, plots, tables
from rpr.report.results import StudyResults
from rpr.utils import files
from rpr.utils.console import Task

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
.warning { border-left: 4px solid #d9822b; padding: 0.25rem 0.75rem; background: #fdf6ee; }
"""


class Picture(NamedTuple):
    """Attributes:
      title: heading of the figure.
      path: of its SVG file.
      arm: name of the arm that it shows, or None for the whole study.
      wide: whether a narrow screen should scroll it instead of shrinking it.
    """
    title: str
    path: str
    arm: str | None
    wide: bool


def render_page(results: StudyResults, pictures: Sequence[Picture], study_gin: str) -> str:
    """The page as HTML.

    Args:
      results: with scores.
      pictures: those of single arms are folded, one block per arm.
      study_gin: text of the study's gin file, or empty.
    """
    arms = dict.fromkeys(picture.arm for picture in pictures if picture.arm)
    parts = [f"<h1>{html.escape(results.title)}</h1>", tables.to_html(results)]
    if results.unfinished:
        items = "".join(f"<li>{html.escape(line)}</li>" for line in results.unfinished)
        parts.append('<div class="warning">Not done, and not in the scores:'
                     f"<ul>{items}</ul></div>")
    lines = [html.escape(line) for line in columns.notes(results)]
    lines += [f"<code>{html.escape(line)}</code>" for line in columns.signatures(results)]
    parts.append('<p class="small">' + "<br>".join(lines) + "</p>")
    parts += [f"<h2>{html.escape(picture.title)}</h2>{_embed(picture)}"
              for picture in pictures if not picture.arm]
    if arms:
        parts.append("<h2>The trained models</h2>")
    for arm in arms:
        parts.append(f"<details><summary>{html.escape(arm)}</summary>" + "".join(
            f"<h3>{html.escape(picture.title)}</h3>{_embed(picture)}"
            for picture in pictures if picture.arm == arm) + "</details>")
    if study_gin:
        parts.append("<h2>The study</h2><details><summary>study.gin</summary><pre>"
                     f"{html.escape(study_gin)}</pre></details>")
    return ("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(results.title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(parts) + "\n</body></html>\n")


def _embed(picture: Picture) -> str:
    """The figure as a data URL: inside an `img`, ids of several SVGs cannot collide."""
    with open(picture.path, "rb") as svg:
        data = base64.b64encode(svg.read()).decode("ascii")
    kind = ' class="wide"' if picture.wide else ""
    return (f'<figure><img{kind} alt="{html.escape(picture.title, quote=True)}" '
            f'src="data:image/svg+xml;base64,{data}"></figure>')


def write_page(results: StudyResults, path: str) -> str:
    """Draws all figures and writes report.html.

    Args:
      results: with scores.
      path: the study's directory.

    Returns:
      the page's path.
    """
    pictures = []
    with Task("plots", None, "plots") as task:
        for plot in plots.draw_all(results, path):
            target = os.path.join(path, "plots", plot.name)
            pictures.append(Picture(plot.title, f"{target}.svg", plot.arm, plot.wide))
            figures.save(plot.figure, target)
            task.update(len(pictures))
    study_gin = ""
    if os.path.exists(os.path.join(path, "study.gin")):
        with open(os.path.join(path, "study.gin"), encoding="utf-8") as lines:
            study_gin = lines.read()
    page = os.path.join(path, "report.html")
    files.write_atomically(page, render_page(results, pictures, study_gin))
    return page
