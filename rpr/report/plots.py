"""Figures that compare the arms of a study."""
import math
import os
import statistics
from collections.abc import Iterator, Mapping

from matplotlib.figure import Figure

from rpr.report import model_analysis, model_plots
from rpr.report.figures import Plot, add_legend, arm_colours, arm_label, pyplot
from rpr.report.results import ArmResult, StudyResults
from rpr.report.study_reader import run_directory_of
from rpr.utils import metrics_log

SMOOTHED_RECORDS = 10                                 # of the training loss


def draw_all(results: StudyResults, path: str) -> Iterator[Plot]:
    """Draws every figure for which there is data, one after the other.

    Args:
      results: with scores.
      path: the study's directory.
    """
    yield Plot("curves", "Training", plot_curves(results, path))
    if _varies_only_k(results):
        yield Plot("bleu_by_k", "BLEU by clipping distance", plot_bleu_by_k(results))
    if any(arm.bleu_by_length for arm in results.arms) and len(results.buckets) > 1:
        yield Plot("bleu_by_length", "BLEU by source length", plot_bleu_by_length(results))
    for arm in results.arms:
        if arm.done:
            arrays = model_analysis.load(run_directory_of(path, arm.done[0]))
            name = os.path.basename(arm.done[0].path)
            for kind, title, figure in model_plots.draw_model(arrays):
                yield Plot(f"{kind}_{name}", title, figure, arm.name)


def plot_curves(results: StudyResults, path: str) -> Figure:
    """Training and development loss: the mean over seeds of each arm; thin lines for single runs.

    The y axis leaves out the first steps, where the loss of every arm falls steeply.
    """
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True, layout="constrained")
    shown: list[float] = []
    for arm, colour in zip(results.arms, arm_colours(results), strict=True):
        logs = [metrics_log.read(run_directory_of(path, run).metrics) for run in arm.runs]
        for axes, kind in zip(panels, ("train", "eval"), strict=True):
            runs = [{event["step"]: event["loss"] for event in events if event["event"] == kind}
                    for events in logs]
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
            axes.plot(steps, mean, color=colour, lw=1.6, label=arm_label(arm),
                      marker="o" if kind == "eval" else None, ms=3.5)
    panels[0].set(title=f"training (mean of {SMOOTHED_RECORDS} records)",
                  ylabel="loss (nats per sub-word)")
    panels[1].set(title="development set", ylabel="loss (nats per sub-word)")
    for axes in panels:
        axes.set_xlabel("step")
        if shown:
            margin = 0.05 * (max(shown) - min(shown)) or 0.1
            axes.set_ylim(min(shown) - margin, max(shown) + margin)
    add_legend(figure, panels[0])
    return figure


def _smooth(losses: Mapping[int, float]) -> dict[int, float]:
    """{step: mean of the last records}."""
    steps = sorted(losses)
    return {step: statistics.fmean(losses[earlier]
                                   for earlier in steps[max(0, end - SMOOTHED_RECORDS):end])
            for end, step in enumerate(steps, 1)}


def _varies_only_k(results: StudyResults) -> bool:
    return (len(results.arms) > 1
            and list(results.arms[0].settings) == ["max_relative_position"]
            and sum(bool(arm.done) for arm in results.arms) > 1)


def plot_bleu_by_k(results: StudyResults) -> Figure:
    """BLEU with its 95% interval by k, on a logarithmic axis extended to 0."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")

    def k_of(arm: ArmResult) -> int:
        return arm.settings["max_relative_position"]

    arms = sorted((arm for arm in results.arms if arm.done), key=k_of)
    k = [k_of(arm) for arm in arms]
    least = math.log2(min([value for value in k if value] or [1]))
    x = [math.log2(value) if value else least - 1.5 for value in k]
    means = [arm.bleu.mean for arm in arms if arm.bleu]
    # A bootstrap interval need not contain the mean.
    errors = [[max(0.0, arm.bleu.mean - arm.bleu.low) for arm in arms if arm.bleu],
              [max(0.0, arm.bleu.high - arm.bleu.mean) for arm in arms if arm.bleu]]
    axes.errorbar(x, means, errors, color="C0", marker="o", capsize=3,
                  label="test set, mean over seeds and 95% interval")
    if any(len(arm.done) > 1 for arm in arms):
        points = [(position, run.bleu) for position, arm in zip(x, arms, strict=True)
                  for run in arm.done]
        axes.plot(*zip(*points, strict=True), "x", color="C0", alpha=0.6, ms=5, label="each seed")
    paper = [(position, arm.paper_bleu) for position, arm in zip(x, arms, strict=True)
             if arm.paper_bleu is not None]
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


def plot_bleu_by_length(results: StudyResults) -> Figure:
    """BLEU for each bucket of source lengths, and the number of sentences in it."""
    figure, (axes, counts) = pyplot.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=(4, 1), layout="constrained")
    x = range(len(results.buckets))
    for arm, colour in zip(results.arms, arm_colours(results), strict=True):
        if arm.bleu_by_length:
            axes.plot(x, arm.bleu_by_length, "o-", ms=4, color=colour, label=arm_label(arm))
    axes.set(ylabel="BLEU")
    axes.set_ylim(bottom=0)
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
    counts.set(ylabel="sentences", xlabel=f"source length ({results.length_unit})")
    counts.set_xticks(x, [f"{bucket.low}–{bucket.high}" for bucket in results.buckets])
    add_legend(figure, axes)
    return figure
