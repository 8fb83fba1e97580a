"""What stands between attention layers: normalisation, residuals and feed-forward layers.

They replace T2T's, with the same mathematics and variables, and fewer passes over memory.
"""
import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers

from rpr.nn.ops import dropout, shape_list
from rpr.nn.projections import project


def preprocess(x, hparams):
    """What `layer_preprocess_sequence` does to the input of a sub-layer. Shapes as x."""
    for step in hparams.layer_preprocess_sequence:
        if step in "az":
            raise ValueError(f"layer_preprocess_sequence={hparams.layer_preprocess_sequence}: "
                             "a residual connection comes after a sub-layer")
    return _sequence(None, x, hparams.layer_preprocess_sequence, hparams, "layer_prepostprocess")


def postprocess(x, y, hparams):
    """What `layer_postprocess_sequence` does to the output y of a sub-layer. Shapes as x."""
    return _sequence(x, y, hparams.layer_postprocess_sequence, hparams, "layer_postprocess")


def _sequence(before, x, sequence, hparams, scope):
    """T2T's `layer_prepostprocess`: n normalises, d drops out, a adds what was there before."""
    with tf.variable_scope(None, default_name=scope):
        for step in sequence if sequence != "none" else "":
            if step == "a":
                x += before
            elif step == "z":
                x = common_layers.zero_add(before, x)
            elif step == "n":
                x = normalize(x, hparams)
            elif step == "d":
                x = drop(x, hparams)
            else:
                raise ValueError(f"{sequence}: no step of a sub-layer is called {step!r}")
    return x


def drop(x, hparams):
    """The dropout of residuals and of embedded words, [batch, length, hidden]. Shapes as x."""
    dims = common_layers.comma_separated_string_to_integer_list(
        hparams.get("layer_prepostprocess_dropout_broadcast_dims", ""))
    return dropout(x, hparams.layer_prepostprocess_dropout, dims)


def normalize(x, hparams):
    """The normalisation that `norm_type` names: T2T's, or `layer_without_scale`. Shapes as x."""
    if hparams.norm_type not in ("layer", "layer_without_scale"):
        return common_layers.apply_norm(x, hparams.norm_type, None, hparams.norm_epsilon)
    with tf.variable_scope(None, default_name="layer_norm", values=[x]):
        if hparams.norm_type == "layer":
            scale, bias = common_layers.layer_norm_vars(shape_list(x)[-1])
        else:
            scale = tf.ones(shape_list(x)[-1:], x.dtype)
            bias = tf.get_variable("layer_norm_bias", shape_list(x)[-1:],
                                   initializer=tf.zeros_initializer())
        # Half precision has too few digits for a variance, and float16 no room for squares.
        kind = tf.float32 if x.dtype in (tf.float16, tf.bfloat16) else x.dtype
        y = layer_norm(*(tf.cast(z, kind) for z in (x, scale, bias)), hparams.norm_epsilon)
        return tf.cast(y, x.dtype)


def layer_norm(x, scale, bias, epsilon):
    """Layer normalisation over the last axis (Ba, Kiros and Hinton 2016).

    Args:
      x: [..., hidden].
      scale: [hidden] of the same dtype.
      bias: [hidden] of the same dtype.
      epsilon: added to the variance.

    Returns:
      [..., hidden].
    """
    @tf.custom_gradient
    def function(x, scale, bias):
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        inverse = tf.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + epsilon)
        normal = centred * inverse

        def gradient(dy):
            along = list(range(x.shape.rank - 1))
            each, dnormal = dy * normal, dy * scale
            dx = dnormal - tf.reduce_mean(dnormal, axis=-1, keepdims=True)
            dx -= normal * tf.reduce_mean(each * scale, axis=-1, keepdims=True)
            return inverse * dx, tf.reduce_sum(each, along), tf.reduce_sum(dy, along)

        return normal * scale + bias, gradient

    return function(x, scale, bias)


def feed_forward(x, hparams):
    """Two dense layers with a ReLU and dropout between them, T2T's `dense_relu_dense`.

    Args:
      x: [batch, length, hidden].
      hparams: the model's hyperparameters.

    Returns:
      [batch, length, hidden].
    """
    dims = common_layers.comma_separated_string_to_integer_list(
        hparams.get("relu_dropout_broadcast_dims", ""))
    hidden = tf.nn.relu(_dense(x, hparams.filter_size, "conv1"))
    return _dense(dropout(hidden, hparams.relu_dropout, dims), hparams.hidden_size, "conv2")


def _dense(x, channels, name):
    y = project(x, channels, name)
    with tf.variable_scope(name):
        bias = tf.get_variable("bias", [channels], dtype=x.dtype,
                               initializer=tf.zeros_initializer())
    return tf.nn.bias_add(y, bias)
