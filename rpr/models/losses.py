"""The loss over a large vocabulary with few passes over [words, vocabulary].

T2T writes logits, soft targets of the same size and a gradient of the same size for every place of
a batch, padding included. Here the softmax is the only tensor of that size that is kept, and only
for places that count. The uniform part of the soft targets is linear in the logits, so its
contribution is computed from tensors of the size of the words or of the table. Loss and gradients
are T2T's.
"""
import functools
import math
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities

from rpr.utils.interfaces import HParams, ProblemHParams


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
    """Weights of words, float32 as `targets`: 1 / length of the sentence, 0 for padding.

    `targets` are ids [batch, length, 1, 1], 0 for padding.
    """
    words = common_layers.weights_nonzero(targets)
    return tf.math.divide_no_nan(words, tf.reduce_sum(words, axis=1, keepdims=True))


def use_factored_loss(hparams: HParams, problem: ProblemHParams | None) -> None:
    """Makes a model in training compute its loss here, if the result is the same as T2T's.

    Half precision keeps T2T's loss, which rounds the gradient once, after the soft targets are
    subtracted. So does a model that needs its logits, or that has another loss. `hparams` are
    changed in place.
    """
    if (hparams.mode == tf.estimator.ModeKeys.TRAIN and hparams.activation_dtype == "float32"
            and problem and problem.modality.get("targets") == modalities.ModalityType.SYMBOL
            and "targets" not in {**hparams.loss, **hparams.top}
            and not hparams.scheduled_sampling_prob and not hparams.factored_logits
            and not hparams.get("gpu_automatic_mixed_precision")
            and not common_layers.is_xla_compiled()):
        hparams.factored_logits = True                       # T2T then passes x and the table
        hparams.loss = {**hparams.loss, "targets": _loss}


def _loss(top_out: Any, targets: tf.Tensor, model_hparams: Any, vocab_size: int,
          weights_fn: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of a modality with T2T's signature: the weighted sum, and the sum of the weights."""
    del vocab_size
    hidden = top_out.a.shape[-1]
    words, labels = tf.reshape(top_out.a, [-1, hidden]), tf.reshape(targets, [-1])
    weights = counted_weights = tf.reshape(weights_fn(targets), [-1])
    if model_hparams.get("use_pad_remover", True):
        counted = tf.where(tf.not_equal(weights, 0))         # [words that count, 1]
        words = tf.ensure_shape(tf.gather_nd(words, counted), [None, hidden])
        labels, counted_weights = (tf.gather_nd(x, counted) for x in (labels, weights))
    total = smoothed_cross_entropy(words, top_out.b, tf.cast(labels, tf.int32), counted_weights,
                                   model_hparams.label_smoothing)
    return total, tf.reduce_sum(weights)


def cast_to_activations(x: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """x in the dtype `activation_dtype`. T2T casts embedded symbols in training only."""
    return tf.cast(x, hparams.get("activation_dtype", "float32"))


def half_precision_logits(body_output: tf.Tensor, targets: tf.Tensor | None, hparams: HParams,
                          vocab_size: int) -> tf.Tensor:
    """T2T's `symbol_top` with the table cast to the dtype of the body's output.

    TensorFlow multiplies bfloat16 by float32 with `SparseMatMul`, which has no GPU kernel. The loss
    and T2T's greedy search need the logits in float32: [batch, length, 1, 1, vocab_size], from
    [batch, length, 1, hidden].
    """
    del targets
    shared = hparams.shared_embedding_and_softmax_weights
    with tf.variable_scope("shared" if shared else "softmax",
                           reuse=tf.AUTO_REUSE if shared else False):
        table = modalities.get_weights(hparams, vocab_size)
    *outer, hidden = common_layers.shape_list(body_output)
    logits = tf.matmul(tf.reshape(body_output, [-1, hidden]), tf.cast(table, body_output.dtype),
                       transpose_b=True)
    return tf.reshape(tf.cast(logits, tf.float32), [*outer, 1, vocab_size])


def use_half_precision_logits(hparams: HParams, problem: ProblemHParams | None) -> None:
    """Makes a model with half-precision activations compute its logits here, in `hparams`."""
    if (hparams.activation_dtype != "float32" and "targets" not in hparams.top
            and problem and problem.modality.get("targets") == modalities.ModalityType.SYMBOL):
        hparams.top = {**hparams.top, "targets": half_precision_logits}
        hparams.factored_logits = False                      # which would pass the float32 table


def logits_function(hparams: HParams) -> Any:
    """The function that computes the logits, T2T's `symbol_top` or ours; None for any other."""
    top = hparams.top.get("targets", modalities.symbol_top)
    return top if top in (modalities.symbol_top, half_precision_logits) else None


@tf.custom_gradient
def three_uses(table: tf.Tensor) -> tuple:
    """The table [symbols, hidden] three times, for two look-ups and the logits.

    The gradient is dense if that of one of them is.
    """
    def gradient(*gradients: Any) -> tf.Tensor:
        sparse = [part for part in gradients if isinstance(part, tf.IndexedSlices)]
        total = tf.add_n([part for part in gradients if not isinstance(part, tf.IndexedSlices)])
        for part in sparse:
            total = tf.tensor_scatter_nd_add(total, part.indices[:, None], part.values)
        return total

    return (tf.identity(table),) * 3, gradient


def use_one_table(hparams: HParams, problem: ProblemHParams | None) -> None:
    """Makes a model in training look its symbols up here, if the result is the same as T2T's.

    `hparams` are changed in place, after `use_factored_loss`.
    """
    if (not hparams.get("factored_logits") or "targets" not in hparams.loss
            or not hparams.shared_embedding_and_softmax_weights or hparams.symbol_dropout
            or not problem or set(problem.modality) != {"inputs", "targets"}
            or problem.modality["inputs"] != problem.modality["targets"]
            or problem.vocab_size["inputs"] != problem.vocab_size["targets"]
            or hparams.bottom or hparams.top or hparams.name):
        return
    tables: list[tf.Tensor] = []                             # of the tower that is being built

    def look_up(use: int, x: tf.Tensor, hparams: HParams, symbols: int) -> tf.Tensor:
        if not use or not tables:
            with tf.variable_scope("shared", reuse=tf.AUTO_REUSE):
                tables[:] = three_uses(modalities.get_weights(hparams, symbols))
        x = tf.squeeze(x, axis=3)                            # [batch, length, 1]
        y = tf.gather(tables[use], x)                        # [batch, length, 1, hidden]
        if hparams.multiply_embedding_mode == "sqrt_depth":
            y *= hparams.hidden_size ** 0.5
        return y * tf.cast(tf.not_equal(x, 0), y.dtype)[..., None]

    def top(x: tf.Tensor, targets: tf.Tensor, hparams: HParams, symbols: int) -> Any:
        del targets, hparams, symbols
        return common_layers.FactoredTensor(tf.expand_dims(x, 3), tables[2])

    hparams.bottom = {"inputs": functools.partial(look_up, 0),
                      "targets": functools.partial(look_up, 1)}
    hparams.top = {"targets": top}
