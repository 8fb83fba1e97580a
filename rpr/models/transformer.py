"""The registered model `rpr_transformer`: a Transformer with a choice of position schemes.

Modalities are T2T's; the search for translations is that of `rpr.models.beam_search`.
"""
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities
from tensor2tensor.models import transformer
from tensor2tensor.utils import hparams_lib, optimize, registry
from tensor2tensor.utils import learning_rate as t2t_learning_rate

from rpr import positions
from rpr.models import incremental, losses, pretrained_embeddings, transformer_stacks
from rpr.models.declarations import (
    T2T_POSITIONS,
    add_position_hparams,
    check_ranges,
    sides,
)
from rpr.models.losses import cast_to_activations
from rpr.positions.registry import names_in
from rpr.problems.graphs import split_edges
from rpr.utils.interfaces import HParams

# Hparams of T2T's transformer that this model supports in part -> the supported values.
SUPPORTED = {
    "pos": ("none", None),
    "self_attention_type": ("dot_product",),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"),
    "proximity_bias": (False,),
    "causal_decoder_self_attention": (True,),
    "attention_variables_3d": (False,),
    "hard_attention_k": (0,),
    "num_area_layers": (0,),
    "prepend_mode": ("none", "prepend_inputs_masked_attention"),
    "expected_attention_loss_type": (None,),
    "memory_type": (None,),
    "recurrence_type": (None,),                              # of T2T's universal Transformer
}


def checked_hparams(hparams: HParams) -> HParams:
    """A checked copy of a model's hparams; raises ValueError as `check_ranges`.

    A hparams set of T2T gets our hparams, and its position signal as `position`.
    """
    hparams = hparams_lib.copy_hparams(hparams)
    if "use_pad_remover" not in hparams:
        raise ValueError("no hparam use_pad_remover: rpr_transformer needs an hparams_set of a "
                         "Transformer (rpr list hparams)")
    if "position" not in hparams and hparams.get("pos") in T2T_POSITIONS:
        position = T2T_POSITIONS[hparams.get("pos")]
        if hparams.self_attention_type == "dot_product_relative":
            hparams.self_attention_type = "dot_product"
            position = "relative" if position == "none" else f"relative+{position}"
        add_position_hparams(hparams, position, hparams.max_relative_position, True)
    for name, supported in SUPPORTED.items():
        value = hparams.get(name, supported[0])
        if value not in supported:
            hint = ": positions are given by the hparam position" if name == "pos" else ""
            raise ValueError(f"{name}={value}: rpr_transformer supports only "
                             f"{' or '.join(map(str, supported))}{hint}")
    check_ranges(hparams)
    if hparams.pack_dataset:
        _check_packed(hparams)
    symbol, decoder_only = (hparams.get(name) for name in ("answer_symbol", "decoder_only"))
    if decoder_only and symbol:
        raise ValueError(f"answer_symbol={symbol} with decoder_only=True: an encoder or a decoder "
                         "answers; use one of the two")
    if decoder_only and not hparams.shared_embedding_and_softmax_weights:
        raise ValueError("decoder_only=True: source and target are read with one table; it needs "
                         "shared_embedding_and_softmax_weights=True")
    _check_heads(hparams)
    for side in (*sides(hparams), "cross"):
        positions.build(hparams, side)                       # raises for a bad scheme
    return hparams


def _check_packed(hparams: HParams) -> None:
    """Refuses what needs one sentence per row, or edges, or more positions than are drawn."""
    for name, why in (("loss_per_sentence", "holds several sentences"),
                      ("answer_symbol", "holds several sources"),
                      ("decoder_only", "holds several sources")):
        if hparams.get(name):
            raise ValueError(f"{name}={hparams.get(name)} with pack_dataset=True: a packed row "
                             f"{why}; use one of the two")
    if "graph" in names_in(hparams.get("encoder_position") or hparams.position):
        raise ValueError("position=graph with pack_dataset=True: a packed row has no edges; use "
                         "one of the two")
    if hparams.max_length > hparams.get("randomized_length") and any(
            "randomized" in names_in(hparams.get(f"{side}_position") or hparams.position)
            for side in ("encoder", "decoder")):
        raise ValueError(f"randomized_length={hparams.get('randomized_length')}: a packed row has "
                         f"max_length={hparams.max_length} positions; it must be at least that")


