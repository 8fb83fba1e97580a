"""The loss over a large vocabulary, without its many passes over [words, vocabulary].

T2T writes out the logits, soft targets of the same size, and a gradient of the same size, for every
place of a batch, padding too. Here the only tensor of that size that is kept is the softmax, and
only for words that count: what the soft targets add is of the size of the words or of the
vocabulary, by the linearity of the product that makes the logits. Loss and gradients are T2T's.
"""
import math

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities


def smoothed_cross_entropy(x, table, labels, weights, smoothing):
    """The sum of the cross entropies of words with smoothed labels, less their least values.

    The soft target of a word is 1 - smoothing for its label and an equal share of the rest for
    every other symbol (T2T's `smoothing_cross_entropy`).

    Args:
      x: float [words, hidden], what the logits are made of.
      table: [symbols, hidden] of the same dtype: the logits are x table^T.
      labels: int32 [words].
      weights: [words] of the same dtype, what each word counts.
      smoothing: in 0..1 without 1.

    Returns:
      a scalar of the dtype of x.
    """
    symbols = table.shape.as_list()[0]
    low = smoothing / (symbols - 1)                          # the soft target of another symbol
    high = 1.0 - smoothing - low                             # what the label has above that
    least = -(1.0 - smoothing) * math.log(1.0 - smoothing) - smoothing * math.log(low + 1e-20)

    @tf.custom_gradient
    def function(x, table, weights):
        # One word more, of zeros, has equal shares of all symbols: what the gradient of each row of
        # the table has in common comes out of its product with the shares, not by another pass.
        logits = tf.matmul(tf.pad(x, [[0, 1], [0, 0]]), table, transpose_b=True)
        shares = tf.nn.softmax(logits)                       # [words + 1, symbols]
        rows, total = tf.gather(table, labels), tf.reduce_sum(table, axis=0)
        share = tf.gather_nd(shares, tf.stack([tf.range(tf.size(labels)), labels], axis=1))

        def of_all():
            # At its highest the softmax is 1 / symbols or more: its logarithm is safe.
            found = tf.reduce_max(logits, axis=1) - tf.log(tf.reduce_max(shares, axis=1))
            return found[:-1]

        normaliser = tf.cond(tf.reduce_all(share > 1e-30),
                             lambda: tf.reduce_sum(x * rows, axis=1) - tf.log(share), of_all)
        targets = high * rows + low * total                  # [words, hidden]
        losses = normaliser - tf.reduce_sum(x * targets, axis=1) - least

        def gradient(dy):
            words = (dy * weights)[:, None]
            weighed = words * x
            common = -low * symbols * tf.reduce_sum(weighed, axis=0, keepdims=True)
            # As one of a batch: oneDNN has another way for those, 0.7 to 0.8 of the time here.
            dtable = tf.matmul(
                shares[None], tf.concat([weighed, common], axis=0)[None], transpose_a=True)[0]
            dtable = tf.tensor_scatter_nd_sub(dtable, labels[:, None], high * weighed)
            return words * (tf.matmul(shares, table)[:-1] - targets), dtable, dy * losses

        return tf.reduce_sum(weights * losses), gradient

    return function(x, table, weights)


def weights_per_sentence(targets):
    """Weights with which each sentence of a batch counts the same, however long it is.

    Args:
      targets: ids [batch, length, 1, 1], 0 where there is padding.

    Returns:
      float32 of the same shape: 1 / length of the sentence, 0 for padding.
    """
    words = common_layers.weights_nonzero(targets)
    return tf.math.divide_no_nan(words, tf.reduce_sum(words, axis=1, keepdims=True))


def use_factored_loss(hparams, problem):
    """Lets a model that is trained take its loss from here, where that is the same.

    Half precision keeps T2T's loss, whose gradient is rounded once, after the soft targets are
    taken away; so does what asks for logits, or for a loss of its own.

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
        hparams.factored_logits = True                       # T2T's word for x and its table
        hparams.loss = {**hparams.loss, "targets": _loss}


def _loss(top_out, targets, model_hparams, vocab_size, weights_fn):
    """The loss of a modality, as T2T calls it: the sum over the words, and how many they are."""
    del vocab_size
    weights = tf.reshape(weights_fn(targets), [-1])
    which = tf.where(tf.not_equal(weights, 0))               # [words that count, 1]
    hidden = top_out.a.shape[-1]
    words = tf.ensure_shape(
        tf.gather_nd(tf.reshape(top_out.a, [-1, hidden]), which), [None, hidden])
    labels = tf.cast(tf.gather_nd(tf.reshape(targets, [-1]), which), tf.int32)
    total = smoothed_cross_entropy(words, top_out.b, labels, tf.gather_nd(weights, which),
                                   model_hparams.label_smoothing)
    return total, tf.reduce_sum(weights)
