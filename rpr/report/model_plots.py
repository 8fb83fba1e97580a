"""Figures of one trained model, drawn from the arrays of `model_analysis.load`."""
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rpr.report.model_analysis import KINDS, MAX_DISTANCE, SIDES
from rpr.report.plots import add_legend, pyplot

MAX_SIMILARITY_DISTANCE = 24                          # positions that a similarity matrix shows
TITLES = {"attention": "Attention by relative distance",
          "norms": "Norm of the relative position vectors",
          "similarity_keys": "Cosine similarity of relative positions, a^K",
          "similarity_values": "Cosine similarity of relative positions, a^V"}
Arrays = Mapping[str, np.ndarray]


def draw_model(arrays: Arrays, highest: Mapping[str, float]) -> Iterator[tuple[str, Figure]]:
    """Yields (name, figure) of what one model learned; the names are those of `TITLES`.

    `highest` are the `highest_shares` of all models that are shown together.
    """
    if any(f"{side}_attention" in arrays for side in SIDES):
        yield "attention", plot_attention(arrays, highest)
    kinds = [kind for kind in KINDS if any(f"{side}_{kind}" in arrays for side in SIDES)]
    if kinds:
        yield "norms", plot_norms(arrays)
    for kind in kinds:
        positions = [arrays[f"{side}_{kind}"].shape[2] for side in SIDES
                     if f"{side}_{kind}" in arrays]
        if max(positions) > 1:                        # k = 0 has one vector
            yield f"similarity_{kind}", plot_similarity(arrays, kind)


def plot_norms(arrays: Arrays) -> Figure:
    """The norm of each vector of a^K and a^V by relative position; a line per table."""
    figure, rows = _panels(arrays, KINDS, "relative position j − i")
    for side, kind, row in rows:
        for axes, tables in zip(row, arrays[f"{side}_{kind}"], strict=False):
            for head, table in enumerate(tables):     # [2k + 1, depth]
                positions, vectors = _reachable(table, _clip_left(arrays, table), side)
                axes.plot(positions, np.linalg.norm(vectors, axis=-1), color=f"C{head % 10}",
                          lw=1, marker="." if len(positions) < 40 else None,
                          label=f"head {head}" if len(tables) > 1 else "all heads")
        row[0].set_ylabel(r"$\|a^V\|$" if kind == "values" else r"$\|a^K\|$")
    add_legend(figure, rows[0][2][0])
    return figure


def plot_similarity(arrays: Arrays, kind: str) -> Figure:
    """Cosine similarity between the vectors of every two relative positions, of "keys" or "values".

    Each layer is a row, each table a square in it.
    """
    layers = [(side, layer, tables) for side in SIDES
              for layer, tables in enumerate(arrays.get(f"{side}_{kind}", ()))]
    heads = max(len(tables) for _, _, tables in layers)
    figure, panels = pyplot.subplots(
        len(layers), 1, squeeze=False, layout="compressed",      # room for labels of square images
        figsize=(max(4.0, 1.5 * heads + 1.8), 1.6 * len(layers) + 0.5))
    for axes, (side, layer, tables) in zip(panels[:, 0], layers, strict=True):
        left = _clip_left(arrays, tables[0])
        positions = [position for position in _reachable(tables[0], left, side)[0]
                     if abs(position) <= MAX_SIMILARITY_DISTANCE]
        gap = 1 + len(positions) // 12                # empty columns between squares
        squares = [np.pad(_cosines(table, left, side), ((0, 0), (0, gap)), constant_values=np.nan)
                   for table in tables]
        image = axes.imshow(np.concatenate(squares, axis=1), vmin=-1, vmax=1, cmap="RdBu_r",
                            origin="lower")
        axes.grid(False)
        axes.spines[:].set_visible(False)
        ticks = [index for index, position in enumerate(positions)
                 if position in (positions[0], 0, positions[-1])]
        axes.set_yticks(ticks, [str(positions[index]) for index in ticks], fontsize=7)
        axes.set_xticks([head * (len(positions) + gap) + (len(positions) - 1) / 2
                         for head in range(len(tables))],
                        [f"head {head}" if len(tables) > 1 else "all heads"
                         for head in range(len(tables))], fontsize=8)
        axes.tick_params(length=0)
        axes.set_ylabel(f"{side}\nlayer {layer}")
    figure.colorbar(image, ax=panels, shrink=min(1.0, 3 / len(layers)), aspect=25)
    return figure


