"""Pictures of attention weights: one panel per layer and head."""
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rpr.inference.model_session import AttentionWeights
from rpr.utils import files
from rpr.utils.console import printable

TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention",
          "cross": "decoder to encoder"}
_INCHES_PER_TOKEN = 0.14
_LONGEST_SIDE = 12000                                 # pixels
_LONGEST_LABEL = 16                                   # characters


def draw_attention(weights: AttentionWeights, source: Sequence[str], target: Sequence[str],
                   prefix: str) -> None:
    """Writes PREFIX.encoder.png, PREFIX.decoder.png and PREFIX.cross.png, those that there are.

    A row of panels is a layer, a column a head. `weights` are of one sentence, a batch of one,
    whose tokens are `source` and `target`.
    """
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    for kind, (queries, keys) in {"encoder": (source, source), "decoder": (target, target),
                                  "cross": (target, source)}.items():
        layers = getattr(weights, kind)
        if not len(layers):
            continue
        with warnings.catch_warnings(), files.atomic_path(f"{prefix}.{kind}.png") as path:
            warnings.filterwarnings("ignore", "Glyph")       # a character that no font has
            figure = _attention_figure(layers[:, 0], queries, keys, TITLES[kind])
            figure.savefig(path, format="png")


def _attention_figure(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str],
                      title: str) -> Any:
    """A matplotlib Figure of weights [layers, heads, queries, keys]."""
    is_first = "matplotlib" not in sys.modules
    import matplotlib
    from matplotlib.figure import Figure
    if is_first:                                          # not what a matplotlibrc here says
        matplotlib.rcdefaults()
    layers, heads = weights.shape[:2]
    width, height = (max(_INCHES_PER_TOKEN * len(tokens), 0.9) for tokens in (keys, queries))
    margin = 0.07 * max(map(len, [*queries, *keys])) + 0.25
    size = heads * (width + 0.15) + margin, layers * (height + 0.35) + margin + 0.5
    # A long sentence lowers the resolution: the picture's size in pixels is limited.
    figure = Figure(size, dpi=min(110, _LONGEST_SIDE / max(size)), layout="constrained")
    axes: Any = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer in range(layers):
        for head in range(heads):
            panel = axes[layer, head]
            panel.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto",
                         interpolation="nearest")
            panel.set_title(f"layer {layer}, head {head}", fontsize=7, pad=3)
            panel.tick_params(length=0, labelsize=7)
            panel.tick_params(axis="x", labelrotation=90)
    axes[0, 0].set_xticks(range(len(keys)), [_label(token) for token in keys])
    axes[0, 0].set_yticks(range(len(queries)), [_label(token) for token in queries])
    figure.suptitle(f"{title}: rows are queries, columns are keys", fontsize=9)
    return figure


def _label(token: str) -> str:
    """A token, shortened, with visible spaces; $, which would start a formula, is escaped."""
    token = printable(token.replace(" ", "␣"))
    if len(token) > _LONGEST_LABEL:
        token = token[:_LONGEST_LABEL - 1] + "…"
    return token.replace("$", r"\$")
