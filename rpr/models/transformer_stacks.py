"""The encoder and decoder stacks of `rpr_transformer`, and the cache of incremental decoding."""
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_attention, common_layers
from tensor2tensor.utils import expert_utils

from rpr import positions
from rpr.models import layers
from rpr.nn import attention, ops
from rpr.nn.ops import HALF_PRECISION
from rpr.positions.layout import Layout
from rpr.utils.interfaces import HParams


def prepare_encoder(inputs: tf.Tensor, target_space: tf.Tensor | None, hparams: HParams,
                    features: dict[str, tf.Tensor] | None = None
                    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The input of the encoder stack and the attention biases.

    Args:
      inputs: [batch, length, hidden], embedded words, zero for padding.
      target_space: int scalar, or None.
      hparams: the model's hyperparameters.
      features: a packed batch has `inputs_segmentation`, `inputs_position` and
        `targets_segmentation`, each int [batch, length].

    Returns:
      the input of the encoder [batch, length, hidden];
      the bias of its self-attention, float32 [batch, 1, 1|length, length];
      the bias of the decoder's attention to it, float32 [batch, 1, 1|len_targets, length].
    """
    _, length, hidden = common_layers.shape_list(inputs)
    if features and "inputs_segmentation" in features:
        segments, position = features["inputs_segmentation"], features["inputs_position"]
        self_bias = common_attention.attention_bias_same_segment(segments, segments)
        cross_bias = common_attention.attention_bias_same_segment(
            features["targets_segmentation"], segments)
    else:
        position = tf.range(length)
        self_bias = cross_bias = common_attention.attention_bias_ignore_padding(
            common_attention.embedding_to_padding(inputs))
    if target_space is not None and hparams.get("use_target_space_embedding", True):
        space = common_layers.embedding(target_space, 32, hidden, name="target_space_embedding",
                                        dtype=hparams.get("activation_dtype", "float32"))
        inputs += tf.reshape(space, [1, 1, -1])
    return embed_positions(inputs, position, hparams, "inputs"), self_bias, cross_bias


def prepare_decoder(targets: tf.Tensor, hparams: HParams,
                    features: dict[str, tf.Tensor] | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """The input of the decoder stack in training: the targets shifted one place to the right.

    Args:
      targets: [batch, length, hidden], embedded words.
      hparams: the model's hyperparameters.
      features: a packed batch has `targets_segmentation` and `targets_position`.

    Returns:
      the input of the decoder [batch, length, hidden];
      the bias of its self-attention, float32 [batch|1, 1, length, length].
    """
    length = common_layers.shape_list(targets)[1]
    bias, position = common_attention.attention_bias_lower_triangle(length), tf.range(length)
    if features and "targets_segmentation" in features:
        segments, position = features["targets_segmentation"], features["targets_position"]
        bias += common_attention.attention_bias_same_segment(segments, segments)
    shifted = common_layers.shift_right_3d(targets)
    return embed_positions(shifted, position, hparams, "targets"), bias


def embed_positions(x: tf.Tensor, position: tf.Tensor, hparams: HParams, side: str) -> tf.Tensor:
    """Adds absolute positions and, with `norm_after_embedding`, normalizes the result.

    Args:
      x: [batch, length, hidden], embedded words.
      position: int32 [length] or [batch, length].
      hparams: the model's hyperparameters.
      side: `inputs` or `targets`.

    Returns:
      [batch, length, hidden].
    """
    x = positions.build(hparams, side).embed(x, position)
    if hparams.get("norm_after_embedding", False):
        with tf.variable_scope(f"{side}_embedding_norm"):
            dtype = tf.float32 if x.dtype in HALF_PRECISION else x.dtype   # as `layers.normalize`
            x = tf.cast(common_layers.layer_norm(
                tf.cast(x, dtype), epsilon=hparams.norm_epsilon), x.dtype)
    return x


def _attention_sublayer(x: tf.Tensor, memory: tf.Tensor | None, bias: tf.Tensor | None,
                        hparams: HParams, scheme: Any, layout: Layout | None, cache: dict | None,
                        save_weights_to: dict | None) -> tf.Tensor:
    """One attention sub-layer with its pre- and postprocessing. Shapes as x."""
    dims = common_layers.comma_separated_string_to_integer_list(
        hparams.get("attention_dropout_broadcast_dims", ""))
    if cache is not None or hparams.mode == tf.estimator.ModeKeys.TRAIN:
        save_weights_to = None       # for visualization; T2T's decoding loop would carry them along
    y = attention.multihead_attention(
        layers.preprocess(x, hparams), memory, bias,
        hparams.attention_key_channels or hparams.hidden_size,
        hparams.attention_value_channels or hparams.hidden_size,
        hparams.hidden_size, hparams.num_heads, scheme, layout,
        hparams.compatibility if memory is None else "dot_product", hparams.attention_dropout, dims,
        cache, save_weights_to, hparams.get("masked_softmax", False))
    return layers.postprocess(x, y, hparams)


def _feed_forward_sublayer(x: tf.Tensor, hparams: HParams, pad_remover: Any = None) -> tf.Tensor:
    """One feed-forward sub-layer with its pre- and postprocessing. Shapes as x."""
    with tf.variable_scope("ffn"):
        y = layers.preprocess(x, hparams)
        if pad_remover:
            shape = common_layers.shape_list(y)
            y = pad_remover.remove(tf.reshape(y, [-1, shape[-1]]))[None]
        y = layers.feed_forward(y, hparams)
        if pad_remover:
            y = tf.reshape(pad_remover.restore(tf.squeeze(y, axis=0)), shape)
        return layers.postprocess(x, y, hparams)


def encoder(x: tf.Tensor, bias: tf.Tensor, hparams: HParams, nonpadding: tf.Tensor | None = None,
            save_weights_to: dict | None = None, edges: tf.Tensor | None = None) -> tf.Tensor:
    """The encoder stack.

    Args:
      x: [batch, length, hidden].
      bias: [batch, 1, 1|length, length].
      hparams: the model's hyperparameters.
      nonpadding: float [batch, length], for packed batches; otherwise taken from the bias.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.
      edges: int32 [batch, length, length], labels of edges between the words, or None.

    Returns:
      [batch, length, hidden].
    """
    scheme = positions.build(hparams, "inputs", edges is not None)
    length = common_layers.shape_list(x)[1]
    layout = Layout(length, length, edges=edges)
    with tf.variable_scope("encoder"):
        pad_remover = None
        if hparams.use_pad_remover:
            pad_remover = expert_utils.PadRemover(
                common_attention.attention_bias_to_padding(bias) if nonpadding is None
                else 1.0 - nonpadding)
        for layer in range(hparams.num_encoder_layers or hparams.num_hidden_layers):
            with tf.variable_scope(f"layer_{layer}"):
                with tf.variable_scope("self_attention"):
                    x = _attention_sublayer(
                        x, None, bias, hparams, scheme, layout, None, save_weights_to)
                x = _feed_forward_sublayer(x, hparams, pad_remover)
        return layers.preprocess(x, hparams)


def decoder(x: tf.Tensor, memory: tf.Tensor | None, self_bias: tf.Tensor | None,
            cross_bias: tf.Tensor | None, hparams: HParams, cache: dict | None = None,
            save_weights_to: dict | None = None) -> tf.Tensor:
    """The decoder stack, over whole sentences or for one cached step.

    Args:
      x: [batch, length, hidden]; with a cache [batch * beams, 1, hidden].
      memory: [batch, len_inputs, hidden], the encoder's output, or None for a language model.
      self_bias: [batch|1, 1, length, length], or for a step [1, 1, 1, steps so far + 1]; None
        if each query may attend to every key.
      cross_bias: [batch, 1, 1|length, len_inputs].
      hparams: the model's hyperparameters.
      cache: from `init_cache`, changed in place, or None.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.

    Returns:
      [batch, length, hidden].
    """
    scheme = positions.build(hparams, "targets")
    length, offset = common_layers.shape_list(x)[1], 0
    if cache is not None:
        _restore_static_heads(cache, cross_bias, hparams.num_heads)
        length, offset = 1, common_layers.shape_list(cache["layer_0"]["k"])[2]
    layout = Layout(length, length + offset, offset, causal=True)
    with tf.variable_scope("decoder"):
        for layer in range(hparams.num_decoder_layers or hparams.num_hidden_layers):
            name = f"layer_{layer}"
            layer_cache = cache[name] if cache is not None else None
            with tf.variable_scope(name):
                with tf.variable_scope("self_attention"):
                    x = _attention_sublayer(x, None, self_bias, hparams, scheme, layout,
                                            layer_cache, save_weights_to)
                if memory is not None:
                    with tf.variable_scope("encdec_attention"):
                        x = _attend_to_memory(x, memory, cross_bias, hparams, layer_cache,
                                              save_weights_to)
                x = _feed_forward_sublayer(x, hparams)
        return layers.preprocess(x, hparams)


def _restore_static_heads(cache: dict, cross_bias: tf.Tensor | None, heads: int) -> None:
    """Sets the number of heads in the static shapes, which T2T's greedy loop makes unknown.

    A model of one head needs them: 1 and an unknown size broadcast to an unknown size.
    """
    if cross_bias is not None:
        cross_bias.set_shape([None, 1, None, None])
    for name, layer_cache in cache.items():
        if name.startswith("layer_"):
            for key in ("k", "v", "k_encdec", "v_encdec"):
                if key in layer_cache:
                    layer_cache[key].set_shape([None, heads, None, None])


def _attend_to_memory(x: tf.Tensor, memory: tf.Tensor, bias: tf.Tensor | None, hparams: HParams,
                      cache: dict | None, save_weights_to: dict | None) -> tf.Tensor:
    """The attention to the encoder. In a cached step the beams are queries of one sentence."""
    shape = common_layers.shape_list(x)
    if cache is not None:
        batch = common_layers.shape_list(cache["k_encdec"])[0]
        x = tf.reshape(x, [batch, -1, shape[-1]])
    x = _attention_sublayer(x, memory, bias, hparams, None, None, cache, save_weights_to)
    return ops.reshape(x, shape)


def init_cache(cache: dict | None, hparams: HParams, batch_size: int | tf.Tensor,
               attention_init_length: int, encoder_output: tf.Tensor | None,
               encoder_decoder_attention_bias: tf.Tensor | None, scope_prefix: str) -> dict:
    """The cache before the first step, with the encoder's keys and values.

    The signature is T2T's.

    Returns:
      the dict `cache`, which has for each layer `k` and `v` [batch, heads, 0, depth], `k_encdec`
      and `v_encdec` [batch, heads, len_inputs, depth].
    """
    cache = {} if cache is None else cache
    heads = hparams.num_heads
    key_channels = hparams.attention_key_channels or hparams.hidden_size
    value_channels = hparams.attention_value_channels or hparams.hidden_size
    dtype = (tf.as_dtype(hparams.get("activation_dtype", "float32")) if encoder_output is None
             else encoder_output.dtype)
    for layer in range(hparams.num_decoder_layers or hparams.num_hidden_layers):
        layer_cache = cache[f"layer_{layer}"] = {
            name: tf.zeros([batch_size, heads, attention_init_length, channels // heads], dtype)
            for name, channels in (("k", key_channels), ("v", value_channels))}
        if encoder_output is not None:
            scope = f"{scope_prefix}decoder/layer_{layer}/encdec_attention/multihead_attention"
            with tf.variable_scope(scope):
                layer_cache["k_encdec"], layer_cache["v_encdec"] = attention.project_memory(
                    encoder_output, key_channels, value_channels, heads)
    if encoder_output is not None:
        cache["encoder_output"] = encoder_output
        cache["encoder_decoder_attention_bias"] = encoder_decoder_attention_bias
    return cache
