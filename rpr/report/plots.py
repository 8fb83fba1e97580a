"""Figures that compare the arms of a study, and what all figures of a report share."""
import itertools
import math
import os
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.rcdefaults()                               # not what a matplotlibrc here says
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from rpr.evaluation import ALL_METRICS, LOSS_METRICS, LOWER_IS_BETTER  # noqa: E402
from rpr.evaluation.significance import LEVEL, ArmScore  # noqa: E402
from rpr.report.columns import plain, units_of_test_set  # noqa: E402
from rpr.report.results import ArmResult, StudyResults  # noqa: E402
from rpr.utils import files  # noqa: E402

K = "max_relative_position"
SMOOTHED_RECORDS = 10                                 # of the training loss
MOST_CURVES = 30                                      # arms; more cannot be told apart
_NAMES = {metric: name[0].upper() + name[1:] for metric, name in ALL_METRICS.items()}
TITLES = {"curves": "Learning curves", "ranking": "Which arms differ", "heat_map": "Arms by length",
          **{f"{metric}_by_k": f"{name} by clipping distance" for metric, name in _NAMES.items()},
          **{f"{metric}_by_length": f"{name} by " + (
              "position" if metric in LOSS_METRICS else "source length")
             for metric, name in _NAMES.items()}}
MOST_LABELLED = 16                                    # arms; a larger matrix has colours, no text
LONGEST_LABEL = 32
PNG_DPI = 130
# Arms differ in colour, marker and line style, so that many are told apart, also in grey.
MARKERS, LINES = "os^Dv*PX<>p", ("-", "--", "-.", ":")
pyplot.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                        "axes.spines.right": False, "svg.hashsalt": "rpr", "font.size": 9})


def save(figure: Figure, target: str) -> None:
    """Writes TARGET.png and TARGET.svg, each atomically, and closes the figure."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    figure.dpi = PNG_DPI
    # `savefig` would draw each figure twice, and the layout is computed once.
    with files.atomic_path(f"{target}.png") as path:
        FigureCanvasAgg(figure).print_png(path)
    figure.set_layout_engine("none")
    with files.atomic_path(f"{target}.svg") as path:
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    pyplot.close(figure)


def add_legend(figure: Figure, axes: Axes) -> None:
    """Adds one legend to the right of all panels, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False)


