"""One table of symbols for a whole training step: input, output, and what makes the logits.

T2T puts the shards of a shared table together for each of its uses, writes a gradient as large as
the table for each, and adds them. Here it is put together once, and the gradients of its rows are
added in place to that of the logits. Values and gradients are T2T's.
"""
import functools

import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities


@tf.custom_gradient
def three_uses(table):
    """A table three times, to look symbols up twice and to make logits.

    Args:
      table: [symbols, hidden].

    Returns:
      three times the table; its gradient is dense where that by one of them is.
    """
    def gradient(*parts):
        rows = [part for part in parts if isinstance(part, tf.IndexedSlices)]
        total = tf.add_n([part for part in parts if not isinstance(part, tf.IndexedSlices)])
        for part in rows:
            total = tf.tensor_scatter_nd_add(total, part.indices[:, None], part.values)
        return total

    return (tf.identity(table),) * 3, gradient


def use_one_table(hparams, problem):
    """Lets a model that trains look its symbols up here, where that is the same.

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
    made = []                                                # of the tower that is being built

    def look_up(use, x, hparams, symbols):
        if not use or not made:
            with tf.variable_scope("shared", reuse=tf.AUTO_REUSE):
                made[:] = three_uses(modalities.get_weights(hparams, symbols))
        x = tf.squeeze(x, axis=3)                            # [batch, length, 1]
        y = tf.gather(made[use], x)                          # [batch, length, 1, hidden]
        if hparams.multiply_embedding_mode == "sqrt_depth":
            y *= hparams.hidden_size ** 0.5
        return y * tf.cast(tf.not_equal(x, 0), y.dtype)[..., None]

    def top(x, targets, hparams, symbols):
        del targets, hparams, symbols
        return common_layers.FactoredTensor(tf.expand_dims(x, 3), made[2])

    hparams.bottom = {"inputs": functools.partial(look_up, 0),
                      "targets": functools.partial(look_up, 1)}
    hparams.top = {"targets": top}