def _cosines(table: np.ndarray, left: int, side: str) -> np.ndarray:
    """Cosine similarity of the vectors of the nearest positions, [positions, positions]."""
    positions, vectors = _reachable(table, left, side)
    vectors = vectors[[abs(position) <= MAX_SIMILARITY_DISTANCE for position in positions]]
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=1e-12)
    return vectors @ vectors.T


def highest_shares(models: Iterable[Arrays]) -> dict[str, float]:
    """{side: largest share of attention at one distance} of several models: a common scale."""
    highest: dict[str, float] = {}
    for arrays, side in itertools.product(models, SIDES):
        if f"{side}_attention" in arrays:
            share = float(arrays[f"{side}_attention"][..., 1:-1].max())
            highest[side] = max(share, highest.get(side, 0.0))
    return highest


def plot_attention(arrays: Arrays, highest: Mapping[str, float]) -> Figure:
    """The share of attention by relative distance; a panel per layer, a line per head.

    The last entries stand for all larger distances together: text, as a point would look like a
    peak.
    """
    figure, rows = _panels(arrays, ["attention"], "distance j − i")
    for side, _, row in rows:
        for axes, heads in zip(row, arrays[f"{side}_attention"], strict=False):
            last = 0 if side == "decoder" else MAX_DISTANCE - 1
            for head, shares in enumerate(heads):     # [2 * MAX_DISTANCE + 1]
                axes.plot(range(1 - MAX_DISTANCE, last + 1), shares[1:MAX_DISTANCE + last + 1],
                          color=f"C{head % 10}", lw=1, marker=".", label=f"head {head}")
            axes.set_xticks(range(-12, last + 1, 4))
            for place, shares, sign in ((0.02, heads[:, 0], "≤ −"), (0.98, heads[:, -1], "≥ ")):
                if sign == "≤ −" or side == "encoder":
                    axes.text(place, 0.97, f"{sign}{MAX_DISTANCE}:\n{shares.min():.0%} to "
                              f"{shares.max():.0%}", transform=axes.transAxes, va="top", fontsize=7,
                              ha="left" if place < 0.5 else "right", color="0.35")
        row[0].set_ylabel("share of attention")
        row[0].set_ylim(0, 1.05 * highest[side])
    add_legend(figure, rows[0][2][0])
    return figure


def _clip_left(arrays: Arrays, table: np.ndarray) -> int:
    """The clipping distance to the left; analyses of an earlier version lack it."""
    return int(arrays.get("clip_left", len(table) // 2))


def _reachable(table: np.ndarray, left: int, side: str) -> tuple[range, np.ndarray]:
    """The relative positions of [rows, depth] and their vectors; a decoder has none ahead."""
    last = left + 1 if side == "decoder" else len(table)
    return range(-left, last - left), table[:last]


def _panels(arrays: Arrays, kinds: Sequence[str], xlabel: str
            ) -> tuple[Figure, list[tuple[str, str, Any]]]:
    """A panel for each layer; (side, kind, the panels of its layers) of each row."""
    names = [(side, kind) for side in SIDES for kind in kinds if f"{side}_{kind}" in arrays]
    columns = max(len(arrays["_".join(name)]) for name in names)
    figure, panels = pyplot.subplots(
        len(names), columns, squeeze=False, sharey="row", layout="constrained",
        figsize=(max(6.0, 2.6 * columns + 1), 2.2 * len(names) + 0.4))
    for name, row in zip(names, panels, strict=True):
        for layer, axes in enumerate(row[:len(arrays["_".join(name)])]):
            axes.set_title(f"{name[0]}, layer {layer}")
    for axes in panels[-1]:
        axes.set_xlabel(xlabel)
    return figure, [(*name, row) for name, row in zip(names, panels, strict=True)]
