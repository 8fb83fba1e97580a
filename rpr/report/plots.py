"""The record as pictures. Each function draws one figure; `save` writes it as PNG and SVG."""
import math
import os
import statistics
from typing import NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

from rpr.report import model_analysis  # noqa: E402
from rpr.report import results as records
from rpr.utils import metrics_log  # noqa: E402

NEAREST = 24                                          # distances that a picture of similarity shows
pyplot.rcParams.update({"axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False,
                        "axes.spines.right": False, "svg.hashsalt": "rpr", "font.size": 9})


class Plot(NamedTuple):
    """Attributes:
      name: of its files, without suffix.
      title: for people.
      figure: matplotlib's; `save` closes it.
      arm: the arm that it is of, or None.
    """
    name: str
    title: str
    figure: pyplot.Figure
    arm: str | None = None

    @property
    def wide(self):
        """Whether a narrow screen should scroll it rather than shrink it."""
        return self.figure.get_figwidth() > 7


def draw_all(record, path):
    """Draws what there is to draw, one `Plot` after the other.

    Args:
      record: a `Record`.
      path: the report's directory.
    """
    yield Plot("curves", "Training", curves(record, path))
    if _differ_in_k(record):
        yield Plot("bleu_by_k", "BLEU against the clipping distance", bleu_by_k(record))
    if any(arm.bleu_by_length for arm in record.arms) and len(record.buckets) > 1:
        yield Plot("bleu_by_length", "BLEU by the length of the source", bleu_by_length(record))
    for arm in record.arms:
        if arm.done:
            arrays = model_analysis.load(records.where(path, arm.done[0]))
            name = os.path.basename(arm.done[0].path)
            for kind, title, figure in _of_model(arrays):
                yield Plot(f"{kind}_{name}", title, figure, arm.name)


def _of_model(arrays):
    """(name, title, figure) of what one model learned."""
    if any(f"{side}_attention" in arrays for side in model_analysis.SIDES):
        yield "attention", "Attention by relative distance", attention(arrays)
    kinds = [(kind, symbol) for kind, symbol in zip(model_analysis.KINDS, ("a^K", "a^V"), strict=True)
             if any(f"{side}_{kind}" in arrays for side in model_analysis.SIDES)]
    if kinds:
        yield "norms", "Norm of the learned positions", norms(arrays)
    for kind, symbol in kinds:
        positions = [arrays[f"{side}_{kind}"].shape[2] for side in model_analysis.SIDES
                     if f"{side}_{kind}" in arrays]
        if max(positions) > 1:                        # k = 0 has one
            yield (f"similarity_{kind}", f"Cosine similarity between positions, {symbol}",
                   similarity(arrays, kind))


def save(figure, target):
    """Writes a figure to target.png and target.svg, each whole or not at all; closes it."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    for kind, more in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
        figure.savefig(f"{target}.{kind}.part", format=kind, **more)
        os.replace(f"{target}.{kind}.part", f"{target}.{kind}")
        figure.set_layout_engine("none")              # once is enough, and takes half the time
    pyplot.close(figure)


def curves(record, path):
    """Training and development loss: a line for each arm, mean over its seeds; thin ones for runs.

    The axis leaves out the first steps, where every loss falls alike.
    """
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True, layout="constrained")
    shown = []
    for arm, colour in zip(record.arms, _colours(record), strict=True):
        events = [metrics_log.read(records.where(path, run).metrics) for run in arm.runs]
        for axes, kind in zip(panels, ("train", "eval"), strict=True):
            runs = [{event["step"]: event["loss"] for event in found if event["event"] == kind}
                    for found in events]
            runs = [_smooth(run) if kind == "train" else run for run in runs if run]
            steps = sorted(set.intersection(*map(set, runs))) if runs else []
            if not steps:
                continue
            mean = [statistics.fmean(run[step] for run in runs) for step in steps]
            shown += [loss for step, loss in zip(steps, mean, strict=True)
                      if step >= steps[-1] / 20]
            if len(runs) > 1:
                for run in runs:
                    axes.plot(*zip(*sorted(run.items()), strict=True), color=colour, lw=0.6,
                              alpha=0.45)
            axes.plot(steps, mean, color=colour, lw=1.6, label=_label(record, arm),
                      marker="o" if kind == "eval" else None, ms=3.5)
    panels[0].set(title="training (mean of 10 records)", ylabel="loss (nats per sub-word)")
    panels[1].set(title="development set", ylabel="loss (nats per sub-word)")
    for axes in panels:
        axes.set_xlabel("step")
        if shown:
            room = 0.05 * (max(shown) - min(shown)) or 0.1
            axes.set_ylim(min(shown) - room, max(shown) + room)
    _legend(figure, panels[0])
    return figure


def _smooth(losses, width=10):
    """{step: mean of the last records}."""
    steps = sorted(losses)
    return {step: statistics.fmean(losses[earlier] for earlier in steps[max(0, end - width):end])
            for end, step in enumerate(steps, 1)}


def _differ_in_k(record):
    return (len(record.arms) > 1 and list(record.arms[0].settings) == ["max_relative_position"]
            and sum(bool(arm.done) for arm in record.arms) > 1)


def bleu_by_k(record):
    """BLEU with its 95% interval against k on a logarithmic axis that has a place for 0."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    arms = sorted((arm for arm in record.arms if arm.done),
                  key=lambda arm: arm.settings["max_relative_position"])
    k = [arm.settings["max_relative_position"] for arm in arms]
    least = math.log2(min([value for value in k if value] or [1]))

    def place(value):
        return math.log2(value) if value else least - 1.5

    x = [place(value) for value in k]
    mean = [arm.bleu.mean for arm in arms]
    # An interval of resamples need not hold the mean itself.
    errors = [[max(0.0, arm.bleu.mean - arm.bleu.low) for arm in arms],
              [max(0.0, arm.bleu.high - arm.bleu.mean) for arm in arms]]
    axes.errorbar(x, mean, errors, color="C0", marker="o", capsize=3,
                  label="test set, mean over seeds and 95% interval")
    if any(len(arm.done) > 1 for arm in arms):
        points = [(place_, run.bleu) for place_, arm in zip(x, arms, strict=True)
                  for run in arm.done]
        axes.plot(*zip(*points, strict=True), "x", color="C0", alpha=0.6, ms=5, label="each seed")
    paper = [(place_, arm.paper) for place_, arm in zip(x, arms, strict=True)
             if arm.paper is not None]
    if paper:
        axes.plot(*zip(*paper, strict=True), "s--", color="0.6", mfc="none", ms=5,
                  label="the paper (its data, its model size)")
    axes.set_xticks(x, [str(value) for value in k])
    if 0 in k:
        axes.axvline(least - 0.75, color="0.7", lw=0.8, ls=":")
    axes.set(xlabel="clipping distance k", ylabel="BLEU")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    return figure