def _check_heads(hparams: HParams) -> None:
    """The heads divide the channels of keys and values."""
    for name in ("attention_key_channels", "attention_value_channels"):
        channels = hparams.get(name) or hparams.hidden_size
        if channels % hparams.num_heads:
            name = name if hparams.get(name) else "hidden_size"
            raise ValueError(f"num_heads={hparams.num_heads}: must divide {name}={channels}")


def learning_rate(hparams: HParams) -> tf.Tensor:
    """The learning rate of the current step, a float32 scalar: T2T's factors and `cosine_restarts`.

    The latter is cosine decay from 1 with warm restarts (Loshchilov and Hutter 2017, equation 5).
    Period i lasts T_i = restart_steps * t_mul^i steps. The factor is
    alpha + (1 - alpha) m_mul^i (1 + cos(pi t / T_i)) / 2, where t counts from the period's start.
    """
    step, rate = t2t_learning_rate._global_step(hparams), tf.constant(1.0)
    for name in filter(None, map(str.strip, hparams.learning_rate_schedule.split("*"))):
        rate *= tf.train.cosine_decay_restarts(
            1.0, step, hparams.learning_rate_restart_steps, hparams.learning_rate_restart_t_mul,
            hparams.learning_rate_restart_m_mul, hparams.learning_rate_restart_alpha
        ) if name == "cosine_restarts" else t2t_learning_rate.learning_rate_factor(
            name, step, hparams)
    return rate


