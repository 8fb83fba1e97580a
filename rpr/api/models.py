"""Models for the Python API: a loaded run, and a model built from a hparams set."""
import os
import typing
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from tensor2tensor.data_generators import problem_hparams

from rpr.experiments.config import Run
from rpr.export.bundle import named_weights
from rpr.inference import inspector
from rpr.inference.attention_plots import draw_attention
from rpr.inference.file_checks import MOST_ALPHA
from rpr.inference.inspector import Inspector, Translation, until_end
from rpr.inference.model_session import AttentionWeights, ModelSession
from rpr.t2t import preflight, registration, trained_model
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest
from rpr.utils.settings import Setting

_BEAM_SIZE = Setting("beam_size", 4, minimum=1)
_ALPHA = Setting("alpha", 0.6, minimum=0, maximum=MOST_ALPHA)
_BATCH_SIZE = Setting("batch_size", 32, minimum=1)
_SYMBOLS = Setting("vocabulary_size", 1000, minimum=2, maximum=10_000_000)
_EXTRA_LENGTH = Setting("extra_length", 100, minimum=0)
_SEED = Setting("seed", 1, minimum=0, maximum=2**32 - 1)


class SentenceAttention(NamedTuple):
    """Attention weights of one sentence pair.

    Attributes:
      source, target: the sub-words as text, with the end mark.
      encoder: float32 [layers, heads, source, source].
      decoder: float32 [layers, heads, target, target].
      cross: float32 [layers, heads, target, source]. An array is empty where the model has no
        attention of that kind.
    """
    source: list[str]
    target: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def draw(self, prefix: str) -> None:
        """Writes PREFIX.encoder.png, PREFIX.decoder.png and PREFIX.cross.png."""
        weights = AttentionWeights(*(layers[:, None] if len(layers) else layers for layers in (
            self.encoder, self.decoder, self.cross)))
        draw_attention(weights, self.source, self.target, prefix)


class LoadedModel:
    """The trained model of a run.

    Attributes:
      run: the run's configuration.
      checkpoint: path of the weights, without suffix.
    """

    def __init__(self, run: Run, request: ModelRequest, beam_size: int | None, alpha: float | None
                 ) -> None:
        beam_size = run.beam_size if beam_size is None else beam_size
        alpha = run.alpha if alpha is None else alpha
        _check_search(beam_size, alpha)
        trained = trained_model.find_trained_model(request)
        self.run, self.checkpoint = run, trained.checkpoint
        self._name, self._hparams = trained.name, trained.hparams
        self._inspector = Inspector(trained, beam_size, alpha)

    @typing.overload
    def translate(self, sentences: str, batch_size: int = 32) -> Translation: ...  # type: ignore[overload-overlap]

    @typing.overload
    def translate(self, sentences: Iterable[str], batch_size: int = 32) -> list[Translation]: ...

    def translate(self, sentences: str | Iterable[str], batch_size: int = 32
                  ) -> Translation | list[Translation]:
        """The best hypothesis of one sentence, or of each of several, by the beam search.

        Sentences of similar length share a batch of `batch_size` sentences.
        """
        if isinstance(sentences, str):
            return self.translate([sentences], batch_size)[0]
        sentences = _list_of("sentences", sentences)
        lengths = [len(sentence.split()) for sentence in sentences]
        translations: dict[int, Translation] = {}
        for batch in _batches(sorted(range(len(lengths)), key=lambda index: -lengths[index]),
                              batch_size):
            translations.update(zip(batch, self._inspector.translate_batch(
                [sentences[index] for index in batch]), strict=True))
        return [translations[index] for index in range(len(sentences))]

    def score(self, sources: Iterable[str], targets: Iterable[str], batch_size: int = 32
              ) -> np.ndarray:
        """Log probabilities of given translations, one for each source.

        float64 [sentences], in nats: the sum over all target tokens and the end mark.
        """
        sources, targets = _list_of("sources", sources), _list_of("targets", targets)
        if len(sources) != len(targets):
            raise UserError(f"score: {len(sources)} sources and {len(targets)} targets")
        totals = np.zeros(len(sources))
        for batch in _batches(range(len(sources)), batch_size):
            inputs = [self._inspector.encode(sources[index]) for index in batch]
            outputs = [self._inspector.encode(targets[index], "targets") for index in batch]
            values = self._inspector.log_probabilities(inputs, outputs)
            for index, row, ids in zip(batch, values, outputs, strict=True):
                totals[index] = row[:len(ids)].sum(dtype=np.float64)
        return totals

    def attention(self, source: str, target: str | None = None) -> SentenceAttention:
        """Attention weights of every layer and head; `UserError` if the model records none.

        The decoder reads `target`, a translation of the sentence `source`; None: the model's own.
        """
        inputs = self._inspector.encode(source)
        outputs = (list(self._inspector.translate(source).ids) if target is None
                   else self._inspector.encode(target, "targets"))
        weights = self._inspector.attention([inputs], [outputs])
        return SentenceAttention(
            self._inspector.tokens(until_end(inputs), "inputs"), self._inspector.tokens(outputs),
            *(layers[:, 0] if len(layers) else layers for layers in weights))

    def relative_tables(self) -> dict[str, np.ndarray]:
        """The learned tables of relative positions that the model has (Shaw et al. 2018).

        Returns:
          {"encoder_keys", "encoder_values", "decoder_keys", "decoder_values": float32
          [layers, tables, 2k + 1, depth]}, with one table per layer if its heads share it. Row r is
          a^K or a^V of distance r - k, or with the hparam max_relative_position_left of distance
          r - max_relative_position_left.
        """
        return inspector.relative_tables(self.checkpoint)

    def weights(self) -> dict[str, np.ndarray]:
        """All weights by name; docs/export.md lists names and shapes."""
        return named_weights(self.checkpoint, self._name, self._hparams)


