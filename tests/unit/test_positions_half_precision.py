"""Every scheme in bfloat16 and float16: dtypes, no float32 on the way, and values near float64.

A GPU would compute all of it, forward and backward, and no large tensor would leave it.
"""
import functools

import gpu_kernels
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.nn import attention
from rpr.nn.attention import additive_logits
from rpr.nn.projections import combine_heads, split_heads
from rpr.positions import pairs, relative
from rpr.positions.layout import Layout

HALVES = [tf.float16, tf.bfloat16]
BATCH, HEADS, KEYS, DEPTH = 2, 2, 7, 16
# (queries, offset, causal): an encoder, a decoder, one cached step of decoding.
LAYOUTS = {"inputs": (KEYS, 0, False), "targets": (KEYS, 0, True), "step": (1, KEYS - 1, True)}
ADDITIVE = ["none", "sinusoid", "scaled_sinusoid", "learned", "relative", "t5_bias", "alibi",
            "graph"]
# Each scheme over all pairs that it can see, and in a step.
CASES = [(name, "dot_product", kind) for name, scheme in positions.SCHEMES.items()
         for kind in ("inputs" if "inputs" in scheme.sides else "targets",
                      *(["step"] if "targets" in scheme.sides else []))] + [
    (name, "additive", "targets") for name in ADDITIVE]


@pytest.mark.parametrize("dtype", HALVES)
def test_learned_rates_are_not_rounded_before_they_are_multiplied_by_positions(dtype):
    random, rates = np.random.RandomState(0), {}
    x = random.randn(1, HEADS, 400, DEPTH).astype(np.float32)
    outputs = []
    for each in (tf.float32, dtype):
        with tf.Graph().as_default(), tf.Session() as session:
            scheme = positions.build(tiny_models.hparams(
                position="mixed_rotary", hidden_size=HEADS * DEPTH, num_heads=HEADS), "targets")
            layout = Layout(400, 400, causal=True)
            turned = scheme.rotate(tf.cast(x, each), layout.query_positions(), layout, "query")
            rate, = tf.trainable_variables()
            rates = rates or {"value": np.exp(random.randn(*rate.shape.as_list()))}
            session.run(rate.initializer, {rate.initializer.inputs[1]: rates["value"]})
            outputs.append(session.run(tf.cast(turned, tf.float32)))
    np.testing.assert_allclose(outputs[1], outputs[0], atol=0.04)


def build(position, compatibility, kind, dtype):
    """A scheme in one attention layer.

    Returns:
      the inputs, the intermediate and final tensors, the gradients by inputs and variables, and
      the variables.
    """
    queries, offset, causal = LAYOUTS[kind]
    edges = None
    if position == "graph" and kind == "inputs":
        edges = tf.constant(np.random.RandomState(3).randint(0, 4, [BATCH, KEYS, KEYS]), tf.int32)
    layout = Layout(queries, KEYS, offset, causal, edges)
    random = np.random.RandomState(0)
    x, k, v = (tf.constant(random.randn(BATCH, HEADS, n, DEPTH) / 2, dtype)
               for n in (queries, KEYS, KEYS))
    hparams = tiny_models.hparams(position=position, compatibility=compatibility, max_length=9,
                                  max_relative_position=3, num_edge_labels=4,
                                  hidden_size=HEADS * DEPTH, num_heads=HEADS)
    scheme = positions.build(hparams, "inputs" if kind == "inputs" else "targets")
    states = {
        name: tf.constant(-random.rand(BATCH, *(size or offset for size in shape)), tf.float32)
        for name, shape in scheme.states().items()}
    mask = None if queries == 1 else tf.zeros([1, 1, KEYS, KEYS])
    layout = layout.replace(x=combine_heads(x), cache=states if offset else None, mask=mask)
    with tf.variable_scope("layer", initializer=tf.random_normal_initializer(stddev=0.3)):
        q = split_heads(scheme.embed(combine_heads(x), layout.query_positions()), HEADS)
        at = layout.query_positions()
        q = scheme.rotate(q, at, layout, "query")
        new_k = scheme.rotate(k[:, :, offset:offset + queries], at, layout, "key")
        before = tf.tile(k[:, :, :offset], [1, 1, 1, scheme.depth_factor])
        keys = tf.concat([before, new_k], axis=2)
        tensors = [q, keys]
        if compatibility == "additive":
            vector = tf.get_variable("vector", [HEADS, DEPTH], dtype=dtype)

            def scores(q, k):
                logits = additive_logits(q, k, vector, scheme.pair_vectors(layout, dtype))
                bias = scheme.bias(layout, dtype)
                tensors.append(logits if bias is None else logits + bias)
                return tensors[-1]
        else:
            def scores(q, k):
                tensors.append(scheme.scores(q, k, layout))
                return tensors[-1]

        bias = None
        if causal:
            visible = layout.relative_positions() <= 0
            bias = tf.cast(tf.where_v2(visible, 0.0, -1e9), tf.float32)
        tensors.append(attention.attention(
            q, keys, v, bias, scores, functools.partial(scheme.weighted_values, layout=layout)))
    variables = tf.trainable_variables()
    dz = tf.constant(random.randn(BATCH, HEADS, queries, DEPTH), dtype)
    gradients = tf.gradients(tensors[-1], [x, k, v, *variables], dz)
    return [x, k, v], tensors, gradients, variables


