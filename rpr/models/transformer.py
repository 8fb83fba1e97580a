"""The registered model `rpr_transformer`: encoder and decoder stacks over position schemes.

Modalities, normalisation, residuals, feed-forward layers and beam search are T2T's.
"""
import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_attention, common_layers, modalities
from tensor2tensor.models import transformer
from tensor2tensor.utils import expert_utils, hparams_lib, optimize, registry

from rpr import positions
from rpr.models import (
    incremental,
    layers,
    learning_rate,
    losses,
    pretrained_embeddings,
    tied_embeddings,
)
from rpr.models.hparams import T2T_POSITIONS, add_position_hparams
from rpr.nn import attention, ops
from rpr.nn.edges import split_edges
from rpr.positions.layout import Layout

# What T2T's transformer honours and this model cannot: hparam -> the values that it serves.
SERVED = {
    "pos": ("none", None),
    "self_attention_type": ("dot_product",),
    "ffn_layer": ("dense_relu_dense", "conv_hidden_relu"),
    "proximity_bias": (False,),
    "unidirectional_encoder": (False,),
    "causal_decoder_self_attention": (True,),
    "attention_variables_3d": (False,),
    "hard_attention_k": (0,),
    "num_area_layers": (0,),
    "compatibility": ("dot_product", "additive"),
    "prepend_mode": ("none", "prepend_inputs_masked_attention"),
}


def _own_hparams(hparams):
    """The hparams of a model, checked; those of a set of T2T's own with positions translated."""
    hparams = hparams_lib.copy_hparams(hparams)
    if "use_pad_remover" not in hparams:
        raise ValueError("no hparam use_pad_remover: rpr_transformer needs a --hparams_set of a "
                         "Transformer (rpr list hparams)")
    if "position" not in hparams and hparams.get("pos") in T2T_POSITIONS:
        position = T2T_POSITIONS[hparams.get("pos")]
        if hparams.self_attention_type == "dot_product_relative":
            hparams.self_attention_type = "dot_product"
            position = "relative" if position == "none" else f"relative+{position}"
        add_position_hparams(hparams, position, hparams.max_relative_position, True)
    for name, served in SERVED.items():
        value = hparams.get(name, served[0])
        if value not in served:
            why = ": positions are given by the hparam position" if name == "pos" else ""
            raise ValueError(f"{name}={value}: rpr_transformer serves only "
                             f"{' or '.join(str(x) for x in served)}{why}")
    for side in ("inputs", "targets"):
        positions.build(hparams, side)                       # its errors are raised here, once
    return hparams


def prepare_encoder(inputs, target_space, hparams, features=None):
    """What the encoder starts from.

    Args:
      inputs: [batch, length, hidden], embedded words, zero where there is padding.
      target_space: int scalar, or None.
      hparams: the model's hyperparameters.
      features: dict; a packed batch has `inputs_segmentation`, `inputs_position` and
        `targets_segmentation`, each int [batch, length].

    Returns:
      the encoder's input [batch, length, hidden], the bias of its self-attention
      [batch, 1, 1|length, length], and the bias of the decoder's attention to it
      [batch, 1, 1|len_targets, length]; biases are float32.
    """
    _, length, hidden = common_layers.shape_list(inputs)
    if features and "inputs_segmentation" in features:
        segments, place = features["inputs_segmentation"], features["inputs_position"]
        self_bias = common_attention.attention_bias_same_segment(segments, segments)
        cross_bias = common_attention.attention_bias_same_segment(
            features["targets_segmentation"], segments)
    else:
        place = tf.range(length)
        self_bias = cross_bias = common_attention.attention_bias_ignore_padding(
            common_attention.embedding_to_padding(inputs))
    if target_space is not None and hparams.get("use_target_space_embedding", True):
        space = common_layers.embedding(target_space, 32, hidden, name="target_space_embedding",
                                        dtype=hparams.get("activation_dtype", "float32"))
        inputs += tf.reshape(space, [1, 1, -1])
    return _embed(inputs, place, hparams, "inputs"), self_bias, cross_bias