def bleu_by_length(record):
    """BLEU for each bucket of the source's length, and how many sentences it holds."""
    figure, (axes, counts) = pyplot.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=(4, 1), layout="constrained")
    x = range(len(record.buckets))
    for arm, colour in zip(record.arms, _colours(record), strict=True):
        if arm.bleu_by_length:
            axes.plot(x, arm.bleu_by_length, "o-", ms=4, color=colour, label=_label(record, arm))
    axes.set(ylabel="BLEU")
    axes.set_ylim(bottom=0)
    for place, bucket in enumerate(record.buckets):
        if record.trained_length and bucket.low <= record.trained_length <= bucket.high:
            share = (record.trained_length - bucket.low + 1) / (bucket.high - bucket.low + 1)
            axes.axvline(place - 0.5 + share, color="0.4", ls="--", lw=1,
                         label=f"longest in training: {record.trained_length}")
    bars = counts.bar(x, [bucket.sentences for bucket in record.buckets], color="0.75")
    counts.bar_label(bars, fontsize=8)
    counts.margins(y=0.3)
    counts.grid(False)
    counts.set(ylabel="sentences", xlabel=f"source length ({record.length_unit})")
    counts.set_xticks(x, [f"{bucket.low}–{bucket.high}" for bucket in record.buckets])
    _legend(figure, axes)
    return figure


def norms(arrays):
    """The length of each vector of a^K and a^V by relative position; a line for each table.

    Args:
      arrays: of `learned.load`.
    """
    names = [f"{side}_{kind}" for side in model_analysis.SIDES for kind in model_analysis.KINDS
             if f"{side}_{kind}" in arrays]
    layers = max(len(arrays[name]) for name in names)
    figure, panels = _panels(len(names), layers)
    for row, name in zip(panels, names, strict=True):
        side, kind = name.split("_")
        for layer, (axes, tables) in enumerate(zip(row, arrays[name], strict=False)):
            for number, table in enumerate(tables):    # [2k + 1, depth]
                positions, vectors = _reachable(table, side)
                axes.plot(positions, (vectors ** 2).sum(axis=-1) ** 0.5, color=f"C{number % 10}",
                          lw=1, marker="." if len(positions) < 40 else None,
                          label=f"head {number}" if len(tables) > 1 else "all heads")
            axes.set_title(f"{side}, layer {layer}")
        row[0].set_ylabel(r"$\|a^V\|$" if kind == "values" else r"$\|a^K\|$")
    for axes in panels[-1]:
        axes.set_xlabel("relative position j − i")
    _legend(figure, panels[0][0])
    return figure


