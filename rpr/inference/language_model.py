"""A trained language model: the loss of each token of a text, and continuations of a text."""
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr import positions
from rpr.inference.model_session import encode, list_of_strings, pad
from rpr.models import incremental
from rpr.models.beam_search import EOS_ID
from rpr.t2t import checkpoints
from rpr.t2t.trained_model import TrainedModel
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.settings import Setting

_START_ID = 0                                         # T2T's symbol before the first
_BATCH_TOKENS = 4096                                  # of windows that are read together


class _Window(NamedTuple):
    text: int
    start: int                                        # tokens
    end: int
    first: int                                        # the losses from here on count


class LanguageModel:
    """A trained language model, of a problem without a source text, with its graph and session."""

    def __init__(self, trained: TrainedModel) -> None:
        hparams = trained.hparams
        self._vocabulary = hparams.problem_hparams.vocabulary["targets"]
        self.checkpoint = trained.checkpoint
        if "inputs" in hparams.problem_hparams.vocabulary:
            raise UserError(f"{hparams.problem.name}: the problem has a source text; a language "
                            "model has none")
        self._longest = (positions.build(hparams, "targets").longest if "position" in hparams
                         else None)
        with tf.Graph().as_default():
            self._targets = tf.placeholder(tf.int32, [None, None, 1, 1], "targets")
            self._model = registry.model(trained.name)(hparams, tf.estimator.ModeKeys.EVAL,
                                                       hparams.problem_hparams)
            logits, _ = self._model({"targets": self._targets})
            self._logits = tf.cast(logits[:, :, 0, 0], tf.float32)
            self._losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=self._targets[:, :, 0, 0], logits=self._logits)
            self._session = tf.Session(config=tf.ConfigProto(
                allow_soft_placement=True, gpu_options=tf.GPUOptions(allow_growth=True)))
            checkpoints.saver(trained.checkpoint).restore(self._session, trained.checkpoint)

    def encode(self, text: str) -> list[int]:
        """The ids of a text with the end mark."""
        return [*encode(self._vocabulary, text.strip()), EOS_ID]

    def losses(self, texts: Iterable[str], window: int | None = None, stride: int | None = None
               ) -> list[np.ndarray]:
        """The loss of each token of each text, its end mark included: float32 [tokens], in nats.

        A text longer than `window` (None: no limit) is read in windows of so many tokens. Each
        begins `stride` tokens (None: a window) after the one before it. Losses count in the first
        window that has the token, so that with a small stride every token has about `window` tokens
        before it, and with stride = window the first tokens of a window have none. Refuses texts
        longer than the model's positions.
        """
        for name, tokens in (("window", window), ("stride", stride)):
            Setting(name, 1, minimum=1, or_none=True).check(tokens)
        sentences = [self.encode(text) for text in list_of_strings("texts", texts)]
        results = [np.zeros(len(ids), np.float32) for ids in sentences]
        windows = [each for index, ids in enumerate(sentences)
                   for each in _windows(index, len(ids), window, stride)]
        windows.sort(key=lambda each: each.start - each.end)
        while windows:
            size = max(_BATCH_TOKENS // (windows[0].end - windows[0].start), 1)
            batch, windows = windows[:size], windows[size:]
            found = self._run(self._losses, [sentences[each.text][each.start:each.end]
                                             for each in batch])
            for each, row in zip(batch, found, strict=True):
                results[each.text][each.first:each.end] = row[
                    each.first - each.start:each.end - each.start]
        return results

    def score(self, texts: Iterable[str], window: int | None = None, stride: int | None = None
              ) -> np.ndarray:
        """Log probabilities of texts with their end marks, float64 [texts], in nats; see `losses`.
        """
        return np.array([-losses.sum(dtype=np.float64)
                         for losses in self.losses(texts, window, stride)])

    def generate(self, prefix: str = "", length: int = 100, temperature: float = 0.0, seed: int = 1
                 ) -> str:
        """A text that begins with a prefix, continued by at most `length` tokens.

        It ends earlier at an end mark, or where the scheme has no more positions. Logits are
        divided by `temperature` before a token is drawn (`seed` seeds the draws); at 0 the most
        probable token is taken. Models of this project read each token once, and keep keys and
        values. Others read the whole text for each new token.
        """
        for setting, value in ((Setting("prefix", ""), prefix),
                               (Setting("length", 100, minimum=1), length),
                               (Setting("temperature", 0.0, minimum=0), temperature),
                               (Setting("seed", 1, minimum=0), seed)):
            setting.check(value)
        return self._vocabulary.decode(self._continued(
            encode(self._vocabulary, prefix), length, temperature, np.random.default_rng(seed)))

    def _continued(self, ids: list[int], length: int, temperature: float,
                   random: np.random.Generator) -> list[int]:
        """The ids of a text and its continuation, without the end mark."""
        read, caches = 0, None
        if self._longest is not None and len(ids) >= self._longest:
            raise UserError(f"a prefix of {len(ids)} tokens leaves no place for another one: the "
                            f"model's position scheme has max_length={self._longest} positions")
        for _ in range(min(length, (self._longest or sys.maxsize) - len(ids))):
            if isinstance(self._model, incremental.IncrementalDecoder):
                for token in [_START_ID, *ids][read:]:
                    logits, caches = self._next(token, caches)
                read = len(ids) + 1
            else:  # A token is predicted from those before it: any id stands for the new one.
                logits = self._run(self._logits, [[*ids, EOS_ID]])[0, len(ids)]
            logits = logits.astype(np.float64)
            logits[0] = -np.inf                       # padding
            if temperature:
                logits = logits / temperature + random.gumbel(size=len(logits))
            ids.append(int(logits.argmax()))
            if ids[-1] == EOS_ID:
                return ids[:-1]
        return ids

    @functools.cached_property
    def _step(self) -> tuple[Any, list[tf.Tensor], list[np.ndarray]]:
        """Logits and caches after a token; placeholders of token and caches; the first caches."""
        with self._session.graph.as_default(), tf.variable_scope(self._model.name, reuse=True):
            step, first, sources = self._model.init_step(
                {"targets": tf.zeros([1, 1, 1, 1], tf.int32)}, 1)
            caches = tf.nest.map_structure(lambda cache: tf.placeholder(
                cache.dtype, [size or None for size in cache.shape.as_list()]), first)
            token = tf.placeholder(tf.int32, [1])
            logits, after = step(token, caches, sources)
        return ((tf.cast(logits[0], tf.float32), tf.nest.flatten(after)),
                [token, *tf.nest.flatten(caches)], self._session.run(tf.nest.flatten(first)))

    def _next(self, token: int, caches: list[np.ndarray] | None
              ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The logits after one more token, float32 [symbols], and the caches after it."""
        fetched, fed, first = self._step
        values = [[token], *(first if caches is None else caches)]
        return self._session.run(fetched, dict(zip(fed, values, strict=True)))

    def _run(self, fetched: tf.Tensor, sentences: Sequence[Sequence[int]]) -> np.ndarray:
        self._check_length(max(map(len, sentences)))
        return self._session.run(fetched, {self._targets: pad(sentences)[:, :, None, None]})

    def _check_length(self, longest: int) -> None:
        if self._longest is not None and longest > self._longest:
            raise UserError(f"a text of {longest} tokens; the model's position scheme has "
                            f"positions for max_length={self._longest}: give a window")


def _windows(text: int, length: int, window: int | None, stride: int | None) -> Iterator[_Window]:
    """The windows of a text of so many tokens; see `LanguageModel.losses`."""
    if window is None:
        if stride is not None:
            raise InvalidValue("stride", stride, "only with a window")
        window = length
    stride = window if stride is None else stride
    if stride > window:
        raise InvalidValue("stride", stride, f"must be from 1 to the window, {window}")
    first = 0
    for start in range(0, length, stride):
        end = min(start + window, length)
        yield _Window(text, start, end, first)
        first = end
        if end == length:
            return
