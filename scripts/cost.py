#!/usr/bin/env python3
"""Estimates the cost of training the paper's models from their graphs. Needs no GPU.

  scripts/cost.py [--utilisation=0.1,0.4] [--measure=TOKENS]

For each model it prints:
- parameters;
- floating-point operations per step and device: those of all matrix products, forward and
  backward, with 2 m n k for a product;
- memory per device: weights, gradient, Adam's two moments, and every tensor of the forward pass
  that the backward pass reads. Memory that allocators and kernels need in addition is not included;
- hours of the paper's training, from the best to the worst of two assumed fractions of the
  device's peak. `rpr train` reports steps/s, from which the fraction of your device follows.

--measure runs a training step of each model with that many sub-words on the CPU, and compares what
TensorFlow reports of it: the matrix products of the graph that runs, and the peak of what the step
allocates (weights and Adam's moments excluded). Big needs about 6 GB.
"""
import argparse
import math
import os
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr  # noqa: E402

rpr.register()

import numpy as np  # noqa: E402
import step_trace  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.data_generators import problem_hparams  # noqa: E402
from tensor2tensor.utils import registry  # noqa: E402

from rpr.cli.arguments import number  # noqa: E402
from rpr.training.model_flops import PEAKS  # noqa: E402

VOCABULARY = 32768
LENGTH = 32                                           # of a WMT sentence in sub-words, roughly
CARDS = ("A100", "H100")                              # SXM
# English-German and English-French differ in dropout alone. Steps: Shaw et al. 2018, section 4.1.
MODELS = {"base": ("rpr_base", 100_000), "big": ("rpr_big_ende", 300_000)}
DEVICES = 8
# Operations whose output is their input, in the same memory.
ALIASES = ("Reshape", "Identity", "IdentityN", "ExpandDims", "Squeeze", "StopGradient",
           "EnsureShape")


class Cost(NamedTuple):
    """One training step of one device.

    Attributes:
      parameters: how many.
      flops: FLOPs of all matrix products, forward and backward.
      kept: bytes that the forward pass keeps for the backward pass.
    """
    parameters: int
    flops: int
    kept: int


def product_flops(op: tf.Operation) -> int:
    """2 m n k for a matrix product, times the batch; 0 for any other operation."""
    if op.type not in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 0
    if not op.outputs[0].shape.is_fully_defined():
        raise SystemExit(f"cost.py: no static shape: {op.name}")
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    inner = op.inputs[0].shape.as_list()[-2 if transposed else -1]
    return 2 * math.prod(op.outputs[0].shape.as_list()) * inner


