"""Translations of a trained model with their probabilities, and its attention weights."""
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from rpr.inference.batches import one_line
from rpr.inference.model_session import ModelSession
from rpr.models.beam_search import EOS_ID
from rpr.t2t.trained_model import TrainedModel
from rpr.utils.errors import UserError

_Ids = TypeVar("_Ids", list[int], np.ndarray)

_TABLE = re.compile(r"[^/]+/body/(encoder|decoder)/layer_(\d+)/self_attention/.*"
                    r"/relative_positions_(keys|values)/embeddings$")


class Translation(NamedTuple):
    """The best hypothesis for a sentence.

    Attributes:
      text: detokenised.
      score: the beam search's: log probability over ((5 + n) / 6)^alpha, n being the number of
        tokens with the end mark (Wu et al. 2016, equation 14). A greedy hypothesis, or one that
        was cut off before its end mark, has its plain log probability.
      ids: int [n], including the end mark if there is one.
      tokens: the n sub-words as text.
      probabilities: float32 [n], the model's probability of each token after those before it.
    """
    text: str
    score: float
    ids: np.ndarray
    tokens: list[str]
    probabilities: np.ndarray


class Inspector(ModelSession):
    """A trained translation model: text in, translations and attention weights out.

    `beam_size`, `alpha` and `extra_length` are those of `ModelSession`.

    Raises:
      UserError: the problem has no source text.
    """

    def __init__(self, trained: TrainedModel, beam_size: int = 4, alpha: float = 0.6,
                 extra_length: int = 100) -> None:
        hparams = trained.hparams
        self._vocabularies = hparams.problem_hparams.vocabulary
        if "inputs" not in self._vocabularies:
            raise UserError(f"{hparams.problem.name}: the problem has no source text")
        super().__init__(trained.name, hparams, trained.checkpoint, beam_size, alpha, extra_length)

    def encode(self, text: str, side: str = "inputs") -> list[int]:
        """The ids of a line of text with the end mark; side: "inputs" or "targets"."""
        return [*self._vocabularies[side].encode(text.strip()), EOS_ID]

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
        log_probabilities = self.log_probabilities(inputs, hypotheses)
        translations = []
        for ids, score, row in zip(hypotheses, scores, log_probabilities, strict=True):
            words = ids[:-1] if ids[-1] == EOS_ID else ids
            text = one_line(self._vocabularies["targets"].decode(words))
            translations.append(Translation(text, float(score), ids, self.tokens(ids),
                                            np.exp(row[:len(ids)])))
        return translations


def until_end(ids: _Ids) -> _Ids:
    """Ids up to and including the first end mark, which ends the words of a source with edges.

    Without an end mark, padding at the end is left out, but at least one id remains.
    """
    array: np.ndarray = np.asarray(ids)
    last = [*np.flatnonzero(array == EOS_ID)[:1], *np.flatnonzero(array)[-1:], 0][0]
    return ids[:last + 1]


def relative_tables(checkpoint: str) -> dict[str, np.ndarray]:
    """The tables of relative positions in a checkpoint (path without suffix), by side and kind.

    Returns:
      {"encoder_keys": float32 [layers, tables, labels, depth], ...}.
    """
    import tensorflow as tf
    reader = tf.train.load_checkpoint(checkpoint)
    by_layer: dict[str, dict[int, np.ndarray]] = {}
    for name in reader.get_variable_to_shape_map():
        match = _TABLE.match(name)
        if match:
            side, layer, kind = match.groups()
            by_layer.setdefault(f"{side}_{kind}", {})[int(layer)] = reader.get_tensor(name)
    return {name: np.stack([layers[layer].reshape(-1, *layers[layer].shape[-2:])
                            for layer in sorted(layers)]).astype(np.float32)
            for name, layers in by_layer.items()}


def sum_by_distance(weights: np.ndarray, max_distance: int) -> np.ndarray:
    """Attention weights [layers, heads, n, n] summed over all queries, by distance j - i.

    Returns:
      float64 [layers, heads, 2 * max_distance + 1], from -max_distance to max_distance; larger
      distances count as these.
    """
    index = np.arange(weights.shape[-1])
    distance = np.clip(index - index[:, None], -max_distance, max_distance) + max_distance
    sums = [np.bincount(distance.ravel(), head.ravel().astype(np.float64), 2 * max_distance + 1)
            for layer in weights for head in layer]
    return np.reshape(sums, [*weights.shape[:2], -1])
