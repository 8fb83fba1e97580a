"""The embedding and the logits of symbols in the activations' precision."""
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities


def cast_to_activations(x: tf.Tensor, hparams: Any) -> tf.Tensor:
    """x in the dtype `activation_dtype`. T2T casts embedded symbols in training only."""
    return tf.cast(x, hparams.get("activation_dtype", "float32"))


def half_precision_logits(body_output: tf.Tensor, targets: tf.Tensor | None, hparams: Any,
                          vocab_size: int) -> tf.Tensor:
    """T2T's `symbol_top` with the table cast to the dtype of the body's output.

    TensorFlow multiplies bfloat16 by float32 with `SparseMatMul`, which has no GPU kernel. The loss
    and T2T's greedy search need the logits in float32.

    Args:
      body_output: [batch, length, 1, hidden].
      targets: unused; part of T2T's signature.
      hparams: the model's hyperparameters.
      vocab_size: number of symbols.

    Returns:
      logits, float32 [batch, length, 1, 1, vocab_size].
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


def use_half_precision_logits(hparams: Any, problem: Any) -> None:
    """Makes a model with half-precision activations compute its logits here.

    Args:
      hparams: of the model; changed in place.
      problem: the hparams of its problem, or None.
    """
    if (hparams.activation_dtype != "float32" and "targets" not in hparams.top
            and problem and problem.modality.get("targets") == modalities.ModalityType.SYMBOL):
        hparams.top = {**hparams.top, "targets": half_precision_logits}
        hparams.factored_logits = False                      # which would pass the float32 table


def logits_function(hparams: Any) -> Any:
    """The function that computes the logits, T2T's `symbol_top` or ours; None for any other."""
    top = hparams.top.get("targets", modalities.symbol_top)
    return top if top in (modalities.symbol_top, half_precision_logits) else None
