"""report.html: tables and plots in one file that needs neither a network nor its directory."""
import base64
import html
import os
from typing import NamedTuple

from rpr.report import plots, tables, tensorboard
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
      title: for people.
      path: of an SVG.
      arm: the arm that it is of, or None.
      wide: whether a narrow screen should scroll it rather than shrink it.
    """
    title: str
    path: str
    arm: str | None
    wide: bool


def as_html(record, pictures, study):
    """The page.

    Args:
      record: a `Record`.
      pictures: a list of `Picture`s; those of arms come last, folded.
      study: text of the study's gin file, or empty.
    """
    arms = dict.fromkeys(picture.arm for picture in pictures if picture.arm)
    parts = [f"<h1>{html.escape(record.title)}</h1>", tables.as_html(record)]
    if record.unfinished:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in record.unfinished)
        parts.append(f'<div class="warning">Not done, and not in the scores:<ul>{lines}</ul></div>')
    lines = [html.escape(line) for line in tables.notes(record)]
    lines += [f"<code>{html.escape(line)}</code>" for line in tables.signatures(record)]
    parts.append('<p class="small">' + "<br>".join(lines) + "</p>")
    parts += [f"<h2>{html.escape(picture.title)}</h2>{_figure(picture)}"
              for picture in pictures if not picture.arm]
    if arms:
        parts.append("<h2>What the models learned</h2>")
    for arm in arms:
        parts.append(f"<details><summary>{html.escape(arm)}</summary>" + "".join(
            f"<h3>{html.escape(picture.title)}</h3>{_figure(picture)}"
            for picture in pictures if picture.arm == arm) + "</details>")
    if study:
        parts.append("<h2>The study</h2><details><summary>study.gin</summary><pre>"
                     f"{html.escape(study)}</pre></details>")
    return ("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(record.title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(parts) + "\n</body></html>\n")


def _figure(picture):
    """A picture as part of the page; in an `img`, so that no SVG's names meet another's."""
    with open(picture.path, "rb") as svg:
        data = base64.b64encode(svg.read()).decode("ascii")
    kind = ' class="wide"' if picture.wide else ""
    return (f'<figure><img{kind} alt="{html.escape(picture.title, quote=True)}" '
            f'src="data:image/svg+xml;base64,{data}"></figure>')


def write_page(found, path):
    """Draws the plots, and writes report.html and what TensorBoard reads.

    Args:
      found: a `record.Record`.
      path: the report's directory.

    Returns:
      the page's path.
    """
    pictures = []
    with Task("plots", None, "plots") as task:
        for plot in plots.draw_all(found, path):
            target = os.path.join(path, "plots", plot.name)
            pictures.append(Picture(plot.title, f"{target}.svg", plot.arm, plot.wide))
            plots.save(plot.figure, target)
            task.update(len(pictures))
    study = os.path.join(path, "study.gin")
    text = ""
    if os.path.exists(study):
        with open(study, encoding="utf-8") as lines:
            text = lines.read()
    target = os.path.join(path, "report.html")
    files.write_atomically(target, as_html(found, pictures, text))
    tensorboard.write(found, path)
    return target