def arm_styles(results: StudyResults) -> dict[str, dict[str, Any]]:
    """Colour, marker and line style of each arm by name, as arguments of `Axes.plot`.

    Their gid becomes the id in SVG by which page.js finds an arm.
    """
    return {arm.name: {"color": colour, "marker": MARKERS[index % len(MARKERS)],
                       "linestyle": LINES[index // 4 % len(LINES)], "label": arm_label(arm),
                       "gid": f"arm{index}"}
            for index, (arm, colour) in enumerate(zip(results.arms, _colours(results.arms),
                                                      strict=True))}


def _colours(arms: Sequence[ArmResult]) -> list:
    """A colour per arm: a sequential scale if the arms are values of one numeric setting."""
    values: list[Any] = [arm.settings.get(name) for arm in arms for name in arm.settings]
    if len(values) == len(arms) > 2 and all(type(value) in (int, float) for value in values):
        order = sorted(range(len(arms)), key=lambda index: values[index])
        scale = matplotlib.colormaps["viridis"]
        return [scale(0.95 * order.index(index) / (len(arms) - 1)) for index in range(len(arms))]
    return [f"C{index % 10}" for index in range(len(arms))]


def arm_label(arm: ArmResult) -> str:
    """An arm's name, shortened; `$` begins no formula there, a leading `_` does not hide it."""
    if arm.name == f"max_relative_position={arm.settings.get('max_relative_position')}":
        return f"k = {arm.settings['max_relative_position']}"
    short = arm.name if len(arm.name) <= LONGEST_LABEL else arm.name[:LONGEST_LABEL - 1] + "…"
    text = plain(short).replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def draw_study(results: StudyResults) -> Iterator[tuple[str, Figure]]:
    """Yields (name, figure) where there is data; the names are those of `TITLES`."""
    if any(run.train_losses for arm in results.arms for run in arm.runs):
        yield "curves", plot_curves(results)
    with_k, without_k = split_by_k(results)
    if len(with_k) > 1:
        yield f"{results.metric}_by_k", plot_by_k(results, with_k, without_k)
    if results.pairs:
        yield "ranking", plot_ranking(results)
    if len(results.buckets) > 1 and any(arm.by_length for arm in results.arms):
        yield f"{results.metric}_by_length", plot_by_length(results)
        if results.length_buckets and len(results.arms) > 2:
            yield "heat_map", plot_heat_map(results)


def plot_curves(results: StudyResults) -> Figure:
    """Training loss, development loss and BLEU of each arm: mean and range over its seeds.

    Shows finished runs; all runs of an arm while none is finished. The y axis of the losses leaves
    out the first steps, where every loss falls steeply. BLEU is there if checkpoints were scored
    (run.bleu_frequency).
    """
    has_bleu = any(run.dev_bleu for arm in results.arms for run in arm.runs)
    count = 3 if has_bleu else 2
    figure, panels = pyplot.subplots(1, count, figsize=(5.5 * count, 4.2), sharex=True,
                                     layout="constrained")
    shown: list[float] = []
    arms = results.arms
    if len(arms) > MOST_CURVES:
        arms = results.featured(MOST_CURVES) or arms[:MOST_CURVES]
    styles = arm_styles(results)
    for arm in arms:
        style = styles[arm.name]
        runs = arm.done or arm.runs                   # curves end where the shortest one does
        shown += _plot_range(panels[0], [_smooth(run.train_losses) for run in runs],
                             style | {"marker": ""})
        shown += _plot_range(panels[1], [run.dev_losses for run in runs], style)
        if has_bleu:
            _plot_range(panels[2], [run.dev_bleu for run in runs], style)
    labels = ((f"training (mean of {SMOOTHED_RECORDS} records)", "loss (nats per token)"),
              ("development set", "loss (nats per token)"),
              ("development set", "BLEU of checkpoints (not averaged)"))
    for axes, (title, ylabel) in zip(panels, labels, strict=False):
        axes.set(title=title, xlabel="step", ylabel=ylabel)
    if any(len(arm.runs) > 1 for arm in arms):
        figure.supxlabel("lines: mean over seeds, bands: smallest to largest", fontsize=8)
    for axes in panels[:2] if shown else ():
        margin = 0.05 * (max(shown) - min(shown)) or 0.1
        axes.set_ylim(min(shown) - margin, max(shown) + margin)
    add_legend(figure, max(panels[1::-1], key=lambda axes: len(axes.lines)))
    return figure


def _plot_range(axes: Axes, curves: Sequence[Sequence[Sequence[float]]], style: dict[str, Any]
                ) -> list[float]:
    """Draws the mean and range of the curves of several seeds; returns the means after the start.
    """
    steps, values = _on_common_steps(curves)
    if not len(steps):
        return []
    mean = values.mean(axis=0)
    if len(values) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), lw=0, alpha=0.2,
                          color=style["color"], gid=style["gid"])
    axes.plot(steps, mean, lw=1.5, ms=4, **style)
    return mean[steps >= steps[-1] / 20].tolist()