def prepare_decoder(targets, hparams, features=None):
    """What the decoder starts from in training: the targets moved one place to the right.

    Args:
      targets: [batch, length, hidden], embedded words.
      hparams: the model's hyperparameters.
      features: dict; a packed batch has `targets_segmentation` and `targets_position`.

    Returns:
      the decoder's input [batch, length, hidden], and the bias of its self-attention
      [batch|1, 1, length, length], float32.
    """
    length = common_layers.shape_list(targets)[1]
    bias, place = common_attention.attention_bias_lower_triangle(length), tf.range(length)
    if features and "targets_segmentation" in features:
        segments, place = features["targets_segmentation"], features["targets_position"]
        bias += common_attention.attention_bias_same_segment(segments, segments)
    shifted = common_layers.shift_right_3d(targets)
    return _embed(shifted, place, hparams, "targets"), bias


def _embed(x, place, hparams, side):
    """Absolute positions and, where it is asked for, a norm on embedded words. Shapes as x."""
    x = positions.build(hparams, side).embed(x, place)
    if hparams.get("norm_after_embedding", False):
        with tf.variable_scope(f"{side}_embedding_norm"):
            x = common_layers.layer_norm(x, epsilon=hparams.norm_epsilon)
    return x


def _attend(x, memory, bias, hparams, scheme, layout, cache, save_weights_to):
    """One attention sub-layer, normalised and added as the hparams say. Shapes as x."""
    dims = common_layers.comma_separated_string_to_integer_list(
        hparams.get("attention_dropout_broadcast_dims", ""))
    y = attention.multihead_attention(
        layers.preprocess(x, hparams), memory, bias,
        hparams.attention_key_channels or hparams.hidden_size,
        hparams.attention_value_channels or hparams.hidden_size,
        hparams.hidden_size, hparams.num_heads, scheme, layout,
        hparams.compatibility if memory is None else "dot_product", hparams.attention_dropout, dims,
        cache,
        # For visualisation. T2T's decoding loop would drag them from step to step.
        save_weights_to if cache is None and hparams.mode != tf.estimator.ModeKeys.TRAIN else None,
        hparams.get("masked_softmax", False))
    return layers.postprocess(x, y, hparams)


def _feed_forward(x, hparams, pad_remover=None):
    """One feed-forward sub-layer, normalised and added as the hparams say. Shapes as x."""
    with tf.variable_scope("ffn"):
        y = layers.preprocess(x, hparams)
        if pad_remover:
            shape = common_layers.shape_list(y)
            y = pad_remover.remove(tf.reshape(y, [-1, shape[-1]]))[None]
        y = layers.feed_forward(y, hparams)
        if pad_remover:
            y = tf.reshape(pad_remover.restore(tf.squeeze(y, axis=0)), shape)
        return layers.postprocess(x, y, hparams)


def encoder(x, bias, hparams, nonpadding=None, save_weights_to=None, edges=None):
    """The encoder stack.

    Args:
      x: [batch, length, hidden].
      bias: [batch, 1, 1|length, length].
      hparams: the model's hyperparameters.
      nonpadding: float [batch, length], given for packed batches; else the bias says it.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.
      edges: int32 [batch, length, length], labels of edges between the words, or None.

    Returns:
      [batch, length, hidden].
    """
    scheme = positions.build(hparams, "inputs")
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
                    x = _attend(x, None, bias, hparams, scheme, layout, None, save_weights_to)
                x = _feed_forward(x, hparams, pad_remover)
        return layers.preprocess(x, hparams)


