"""The encoder and decoder stacks of `rpr_transformer`, and the cache of incremental decoding."""
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_attention, common_layers
from tensor2tensor.utils import expert_utils

from rpr import positions
from rpr.models import layers
from rpr.nn import attention, ops
from rpr.positions.layout import Layout
from rpr.positions.scheme import Scheme
from rpr.utils.interfaces import HParams


def prepare_encoder(inputs: tf.Tensor, target_space: tf.Tensor | None, hparams: HParams,
                    features: dict[str, tf.Tensor] | None = None
                    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The input of the encoder's first layer and the attention biases, which stay in float32.

    The inputs, [batch, length, hidden], are embedded words, zero for padding; the embedding of the
    target space is added to them. The bias of self-attention is [batch, 1, 1|length, length], that
    of the decoder's attention to the encoder [batch, 1, 1|len_targets, length]. The features of a
    packed batch have `inputs_segmentation` and `targets_segmentation`, each int [batch, length].
    """
    if features and "inputs_segmentation" in features:
        segments = features["inputs_segmentation"]
        self_bias = common_attention.attention_bias_same_segment(segments, segments)
        cross_bias = common_attention.attention_bias_same_segment(
            features["targets_segmentation"], segments)
    else:
        self_bias = cross_bias = common_attention.attention_bias_ignore_padding(
            common_attention.embedding_to_padding(inputs))
    if target_space is not None and hparams.get("use_target_space_embedding", True):
        space = common_layers.embedding(
            target_space, 32, inputs.shape.as_list()[-1], name="target_space_embedding",
            dtype=hparams.get("activation_dtype", "float32"))
        inputs += tf.reshape(space, [1, 1, -1])
    return inputs, self_bias, cross_bias


def prepare_decoder(targets: tf.Tensor, hparams: HParams,
                    features: dict[str, tf.Tensor] | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """T2T's, with the bias in float32: the targets [batch, length, hidden] shifted to the right.

    The bias of self-attention is [batch|1, 1, length, length].
    """
    bias = common_attention.attention_bias_lower_triangle(common_layers.shape_list(targets)[1])
    if features and "targets_segmentation" in features:
        segments = features["targets_segmentation"]
        bias += common_attention.attention_bias_same_segment(segments, segments)
    return common_layers.shift_right_3d(targets), bias


def _enter(x: tf.Tensor, scheme: Scheme, layout: Layout, hparams: HParams, side: str,
           features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, Layout]:
    """The input of the first layer, [batch, length, hidden], and the complete layout of the stack.

    The embedded words x get absolute positions, normalization and dropout. The features of a packed
    batch have `SIDE_segmentation` and `SIDE_position`, int [batch, length]; `SIDE_raw` has the
    symbols.
    """
    segments, ids = (features.get(f"{side}_{name}") for name in ("segmentation", "raw"))
    if ids is not None and set(ids.shape.as_list()[2:]) - {1}:
        ids = None                                           # images or sounds, not symbols
    if ids is not None:
        ids = tf.reshape(ids, common_layers.shape_list(x)[:2])
        if side == "targets" and layout.cache is None:
            ids = tf.pad(ids[:, :-1], [[0, 0], [1, 0]])      # as shift_right_3d
            if segments is not None:                         # each sentence begins as one alone
                before = tf.pad(segments[:, :-1], [[0, 0], [1, 0]])
                ids *= tf.cast(tf.equal(segments, before), ids.dtype)
    at = features.get(f"{side}_position")
    layout = layout.replace(segments=segments, ids=ids, query_at=at, key_at=at, x=x)
    layout = placed(scheme, layout)
    x = scheme.embed(x, layout.query_positions())
    if hparams.get("norm_after_embedding", False):
        with tf.variable_scope(f"{side}_embedding_norm"):
            y = tf.cast(x, ops.accumulator_dtype(x.dtype))           # as `layers.normalize`
            x = tf.cast(common_layers.layer_norm(y, epsilon=hparams.norm_epsilon), x.dtype)
    return layers.drop(x, hparams), layout


def placed(scheme: Scheme, layout: Layout) -> Layout:
    """The layout with the positions that the scheme gives, if it gives some."""
    at = scheme.place(layout) if scheme.uses("place") else None
    if at is None:
        return layout
    return layout.replace(query_at=at, key_at=_all_positions(at, layout.x, layout.cache),
                          unit_steps=False)


def _all_positions(at: tf.Tensor, x: tf.Tensor, cache: dict | None) -> tf.Tensor:
    """The positions of the queries, after those of earlier steps: [batch, length]."""
    if cache is None:
        return at
    at = tf.broadcast_to(tf.cast(at, tf.float32), common_layers.shape_list(x)[:2])
    # With one more axis: the last axis of a cache cannot grow in T2T's loops.
    cache["positions"] = tf.concat([cache["positions"], at[:, :, None]], axis=1)
    return cache["positions"][:, :, 0]


def _attention_sublayer(x: tf.Tensor, memory: tf.Tensor | None, bias: tf.Tensor | None,
                        hparams: HParams, scheme: Scheme, layout: Layout, cache: dict | None,
                        save_weights_to: dict | None) -> tf.Tensor:
    """One attention sub-layer with its pre- and postprocessing. Shapes as x."""
    if cache is not None or layout.training:
        save_weights_to = None       # for visualization; T2T's decoding loop would carry them along
    y = attention.multihead_attention(
        layers.preprocess(x, hparams), memory, bias,
        *channels_of(hparams), hparams.hidden_size, hparams.num_heads, scheme, layout,
        hparams.compatibility if memory is None else "dot_product", hparams.attention_dropout,
        layers.axes(hparams, "attention_dropout_broadcast_dims"), cache, save_weights_to,
        hparams.get("masked_softmax", False))
    return layers.postprocess(x, y, hparams)


def channels_of(hparams: HParams) -> tuple[int, int]:
    """The channels of all heads' keys together, and of their values."""
    return (hparams.attention_key_channels or hparams.hidden_size,
            hparams.attention_value_channels or hparams.hidden_size)


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
            save_weights_to: dict | None = None, features: dict[str, tf.Tensor] | None = None
            ) -> tf.Tensor:
    """The encoder stack. Shapes as x.

    Args:
      x: [batch, length, hidden], embedded words.
      bias: [batch, 1, 1|length, length].
      nonpadding: float [batch, length], for packed batches; otherwise taken from the bias.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.
      features: see `_enter`; `edges` are labels of edges, int32 [batch, length, length].
    """
    features = features or {}
    scheme, length = positions.build(hparams, "inputs"), common_layers.shape_list(x)[1]
    num_layers = hparams.num_encoder_layers or hparams.num_hidden_layers
    causal, padding = hparams.get("unidirectional_encoder", False), bias
    if causal:                                               # T2T's hparam
        bias += common_attention.attention_bias_lower_triangle(length)
    layout = Layout(length, length, causal=causal, edges=features.get("edges"), mask=bias,
                    training=hparams.mode == tf.estimator.ModeKeys.TRAIN)
    x, layout = _enter(x, scheme, layout, hparams, "inputs", features)
    with tf.variable_scope("encoder"):
        pad_remover = None
        if hparams.use_pad_remover:
            pad_remover = expert_utils.PadRemover(
                common_attention.attention_bias_to_padding(padding) if nonpadding is None
                else 1.0 - nonpadding)
        for layer in range(num_layers):
            with tf.variable_scope(f"layer_{layer}"):
                with tf.variable_scope("self_attention"):
                    x = _attention_sublayer(x, None, bias, hparams, scheme.at(layer),
                                            layout.replace(layer=layer), None, save_weights_to)
                x = _feed_forward_sublayer(x, hparams, pad_remover)
        return layers.preprocess(x, hparams)


