"""The registered model `qkv_seq2seq`: query-key-value attention between a recurrent or
convolutional encoder and a recurrent decoder.

The decoder reads the words before the one to predict; its output is the query of one attention over
the encoder's values, and is joined to what that gives before the softmax (Luong et al. 2015,
equation 5). So the recurrence does not wait for the attention, and training attends once for all
words.
"""
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_attention, common_layers
from tensor2tensor.models import transformer
from tensor2tensor.utils import hparams_lib, registry, t2t_model

from rpr import positions
from rpr.models import incremental, losses
from rpr.nn import attention, ops, projections
from rpr.nn.ops import shape_list


class Memory(NamedTuple):
    """What the decoder knows of the sources.

    Attributes:
      values, keys: [batch, length, hidden].
      bias: [batch, 1, 1, length], -1e9 where there is padding.
      mean: [batch, hidden], of the values.
    """
    values: tf.Tensor
    keys: tf.Tensor
    bias: tf.Tensor
    mean: tf.Tensor


ENCODERS = ("birnn", "cnn")
FLAVOURS = ("dot", "bilinear", "mlp")
POSITIONS = ("none", "sinusoid", "scaled_sinusoid", "learned")   # what is added to the words


def lstm(x, state, units):
    """A layer of long short-term memory, forget gates biased by 1, in a scope of its own.

    Args:
      x: [length, batch, depth].
      state: (c, h), each [batch, units].
      units: an int.

    Returns:
      c and h after each step, [length, batch, units].
    """
    depth, none = shape_list(x)[2], tf.zeros([units], x.dtype)
    kernel = tf.get_variable("kernel", [depth + units, 4 * units], x.dtype)
    bias = tf.get_variable("bias", [4 * units], x.dtype, initializer=tf.zeros_initializer())
    found = tf.raw_ops.BlockLSTM(
        seq_len_max=tf.shape(x, out_type=tf.int64)[0], x=x, cs_prev=state[0], h_prev=state[1],
        w=kernel, b=bias, wci=none, wcf=none, wco=none, forget_bias=1.0, cell_clip=0.0)
    return found.cs, found.h


def birnn(x, lengths, hparams):
    """Layers of two LSTMs, each half as wide as the model, one reading from either end.

    Args:
      x: [batch, length, hidden].
      lengths: int32 [batch]; what lies beyond changes nothing before.
      hparams: the model's hyperparameters.

    Returns:
      [batch, length, hidden].
    """
    units = hparams.hidden_size // 2
    start = 2 * (tf.zeros([shape_list(x)[0], units], x.dtype),)
    x = tf.transpose(x, [1, 0, 2])                           # [length, batch, hidden]

    def turned(x):
        return tf.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)

    for layer in range(hparams.num_encoder_layers):
        with tf.variable_scope(f"layer_{layer}"):
            y = ops.dropout(x, hparams.dropout)
            with tf.variable_scope("forward"):
                forward = lstm(y, start, units)[1]
            with tf.variable_scope("backward"):
                backward = turned(lstm(turned(y), start, units)[1])
            x += tf.concat([forward, backward], axis=2)
    return tf.transpose(x, [1, 0, 2])


def cnn(x, lengths, hparams):
    """Layers of gated linear units over `kernel_width` words (Gehring et al. 2017, section 3.2).

    Args and result as `birnn`.
    """
    mask = tf.sequence_mask(lengths, shape_list(x)[1], x.dtype)[:, :, None]
    hidden = hparams.hidden_size
    for layer in range(hparams.num_encoder_layers):
        with tf.variable_scope(f"layer_{layer}"):
            kernel = tf.get_variable("kernel", [hparams.kernel_width, hidden, 2 * hidden], x.dtype)
            bias = tf.get_variable("bias", [2 * hidden], x.dtype,
                                   initializer=tf.zeros_initializer())
            y = ops.dropout(x, hparams.dropout) * mask
            y, gate = tf.split(tf.nn.conv1d(y, kernel, 1, "SAME") + bias, 2, axis=2)
            x = (x + y * tf.sigmoid(gate)) * 0.5 ** 0.5
    return x