def decoder(x, memory, self_bias, cross_bias, hparams, cache=None, save_weights_to=None):
    """The decoder stack, over whole sentences or for one cached step.

    Args:
      x: [batch, length, hidden]; with a cache [batch * beams, 1, hidden].
      memory: [batch, len_inputs, hidden], the encoder's output, or None for a language model.
      self_bias: [batch|1, 1, length, length], or for a step [1, 1, 1, steps so far + 1]; None
        where a query may look at every key.
      cross_bias: [batch, 1, 1|length, len_inputs].
      hparams: the model's hyperparameters.
      cache: what `init_cache` made, changed in place, or None.
      save_weights_to: see `rpr.nn.attention.multihead_attention`.

    Returns:
      [batch, length, hidden].
    """
    scheme = positions.build(hparams, "targets")
    length, offset = common_layers.shape_list(x)[1], 0
    if cache is not None:
        length, offset = 1, common_layers.shape_list(cache["layer_0"]["k"])[2]
    layout = Layout(length, length + offset, offset, causal=True)
    with tf.variable_scope("decoder"):
        for layer in range(hparams.num_decoder_layers or hparams.num_hidden_layers):
            name = f"layer_{layer}"
            step = cache[name] if cache is not None else None
            with tf.variable_scope(name):
                with tf.variable_scope("self_attention"):
                    x = _attend(
                        x, None, self_bias, hparams, scheme, layout, step, save_weights_to)
                if memory is not None:
                    with tf.variable_scope("encdec_attention"):
                        shape = common_layers.shape_list(x)
                        if step is not None:                 # beams are queries of one sentence
                            batch = common_layers.shape_list(step["k_encdec"])[0]
                            x = tf.reshape(x, [batch, -1, shape[-1]])
                        x = _attend(
                            x, memory, cross_bias, hparams, None, None, step, save_weights_to)
                        x = ops.reshape(x, shape)
                x = _feed_forward(x, hparams)
        return layers.preprocess(x, hparams)


