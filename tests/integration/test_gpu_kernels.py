"""Every operation of training and decoding graphs has a GPU kernel for its types.

The table of kernels is data (scripts/gpu_kernels.py), since the CPU wheel registers none.
"""
import gpu_kernels
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from test_half_precision import CASES, case_name, features_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model, hparams_set, overrides", CASES, ids=case_name)
def test_all_operations_have_gpu_kernels(model, hparams_set, overrides, dtype):
    hparams = tiny_models.hparams(hparams_set, activation_dtype=dtype, **overrides)
    with tf.Graph().as_default() as graph:
        made = tiny_models.make(hparams, "train", model)
        _, losses = made(features_of(overrides, "inputs", "targets"))
        made.optimize(losses["training"])
        assert gpu_kernels.lacking(graph) == []
    with tf.Graph().as_default() as graph:
        made = tiny_models.make(hparams, tf.estimator.ModeKeys.PREDICT, model)
        for beams in (1, 3):
            with tf.variable_scope(tf.get_variable_scope(), reuse=beams > 1):
                made.infer(features_of(overrides, "inputs"), decode_length=2, beam_size=beams)
        assert gpu_kernels.lacking(graph) == []
