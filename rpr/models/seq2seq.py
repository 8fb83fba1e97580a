"""The registered model `qkv_seq2seq`: query-key-value attention between a recurrent or
convolutional encoder and a recurrent decoder.

The decoder reads the words before the one to predict. Its output is the query of one attention over
the encoder's values and is joined to the attention's result before the softmax (Luong et al. 2015,
equation 5). The recurrence does not depend on the attention, so training attends for all words in
one product.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_attention, common_layers
from tensor2tensor.models import transformer
from tensor2tensor.utils import hparams_lib, registry, t2t_model

from rpr import positions
from rpr.models import incremental, losses
from rpr.models.declarations import check_ranges
from rpr.nn import attention, projections
from rpr.nn.dropout import dropout
from rpr.nn.ops import accumulator_dtype, shape_list
from rpr.positions.registry import names_in
from rpr.utils.interfaces import HParams

POSITIONS = ("none", "sinusoid", "scaled_sinusoid", "learned")   # signals added to the words

State = tuple[tf.Tensor, tf.Tensor]                  # c and h of an LSTM, each [batch, units]


class Memory(NamedTuple):
    """The encoded sources."""
    values: tf.Tensor                                        # [batch, length, hidden]
    keys: tf.Tensor                                          # [batch, length, hidden]
    bias: tf.Tensor                                          # [batch, 1, 1, length]
    mean: tf.Tensor                                          # of the values, [batch, hidden]


def lstm(x: tf.Tensor, state: State, units: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A layer of long short-term memory with a forget bias of 1, in the current variable scope.

    Returns c and h after each step of x [length, batch, depth], each [length, batch, units].
    """
    depth, dtype = shape_list(x)[2], x.dtype
    kernel = tf.get_variable("kernel", [depth + units, 4 * units], dtype)
    bias = tf.get_variable("bias", [4 * units], dtype, initializer=tf.zeros_initializer())
    # TensorFlow has no BlockLSTM in bfloat16, and float16 is too coarse for a cell's sum.
    exact = accumulator_dtype(dtype)
    x, c, h, kernel, bias = (tf.cast(z, exact) for z in (x, *state, kernel, bias))
    peephole = tf.zeros([units], exact)
    steps = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.shape(x, out_type=tf.int64)[0], x=x, cs_prev=c, h_prev=h, w=kernel, b=bias,
        wci=peephole, wcf=peephole, wco=peephole, forget_bias=1.0, cell_clip=0.0)
    return tf.cast(steps.cs, dtype), tf.cast(steps.h, dtype)


