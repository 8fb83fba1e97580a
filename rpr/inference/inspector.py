"""Translations of a trained model with probabilities, and its attention weights, also drawn."""
import os
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rpr.inference.batches import one_line, until_end
from rpr.inference.model_session import ModelSession, encode
from rpr.models.beam_search import EOS_ID
from rpr.t2t.trained_model import TrainedModel
from rpr.utils import files
from rpr.utils.console import printable
from rpr.utils.errors import UserError

TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention",
          "cross": "decoder to encoder"}
_INCHES_PER_TOKEN = 0.14
_LONGEST_SIDE = 12000                                 # pixels
_LONGEST_LABEL = 16                                   # characters

_TABLE = re.compile(r"[^/]+/body/(encoder|decoder)/layer_(\d+)/self_attention/multihead_attention/"
                    r"(?:heads_(\d+)_\d+/)?[^/]+/relative_positions_(keys|values)/embeddings$")


class Translation(NamedTuple):
    """The best hypothesis for a sentence, of n tokens with the end mark, if there is one.

    The score is the beam search's: log probability over ((5 + n) / 6)^alpha (Wu et al. 2016,
    equation 14). A greedy hypothesis, or one that was cut off before its end mark, has its plain
    log probability.
    """
    text: str                                         # detokenised
    score: float
    ids: np.ndarray                                   # int [n]
    tokens: list[str]                                 # the n sub-words as text
    probabilities: np.ndarray                         # float32 [n], after the tokens before


class SentenceAttention(NamedTuple):
    """Attention weights, float32, of one sentence pair, whose sub-words have the end mark.

    An array is empty where the model has no attention of that kind. That of a decoder without an
    encoder is over source and target together.
    """
    source: list[str]
    target: list[str]
    encoder: np.ndarray                               # [layers, heads, source, source]
    decoder: np.ndarray                               # [layers, heads, target, target]
    cross: np.ndarray                                 # [layers, heads, target, source]

    def draw(self, prefix: str) -> None:
        """Writes PREFIX.encoder.png, PREFIX.decoder.png and PREFIX.cross.png, if there are such.

        A row of panels is a layer, a column a head.
        """
        os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
        both = [*self.source, *self.target]
        read = both if self.decoder.shape[-1:] == (len(both),) else self.target
        for kind, queries, keys in (("encoder", self.source, self.source), ("decoder", read, read),
                                    ("cross", self.target, self.source)):
            layers = getattr(self, kind)
            if not len(layers):
                continue
            with warnings.catch_warnings(), files.atomic_path(f"{prefix}.{kind}.png") as path:
                warnings.filterwarnings("ignore", "Glyph")   # a character that no font has
                figure = _attention_figure(layers, queries, keys, TITLES[kind])
                figure.savefig(path, format="png")


class Inspector(ModelSession):
    """A trained translation model: text in, translations and attention weights out.

    `beam_size`, `alpha` and `extra_length` are those of `ModelSession`.
    """

    def __init__(self, trained: TrainedModel, beam_size: int = 4, alpha: float = 0.6,
                 extra_length: int = 100) -> None:
        hparams = trained.hparams
        self._vocabularies = hparams.problem_hparams.vocabulary
        super().__init__(trained.name, hparams, trained.checkpoint, beam_size, alpha, extra_length)

    def encode(self, text: str, side: str = "inputs") -> list[int]:
        """The ids of a line of text with the end mark; side: "inputs" or "targets"."""
        return [*encode(self._vocabularies[side], text.strip()), EOS_ID]

    def tokens(self, ids: Iterable[int], side: str = "targets") -> list[str]:
        """The sub-words of ids as text; ⏎ stands for the end mark."""
        names = self._vocabularies[side].decode_list(list(ids))
        return ["⏎" if number == EOS_ID else name
                for number, name in zip(ids, names, strict=True)]

    def translate(self, text: str) -> Translation:
        """The best hypothesis for one sentence."""
        return self.translate_batch([text])[0]

    def translate_batch(self, lines: Sequence[str]) -> list[Translation]:
        """The best hypothesis for each sentence, searched in one batch."""
        inputs = [self.encode(line) for line in lines]
        ids, scores = self.search(inputs)
        hypotheses = [until_end(row) for row in ids]
        log_probabilities = self.log_probabilities(inputs, hypotheses, found=True)
        translations = []
        for ids, score, row in zip(hypotheses, scores, log_probabilities, strict=True):
            words = ids[:-1] if ids[-1] == EOS_ID else ids
            text = one_line(self._vocabularies["targets"].decode(words))
            translations.append(Translation(text, float(score), ids, self.tokens(ids),
                                            np.exp(row[:len(ids)])))
        return translations

    def sentence_attention(self, source: Sequence[int], target: Sequence[int] | np.ndarray,
                           found: bool) -> SentenceAttention:
        """The attention weights of one pair of ids; `found` as in `attention`."""
        weights = self.attention([source], [target], found=found)
        return SentenceAttention(
            self.tokens(until_end(list(source)), "inputs"), self.tokens(target),
            *(layers[:, 0] if len(layers) else layers for layers in weights))


def relative_tables(checkpoint: str) -> dict[str, np.ndarray]:
    """The tables of relative positions in a checkpoint (path without suffix), by side and kind.

    {"encoder_keys": float32 [layers, tables, labels, depth], ...}. Layers without tables are left
    out. Tables of groups of heads are in the order of the heads.
    """
    import tensorflow as tf
    reader = tf.train.load_checkpoint(checkpoint)
    found: dict[str, dict[int, dict[int, np.ndarray]]] = {}    # by name, layer, first head
    for name in reader.get_variable_to_shape_map():
        match = _TABLE.match(name)
        if match:
            side, layer, head, kind = match.groups()
            table = reader.get_tensor(name).astype(np.float32)
            found.setdefault(f"{side}_{kind}", {}).setdefault(int(layer), {})[int(head or 1)] = (
                table.reshape(-1, *table.shape[-2:]))
    tables = {name: [np.concatenate([heads[head] for head in sorted(heads)])
                     for _, heads in sorted(layers.items())] for name, layers in found.items()}
    for name, layers in tables.items():
        if len({table.shape for table in layers}) > 1:
            raise UserError(f"{name}: layers have {', '.join(str(len(table)) for table in layers)} "
                            "tables of relative positions, which make no array; weights() has them")
    return {name: np.stack(layers) for name, layers in tables.items()}


def sum_by_distance(weights: np.ndarray, max_distance: int) -> np.ndarray:
    """Attention weights [layers, heads, n, n] summed over all queries, by distance j - i.

    float64 [layers, heads, 2 * max_distance + 1], from -max_distance to max_distance; larger
    distances count as these.
    """
    index = np.arange(weights.shape[-1])
    distance = np.clip(index - index[:, None], -max_distance, max_distance) + max_distance
    sums = [np.bincount(distance.ravel(), head.ravel().astype(np.float64), 2 * max_distance + 1)
            for layer in weights for head in layer]
    return np.reshape(sums, [*weights.shape[:2], -1])


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
