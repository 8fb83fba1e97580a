"""One embedding table per training step for input, output and logits.

T2T concatenates the shards of a shared table for each of its three uses, writes a gradient of the
size of the table for each use, and adds the three. Here the table is concatenated once, and the
gradients of embedded symbols are added in place to that of the logits. Values and gradients are
T2T's.
"""
import functools
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities


@tf.custom_gradient
def three_uses(table: tf.Tensor) -> tuple:
    """The table three times, for two look-ups and the logits.

    Args:
      table: [symbols, hidden].

    Returns:
      the table three times. The gradient is dense if that of one of them is.
    """
    def gradient(*gradients: Any) -> tf.Tensor:
        sparse = [part for part in gradients if isinstance(part, tf.IndexedSlices)]
        total = tf.add_n([part for part in gradients if not isinstance(part, tf.IndexedSlices)])
        for part in sparse:
            total = tf.tensor_scatter_nd_add(total, part.indices[:, None], part.values)
        return total

    return (tf.identity(table),) * 3, gradient


def use_one_table(hparams: Any, problem: Any) -> None:
    """Makes a model in training look its symbols up here, if the result is the same as T2T's.

    Args:
      hparams: of the model, after `losses.use_factored_loss`; changed in place.
      problem: the hparams of its problem, or None.
    """
    if (not hparams.get("factored_logits") or "targets" not in hparams.loss
            or not hparams.shared_embedding_and_softmax_weights or hparams.symbol_dropout
            or set(problem.modality) != {"inputs", "targets"}
            or problem.modality["inputs"] != problem.modality["targets"]
            or problem.vocab_size["inputs"] != problem.vocab_size["targets"]
            or hparams.bottom or hparams.top or hparams.name):
        return
    tables: list[tf.Tensor] = []                             # of the tower that is being built

    def look_up(use: int, x: tf.Tensor, hparams: Any, symbols: int) -> tf.Tensor:
        if not use or not tables:
            with tf.variable_scope("shared", reuse=tf.AUTO_REUSE):
                tables[:] = three_uses(modalities.get_weights(hparams, symbols))
        x = tf.squeeze(x, axis=3)                            # [batch, length, 1]
        y = tf.gather(tables[use], x)                        # [batch, length, 1, hidden]
        if hparams.multiply_embedding_mode == "sqrt_depth":
            y *= hparams.hidden_size ** 0.5
        return y * tf.cast(tf.not_equal(x, 0), y.dtype)[..., None]

    def top(x: tf.Tensor, targets: tf.Tensor, hparams: Any, symbols: int) -> Any:
        del targets, hparams, symbols
        return common_layers.FactoredTensor(tf.expand_dims(x, 3), tables[2])

    hparams.bottom = {"inputs": functools.partial(look_up, 0),
                      "targets": functools.partial(look_up, 1)}
    hparams.top = {"targets": top}