def birnn(x: tf.Tensor, lengths: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Layers of two LSTMs, each half as wide as the model, one per direction.

    x and the result are [batch, length, hidden], `lengths` int32 [batch]. Padding does not change
    what comes before it.
    """
    units = hparams.hidden_size // 2
    zeros = tf.zeros([shape_list(x)[0], units], x.dtype)
    x = tf.transpose(x, [1, 0, 2])                           # [length, batch, hidden]

    def reverse(x: tf.Tensor) -> tf.Tensor:
        return tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)

    for layer in range(hparams.num_encoder_layers):
        with tf.variable_scope(f"layer_{layer}"):
            y = dropout(x, hparams.dropout)
            with tf.variable_scope("forward"):
                forward = lstm(y, (zeros, zeros), units)[1]
            with tf.variable_scope("backward"):
                backward = reverse(lstm(reverse(y), (zeros, zeros), units)[1])
            x += tf.concat([forward, backward], axis=2)
    return tf.transpose(x, [1, 0, 2])


def cnn(x: tf.Tensor, lengths: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Layers of gated linear units over `kernel_width` words (Gehring et al. 2017, section 3.2).

    Shapes as in `birnn`.
    """
    mask = tf.sequence_mask(lengths, shape_list(x)[1], x.dtype)[:, :, None]
    hidden = hparams.hidden_size
    for layer in range(hparams.num_encoder_layers):
        with tf.variable_scope(f"layer_{layer}"):
            kernel = tf.get_variable("kernel", [hparams.kernel_width, hidden, 2 * hidden], x.dtype)
            bias = tf.get_variable("bias", [2 * hidden], x.dtype,
                                   initializer=tf.zeros_initializer())
            y = dropout(x, hparams.dropout) * mask
            y, gate = tf.split(tf.nn.conv1d(y, kernel, 1, "SAME") + bias, 2, axis=2)
            x = (x + y * tf.sigmoid(gate)) * 0.5 ** 0.5
    return x


ENCODERS: dict[str, Callable] = {"birnn": birnn, "cnn": cnn}


def attention_keys(values: tf.Tensor, flavour: str) -> tf.Tensor:
    """The keys of an attention, computed once per sentence. Shapes as values."""
    return values if flavour == "dot" else projections.project(
        values, shape_list(values)[2], "keys")


def attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, bias: tf.Tensor, flavour: str,
           save_weights_to: dict | None = None) -> tf.Tensor:
    """The sums of the values weighted by attention, [batch, len_q, depth] as the queries.

    The logits are q_i . v_j / sqrt(depth) (`dot`), q_i . W v_j (`bilinear`; Luong et al. 2015), or
    u . tanh(U q_i + W v_j) (`mlp`; Bahdanau et al. 2015). The keys, v_j or W v_j, are those of
    `attention_keys`, [batch, len_k, depth] as the values. The bias, [batch, 1, 1, len_k], is -1e9
    for padding. `save_weights_to` receives the weights [batch, 1, len_q, len_k].
    """
    scores = None
    if flavour == "mlp":
        depth = shape_list(queries)[2]
        queries = projections.project(queries, depth, "queries")
        vector = tf.get_variable("vector", [1, depth], queries.dtype)

        def scores(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
            return attention.additive_logits(q, k, vector)

    def save(weights: tf.Tensor, logits: tf.Tensor) -> None:
        del logits
        if save_weights_to is not None:
            save_weights_to[f"{tf.get_variable_scope().name}/attention"] = weights

    return attention.attention(
        queries[:, None], keys[:, None], values[:, None], bias, scores, on_weights=save,
        scale=None if flavour == "dot" else 1.0)[:, 0]


def checked_hparams(hparams: HParams) -> HParams:
    """A checked copy of a model's hparams; raises ValueError as `check_ranges`."""
    if "attention_flavour" not in hparams:
        raise ValueError("no hparam attention_flavour: qkv_seq2seq needs an hparams_set such as "
                         "qkv_seq2seq_base (rpr list hparams)")
    check_ranges(hparams)
    if hparams.hidden_size % 2:
        raise ValueError(f"hidden_size={hparams.hidden_size}: qkv_seq2seq needs an even number, "
                         "half of it for each direction")
    for name, supported in (("pack_dataset", False), ("sampling_method", "argmax"),
                            ("prepend_mode", "none")):
        if hparams.get(name, supported) != supported:
            raise ValueError(f"{name}={hparams.get(name)}: qkv_seq2seq supports only {supported}")
    for side, name in (("inputs", "encoder_position"), ("targets", "decoder_position")):
        name = name if hparams.get(name) else "position"
        value = hparams.get(name)
        for scheme in sorted(names_in(value) & positions.SCHEMES.keys() - set(POSITIONS)):
            raise ValueError(f"{name}={value}: {scheme} is a scheme of self-attention, which "
                             "qkv_seq2seq does not have; it supports "
                             f"{', '.join(POSITIONS)}")
        if ":" in value or "@" in value:
            raise ValueError(f"{name}={value}: qkv_seq2seq has one scheme per side, such as "
                             "sinusoid, or a sum")
        positions.build(hparams, side)                       # raises for a bad scheme
    return hparams_lib.copy_hparams(hparams)


@registry.register_model
class QkvSeq2seq(incremental.IncrementalDecoder, t2t_model.T2TModel):
    """A bidirectional recurrent or a convolutional encoder, attention, and a recurrent decoder."""

    check_hparams = staticmethod(checked_hparams)            # called by rpr.t2t.preflight

    def __init__(self, hparams: HParams, *args: Any, **kwargs: Any) -> None:
        super().__init__(checked_hparams(hparams), *args, **kwargs)
        problem = self._problem_hparams
        if problem and "inputs" not in problem.modality:
            raise ValueError("qkv_seq2seq needs a source text, which the problem does not have; "
                             "rpr_transformer learns language models")
        if (problem or {}).get("edges_in_text", False):
            raise ValueError("qkv_seq2seq reads words without edges between them; those need "
                             "rpr_transformer with position=graph")
        self.attention_weights: dict[str, tf.Tensor] = {}    # as in T2T's models
        losses.use_factored_loss(self._hparams, self._problem_hparams)
        losses.use_half_precision_logits(self._hparams, self._problem_hparams)

    def body(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Maps embedded words [batch, length, 1, hidden] to the input of the softmax."""
        memory = self._encode(common_layers.flatten4d3d(features["inputs"]))
        targets = common_layers.shift_right_3d(common_layers.flatten4d3d(features["targets"]))
        training = self._hparams.mode == tf.estimator.ModeKeys.TRAIN
        with tf.variable_scope("decoder"):
            states = self._initial_states(memory.mean)
            y, _ = self._recur(targets, tf.range(shape_list(targets)[1]), states)
            return self._join(y, memory, None if training else self.attention_weights)[:, :, None]

    def init_body_step(self, features: dict[str, tf.Tensor], beams: int
                       ) -> tuple[Callable, Any, Any]:
        """See `IncrementalDecoder`."""
        inputs = self._prepare_inputs_for_decode(features)[0]
        inputs = losses.cast_to_activations(inputs, self._hparams)
        with tf.variable_scope("body"):
            memory = self._encode(common_layers.flatten4d3d(inputs))
            with tf.variable_scope("decoder"):
                states = self._initial_states(memory.mean)
        states = tf.nest.map_structure(lambda x: tf.repeat(x, beams, axis=0), states)
        batch, _, hidden = shape_list(memory.values)

        def step(x: tf.Tensor, caches: dict, memory: Memory, ids: tf.Tensor
                 ) -> tuple[tf.Tensor, dict]:
            with tf.variable_scope("decoder"):
                y, states = self._recur(x, caches["step"][:1], caches["states"])
                # The beams of a sentence are queries of one attention.
                y = self._join(tf.reshape(y, [-1, beams, hidden]), memory, None)
            return (tf.reshape(y, [-1, 1, 1, hidden]),
                    {"step": caches["step"] + 1, "states": states})

        return step, {"step": tf.zeros([batch * beams], tf.int32), "states": states}, memory

    _prepare_inputs_for_decode = transformer.Transformer._prepare_inputs_for_decode

    def _greedy_infer(self, features: dict, decode_length: int, use_tpu: bool = False) -> dict:
        return self._beam_decode(features, decode_length, 1, 1, 0.0, use_tpu)

    def _beam_decode(self, features: dict, decode_length: int, beam_size: int, top_beams: int,
                     alpha: float, use_tpu: bool = False) -> dict:
        """T2T's, between whole sentences."""
        if use_tpu or self._num_datashards != 1 or "partial_targets" in features:
            raise NotImplementedError("qkv_seq2seq decodes whole sentences on one CPU or GPU")
        with tf.variable_scope(self.name):
            return self.search(features, decode_length, beam_size, top_beams, alpha)

    def _encode(self, x: tf.Tensor) -> Memory:
        """Encodes embedded words [batch, length, hidden], which are zero for padding."""
        hparams = self._hparams
        padding = common_attention.embedding_to_padding(x)   # [batch, length]
        lengths = tf.reduce_sum(tf.cast(padding < 0.5, tf.int32), axis=1)
        with tf.variable_scope("encoder"):
            x = positions.build(hparams, "inputs").embed(x, tf.range(shape_list(x)[1]))
            values = ENCODERS[hparams.encoder](x, lengths, hparams)
            values *= tf.cast(1.0 - padding, x.dtype)[:, :, None]
            keys = attention_keys(values, hparams.attention_flavour)
        words = tf.maximum(tf.cast(lengths, x.dtype), 1.0)[:, None]
        return Memory(values, keys, common_attention.attention_bias_ignore_padding(padding),
                      tf.reduce_sum(values, axis=1) / words)

    def _initial_states(self, mean: tf.Tensor) -> list[State]:
        """The decoder's states before the first word, computed from the mean of the values."""
        hidden = shape_list(mean)[1]

        def state(layer: int, part: str) -> tf.Tensor:
            return tf.tanh(projections.project(
                mean[:, None], hidden, f"layer_{layer}/start_{part}")[:, 0])

        return [(state(layer, "c"), state(layer, "h"))
                for layer in range(self._hparams.num_decoder_layers)]

    def _recur(self, x: tf.Tensor, position: tf.Tensor, states: list[State]
               ) -> tuple[tf.Tensor, list[State]]:
        """Reads words x, [batch, length, hidden], at positions int32 [length], from given states.

        Returns the outputs, shapes as x, and the states after the last word, one per layer.
        """
        hparams, last_states = self._hparams, []
        x = positions.build(hparams, "targets").embed(x, position)
        x = tf.transpose(x, [1, 0, 2])                       # [length, batch, hidden]
        for layer, state in enumerate(states):
            with tf.variable_scope(f"layer_{layer}"):
                c, h = lstm(dropout(x, hparams.dropout), state, hparams.hidden_size)
            last_states.append((c[-1], h[-1]))
            x += h
        return tf.transpose(x, [1, 0, 2]), last_states

    def _join(self, y: tf.Tensor, memory: Memory, save_weights_to: dict | None) -> tf.Tensor:
        """The input of the softmax, from the decoder's output y. Shapes as y."""
        hparams = self._hparams
        with tf.variable_scope("encdec_attention"):
            context = attend(y, memory.keys, memory.values, memory.bias, hparams.attention_flavour,
                             save_weights_to)
        joined = projections.project(tf.concat([context, y], axis=2), hparams.hidden_size, "join")
        return dropout(tf.tanh(joined), hparams.dropout)
