"""Draws the figures and writes report.html, which needs no network and no other file.

The layout is in page.html.jinja. jinja2 escapes every value there, after its control codes have
been replaced.
"""
import base64
import contextlib
import difflib
import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from rpr.report import columns, model_analysis, model_plots, plots
from rpr.report.columns import plain
from rpr.report.results import ArmResult, RunResult, StudyResults
from rpr.report.study_reader import run_directory_of
from rpr.utils import files
from rpr.utils.console import Task

MOST_EMBEDDED = 4_000_000                             # bytes of figures; the rest is linked
MOST_GIN = 100_000                                    # characters of the study's gin file
MOST_LINES = 200                                      # of a list of warnings or unfinished runs


class Picture(NamedTuple):
    """A figure as part of the page."""
    title: str
    path: str                                         # of the SVG, relative to the page
    arm: str | None                                   # whose model it shows; None: all arms
    wide: bool                                        # a narrow screen scrolls, not shrinks it


def write_page(results: StudyResults, path: str, arms: Sequence[ArmResult]) -> str:
    """Draws all figures into PATH/plots and writes PATH/report.html, whose path it returns.

    Models of `arms` are drawn if they were analysed.
    """
    pictures: list[Picture] = []
    files.remove_temporary_files(os.path.join(path, "plots"))
    with Task("figures", None, "figures") as task:
        for kind, figure in plots.draw_study(results):
            pictures.append(_save(figure, kind, plots.TITLES[kind], path))
            task.update(len(pictures))
        _remove_others(pictures, path)
        models = [model_analysis.load(run_directory_of(path, arm.done[0])) for arm in arms]
        highest = model_plots.highest_shares(models)
        for arm, arrays in zip(arms, models, strict=True):
            run = arm.done[0]
            for kind, figure in model_plots.draw_model(arrays, highest):
                pictures.append(_save(figure, _plot_name(kind, run), model_plots.TITLES[kind], path,
                                      arm.name))
                task.update(len(pictures))
    page, drawn = os.path.join(path, "report.html"), {picture.path for picture in pictures}
    earlier = [picture for picture in _earlier_pictures(results, path) if picture.path not in drawn]
    files.write_atomically(page, render_page(results, pictures, path, earlier))
    return page


def _remove_others(pictures: Sequence[Picture], path: str) -> None:
    """Removes the figures of the study that an earlier report drew and this one does not."""
    drawn = {os.path.splitext(picture.path)[0] for picture in pictures}
    for name in plots.TITLES:
        stem = os.path.join("plots", name)
        for suffix in (".svg", ".png") if stem not in drawn else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, stem + suffix))


def _earlier_pictures(results: StudyResults, path: str) -> Iterator[Picture]:
    """Figures of models that earlier reports drew, unless the run was scored again since."""
    for arm in results.arms:
        for run in arm.done[:1]:
            scores = run_directory_of(path, run).scores
            for kind, title in model_plots.TITLES.items():
                picture = os.path.join("plots", f"{_plot_name(kind, run)}.svg")
                file = os.path.join(path, picture)
                if os.path.isfile(file) and os.path.isfile(scores) and (
                        os.path.getmtime(file) >= os.path.getmtime(scores)):
                    yield Picture(title, picture, arm.name, False)


def _plot_name(kind: str, run: RunResult) -> str:
    folder, name = os.path.split(run.path)
    if folder not in ("", "runs"):                    # elsewhere another run may have the name, too
        name += f"-{hashlib.sha256(run.path.encode()).hexdigest()[:6]}"
    return f"{kind}_{name}"


def _save(figure: Figure, name: str, title: str, path: str, arm: str | None = None) -> Picture:
    """Writes and closes a figure; returns it as part of the page."""
    wide = figure.get_figwidth() > 7
    plots.save(figure, os.path.join(path, "plots", name))
    return Picture(title, os.path.join("plots", f"{name}.svg"), arm, wide)


def render_page(results: StudyResults, pictures: Sequence[Picture], directory: str,
                linked: Sequence[Picture] = ()) -> str:
    """The page as HTML, for `directory`. Its only script is page.js, which is part of it.

    Figures of single arms are folded, one block per arm. Those of `linked` are not embedded.
    """
    models = _by_arm(pictures)
    script = pathlib.Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    facts = filter(None, (results.date, results.problem,
                          columns.size_of_test_set(results),
                          f"{results.documents:,} {columns.units_of_test_set(results)}"
                          if results.documents else ""))
    return _environment().get_template("page.html.jinja").render(
        results=results, facts=" · ".join(facts), most_lines=MOST_LINES,
        pictures=pictures, embedded=_embedded(pictures, directory), models=models,
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        numbers={arm.name: number for number, arm in enumerate(results.arms)},
        linked=_by_arm(linked), environments=[
            (sum(run.environment == place for run in results.all_runs),
             list(_flatten(record))) for place, record in enumerate(results.environments)],
        differing=list(dict.fromkeys(name for arm in results.arms for name in arm.configuration)),
        some_are_not_drawn=any(arm.done and arm.name not in models for arm in results.arms),
        gin_lines=results.study_gin[:MOST_GIN].split("\n"))


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True,
        trim_blocks=True, finalize=lambda value: value if isinstance(value, Markup)
        else plain(str(value)))
    environment.globals |= {"tables": columns.tables, "rows": columns.rows, "zip": zip,
                            "notes": columns.notes, "signatures": columns.signatures,
                            "differences": differences, "seed_scores": _seed_scores}
    environment.filters |= {
        "number": lambda value: f"{value:,}" if isinstance(value, int) else "", "signs": _signs,
        "heading": _heading, "setting": columns.setting_text}
    return environment


def _by_arm(pictures: Sequence[Picture]) -> dict[str, list[Picture]]:
    """The pictures of each arm's model, which follow each other."""
    return {arm: list(found) for arm, found in itertools.groupby(
        pictures, lambda picture: picture.arm) if arm}


def _embedded(pictures: Sequence[Picture], directory: str) -> dict[str, Markup]:
    """{path: HTML} of the figures for which there is room; the others are linked.

    Those of the study are part of the page, so that their arms can be switched off. `plots.save`
    has just drawn them from escaped labels. What their ids name is equal in all of them, since
    Matplotlib makes the ids from it. In data URLs, as of the others, ids cannot collide.
    """
    room, found = MOST_EMBEDDED, {}
    for picture in sorted(pictures, key=lambda picture: picture.arm is not None):
        svg = pathlib.Path(directory, picture.path).read_text(encoding="utf-8")
        data = base64.b64encode(svg.encode()).decode()
        if len(data) <= room:
            room -= len(data)
            # Without XML declaration and document type.
            found[picture.path] = Markup(svg[svg.index("<svg"):]) if not picture.arm else Markup(
                '<img alt="{}" src="data:image/svg+xml;base64,{}">').format(picture.title, data)
    return found


def _seed_scores(arm: ArmResult, metric: str) -> str:
    """The scores of each finished run, if there are several."""
    return ", ".join(f"seed {run.seed}: {score:.2f}" for run in arm.done
                     if len(arm.done) > 1 and (score := run.scores.get(metric)) is not None)


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


def _flatten(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested dicts as ("outer inner", text)."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name} ")
        else:
            yield (f"{prefix}{name}",
                   " ".join(map(str, value)) if isinstance(value, list) else str(value))