def buffer_of(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory a tensor shares."""
    while tensor.op.type in ALIASES or tensor.op.type.startswith("convert_gradient_to_tensor"):
        tensor = tensor.op.inputs[tensor.value_index]    # T2T's function is an identity
    return tensor


def needed(tensors: list[tf.Tensor]) -> set[tf.Operation]:
    """The operations that TensorFlow runs to compute tensors."""
    operations, todo = set(), [tensor.op for tensor in tensors]
    while todo:
        op = todo.pop()
        if op not in operations:
            operations.add(op)
            todo += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return operations


def count(hparams_set: str, tokens: int | None = None) -> Cost:
    """Counts one step of one device.

    Args:
      hparams_set: a registered set.
      tokens: sub-words per side; None: those of the set.
    """
    hparams = registry.hparams(hparams_set)
    tokens = tokens or hparams.batch_size
    hparams.use_pad_remover = False                    # makes shapes static
    with tf.Graph().as_default() as graph:
        problem = problem_hparams.test_problem_hparams(VOCABULARY, VOCABULARY, hparams)
        model = registry.model("rpr_transformer")(hparams, tf.estimator.ModeKeys.TRAIN, problem)
        ids = tf.ones([tokens // LENGTH, LENGTH, 1, 1], tf.int32)
        _, losses = model({"inputs": ids, "targets": ids, "target_space_id": tf.constant(1)})
        forward = set(graph.get_operations())
        gradients = tf.gradients(sum(losses.values()), tf.trainable_variables())
        step = needed([tf.convert_to_tensor(gradient) for gradient in gradients
                       if gradient is not None])
        backward = step - forward
        buffers = {buffer_of(tensor) for op in backward for tensor in op.inputs
                   if tensor.op in forward}
        kept = sum(math.prod(tensor.shape.as_list()) * tensor.dtype.size for tensor in buffers
                   if tensor.op.type not in ("ReadVariableOp", "VarHandleOp")
                   and tensor.shape.rank is not None)
        return Cost(sum(math.prod(v.shape.as_list()) for v in tf.trainable_variables()),
                    sum(product_flops(op) for op in step), kept)


def measure(hparams_set: str, tokens: int) -> tuple[int, int]:
    """FLOPs of the matrix products, and peak of the bytes allocated, of one step on the CPU."""
    import bench_step
    step = bench_step.TrainingStep(argparse.Namespace(device="cpu"), "relative", hparams_set,
                                   VOCABULARY)
    ids = np.random.RandomState(0).randint(2, VOCABULARY, [tokens // LENGTH, LENGTH, 1, 1])
    step({"inputs": ids, "targets": ids})              # the first step allocates more
    metadata = step.trace({"inputs": ids, "targets": ids})
    step.session.close()
    return step_trace.product_flops(metadata), step_trace.peak_bytes(metadata, "cpu")


def compare(tokens: int) -> list[dict]:
    """Prints and returns counts next to measurements of each model."""
    print(f"\n{tokens:,} sub-words on the CPU; memory of a step without weights and moments\n")
    print("| model | GFLOP, counted | measured | ratio | GB, counted | measured | ratio |")
    print("| --- |" + " ---: |" * 6)
    records = []
    for name, (hparams_set, _) in MODELS.items():
        cost, (flops, peak) = count(hparams_set, tokens), measure(hparams_set, tokens)
        memory = 4 * cost.parameters + cost.kept       # gradients and what the backward pass reads
        records.append({"model": name, "tokens": tokens, "flops": cost.flops,
                        "measured_flops": flops, "bytes": memory, "measured_bytes": peak})
        print(f"| {name} | {cost.flops / 1e9:.1f} | {flops / 1e9:.1f} | {flops / cost.flops:.3f} | "
              f"{memory / 1e9:.2f} | {peak / 1e9:.2f} | {peak / memory:.2f} |", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--utilisation", default="0.1,0.4",
                        help="assumed fractions of the peak, lowest and highest (%(default)s)")
    parser.add_argument("--measure", type=number(LENGTH), metavar="TOKENS",
                        help="also run steps of so many sub-words on the CPU")
    options = parser.parse_args()
    try:
        low, high = map(float, options.utilisation.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low <= high <= 1:
        parser.error(f"--utilisation={options.utilisation}: LOWEST,HIGHEST, both above 0 and at "
                     "most 1")
    tf.logging.set_verbosity(tf.logging.ERROR)
    # {devices: their FLOP/s at the peak}
    peaks = {f"{number} {device}, {kind}": number * peak * 1e12 for device in CARDS
             for kind, peak in zip(("TF32", "half"), PEAKS[device], strict=True)
             for number in (DEVICES, 1)}
    tokens = registry.hparams("rpr_base").batch_size
    print(f"{tokens:,} sub-words per device and step; {DEVICES} devices, or one that accumulates "
          f"{DEVICES} batches; assumed fraction of the peak: {low:.0%} to {high:.0%}\n")
    print(f"| model | parameters | steps | TFLOP per device and step | GB per device | "
          f"{' | '.join(f'hours, {devices}' for devices in peaks)} |")
    print("| --- |" + " ---: |" * (4 + len(peaks)))
    for name, (hparams_set, steps) in MODELS.items():
        parameters, flops, kept = count(hparams_set)
        hours = [DEVICES * steps * flops / peak / 3600 for peak in peaks.values()]
        ranges = " | ".join(f"{each / high:.1f} to {each / low:.1f}" for each in hours)
        print(f"| {name} | {parameters:,} | {steps:,} | {flops / 1e12:.2f} | "
              f"{(16 * parameters + kept) / 1e9:.1f} | {ranges} |", flush=True)
    if options.measure:
        compare(options.measure)


if __name__ == "__main__":
    main()