def similarity(arrays, kind):
    """Cosine similarity between the vectors of two relative positions: a row for each layer, in it
    a square for each table, whose rows and columns are the positions.

    Args:
      arrays: of `learned.load`.
      kind: "keys" or "values".
    """
    stacked = [(side, layer, tables) for side in model_analysis.SIDES
               for layer, tables in enumerate(arrays.get(f"{side}_{kind}", ()))]
    columns = max(len(tables) for _, _, tables in stacked)
    figure, panels = pyplot.subplots(
        len(stacked), 1, squeeze=False, layout="constrained",
        figsize=(max(4.0, 1.5 * columns + 1.8), 1.6 * len(stacked) + 0.5))
    for axes, (side, layer, tables) in zip(panels[:, 0], stacked, strict=True):
        squares = []
        for table in tables:
            positions, vectors = _reachable(table, side)
            near = [place for place, position in enumerate(positions) if abs(position) <= NEAREST]
            vectors = vectors[near]
            length = (vectors ** 2).sum(axis=-1, keepdims=True) ** 0.5
            vectors = vectors / length.clip(min=1e-12)
            squares.append(np.pad(vectors @ vectors.T, ((0, 0), (0, 1 + len(near) // 12)),
                                  constant_values=np.nan))
        image = axes.imshow(np.concatenate(squares, axis=1), vmin=-1, vmax=1, cmap="RdBu_r",
                            origin="lower")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        side_of = len(near)
        ticks = [place for place in range(side_of) if positions[near[place]] in (
            positions[near[0]], 0, positions[near[-1]])]
        axes.set_yticks(ticks, [str(positions[near[place]]) for place in ticks], fontsize=7)
        axes.set_xticks([number * squares[0].shape[1] + (side_of - 1) / 2
                         for number in range(len(tables))],
                        [f"head {number}" if len(tables) > 1 else "all heads"
                         for number in range(len(tables))], fontsize=8)
        axes.tick_params(length=0)
        axes.set_ylabel(f"{side}\nlayer {layer}")
    figure.colorbar(image, ax=panels, shrink=min(1.0, 3 / len(stacked)), aspect=25)
    return figure


def attention(arrays):
    """Where the heads look: the share of attention by relative distance, for each layer.

    Args:
      arrays: of `learned.load`.
    """
    names = [side for side in model_analysis.SIDES if f"{side}_attention" in arrays]
    layers = max(len(arrays[f"{side}_attention"]) for side in names)
    figure, panels = _panels(len(names), layers)
    far = model_analysis.FARTHEST
    for row, side in zip(panels, names, strict=True):
        for layer, (axes, heads) in enumerate(zip(row, arrays[f"{side}_attention"], strict=False)):
            for head, shares in enumerate(heads):      # [2 * far + 1]
                last = far + 1 if side == "decoder" else 2 * far + 1
                axes.plot(range(-far, last - far), shares[:last], color=f"C{head % 10}", lw=1,
                          marker=".", label=f"head {head}")
            axes.set_title(f"{side}, layer {layer}")
            ticks = (-far, -far // 2, 0, far // 2, far)[:3 if side == "decoder" else 5]
            axes.set_xticks(ticks, [f"≤{tick}" if tick == -far else f"≥{tick}" if tick == far
                                    else str(tick) for tick in ticks])
        row[0].set(ylabel="share of attention")
        row[0].set_ylim(bottom=0)                     # last: it ends the scaling of the whole row
    for axes in panels[-1]:
        axes.set_xlabel("distance j − i")
    _legend(figure, panels[0][0])
    return figure


def _reachable(table, side):
    """The relative positions of [2k + 1, depth], and their vectors; a decoder has none ahead."""
    k = len(table) // 2
    last = k + 1 if side == "decoder" else 2 * k + 1
    return range(-k, last - k), table[:last]


def _panels(rows, columns):
    return pyplot.subplots(rows, columns, squeeze=False, sharey="row", layout="constrained",
                           figsize=(max(6.0, 2.6 * columns + 1), 2.2 * rows + 0.4))


def _legend(figure, axes):
    """One legend to the right of all panels: it hides no line, however many there are."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False)


def _colours(record):
    """A colour for each arm: an ordered scale where the arms are values of one number."""
    arms = record.arms
    values = [arm.settings.get(name) for arm in arms for name in arm.settings]
    if len(values) == len(arms) > 2 and all(type(value) in (int, float) for value in values):
        order = sorted(range(len(arms)), key=values.__getitem__)
        scale = matplotlib.colormaps["viridis"]
        return [scale(0.95 * order.index(place) / (len(arms) - 1)) for place in range(len(arms))]
    if len(arms) <= 10:
        return [f"C{place}" for place in range(len(arms))]
    scale = matplotlib.colormaps["turbo"]
    return [scale(place / (len(arms) - 1)) for place in range(len(arms))]


def _label(record, arm):
    """An arm's name, as short as its study allows."""
    if list(arm.settings) == ["max_relative_position"] and "=" in arm.name:
        return f"k = {arm.settings['max_relative_position']}"
    return arm.name if len(arm.name) <= 32 else arm.name[:31] + "…"

