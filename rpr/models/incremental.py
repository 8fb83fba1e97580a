"""Incremental decoding: a model as a function from the last symbol to the next symbol's logits.

Beam search, greedy search and ensembles need nothing else from a model.
"""
import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities

from rpr import positions
from rpr.models import beam_search, declarations, losses
from rpr.positions.combinations import shortest_limit
from rpr.positions.scheme import check_length

# A step takes a tensor, the caches and the sources; it returns a tensor and the caches after it.
Step = Callable[..., tuple[tf.Tensor, Any]]


class IncrementalDecoder:
    """Mixin for a T2TModel from symbols to symbols; place it before T2TModel among the bases.

    A model implements `init_body_step`. `init_step` makes it usable in ensembles, and `search` in
    T2T's `_beam_decode` and `_greedy_infer`, which the model overrides; else T2T's loops run.
    """
    _hparams: Any
    _problem_hparams: Any
    _fill_problem_hparams_features: Callable[[dict], None]
    _custom_getter: Callable | None

    def set_mode(self, mode: str) -> None:
        """T2T's, which resets the model's hparams."""
        super().set_mode(mode)  # type: ignore[misc]
        losses.use_half_precision_logits(self._hparams, getattr(self, "_problem_hparams", None))

    def prepare_features(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """A copy of the features that T2T's decoder reads, as `init_step` takes them."""
        features = dict(features)
        self._fill_problem_hparams_features(features)
        return features

    def init_body_step(self, features: dict[str, tf.Tensor], beams: int
                       ) -> tuple[Step, Any, Any]:
        """Encodes the sources, `inputs` int32 [batch, length, 1, 1] of `prepare_features`.

        Returns a step of the model's body, to be called in the variable scope `body`, the caches
        before the first step, and what the step reads of the sources. The step goes from embedded
        symbols [batch * beams, 1, hidden], caches, sources, and symbols int32 [batch * beams], to
        outputs [batch * beams, 1, 1, hidden] and caches.
        """
        raise NotImplementedError

    def target_vocab_size(self) -> int:
        """The number of output symbols, rounded up to a multiple of `vocab_divisor`."""
        count = self._problem_hparams.vocab_size["targets"]
        return count + -count % self._hparams.get("vocab_divisor", 1)

    def init_step(self, features: dict[str, tf.Tensor], beams: int) -> tuple[Step, Any, Any]:
        """The model as `rpr.models.beam_search` takes it, from the features of `prepare_features`.

        Call it in the variable scope of the model's name. Returns a step from the symbols chosen
        last, int32 [batch * beams], to logits [batch * beams, symbols], the caches before the first
        step, a nest of tensors [batch * beams, ...], and the sources, of tensors [batch, ...].
        """
        hparams, symbols = self._hparams, self.target_vocab_size()
        scope = hparams.name.get("targets", modalities.get_name(
            modalities.ModalityType.SYMBOL))(hparams, symbols)
        bottom = hparams.bottom.get("targets", modalities.symbol_targets_bottom)
        top = losses.logits_function(hparams) or modalities.symbol_top
        with self._float32_variables():
            body_step, caches, sources = self.init_body_step(features, beams)

        def step(ids: tf.Tensor, caches: Any, sources: Any) -> tuple[tf.Tensor, Any]:
            with self._float32_variables():
                with tf.variable_scope(scope):
                    x = bottom(ids[:, None, None, None], hparams, symbols)
                with tf.variable_scope("body"):
                    x = losses.cast_to_activations(common_layers.flatten4d3d(x), hparams)
                    x, caches = body_step(x, caches, sources, ids)
                with tf.variable_scope(scope):
                    logits = top(x, None, hparams, symbols)
            return tf.reshape(logits, [-1, symbols]), caches

        return step, caches, sources

    def _float32_variables(self) -> Any:
        """The current variable scope, in which half-precision activations have float32 variables.

        T2T's `infer` sets this up; an ensemble calls `init_step` without it.
        """
        return tf.variable_scope(tf.get_variable_scope(), custom_getter=self._custom_getter,
                                 auxiliary_name_scope=False)

    def search(self, features: dict[str, tf.Tensor], decode_length: int, beam_size: int,
               top_beams: int, alpha: float) -> dict[str, tf.Tensor]:
        """The best sentences, in the form of T2T's `infer`; see `beam_search.search`."""
        return beam_search.search(
            *self.init_step(features, beam_size), self.search_lengths(features, decode_length),
            beam_size, top_beams, alpha, self.prompts(features))

    @property
    def reads_sources(self) -> bool:
        """Whether the decoder reads a source before its target."""
        return False

    def prompts(self, features: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """The sources if the decoder reads them, see `beam_search.search`; else None.

        At run time, a source for which the decoder lacks positions is an error.
        """
        if not self.reads_sources:
            return None
        sources = tf.reshape(features["inputs"], tf.shape(features["inputs"])[:2])
        with self.enough_positions(tf.shape(sources)[1] + 1):
            return tf.identity(sources)

    def search_lengths(self, features: dict[str, tf.Tensor], decode_length: int) -> tf.Tensor:
        """The most tokens of each sentence's hypotheses: int32 [batch].

        A hypothesis may be `decode_length` tokens (those of the features, if they have it) longer
        than its source, and at most as long as the decoder has positions.
        """
        inputs = features["inputs"]                          # with or without T2T's last axis
        words = tf.cast(tf.not_equal(inputs, 0), tf.int32)
        words = tf.reduce_sum(words, axis=list(range(1, inputs.shape.ndims)))
        before = words if self.reads_sources else 0
        return self.within_positions(
            before + words + features.get("decode_length", decode_length)) - before

    def within_positions(self, length: int | tf.Tensor) -> int | tf.Tensor:
        """The length, or the number of the decoder's positions if that is smaller."""
        return length if self.longest is None else tf.minimum(length, self.longest)

    def enough_positions(self, length: tf.Tensor) -> contextlib.AbstractContextManager[None]:
        """A context whose operations fail if the decoder has fewer positions than `length`."""
        if self.longest is None:
            return contextlib.nullcontext()
        return check_length(length, self.longest,
                            self._hparams.get("decoder_position") or self._hparams.position)

    @property
    def longest(self) -> int | None:
        """The most positions that the decoder has, also in its attention to the encoder.

        None: no limit, or no decoder.
        """
        stacks = declarations.sides(self._hparams)
        return shortest_limit(positions.build(self._hparams, side) for side, needed in (
            ("targets", {"targets"}), ("cross", {"inputs", "targets"})) if needed <= {*stacks})