def build(hparams_set: str, hparams: str, model: str, vocabulary_size: int,
          checkpoint: str | None, beam_size: int, alpha: float, extra_length: int, seed: int
          ) -> ModelSession:
    """See `rpr.api.build`."""
    _SYMBOLS.check(vocabulary_size)
    _EXTRA_LENGTH.check(extra_length)
    _SEED.check(seed)
    _check_search(beam_size, alpha)
    if checkpoint is not None and not os.path.exists(f"{checkpoint}.index"):
        raise UserError(f"checkpoint={checkpoint}: there is no checkpoint of this name")
    for name, text in (("hparams_set", hparams_set), ("hparams", hparams), ("model", model)):
        if not isinstance(text, str):
            raise UserError(f"{name}={text!r}: must be text")
    registration.check_registered("model", model)
    values = registration.registered_hparams(hparams_set)
    preflight.parse_hparams(values, hparams)
    preflight.check_supported(model, values)
    for name in ("pretrained_source_embeddings", "pretrained_target_embeddings"):
        if values.get(name) and checkpoint is None:
            raise UserError(f"{name}={values.get(name)}: rpr.build has no vocabulary, so it cannot "
                            f"read the vectors; give {name}= (empty) or a checkpoint")
    values.problem_hparams = problem_hparams.test_problem_hparams(vocabulary_size, vocabulary_size,
                                                                  values)
    return ModelSession(model, values, checkpoint, beam_size, alpha, extra_length, seed)


def _check_search(beam_size: int, alpha: float) -> None:
    _BEAM_SIZE.check(beam_size)
    _ALPHA.check(alpha)


def _list_of(name: str, sentences: Iterable[str]) -> list[str]:
    """The sentences as a list, which a pandas Series is not."""
    lines = list(sentences) if isinstance(sentences, Iterable) else [None]
    if isinstance(sentences, str) or not all(isinstance(line, str) for line in lines):
        raise UserError(f"{name}: must be a list of strings")
    return lines


def _batches(indices: Sequence[int], size: int) -> list[Sequence[int]]:
    _BATCH_SIZE.check(size)
    return [indices[first:first + size] for first in range(0, len(indices), size)]