def _smooth(losses: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Each loss as the mean of the last records, [(step, loss), ...]."""
    return [(step, statistics.fmean(loss for _, loss in losses[max(0, end - SMOOTHED_RECORDS):end]))
            for end, (step, _) in enumerate(losses, 1)]


def _on_common_steps(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [n] and values [curves, n] of the curves of several seeds that have records.

    Runs may record different steps (thinned logs, evaluations by wall time). All are interpolated
    to those of the curve with the fewest records, as far as every curve reaches.
    """
    recorded = [np.asarray(curve, float) for curve in curves if len(curve)]
    if not recorded:
        return np.zeros(0), np.zeros((0, 0))
    first, last = (pick(curve[end, 0] for curve in recorded)
                   for pick, end in ((max, 0), (min, -1)))
    steps = min(recorded, key=len)[:, 0]
    steps = steps[(first <= steps) & (steps <= last)]
    return steps, np.array([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in recorded])


def split_by_k(results: StudyResults) -> tuple[list[ArmResult], list[ArmResult]]:
    """Finished arms that differ in k and in nothing else, by k; and finished arms without k.

    Both lists are empty if more than k varies among the arms that have a k.
    """
    done = [arm for arm in results.arms if arm.done and results.metric in arm.scores]
    with_k = [arm for arm in done if type(arm.settings.get(K)) is int]
    rest = [{name: value for name, value in arm.settings.items() if name != K} for arm in with_k]
    if any(settings != rest[0] for settings in rest) or len(
            {arm.settings[K] for arm in with_k}) < len(with_k):
        return [], []
    with_k.sort(key=lambda arm: arm.settings[K])
    return with_k, [arm for arm in done if arm.settings.get(K) is None]


def plot_by_k(results: StudyResults, with_k: Sequence[ArmResult],
              without_k: Sequence[ArmResult]) -> Figure:
    """The first metric by clipping distance k, on a logarithmic axis extended to 0.

    Bars show the standard deviation over seeds, as the tables do; with one seed per arm, the 95%
    interval over test sentences or documents. Arms without k, such as absolute positions, are
    horizontal lines with a band.
    """
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    k = [arm.settings[K] for arm in with_k]
    least = math.log2(min([value for value in k if value] or [1]))
    x = [math.log2(value) if value else least - 1.5 for value in k]
    scores = [arm.scores[results.metric] for arm in with_k]
    several = any(len(arm.done) > 1 for arm in with_k)
    axes.errorbar(x, [score.mean for score in scores],
                  np.transpose([_spread(score, several) for score in scores]), color="C0",
                  marker="o", capsize=3, label="relative positions, " + (
                      "mean ± standard deviation over seeds" if several
                      else f"95% interval over test {units_of_test_set(results)}"))
    if several:
        points = [(position, run.scores[results.metric])
                  for position, arm in zip(x, with_k, strict=True) for run in arm.done]
        axes.plot(*zip(*points, strict=True), "x", color="C0", alpha=0.6, ms=5, label="each seed")
    for number, arm in enumerate(without_k, 1):
        score, colour = arm.scores[results.metric], f"C{number % 10}"
        below, above = _spread(score, several)
        axes.axhspan(score.mean - below, score.mean + above, color=colour, alpha=0.15, lw=0)
        axes.axhline(score.mean, color=colour, lw=1.3, ls=LINES[number % len(LINES)],
                     label=arm_label(arm))
    if results.metric == "bleu":
        _plot_paper(axes, x, with_k, without_k)
    axes.set_xticks(x, [str(value) for value in k])
    if 0 in k:
        axes.axvline(least - 0.75, color="0.7", lw=0.8, ls=":")
    axes.set(xlabel="clipping distance k", ylabel=_NAMES[results.metric])
    axes.legend(loc="best", fontsize=8)
    return figure


def _spread(score: ArmScore, several: bool) -> tuple[float, float]:
    """Lengths of the error bar below and above a mean; 0 where nothing is known."""
    if several:
        return (score.deviation or 0.0,) * 2
    if score.low is None or score.high is None:
        return 0.0, 0.0
    return score.mean - score.low, score.high - score.mean


def _plot_paper(axes: Axes, x: Sequence[float], with_k: Sequence[ArmResult],
                without_k: Sequence[ArmResult]) -> None:
    """The published scores: a dashed curve, and dashed lines for arms without k."""
    label = "the paper (its data, its model size)"
    points = [(position, arm.paper_bleu) for position, arm in zip(x, with_k, strict=True)
              if arm.paper_bleu is not None]
    if points:
        axes.plot(*zip(*points, strict=True), "s--", color="0.6", mfc="none", ms=5, label=label)
    for arm in without_k:
        if arm.paper_bleu is not None:
            axes.axhline(arm.paper_bleu, color="0.6", lw=0.8, ls="--")


def plot_ranking(results: StudyResults) -> Figure:
    """A matrix: the difference of each arm (row) from each other arm, and its p (Holm).

    The best arm is first. A coloured cell is significant at 5%. With many arms the cells have
    colours only.
    """
    place = {name: index for index, name in enumerate(results.ranked)}
    arms = sorted((arm for arm in results.arms if arm.name in place),
                  key=lambda arm: place[arm.name])
    size = len(arms)
    differences = np.full((size, size), np.nan)
    p_values = np.full((size, size), np.nan)          # where there is none
    for pair in results.pairs:
        row, column = place[pair.first], place[pair.second]
        differences[column, row] = pair.comparison.difference
        differences[row, column] = -pair.comparison.difference
        if pair.comparison.p_holm is not None:
            p_values[row, column] = p_values[column, row] = pair.comparison.p_holm
    labelled = size <= MOST_LABELLED
    width, height = (0.8, 0.5) if labelled else (0.3, 0.25)
    letters = max(len(arm_label(arm)) for arm in arms)
    figure, axes = pyplot.subplots(layout="constrained", figsize=(
        width * size + max(2.4, 1 + 0.15 * letters), height * size + max(1.9, 1 + 0.05 * letters)))
    limit = max(1e-9, float(np.nanmax(np.abs(differences))))
    image = axes.imshow(np.where(p_values <= LEVEL, differences, 0), cmap="RdBu",
                        vmin=-limit, vmax=limit, aspect="auto", alpha=0.6)
    axes.grid(False)
    if labelled:
        for row, column in itertools.permutations(range(size), 2):
            axes.text(column, row, f"{differences[row, column]:+.{results.digits}f}\n"
                      f"{_short_p(p_values[row, column])}", ha="center", va="center", fontsize=7)
    else:
        figure.colorbar(image, label=f"difference in {ALL_METRICS[results.metric]}")
    has_letters = any(arm.letters for arm in arms)
    axes.set_yticks(range(size), [f"{arm_label(arm)} ({arm.letters})" if has_letters
                                  else arm_label(arm) for arm in arms])
    axes.set_xticks(range(size), [arm_label(arm) for arm in arms],
                    rotation=30 if labelled else 90, ha="left" if labelled else "center")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    note = (f"{_NAMES[results.metric]} of the row minus that of the column; p with Holm's "
            "correction over all pairs. Colour: p ≤ 0.05.")
    if has_letters:
        note += " Arms that share a letter do not differ significantly."
    figure.supxlabel(textwrap.fill(note, int(figure.get_figwidth() / 0.06)), fontsize=8)
    figure.draw_without_rendering()                   # long rotated labels need two passes
    return figure


def _short_p(p: float) -> str:
    """Such as "p .012"; of NaN, "no p"."""
    if np.isnan(p):
        return "no p"
    return "p " + ("<.001" if p < 0.001 else f"{p:.3f}".replace("0.", ".", 1) if p < 1 else "1")


def plot_by_length(results: StudyResults) -> Figure:
    """The first metric for each bucket of source lengths, and the number of sentences in it.

    Points are means over seeds, bars 95% intervals over the sentences of the bucket.
    """
    figure, (axes, counts) = pyplot.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=(4, 1), layout="constrained")
    x = range(len(results.buckets))
    styles = arm_styles(results)
    shown = [arm for arm in results.featured(MOST_CURVES) if arm.by_length]
    for place, arm in enumerate(shown):               # side by side, so that no bar hides another
        shift = 0.6 * ((place + 0.5) / len(shown) - 0.5)
        means = np.array(arm.by_length)
        ends = np.array(arm.interval_by_length, float).T if arm.interval_by_length else means
        bars = axes.errorbar(np.add(x, shift), means, np.abs(ends - means) * np.ones((2, 1)),
                             ms=4, lw=1.2, elinewidth=0.8, **styles[arm.name])
        for part in bars.get_children():
            part.set_gid(styles[arm.name]["gid"])
    axes.set(ylabel=_NAMES[results.metric] + (", 95% interval" if any(
        arm.interval_by_length for arm in results.arms) else ""))
    longest = results.trained_length
    for index, bucket in enumerate(results.buckets):
        if longest and bucket.low <= longest <= bucket.high:
            share = (longest - bucket.low + 1) / (bucket.high - bucket.low + 1)
            axes.axvline(index - 0.5 + share, color="0.4", ls="--", lw=1,
                         label=f"longest in training: {longest}")
    bars = counts.bar(x, [bucket.sentences for bucket in results.buckets], color="0.75")
    counts.bar_label(bars, fontsize=8)
    counts.margins(y=0.3)
    counts.grid(False)
    counts.set(ylabel="tokens" if results.metric in LOSS_METRICS else "sentences",
               xlabel=results.axis)
    counts.set_xticks(x, [f"{bucket.low}–{bucket.high}" for bucket in results.buckets])
    add_legend(figure, axes)
    return figure