def answers(memory: tf.Tensor, symbols: tf.Tensor, symbol: int, at: tf.Tensor) -> tf.Tensor:
    """The outputs of the encoder in the places of the answer, in a model without a decoder.

    The first place is that of the first answer symbol of the source, or of its last symbol, which
    is its end mark unless `max_input_seq_length` cut it off. The encoder's output is [batch,
    len_inputs, hidden], the symbols of the source are int [batch, len_inputs, ...]. `at` are
    indices of the answer's symbols, int32 [batch|1, length]; those beyond the source's last symbol
    read its place. The result is [batch, length, hidden].
    """
    symbols = tf.reshape(symbols, common_layers.shape_list(memory)[:2])
    last = tf.math.count_nonzero(symbols, axis=1, dtype=tf.int32)[:, None] - 1
    last = tf.maximum(last, 0)                               # -1: a row of padding
    found = tf.equal(symbols, symbol) | tf.equal(tf.range(tf.shape(symbols)[1]), last)
    first = tf.argmax(tf.cast(found, tf.int32), axis=1, output_type=tf.int32)[:, None]
    return tf.gather(memory, tf.minimum(first + at, last), batch_dims=1)


def append(x: tf.Tensor, y: tf.Tensor, words: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Sequences y [batch, m, ...] behind the first `words`, int32 [batch, 1], of x [batch, n, ...].

    The result is [batch, length, ...]; the last element of y is repeated at the end.
    """
    n, m = (common_layers.shape_list(z)[1] for z in (x, y))
    at = tf.range(length)[None]
    at = tf.where_v2(at < words, at, tf.minimum(at - words + n, n + m - 1))
    return tf.gather(tf.concat([x, y], axis=1), at, batch_dims=1)


def decoder(x: tf.Tensor, memory: tf.Tensor | None, self_bias: tf.Tensor | None,
            cross_bias: tf.Tensor | None, hparams: HParams, cache: dict | None = None,
            save_weights_to: dict | None = None, features: dict[str, tf.Tensor] | None = None
            ) -> tf.Tensor:
    """The decoder stack, over whole sentences or for one cached step. Shapes as x.

    Args:
      x: [batch, length, hidden], embedded words; with a cache [batch * beams, 1, hidden].
      memory: [batch, len_inputs, hidden], the encoder's output, or None for a language model.
      self_bias: [batch|1, 1, length, length], or for a step [1, 1, 1, steps so far + 1]; None
        if each query may attend to every key.
      cross_bias: [batch, 1, 1|length, len_inputs].
      cache: from `init_cache`, changed in place, or None.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.
      features: see `_enter`.
    """
    features = features or {}
    scheme, cross_scheme = (positions.build(hparams, side) for side in ("targets", "cross"))
    num_layers = hparams.num_decoder_layers or hparams.num_hidden_layers
    length, offset = common_layers.shape_list(x)[1], 0
    if cache is not None:
        _restore_static_heads(cache, cross_bias, hparams.num_heads)
        length, offset = 1, common_layers.shape_list(cache["layer_0"]["k"])[2]
    layout = Layout(length, length + offset, offset, causal=True, mask=self_bias,
                    cache=None if cache is None else cache["layer_0"],
                    training=hparams.mode == tf.estimator.ModeKeys.TRAIN)
    x, layout = _enter(x, scheme, layout, hparams, "targets", features)
    cross_layout = None
    if memory is not None:
        cross_layout = _cross_layout(x, memory, layout, cache, features)
    with tf.variable_scope("decoder"):
        for layer in range(num_layers):
            name = f"layer_{layer}"
            layer_cache = cache[name] if cache is not None else None
            with tf.variable_scope(name):
                with tf.variable_scope("self_attention"):
                    x = _attention_sublayer(x, None, self_bias, hparams, scheme.at(layer),
                                            layout.replace(layer=layer), layer_cache,
                                            save_weights_to)
                if cross_layout is not None:
                    with tf.variable_scope("encdec_attention"):
                        x = _attend_to_memory(
                            x, memory, cross_bias, hparams, cross_scheme.at(layer),
                            cross_layout.replace(layer=layer), layer_cache, save_weights_to)
                x = _feed_forward_sublayer(x, hparams)
        return layers.preprocess(x, hparams)


def _cross_layout(x: tf.Tensor, memory: tf.Tensor, layout: Layout, cache: dict | None,
                  features: dict[str, tf.Tensor]) -> Layout:
    """The layout of the attention to the encoder, see `_attend_to_memory`.

    The decoder's scheme places neither queries nor keys there.
    """
    layout = layout.replace(query_at=features.get("targets_position"))
    at, queries = layout.query_positions(), layout.queries
    if cache is not None:
        batch = common_layers.shape_list(cache["layer_0"]["k_encdec"])[0]
        at = tf.reshape(tf.broadcast_to(at, [common_layers.shape_list(x)[0], 1]), [batch, -1])
        queries = common_layers.shape_list(at)[1]
    return Layout(queries, common_layers.shape_list(memory)[1], query_at=at,
                  key_at=features.get("inputs_position"), unit_steps=False,
                  training=layout.training)


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
                      scheme: Scheme, layout: Layout, cache: dict | None,
                      save_weights_to: dict | None) -> tf.Tensor:
    """The attention to the encoder. In a cached step the beams are queries of one sentence."""
    shape = common_layers.shape_list(x)
    if cache is not None:
        batch = common_layers.shape_list(cache["k_encdec"])[0]
        x = tf.reshape(x, [batch, -1, shape[-1]])
    x = _attention_sublayer(x, memory, bias, hparams, scheme, layout, cache, save_weights_to)
    return tf.reshape(x, shape)


def init_cache(cache: dict | None, hparams: HParams, batch_size: int | tf.Tensor,
               attention_init_length: int, encoder_output: tf.Tensor | None,
               encoder_decoder_attention_bias: tf.Tensor | None, scope_prefix: str) -> dict:
    """The cache before the first step, with the encoder's keys and values; T2T's signature.

    The dict `cache` gets for each layer `k` and `v` [batch, heads, 0, depth], the states of its
    position scheme, `k_encdec` and `v_encdec` [batch, heads, len_inputs, depth].
    """
    cache = {} if cache is None else cache
    scheme, cross_scheme = (positions.build(hparams, side) for side in ("targets", "cross"))
    heads, (key_channels, value_channels) = hparams.num_heads, channels_of(hparams)
    dtype = (tf.as_dtype(hparams.get("activation_dtype", "float32")) if encoder_output is None
             else encoder_output.dtype)
    if encoder_output is not None:
        cross_layout = Layout(1, common_layers.shape_list(encoder_output)[1], unit_steps=False)
    for layer in range(hparams.num_decoder_layers or hparams.num_hidden_layers):
        own, cross = scheme.at(layer), cross_scheme.at(layer)
        layer_cache = cache[f"layer_{layer}"] = {
            name: tf.zeros([batch_size, heads, attention_init_length, depth], dtype)
            for name, depth in (("k", key_channels // heads * own.depth_factor),
                                ("v", value_channels // heads))}
        for name, shape in own.states().items():
            layer_cache[name] = tf.zeros([batch_size, *shape])
        if encoder_output is not None:
            scope = f"{scope_prefix}decoder/layer_{layer}/encdec_attention/multihead_attention"
            with tf.variable_scope(scope):
                k, layer_cache["v_encdec"] = attention.project_memory(
                    encoder_output, key_channels, value_channels, heads)
                if cross.uses("rotate"):
                    k = cross.rotate(k, cross_layout.key_positions(),
                                     cross_layout.replace(layer=layer), "key")
                layer_cache["k_encdec"] = k
    if scheme.uses("place"):
        cache["layer_0"]["positions"] = tf.zeros([batch_size, 0, 1])
    if encoder_output is not None:
        cache["encoder_output"] = encoder_output
        cache["encoder_decoder_attention_bias"] = encoder_decoder_attention_bias
    return cache
