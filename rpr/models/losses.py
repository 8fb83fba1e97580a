"""The loss over a large vocabulary with few passes over [words, vocabulary].

T2T writes logits, soft targets of the same size and a gradient of the same size for every place of
a batch, padding included. Here the softmax is the only tensor of that size that is kept, and only
for places that count. The uniform part of the soft targets is linear in the logits, so its
contribution is computed from tensors of the size of the words or of the table. Loss and gradients
are T2T's.
"""
import math
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities


def smoothed_cross_entropy(x: tf.Tensor, table: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor,
                           smoothing: float) -> tf.Tensor:
    """The sum of the cross entropies with smoothed labels, minus their minimum.

    The soft target of a word is 1 - smoothing for its label and an equal share of the rest for
    every other symbol (T2T's `smoothing_cross_entropy`).

    Args:
      x: float [words, hidden], the outputs of the model's body.
      table: [symbols, hidden] of the same dtype; the logits are x table^T.
      labels: int32 [words].
      weights: [words] of the same dtype, the weight of each word in the sum.
      smoothing: at least 0 and below 1.

    Returns:
      a scalar of the dtype of x.
    """
    symbols = table.shape.as_list()[0]
    low = smoothing / (symbols - 1)                          # soft target of any other symbol
    high = 1.0 - smoothing - low                             # added to it for the label
    minimum = -(1.0 - smoothing) * math.log(1.0 - smoothing) - smoothing * math.log(low + 1e-20)

    @tf.custom_gradient
    def with_gradient(x: tf.Tensor, table: tf.Tensor, weights: tf.Tensor) -> tuple:
        # An appended row of zeros has a uniform softmax. The part of the table's gradient that is
        # the same for all symbols goes through this row, which saves a pass over the table.
        logits = tf.matmul(tf.pad(x, [[0, 1], [0, 0]]), table, transpose_b=True)
        probabilities = tf.nn.softmax(logits)                # [words + 1, symbols]
        label_rows, row_sum = tf.gather(table, labels), tf.reduce_sum(table, axis=0)
        label_probability = tf.gather_nd(
            probabilities, tf.stack([tf.range(tf.size(labels)), labels], axis=1))

        def normalizer_from_maximum() -> tf.Tensor:
            # The largest probability is at least 1 / symbols, so its logarithm is safe.
            return (tf.reduce_max(logits, axis=1)
                    - tf.log(tf.reduce_max(probabilities, axis=1)))[:-1]

        def normalizer_from_label() -> tf.Tensor:
            return tf.reduce_sum(x * label_rows, axis=1) - tf.log(label_probability)

        normalizer = tf.cond(tf.reduce_all(label_probability > 1e-30), normalizer_from_label,
                             normalizer_from_maximum)
        targets = high * label_rows + low * row_sum          # [words, hidden]
        losses = normalizer - tf.reduce_sum(x * targets, axis=1) - minimum

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            dlosses = (dy * weights)[:, None]
            weighted = dlosses * x
            uniform = -low * symbols * tf.reduce_sum(weighted, axis=0, keepdims=True)
            # A batched product of one matrix: oneDNN picks a faster kernel (0.7 to 0.8 of the time)
            dtable = tf.matmul(probabilities[None], tf.concat([weighted, uniform], axis=0)[None],
                               transpose_a=True)[0]
            dtable = tf.tensor_scatter_nd_sub(dtable, labels[:, None], high * weighted)
            return (dlosses * (tf.matmul(probabilities, table)[:-1] - targets), dtable,
                    dy * losses)

        return tf.reduce_sum(weights * losses), gradient

    return with_gradient(x, table, weights)


def weights_per_sentence(targets: tf.Tensor) -> tf.Tensor:
    """Weights of the words that give each sentence of a batch the same weight.

    Args:
      targets: ids [batch, length, 1, 1], 0 for padding.

    Returns:
      float32 of the same shape: 1 / length of the sentence, 0 for padding.
    """
    words = common_layers.weights_nonzero(targets)
    return tf.math.divide_no_nan(words, tf.reduce_sum(words, axis=1, keepdims=True))


def use_factored_loss(hparams: Any, problem: Any) -> None:
    """Makes a model in training compute its loss here, if the result is the same as T2T's.

    Half precision keeps T2T's loss, which rounds the gradient once, after the soft targets are
    subtracted. So does a model that needs its logits, or that has another loss.

    Args:
      hparams: of the model, with its mode; changed in place.
      problem: the hparams of its problem, or None.
    """
    if (hparams.mode == tf.estimator.ModeKeys.TRAIN and hparams.activation_dtype == "float32"
            and problem and problem.modality.get("targets") == modalities.ModalityType.SYMBOL
            and "targets" not in {**hparams.loss, **hparams.top}
            and not hparams.scheduled_sampling_prob and not hparams.factored_logits
            and not hparams.get("gpu_automatic_mixed_precision")
            and not hasattr(hparams.get("problem"), "task_list")
            and not common_layers.is_xla_compiled()):
        hparams.factored_logits = True                       # T2T then passes x and the table
        hparams.loss = {**hparams.loss, "targets": _loss}


def _loss(top_out: Any, targets: tf.Tensor, model_hparams: Any, vocab_size: int,
          weights_fn: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of a modality with T2T's signature: the weighted sum, and the sum of the weights."""
    del vocab_size
    weights = tf.reshape(weights_fn(targets), [-1])
    counted = tf.where(tf.not_equal(weights, 0))             # [words that count, 1]
    hidden = top_out.a.shape[-1]
    words = tf.ensure_shape(
        tf.gather_nd(tf.reshape(top_out.a, [-1, hidden]), counted), [None, hidden])
    labels = tf.cast(tf.gather_nd(tf.reshape(targets, [-1]), counted), tf.int32)
    total = smoothed_cross_entropy(words, top_out.b, labels, tf.gather_nd(weights, counted),
                                   model_hparams.label_smoothing)
    return total, tf.reduce_sum(weights)
