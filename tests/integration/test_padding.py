"""Padding that a compiled step adds to a batch changes neither its loss nor its gradients."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

import rpr.models.seq2seq  # noqa: F401  registers the model

NO_DROPOUT = {"layer_prepostprocess_dropout": 0.0, "attention_dropout": 0.0, "relu_dropout": 0.0,
              "dropout": 0.0, "num_hidden_layers": 1}


def loss_and_gradients(model, values, lengths, paddings):
    """Loss per token and the gradients of all variables, for each number of columns of zeros."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        _, losses = tiny_models.make(values, "train", model)(
            {"inputs": inputs, "targets": targets, "target_space_id": tf.constant(1)})
        loss = losses["training"]
        if isinstance(loss, tuple):
            loss = loss[0] / loss[1]
        gradients = [tf.convert_to_tensor(gradient) for gradient in tf.gradients(
            loss, tf.trainable_variables()) if gradient is not None]
        tiny_models.lively(session)
        return [session.run([loss, *gradients], {
            inputs: tiny_models.sentences(lengths[0], 1, padding),
            targets: tiny_models.sentences(lengths[1], 2, 2 * padding)}) for padding in paddings]


@pytest.mark.parametrize("model, hparams_set, changes", [
    *(("rpr_transformer", "rpr_tiny", {"position": name})
      for name in ("relative", "rotary+t5_bias", "deberta")),
    ("qkv_seq2seq", "qkv_seq2seq_tiny", {}),
    ("transformer", "rpr_tiny_absolute", {})], ids=str)
def test_more_padding_changes_nothing(model, hparams_set, changes):
    values = {name: value for name, value in NO_DROPOUT.items()
              if name in tiny_models.hparams(hparams_set)}
    lengths = ([5, 3, 7], [4, 6, 2])
    results = loss_and_gradients(model, tiny_models.hparams(hparams_set, **values, **changes),
                                 lengths, (0, 3))
    assert len(results[0]) == len(results[1]) > 10
    for before, after in zip(*results, strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-5)