def plot_heat_map(results: StudyResults) -> Figure:
    """The first metric of each arm, mean over seeds, for each chosen bucket of lengths."""
    arms = [arm for arm in results.arms if arm.by_length]
    values, buckets = np.array([arm.by_length for arm in arms]), results.buckets
    figure, axes = pyplot.subplots(figsize=(2.5 + 0.9 * len(buckets), 1.2 + 0.3 * len(arms)),
                                   layout="constrained")
    colours = "viridis" + ("_r" if results.metric in LOWER_IS_BETTER else "")
    image = axes.imshow(values, cmap=colours, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        light = sum(image.cmap(image.norm(value))[:3]) < 1.5
        axes.text(column, row, f"{value:.{results.digits}f}", ha="center", va="center", fontsize=8,
                  color="white" if light else "black")
    within = sum(bucket.high <= (results.trained_length or 0) for bucket in buckets)
    if 0 < within < len(buckets):
        axes.axvline(within - 0.5, color="red", lw=2)
        axes.set_title("right of the line: has longer ones than training "
                       f"({results.trained_length})", fontsize=8)
    axes.set_yticks(range(len(arms)), [arm_label(arm) for arm in arms])
    axes.set_xticks(range(len(buckets)), [f"{bucket.low}–{bucket.high}" for bucket in buckets])
    axes.set_xlabel(results.axis)
    axes.grid(False)
    axes.tick_params(length=0)
    figure.colorbar(image, label=_NAMES[results.metric])
    return figure