def init(values, flavour):
    """The keys of an attention, all that it computes once a sentence.

    Args:
      values: [batch, length, depth].
      flavour: `dot`, `bilinear` or `mlp`.

    Returns:
      [batch, length, depth].
    """
    if flavour == "dot":
        return values
    return projections.project(values, shape_list(values)[2], "keys")


def attend(queries, keys, values, bias, flavour, save_weights_to=None):
    """The values, weighed by how well their keys match a query.

    The logits are q_i . v_j / sqrt(depth) (`dot`), q_i . W v_j (`bilinear`; Luong et al. 2015), or
    u . tanh(U q_i + W v_j) (`mlp`; Bahdanau et al. 2015); `init` has made the keys, v_j or W v_j.

    Args:
      queries: [batch, len_q, depth].
      keys: [batch, len_k, depth], see `init`.
      values: [batch, len_k, depth].
      bias: [batch, 1, 1, len_k], -1e9 where there is padding.
      flavour: `dot`, `bilinear` or `mlp`.
      save_weights_to: a dict that gets the weights [batch, 1, len_q, len_k], or None.

    Returns:
      [batch, len_q, depth].
    """
    scores, scale = None, None if flavour == "dot" else 1.0
    if flavour == "mlp":
        depth = shape_list(queries)[2]
        queries = projections.project(queries, depth, "queries")
        vector = tf.get_variable("vector", [1, depth], queries.dtype)

        def scores(q, k):
            return attention.additive(q, k, vector)

    def keep(weights, logits):
        del logits
        save_weights_to[f"{tf.get_variable_scope().name}/attention"] = weights

    return attention.attention(
        queries[:, None], keys[:, None], values[:, None], bias, scores, scale=scale,
        on_weights=None if save_weights_to is None else keep)[:, 0]


def _own_hparams(hparams):
    """The hparams of a model, checked."""
    for name, allowed in (("encoder", ENCODERS), ("attention_flavour", FLAVOURS)):
        if hparams.get(name) not in allowed:
            raise ValueError(f"{name}={hparams.get(name)}: qkv_seq2seq serves {', '.join(allowed)}")
    if hparams.hidden_size % 2:
        raise ValueError(f"hidden_size={hparams.hidden_size}: qkv_seq2seq needs an even number, "
                         "half of it for each direction")
    for side, name in (("inputs", "encoder_position"), ("targets", "decoder_position")):
        name = name if hparams.get(name) else "position"
        for scheme in hparams.get(name).split("+"):
            if scheme.strip() in positions.SCHEMES and scheme.strip() not in POSITIONS:
                raise ValueError(f"{name}={hparams.get(name)}: {scheme} belongs to self-attention, "
                                 f"which qkv_seq2seq has not; it serves {', '.join(POSITIONS)}")
        positions.build(hparams, side)
    return hparams_lib.copy_hparams(hparams)


