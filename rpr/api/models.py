"""The trained model of a run, for the Python API."""
import typing
from collections.abc import Iterable, Sequence

import numpy as np

from rpr.experiments.config import Run
from rpr.export.bundle import named_weights
from rpr.inference import inspector
from rpr.inference.file_checks import MOST_ALPHA
from rpr.inference.inspector import Inspector, SentenceAttention, Translation
from rpr.inference.model_session import list_of_strings
from rpr.t2t import trained_model
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest
from rpr.utils.settings import Setting


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
        check_search(beam_size, alpha)
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
        sentences = list_of_strings("sentences", sentences)
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
        sources, targets = list_of_strings("sources", sources), list_of_strings("targets", targets)
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
        Setting("source", "").check(source)
        Setting("target", "", or_none=True).check(target)
        inputs = self._inspector.encode(source)
        outputs = (list(self._inspector.translate(source).ids) if target is None
                   else self._inspector.encode(target, "targets"))
        return self._inspector.sentence_attention(inputs, outputs, found=target is None)

    def relative_tables(self) -> dict[str, np.ndarray]:
        """The learned tables of relative positions that the model has (Shaw et al. 2018).

        Returns:
          {"encoder_keys", "encoder_values", "decoder_keys", "decoder_values": float32
          [layers, tables, 2k + 1, depth]}, with one table per layer if its heads share it. Row r is
          a^K or a^V of distance r - k, or with the hparam max_relative_position_left of distance
          r - max_relative_position_left. Layers without tables are left out, and tables of groups
          of heads are in the order of the heads.

        Raises:
          UserError: the layers of a side have different numbers of tables.
        """
        return inspector.relative_tables(self.checkpoint)

    def weights(self) -> dict[str, np.ndarray]:
        """All weights by name; docs/export.md lists names and shapes."""
        return named_weights(self.checkpoint, self._name, self._hparams)


def check_search(beam_size: int, alpha: float) -> None:
    """Refuses a beam size or length penalty out of range."""
    Setting("beam_size", 4, minimum=1).check(beam_size)
    Setting("alpha", 0.6, minimum=0, maximum=MOST_ALPHA).check(alpha)


def _batches(indices: Sequence[int], size: int) -> list[Sequence[int]]:
    Setting("batch_size", 32, minimum=1).check(size)
    return [indices[first:first + size] for first in range(0, len(indices), size)]