def init_cache(cache, hparams, batch_size, attention_init_length, encoder_output,
               encoder_decoder_attention_bias, scope_prefix):
    """The cache before the first step; the encoder's keys and values are computed here, once.

    Args and names are T2T's. Returns the dict `cache` with, for each layer, `k` and `v`
    [batch, heads, 0, depth], `k_encdec` and `v_encdec` [batch, heads, len_inputs, depth].
    """
    cache = {} if cache is None else cache
    heads = hparams.num_heads
    key_channels = hparams.attention_key_channels or hparams.hidden_size
    value_channels = hparams.attention_value_channels or hparams.hidden_size
    dtype = tf.float32 if encoder_output is None else encoder_output.dtype
    for layer in range(hparams.num_decoder_layers or hparams.num_hidden_layers):
        step = cache[f"layer_{layer}"] = {
            name: tf.zeros([batch_size, heads, attention_init_length, channels // heads], dtype)
            for name, channels in (("k", key_channels), ("v", value_channels))}
        if encoder_output is not None:
            scope = f"{scope_prefix}decoder/layer_{layer}/encdec_attention/multihead_attention"
            with tf.variable_scope(scope):
                step["k_encdec"], step["v_encdec"] = attention.project_memory(
                    encoder_output, key_channels, value_channels, heads)
    if encoder_output is not None:
        cache["encoder_output"] = encoder_output
        cache["encoder_decoder_attention_bias"] = encoder_decoder_attention_bias
    return cache


@registry.register_model
class RprTransformer(incremental.IncrementalDecoder, transformer.Transformer):
    """Transformer with a choice of positions: relative (Shaw et al. 2018), absolute, both, none."""

    scope = "transformer"                                    # of its variables in a checkpoint
    check_hparams = staticmethod(_own_hparams)               # see `rpr.t2t.preflight.check_supported`

    def __init__(self, hparams, *args, **kwargs):
        hparams = _own_hparams(hparams)
        pretrained_embeddings.use_pretrained_embeddings(hparams, lambda: self._problem_hparams.vocabulary)
        super().__init__(hparams, *args, **kwargs)
        # Under this scope a checkpoint is one of T2T's `transformer`, and theirs are ours.
        self._name = self._base_name = self.scope
        self._init_cache_fn = init_cache
        self._prepare_decoder_fn = prepare_decoder
        if (hparams.get("loss_per_sentence", False)
                and self._hparams.mode == tf.estimator.ModeKeys.TRAIN):      # metrics count words
            self._hparams.weights_fn = {**hparams.weights_fn, "targets": losses.weights_per_sentence}
        losses.use_factored_loss(self._hparams, self._problem_hparams)
        tied_embeddings.use_one_table(self._hparams, self._problem_hparams)

    def optimize(self, loss, num_async_replicas=1, use_tpu=False, variables=None):
        """As T2T's, with the factors of `rpr.models.learning_rate` in the learning rate."""
        return optimize.optimize(
            loss, learning_rate.learning_rate(self.hparams) / num_async_replicas ** 0.5, self.hparams,
            use_tpu=use_tpu, variables=variables)

    def encode(self, inputs, target_space, hparams, features=None, losses=None):
        """As T2T's: the encoder's output, and the bias of the decoder's attention to it."""
        x, bias, cross_bias = prepare_encoder(
            common_layers.flatten4d3d(inputs), target_space, hparams, features)
        x = layers.drop(x, hparams)
        return encoder(x, bias, hparams, transformer.features_to_nonpadding(features, "inputs"),
                       self.attention_weights, (features or {}).get("edges")), cross_bias

    def prepare_features(self, features):
        """As `IncrementalDecoder`; where a line of text holds edges too, they are taken out of `inputs`."""
        features = super().prepare_features(features)
        if "edges" not in features and (self._problem_hparams or {}).get("edges_in_text", False):
            words, edges = split_edges(
                tf.reshape(features["inputs"], tf.shape(features["inputs"])[:2]))
            features |= {"inputs": words[:, :, None, None], "edges": edges}
        return features

    def infer(self, features=None, *args, **kwargs):
        """As T2T's."""
        return super().infer(self.prepare_features(features), *args, **kwargs)

    def decode(self, decoder_input, encoder_output, encoder_decoder_attention_bias,
               decoder_self_attention_bias, hparams, cache=None, decode_loop_step=None, **kwargs):
        """As T2T's; a cached step gets its absolute position here (T2T's loop has only `pos`).

        Raises:
          NotImplementedError: T2T's loop for TPUs, with its cache of fixed length.
        """
        if decode_loop_step is not None:
            raise NotImplementedError("rpr_transformer decodes on CPU and GPU; T2T's loop for TPUs "
                                      "is not served: leave use_tpu off")
        if cache is not None:
            step = tf.shape(cache["layer_0"]["k"])[2:3]      # as many as are cached
            decoder_input = _embed(decoder_input, step, hparams, "targets")
        x = layers.drop(decoder_input, hparams)
        x = decoder(x, encoder_output, decoder_self_attention_bias, encoder_decoder_attention_bias,
                    hparams, cache, self.attention_weights)
        return tf.expand_dims(x, axis=2)

    def _fast_decode(self, features, decode_length, beam_size=1, top_beams=1, alpha=1.0,
                     preprocess_targets_method=None):
        """As T2T's; a beam search from sentences to sentences is `rpr.models.beam_search`."""
        hparams, problem = self._hparams, self._problem_hparams
        symbol = problem.modality["targets"] == modalities.ModalityType.SYMBOL
        if (beam_size == 1 or not self.has_input or not symbol or self._num_datashards != 1
                or "targets" in hparams.top or preprocess_targets_method
                or self.get_decode_start_id() or self.get_decode_end_id()
                or "partial_targets" in features or "targets_segmentation" in features):
            return super()._fast_decode(features, decode_length, beam_size, top_beams, alpha,
                                        preprocess_targets_method)
        return self.search(features, decode_length, beam_size, top_beams, alpha)

    def init_body_step(self, features, beams):
        """See `IncrementalDecoder`."""
        hparams = self._hparams
        inputs = self._prepare_inputs_for_decode(features)[0]
        with tf.variable_scope("body"):
            memory, bias = self.encode(inputs, features["target_space_id"], hparams, features)
        fixed = init_cache(None, hparams, common_layers.shape_list(memory)[0], 0, memory, bias,
                           "body/")
        caches = {layer: {name: tf.tile(part[name], [beams, 1, 1, 1]) for name in "kv"}
                  for layer, part in fixed.items() if layer.startswith("layer_")}

        def step(x, caches):
            cache = {layer: {**fixed[layer], **part} for layer, part in caches.items()}
            x = self.decode(x, memory, bias, None, hparams, cache)
            return x, {layer: {name: cache[layer][name] for name in "kv"} for layer in caches}

        return step, caches