@registry.register_model
class QkvSeq2seq(incremental.IncrementalDecoder, t2t_model.T2TModel):
    """Attention between an encoder, two-way recurrent or convolutional, and a recurrent decoder."""

    check_hparams = staticmethod(_own_hparams)               # see `rpr.t2t.preflight.check_supported`

    def __init__(self, hparams, *args, **kwargs):
        super().__init__(_own_hparams(hparams), *args, **kwargs)
        if (self._problem_hparams or {}).get("edges_in_text", False):
            raise ValueError("qkv_seq2seq reads words alone: edges between them need "
                             "rpr_transformer and position=graph")
        self.attention_weights = {}                          # as in T2T's models
        losses.use_factored_loss(self._hparams, self._problem_hparams)

    def body(self, features):
        """T2T's: from embedded words [batch, length, 1, hidden] to what the softmax reads."""
        if "targets_segmentation" in features:
            raise ValueError("pack_dataset=True: qkv_seq2seq reads one sentence a row")
        memory = self._encode(common_layers.flatten4d3d(features["inputs"]))
        targets = common_layers.shift_right_3d(common_layers.flatten4d3d(features["targets"]))
        with tf.variable_scope("decoder"):
            states = self._start(memory.mean)
            y, _ = self._recur(targets, tf.range(shape_list(targets)[1]), states)
            keep = None if self._hparams.mode == tf.estimator.ModeKeys.TRAIN else (
                self.attention_weights)
            return self._join(y, memory, keep)[:, :, None]

    def init_body_step(self, features, beams):
        """See `IncrementalDecoder`."""
        inputs = self._prepare_inputs_for_decode(features)[0]
        with tf.variable_scope("body"):
            memory = self._encode(common_layers.flatten4d3d(inputs))
            with tf.variable_scope("decoder"):
                states = self._start(memory.mean)
        caches = tf.nest.map_structure(lambda x: tf.repeat(x, beams, axis=0), states)
        batch, _, hidden = shape_list(memory.values)

        def step(x, caches):
            with tf.variable_scope("decoder"):
                y, states = self._recur(x, caches["step"][:1], caches["states"])
                # The beams of a sentence are queries of one attention.
                y = self._join(tf.reshape(y, [batch, beams, hidden]), memory, None)
            return (tf.reshape(y, [batch * beams, 1, 1, hidden]),
                    {"step": caches["step"] + 1, "states": states})

        return step, {"step": tf.zeros([batch * beams], tf.int32), "states": caches}

    _prepare_inputs_for_decode = transformer.Transformer._prepare_inputs_for_decode

    def _greedy_infer(self, features, decode_length, use_tpu=False):
        return self._beam_decode(features, decode_length, 1, 1, 0.0, use_tpu)

    def _beam_decode(self, features, decode_length, beam_size, top_beams, alpha, use_tpu=False):
        """T2T's, of sentences from sentences.

        Raises:
          NotImplementedError: what T2T does beside that.
        """
        if use_tpu or self._num_datashards != 1 or "partial_targets" in features:
            raise NotImplementedError("qkv_seq2seq decodes whole sentences on one CPU or GPU")
        with tf.variable_scope(self.name):
            return self.search(features, decode_length, beam_size, top_beams, alpha)

    def _encode(self, x):
        """x: [batch, length, hidden], embedded words, zero where there is padding.

        Returns:
          a `Memory`.
        """
        hparams = self._hparams
        padding = common_attention.embedding_to_padding(x)   # [batch, length]
        lengths = tf.reduce_sum(tf.cast(padding < 0.5, tf.int32), axis=1)
        with tf.variable_scope("encoder"):
            x = positions.build(hparams, "inputs").embed(x, tf.range(shape_list(x)[1]))
            values = (cnn if hparams.encoder == "cnn" else birnn)(x, lengths, hparams)
            values *= 1.0 - padding[:, :, None]
            keys = init(values, hparams.attention_flavour)
        words = tf.maximum(tf.cast(lengths, x.dtype), 1.0)[:, None]
        return Memory(values, keys, common_attention.attention_bias_ignore_padding(padding),
                      tf.reduce_sum(values, axis=1) / words)

    def _start(self, mean):
        """The states before the first word, (c, h) a layer, read from the mean of the values."""
        return [tuple(tf.tanh(projections.project(mean[:, None], shape_list(mean)[1],
                                                f"layer_{layer}/start_{part}")[:, 0])
                      for part in "ch") for layer in range(self._hparams.num_decoder_layers)]

    def _recur(self, x, place, states):
        """Reads words: x [batch, length, hidden] at `place` int32 [length]; (c, h) a layer.

        Returns:
          [batch, length, hidden], and the states after the last word.
        """
        hparams, after = self._hparams, []
        x = positions.build(hparams, "targets").embed(x, place)
        x = tf.transpose(x, [1, 0, 2])                       # [length, batch, hidden]
        for layer, state in enumerate(states):
            with tf.variable_scope(f"layer_{layer}"):
                c, h = lstm(ops.dropout(x, hparams.dropout), state, hparams.hidden_size)
            after.append((c[-1], h[-1]))
            x += h
        return tf.transpose(x, [1, 0, 2]), after

    def _join(self, y, memory, save_weights_to):
        """What the softmax reads for the decoder's output y. Shapes as y."""
        hparams = self._hparams
        with tf.variable_scope("encdec_attention"):
            context = attend(y, memory.keys, memory.values, memory.bias, hparams.attention_flavour,
                             save_weights_to)
        both = projections.project(tf.concat([context, y], axis=2), hparams.hidden_size, "join")
        return ops.dropout(tf.tanh(both), hparams.dropout)
