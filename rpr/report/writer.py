"""Writes all files of a report: tables, figures, the page and TensorBoard's event files."""
import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence

from rpr.report import html_page, model_analysis, model_plots, plots, tables
from rpr.report.columns import Column
from rpr.report.html_page import Picture
from rpr.report.results import ArmResult, RunResult, StudyResults
from rpr.report.study_reader import run_directory_of
from rpr.utils import files
from rpr.utils.console import Task


def write_tables(results: StudyResults, path: str, chosen: Sequence[Column] = ()) -> None:
    """Writes results.{json,csv,md,tex}, and results_by_length.csv with the scores of each run.

    Args:
      results: with scores.
      path: the study's directory.
      chosen: columns of results.md and results.tex; empty: the default ones.
    """
    for suffix, text in (("json", tables.to_json(results)), ("csv", tables.to_csv(results)),
                         ("md", tables.to_markdown(results, chosen)),
                         ("tex", tables.to_latex(results, chosen))):
        files.write_atomically(os.path.join(path, f"results.{suffix}"), text)
    if any(run.by_length for arm in results.arms for run in arm.done):
        files.write_atomically(os.path.join(path, "results_by_length.csv"),
                               tables.lengths_to_csv(results))


def write_page(results: StudyResults, path: str, arms: Sequence[ArmResult]) -> str:
    """Draws all figures into PATH/plots and writes PATH/report.html.

    Args:
      results: with scores.
      path: the study's directory.
      arms: whose models are drawn, if they were analysed.

    Returns:
      the page's path.
    """
    pictures: list[Picture] = []
    with Task("figures", None, "figures") as task:
        for plot in plots.draw_study(results):
            pictures.append(_save(plot, path))
            task.update(len(pictures))
        _remove_others(pictures, path)
        for arm in arms:
            run = arm.done[0]
            for kind, figure in model_plots.draw_model(
                    model_analysis.load(run_directory_of(path, run))):
                plot = plots.Plot(_plot_name(kind, run), model_plots.TITLES[kind], figure,
                                    arm.name)
                pictures.append(_save(plot, path))
                task.update(len(pictures))
    page = os.path.join(path, "report.html")
    drawn = {picture.path for picture in pictures}
    earlier = [picture for picture in _earlier_pictures(results, path)
               if picture.path not in drawn]
    files.write_atomically(page, html_page.render_page(results, pictures, path, earlier))
    return page


def _remove_others(pictures: Sequence[Picture], path: str) -> None:
    """Removes the figures of the study that an earlier report drew and this one does not."""
    drawn = {os.path.splitext(picture.path)[0] for picture in pictures}
    for name in plots.STUDY_FIGURES:
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
    name = os.path.basename(run.path)
    if run.path.startswith(os.pardir):                # of another study, which may use the name too
        name += f"-{hashlib.sha256(run.path.encode()).hexdigest()[:6]}"
    return f"{kind}_{name}"


def _save(plot: plots.Plot, path: str) -> Picture:
    """Writes a figure; returns it as part of the page."""
    wide = plot.wide
    plots.save(plot.figure, os.path.join(path, "plots", plot.name))
    return Picture(plot.title, os.path.join("plots", f"{plot.name}.svg"), plot.arm, wide)
