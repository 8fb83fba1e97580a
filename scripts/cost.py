#!/usr/bin/env python3
"""Estimates the cost of training the paper's models from their graphs. Needs no GPU.

  scripts/cost.py [--utilisation=0.2] [--json=FILE]

For each model it prints:
- parameters;
- floating-point operations per step and device: those of all matrix products, forward and
  backward, with 2 m n k for a product;
- memory per device: weights, gradient, Adam's two moments, and every tensor of the forward pass
  that the backward pass reads. Memory that allocators and kernels need in addition is not included;
- hours of the paper's training at an assumed fraction of the device's peak. `rpr train` reports
  steps/s, from which the fraction of your device follows.
"""
import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr  # noqa: E402

rpr.register()

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.data_generators import problem_hparams  # noqa: E402
from tensor2tensor.utils import registry  # noqa: E402

from rpr.utils import files  # noqa: E402

VOCABULARY = 32768
LENGTH = 32                                           # of a WMT sentence in sub-words, roughly
# Dense peak in FLOP/s from the data sheets (A100 SXM, H100 SXM).
PEAKS = {"A100": {"TF32": 156e12, "half": 312e12},
         "H100": {"TF32": 494e12, "half": 989e12}}
# English-German and English-French differ in dropout alone. Steps: Shaw et al. 2018, section 4.1.
MODELS = {"base": ("rpr_base", 100_000), "big": ("rpr_big_ende", 300_000)}
DEVICES = 8


def size(shape: tf.TensorShape) -> int:
    """The number of elements of a static shape."""
    return int(np.prod(shape.as_list(), dtype=np.int64))


def product_flops(op: tf.Operation) -> int:
    """2 m n k for a matrix product, times the batch; 0 for any other operation."""
    if op.type not in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return 0
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    inner = op.inputs[0].shape.as_list()[-2 if transposed else -1]
    return 2 * size(op.outputs[0].shape) * inner


def count(hparams_set: str) -> tuple[int, int, int]:
    """Counts one step of one device.

    Returns:
      parameters, FLOPs, and bytes that the forward pass keeps for the backward pass.
    """
    hparams = registry.hparams(hparams_set)
    # All shapes must be static, so padding is not removed. Mixed precision selects T2T's loss,
    # which keeps padding too and has the same products.
    hparams.use_pad_remover, hparams.gpu_automatic_mixed_precision = False, True
    with tf.Graph().as_default() as graph:
        problem = problem_hparams.test_problem_hparams(VOCABULARY, VOCABULARY, hparams)
        model = registry.model("rpr_transformer")(hparams, tf.estimator.ModeKeys.TRAIN, problem)
        ids = tf.ones([hparams.batch_size // LENGTH, LENGTH, 1, 1], tf.int32)
        _, losses = model({"inputs": ids, "targets": ids, "target_space_id": tf.constant(1)})
        forward = set(graph.get_operations())
        tf.gradients(sum(losses.values()), tf.trainable_variables())
        backward = [op for op in graph.get_operations() if op not in forward]
        kept = {tensor.name: size(tensor.shape) * tensor.dtype.size for op in backward
                for tensor in op.inputs if tensor.op in forward and tensor.shape.is_fully_defined()
                and tensor.dtype != tf.resource and tensor.op.type != "ReadVariableOp"}
        unknown = [op.name for op in graph.get_operations() if "MatMul" in op.type
                   and not op.outputs[0].shape.is_fully_defined()]
        if unknown:
            raise SystemExit(f"cost.py: no static shape: {', '.join(unknown[:5])}")
        return (sum(size(variable.shape) for variable in tf.trainable_variables()),
                sum(product_flops(op) for op in graph.get_operations()), sum(kept.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--utilisation", type=float, default=0.2,
                        help="assumed fraction of the peak (%(default)s)")
    parser.add_argument("--json", help="also write the results to this file")
    options = parser.parse_args()
    if not 0 < options.utilisation <= 1:
        parser.error("--utilisation must be above 0 and at most 1")
    tf.logging.set_verbosity(tf.logging.ERROR)
    rows = []
    for name, (hparams_set, steps) in MODELS.items():
        start = time.time()
        parameters, flops, kept = count(hparams_set)
        print(f"{hparams_set}: counted in {time.time() - start:.0f} s", file=sys.stderr)
        hours = {(device, kind): steps * flops / (options.utilisation * peak) / 3600
                 for device, peaks in PEAKS.items() for kind, peak in peaks.items()}
        rows.append({"model": name, "parameters": parameters, "steps": steps,
                     "flops_a_device_and_step": flops, "bytes_a_device": 16 * parameters + kept,
                     "hours": {f"{number} {device}, {kind}": DEVICES / number * value
                               for (device, kind), value in hours.items()
                               for number in (DEVICES, 1)}})
    tokens = registry.hparams("rpr_base").batch_size
    print(f"{tokens:,} sub-words per device and step; {DEVICES} devices, or one that accumulates "
          f"{DEVICES} batches; assumed fraction of the peak: {options.utilisation:.0%}\n")
    kinds = list(rows[0]["hours"])
    print(f"| model | parameters | steps | TFLOP per device and step | GB per device | "
          f"{' | '.join(f'hours, {kind}' for kind in kinds)} |")
    print("| --- |" + " ---: |" * (4 + len(kinds)))
    for row in rows:
        print(f"| {row['model']} | {row['parameters']:,} | {row['steps']:,} | "
              f"{row['flops_a_device_and_step'] / 1e12:.2f} | {row['bytes_a_device'] / 1e9:.1f} | "
              f"{' | '.join(f'{hours:.1f}' for hours in row['hours'].values())} |")
    if options.json:
        files.write_atomically(options.json, json.dumps(
            {"utilisation": options.utilisation, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