@registry.register_model
class RprTransformer(incremental.IncrementalDecoder, transformer.Transformer):
    """Transformer with any position scheme, such as relative (Shaw et al. 2018) or sinusoid."""

    scope = "transformer"                                    # of its variables in a checkpoint
    check_hparams = staticmethod(checked_hparams)            # called by rpr.t2t.preflight

    def __init__(self, hparams: HParams, *args: Any, **kwargs: Any) -> None:
        hparams = checked_hparams(hparams)
        pretrained_embeddings.use_pretrained_embeddings(
            hparams, lambda: self._problem_hparams.vocabulary)
        super().__init__(hparams, *args, **kwargs)
        # The scope of T2T's `transformer`. This model reads all checkpoints of that one; that one
        # reads those of this model if the heads share their table of relative vectors.
        self._name = self._base_name = self.scope
        self._init_cache_fn = transformer_stacks.init_cache
        self._prepare_decoder_fn = transformer_stacks.prepare_decoder   # for T2T's decoding loop
        if (hparams.get("loss_per_sentence", False)
                and self._hparams.mode == tf.estimator.ModeKeys.TRAIN):      # metrics count words
            self._hparams.weights_fn = {**self._hparams.weights_fn,
                                        "targets": losses.weights_per_sentence}
        losses.use_factored_loss(self._hparams, self._problem_hparams)
        losses.use_one_table(self._hparams, self._problem_hparams)
        losses.use_half_precision_logits(self._hparams, self._problem_hparams)

    def optimize(self, loss: tf.Tensor, num_async_replicas: int = 1, use_tpu: bool = False,
                 variables: list | None = None) -> tf.Operation:
        """T2T's, with `learning_rate`."""
        rate = learning_rate(self.hparams) / num_async_replicas ** 0.5
        return optimize.optimize(loss, rate, self.hparams, use_tpu=use_tpu, variables=variables)

    def encode(self, inputs: tf.Tensor, target_space: tf.Tensor | None, hparams: HParams,
               features: dict | None = None, losses: list | None = None
               ) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoder's output and the bias of the decoder's attention to it; T2T's signature."""
        if features and "inputs" in features:                # in decoding these are the symbols
            features = {"inputs_raw": features["inputs"], **features}
        inputs = cast_to_activations(inputs, hparams)
        x, bias, cross_bias = transformer_stacks.prepare_encoder(
            common_layers.flatten4d3d(inputs), target_space, hparams, features)
        return transformer_stacks.encoder(
            x, bias, hparams, transformer.features_to_nonpadding(features, "inputs"),
            self.attention_weights, features), cross_bias

    def body(self, features: dict) -> tf.Tensor:
        """T2T's, with the features passed on to the decoder. Shapes as `targets`."""
        hparams, memory, cross_bias = self._hparams, None, None
        if self.reads_sources:
            return self._decode_after_source(features)
        if self.has_input:
            memory, cross_bias = self.encode(
                features["inputs"], features["target_space_id"], hparams, features)
        targets = features["targets"]
        symbol = hparams.get("answer_symbol", 0)
        if symbol:
            if memory is None:
                raise ValueError(f"answer_symbol={symbol}: the problem has no source, which it is "
                                 "a symbol of")
            shape = common_layers.shape_list(targets)
            return tf.reshape(transformer_stacks.answers(
                memory, features["inputs_raw"], symbol, tf.range(shape[1])[None]), shape)
        x, bias = transformer_stacks.prepare_decoder(
            common_layers.flatten4d3d(targets), hparams, features)
        y = self.decode(x, memory, cross_bias, bias, hparams, features=features)
        return tf.reshape(y, common_layers.shape_list(targets))

    @property
    def reads_sources(self) -> bool:
        """See `IncrementalDecoder`."""
        return self.has_input and bool(self._hparams.get("decoder_only"))

    def _decode_after_source(self, features: dict) -> tf.Tensor:
        """The outputs for the targets that follow the sources in one sequence, as `body`."""
        hparams, shape = self._hparams, common_layers.shape_list(features["targets"])
        symbols = self._problem_hparams.vocab_size
        if symbols["inputs"] != symbols["targets"]:
            raise ValueError("decoder_only=True: source and target need one vocabulary; the "
                             f"problem has {symbols['inputs']} and {symbols['targets']} symbols")
        inputs, targets = (common_layers.flatten4d3d(features[side])
                           for side in ("inputs", "targets"))
        input_ids, target_ids = (tf.reshape(features[f"{side}_raw"], tf.shape(x)[:2])
                                 for side, x in (("inputs", inputs), ("targets", targets)))
        words = tf.math.count_nonzero(input_ids, axis=1, dtype=tf.int32)[:, None]
        at = words + tf.range(shape[1])[None]                # of the targets
        # Together with its padding a row may be longer than the decoder's positions.
        length = self.within_positions(common_layers.shape_list(inputs)[1] + shape[1])
        with self.enough_positions(tf.reduce_max((at + 1) * tf.sign(target_ids))):
            row, ids = (transformer_stacks.append(source, target, words, length) for source, target
                        in ((inputs, targets), (input_ids, target_ids)))
        x, bias = transformer_stacks.prepare_decoder(row, hparams)
        y = self.decode(x, None, None, bias, hparams, features={"targets_raw": ids})
        return tf.reshape(tf.gather(y, tf.minimum(at, length - 1), batch_dims=1), shape)

    def prepare_features(self, features: dict) -> dict:
        """See `IncrementalDecoder`. Edges in a line of text are split off from `inputs`."""
        features = super().prepare_features(features)
        if "edges" not in features and (self._problem_hparams or {}).get("edges_in_text", False):
            words, edges = split_edges(
                tf.reshape(features["inputs"], tf.shape(features["inputs"])[:2]))
            features |= {"inputs": words[:, :, None, None], "edges": edges}
        return features

    def infer(self, features: dict, *args: Any, **kwargs: Any) -> Any:
        """T2T's, after `prepare_features`."""
        return super().infer(self.prepare_features(features), *args, **kwargs)

    def decode(self, decoder_input: tf.Tensor, encoder_output: tf.Tensor | None,
               encoder_decoder_attention_bias: tf.Tensor | None,
               decoder_self_attention_bias: tf.Tensor | None, hparams: HParams,
               cache: dict | None = None, decode_loop_step: Any = None,
               features: dict | None = None, **kwargs: Any) -> tf.Tensor:
        """The decoder's output; T2T's signature, and the features, as far as they are known.

        T2T's loop for TPUs, which has a cache of fixed length, is refused.
        """
        if decode_loop_step is not None:
            raise NotImplementedError("rpr_transformer decodes on CPU and GPU, not with T2T's loop "
                                      "for TPUs: leave use_tpu off")
        decoder_input = cast_to_activations(decoder_input, hparams)
        x = transformer_stacks.decoder(
            decoder_input, encoder_output, decoder_self_attention_bias,
            encoder_decoder_attention_bias, hparams, cache, self.attention_weights, features)
        return tf.expand_dims(x, axis=2)

    def _fast_decode(self, features: dict, decode_length: int, beam_size: int = 1,
                     top_beams: int = 1, alpha: float = 1.0,
                     preprocess_targets_method: Callable | None = None) -> dict:
        """The search of `rpr.models.beam_search`, or T2T's cached decoding for what that lacks."""
        self.attention_weights.clear()           # T2T's loop would read those of an earlier call
        hparams, problem = self._hparams, self._problem_hparams
        symbol = problem.modality["targets"] == modalities.ModalityType.SYMBOL
        sampled = beam_size == 1 and hparams.sampling_method != "argmax"
        if (sampled or not self.has_input or not symbol or self._num_datashards != 1
                or not losses.logits_function(hparams) or preprocess_targets_method
                or self.get_decode_start_id() or self.get_decode_end_id()
                or "partial_targets" in features or "targets_segmentation" in features):
            for name in ("answer_symbol", "decoder_only"):
                if self.has_input and hparams.get(name):
                    raise ValueError(f"{name}={hparams.get(name)}: such a model answers without "
                                     "sampling and prompts")
            features = {**features, "decode_length": self._length_after_prompt(
                features, decode_length)}
            return super()._fast_decode(features, decode_length, beam_size, top_beams, alpha,
                                        preprocess_targets_method)
        return self.search(features, decode_length, beam_size, top_beams, alpha)

    def _length_after_prompt(self, features: dict, decode_length: int) -> int | tf.Tensor:
        """The most tokens after those whose length T2T adds, within the decoder's positions."""
        prompt = features.get("inputs", features.get("targets"))
        length = features.get("decode_length", decode_length)
        if self.has_input and "partial_targets" in features:
            if "decode_length" not in features:
                length += common_layers.shape_list(prompt)[1]
            prompt = features["partial_targets"]
        before = common_layers.shape_list(prompt)[1]
        return self.within_positions(before + length) - before

    def init_body_step(self, features: dict, beams: int) -> tuple[Callable, Any, Any]:
        """See `IncrementalDecoder`. A language model takes the batch size from `targets`."""
        hparams, memory, bias = self._hparams, None, None
        if self.has_input and not self.reads_sources:
            inputs = self._prepare_inputs_for_decode(features)[0]
            with tf.variable_scope("body"):
                memory, bias = self.encode(inputs, features["target_space_id"], hparams, features)
        batch = common_layers.shape_list(
            features["inputs" if self.has_input else "targets"] if memory is None else memory)[0]
        symbol = hparams.get("answer_symbol", 0)
        if symbol:
            def answer(x: tf.Tensor, at: tf.Tensor, sources: tuple, ids: tf.Tensor
                       ) -> tuple[tf.Tensor, tf.Tensor]:
                del x, ids                                   # answers do not read each other
                memory, symbols = (tf.repeat(source, beams, axis=0) for source in sources)
                y = transformer_stacks.answers(memory, symbols, symbol, at[:, None])
                return y[:, :, None], at + 1

            return answer, tf.zeros([batch * beams], tf.int32), (memory, features["inputs"])
        first = transformer_stacks.init_cache(None, hparams, batch, 0, memory, bias, "body/")
        # The encoder's keys and values are the same for all beams.
        layers = {name: part for name, part in first.items() if name.startswith("layer_")}
        sources = first | {layer: {name: value for name, value in part.items()
                                   if name.endswith("_encdec")} for layer, part in layers.items()}
        caches = {layer: {name: tf.tile(value, [beams] + [1] * (value.shape.rank - 1))
                          for name, value in part.items() if name not in sources[layer]}
                  for layer, part in layers.items()}

        def step(x: tf.Tensor, caches: dict, sources: dict, ids: tf.Tensor
                 ) -> tuple[tf.Tensor, dict]:
            cache = {layer: {**sources[layer], **part} for layer, part in caches.items()}
            x = self.decode(x, sources.get("encoder_output"),
                            sources.get("encoder_decoder_attention_bias"), None, hparams, cache,
                            features={"targets_raw": ids})
            return x, {layer: {name: cache[layer][name] for name in part}
                       for layer, part in caches.items()}

        return step, caches, sources