def float32_ops(inputs):
    """Types of the operations that compute in float32 or float64 on values of these tensors."""
    names, todo = set(), [op for x in inputs for op in x.consumers()]
    seen = set()
    while todo:
        op = todo.pop()
        if op in seen:
            continue
        seen.add(op)
        if any(output.dtype.base_dtype in (tf.float32, tf.float64) for output in op.outputs):
            names.add(op.type)
        todo += [consumer for output in op.outputs for consumer in output.consumers()]
    return names


# Casts, the softmax in float32 with the bias, the mask, sums of many gradients, and reading shapes.
FLOAT32_BY_DESIGN = {"Cast", "Softmax", "UnsortedSegmentSum", "AddV2", "Add", "Sub", "Mul", "Sum",
                     "Neg", "Identity", "Reshape", "Shape", "BroadcastGradientArgs"}
# Sums of gates, norms, a triangular solve, and angles.
FLOAT32_OF_SCHEMES = {
    "differential": {"AddN", "Mean", "RealDiv", "Rsqrt", "RsqrtGrad", "Square", "Tile"},
    "forgetting": {"AddN", "ConcatV2", "Cumsum", "ExpandDims", "SelectV2", "Sigmoid",
                   "Pad", "Slice", "Softplus", "SoftplusGrad", "StridedSlice", "StridedSliceGrad",
                   "Transpose"},
    "cope": {"Ceil", "Cumsum", "Floor", "LessEqual", "Minimum", "SelectV2", "Sigmoid",
             "SigmoidGrad", "ZerosLike"},
    "mixed_rotary": {"AddN", "Pack"},
    "path": {"AddN", "BatchMatMulV2", "ConcatV2", "IdentityN", "MatrixBandPart",
             "MatrixTriangularSolve", "Pad", "Rsqrt", "RsqrtGrad", "Sigmoid", "SigmoidGrad",
             "Slice", "Square", "StridedSlice", "StridedSliceGrad", "Tile", "Transpose",
             "ZerosLike"},
    "pope": {"AddN", "SelectV2", "Sigmoid", "Softplus"}}
FLOAT32_VARIABLES = {"mixed_rotary"}                         # multiplied by positions
# The derivative of a leaky ReLU jumps: near 0 a rounded input may be on its other side. Most values
# show none of it.
JUMPS = "dape", "dape_v2"


def outcome(position, compatibility, kind, dtype):
    """What attention returns, and its gradients, as float64; random weights."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        inputs, tensors, gradients, variables = build(position, compatibility, kind, dtype)
        if dtype in HALVES:
            assert gpu_kernels.lacking(graph) == []
            assert gpu_kernels.large_copies(graph, BATCH * KEYS) == []
        assert {x.dtype for x in tensors} == {dtype}
        stored = tf.float32 if position in FLOAT32_VARIABLES and dtype in HALVES else dtype
        assert {x.dtype.base_dtype for x in variables} <= {stored}
        assert all(dx is None or dx.dtype == x.dtype.base_dtype
                   for dx, x in zip(gradients, [*inputs, *variables], strict=True))
        if dtype in HALVES and compatibility == "dot_product":
            allowed = FLOAT32_BY_DESIGN | FLOAT32_OF_SCHEMES.get(position, set())
            assert float32_ops(inputs) <= allowed
        fetches = [tensors[-1], *(tf.convert_to_tensor(dx) for dx in gradients if dx is not None)]
        fetches = [tf.cast(x, tf.float64) for x in fetches]
        session.run([x.initializer for x in variables], {
            x.initializer.inputs[1]: np.random.RandomState(1).randn(*x.shape.as_list()) / 4
            for x in variables})
        return session.run(fetches)


@pytest.mark.parametrize("position, compatibility, kind", CASES)
def test_a_scheme_in_half_precision(position, compatibility, kind):
    """Cached steps, whose operations are those of whole sentences, in bfloat16 alone."""
    exact = outcome(position, compatibility, kind, tf.float64)
    for dtype, tolerance in ((tf.bfloat16, 0.06), *([(tf.float16, 0.01)] * (kind != "step"))):
        for right, half in zip(exact, outcome(position, compatibility, kind, dtype), strict=True):
            worst = np.quantile(np.abs(half - right), 0.8 if position in JUMPS else 1)
            assert worst <= tolerance * max(1, np.abs(right).max()), dtype


@pytest.mark.parametrize("by_pair", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_tables_are_summed_accurately(by_pair, shared):
    """Thousands of pairs share a row. A sum in bfloat16 would stop growing at 256."""
    rows = [3, 2] if shared else [2, 3, 2]
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.ones(rows, tf.bfloat16)
        layout = Layout(700, 700)
        y = (pairs.pair_vectors(table, relative.clipped_pairs(table, layout)) if by_pair
             else relative.rows_by_distance(table, layout))
        dx, = tf.gradients(y, table, tf.ones_like(y))
        dx = session.run(tf.cast(dx, tf.float64))
    counts = [700 * 699 / 2, 700, 700 * 699 / 2] if by_pair else [699, 1, 700]
    np.testing.assert_allclose(dx, np.broadcast_to(np.array(counts)[:, None], rows), rtol=0.005)


def test_additive_compatibility_sums_its_gradients_accurately():
    n = 600
    with tf.Graph().as_default(), tf.Session() as session:
        q, k = tf.zeros([1, 1, n, 2], tf.bfloat16), tf.zeros([1, 1, 3, 2], tf.bfloat16)
        vector = tf.ones([1, 2], tf.bfloat16)
        logits = additive_logits(q, k, vector)
        dk, = tf.gradients(logits, k, tf.ones_like(logits))
        np.testing.assert_allclose(session.run(tf.cast(dk, tf.float64)), n, rtol=0.005)
