"""Layers around attention: normalization, residual connections and feed-forward layers.

They replace T2T's with the same mathematics and variables, and fewer passes over memory.
"""
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers

from rpr.nn.dropout import dropout
from rpr.nn.ops import HALF_PRECISION, accumulator_dtype, shape_list
from rpr.nn.projections import project
from rpr.utils.interfaces import HParams


def preprocess(x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Applies `layer_preprocess_sequence` to the input of a sub-layer. Shapes as x."""
    return _apply_sequence(None, x, hparams.layer_preprocess_sequence, hparams,
                           "layer_prepostprocess")


def postprocess(x: tf.Tensor, y: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Applies `layer_postprocess_sequence` to the output y of a sub-layer with input x."""
    return _apply_sequence(x, y, hparams.layer_postprocess_sequence, hparams, "layer_postprocess")


def _apply_sequence(residual: tf.Tensor | None, x: tf.Tensor, sequence: str, hparams: HParams,
                    scope: str) -> tf.Tensor:
    """T2T's `layer_prepostprocess`: n normalizes, d drops out, a adds the residual."""
    with tf.variable_scope(None, default_name=scope):
        for step in sequence if sequence != "none" else "":
            if step == "a":
                x += residual
            elif step == "z":
                x = _in_float32(common_layers.zero_add, residual, x)
            elif step == "n":
                x = normalize(x, hparams)
            elif step == "d":
                x = drop(x, hparams)
    return x


def _in_float32(function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
    """Applies a function of T2T with float32 variables to tensors that may be half precision."""
    dtype = tensors[0].dtype
    if dtype not in HALF_PRECISION:
        return function(*tensors)
    return tf.cast(function(*(tf.cast(x, tf.float32) for x in tensors)), dtype)


def drop(x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """The dropout of residuals and of embedded words, [batch, length, hidden]. Shapes as x."""
    return dropout(x, hparams.layer_prepostprocess_dropout,
                   axes(hparams, "layer_prepostprocess_dropout_broadcast_dims"))


def axes(hparams: HParams, name: str) -> list[int]:
    """The axes in an hparam, such as "1,2"."""
    return common_layers.comma_separated_string_to_integer_list(hparams.get(name, ""))


def normalize(x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """The normalization of `norm_type`: T2T's, or `layer_without_scale`. Shapes as x."""
    if hparams.norm_type not in ("layer", "layer_without_scale"):
        return _in_float32(lambda x: common_layers.apply_norm(
            x, hparams.norm_type, None, hparams.norm_epsilon), x)
    with tf.variable_scope(None, default_name="layer_norm", values=[x]):
        if hparams.norm_type == "layer":
            scale, bias = common_layers.layer_norm_vars(shape_list(x)[-1])
        else:
            scale = tf.ones(shape_list(x)[-1:], x.dtype)
            bias = tf.get_variable("layer_norm_bias", shape_list(x)[-1:],
                                   initializer=tf.zeros_initializer())
        # Half precision has too few digits for a variance, and squares overflow float16.
        dtype = accumulator_dtype(x.dtype)
        y = layer_norm(tf.cast(x, dtype), tf.cast(scale, dtype), tf.cast(bias, dtype),
                       hparams.norm_epsilon)
        return tf.cast(y, x.dtype)


def layer_norm(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalization of x, [..., hidden], over its last axis (Ba, Kiros and Hinton 2016).

    Scale and bias, [hidden], have the dtype of x; epsilon is added to the variance.
    """
    @tf.custom_gradient
    def with_gradient(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tuple:
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        inverse = tf.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + epsilon)
        normal = centred * inverse

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            outer_axes = list(range(x.shape.rank - 1))
            dscale, dnormal = dy * normal, dy * scale
            dx = dnormal - tf.reduce_mean(dnormal, axis=-1, keepdims=True)
            dx -= normal * tf.reduce_mean(dscale * scale, axis=-1, keepdims=True)
            return inverse * dx, tf.reduce_sum(dscale, outer_axes), tf.reduce_sum(dy, outer_axes)

        return normal * scale + bias, gradient

    return with_gradient(x, scale, bias)


def feed_forward(x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """T2T's `dense_relu_dense`: dense layers with a ReLU and dropout between them.

    x and the result are [batch, length, hidden].
    """
    hidden = tf.nn.relu(_dense(x, hparams.filter_size, "conv1"))
    hidden = dropout(hidden, hparams.relu_dropout, axes(hparams, "relu_dropout_broadcast_dims"))
    return _dense(hidden, hparams.hidden_size, "conv2")


def _dense(x: tf.Tensor, channels: int, name: str) -> tf.Tensor:
    y = project(x, channels, name)
    with tf.variable_scope(name):
        bias = tf.get_variable("bias", [channels], dtype=x.dtype,
                               initializer=tf.zeros_initializer())
    return tf.nn.bias_add(y, bias)
