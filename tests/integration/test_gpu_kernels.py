"""Every operation of a training graph has a GPU kernel, and no large tensor leaves the device.

The table of kernels is data (scripts/gpu_placement.py), since the CPU wheel registers none. The
graphs of decoding are checked in test_half_precision.py, which builds them to run them; those of
several devices in tests/system/test_devices.py.
"""
import gpu_kernels
import gpu_placement
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from test_half_precision import CASES, SENTENCES, case_name, features_of, rewritten


@pytest.mark.parametrize("model, hparams_set, overrides", CASES, ids=case_name)
def test_a_training_step_stays_on_the_gpu(model, hparams_set, overrides, monkeypatch):
    """In bfloat16; some also in float32, and in float16 as TensorFlow rewrites the graph. The
    variables do not depend on the precision."""
    variables = {}
    rewrites = model == "qkv_seq2seq" or overrides["position"] in ("deberta", "graph")
    for dtype in ("bfloat16", *(["float32"] if rewrites else [])):
        hparams = tiny_models.hparams(hparams_set, activation_dtype=dtype, **overrides)
        with tf.Graph().as_default() as graph:
            made = tiny_models.make(hparams, "train", model)
            _, losses = made(features_of(overrides, "inputs", "targets"))
            assert losses["training"].dtype == tf.float32
            if dtype == "float32":
                update = made.optimize(losses["training"])
                float16 = rewritten(graph, [update], monkeypatch)
            else:                                            # weights are float32, and their update
                tf.gradients(losses["training"], tf.trainable_variables())
            assert gpu_kernels.lacking(graph) == []
            assert gpu_kernels.large_copies(graph, SENTENCES.size) == []
            variables[dtype] = {v.op.name: (v.dtype.base_dtype, v.shape.as_list())
                                for v in tf.trainable_variables()}
    if not rewrites:
        return
    assert variables["bfloat16"] == variables["float32"]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(float16, name="")
        assert tf.float16 in {tensor.dtype for op in graph.get_operations()
                              for tensor in op.outputs}
        assert gpu_kernels.lacking(graph) == []


def test_missing_kernels_and_large_copies_are_reported():
    with tf.Graph().as_default() as graph:
        ids = tf.placeholder(tf.int32, [8, 8])
        mask = tf.cast(ids < 3, tf.float32)                  # int32 is compared on the host
        tf.sparse_matmul(tf.cast(mask, tf.bfloat16), mask, name="product")
        assert [line.split()[0] for line in gpu_kernels.lacking(graph)] == ["SparseMatMul"]
        copies = gpu_kernels.large_copies(graph, positions=8)
        assert any(copy.startswith("bool (8, 8) to device: Less") for copy in copies)
        assert any("to host: Cast" in copy and "SparseMatMul" in copy for copy in copies)
        assert gpu_kernels.large_copies(graph, positions=64) == []


def test_mirrored_replicas_can_reduce_through_nccl():
    with tf.Graph().as_default() as graph:
        tf.raw_ops.NcclAllReduce(input=tf.zeros([2]), reduction="sum", num_devices=1,
                                 shared_name="sum")
        assert gpu_kernels.lacking(graph) == []


def test_arguments_in_host_memory_are_those_of_the_kernel():
    table = {"ConcatV2": [{"T": ["float32"], "host_memory": ["axis"]}],
             "Const": [{"dtype": ["float32"]}, {"dtype": ["int32"], "host_memory": ["output"]}]}
    with tf.Graph().as_default() as graph:
        rows = tf.zeros([2, 3])
        tf.concat([rows, rows], axis=0)
        assert gpu_placement.crossings(graph, table) == []
        table["ConcatV2"][0]["host_memory"] = []
        (copy,) = gpu_placement.crossings(graph, table)
    assert copy.tensor.op.name == "concat/axis" and not copy.to_host
