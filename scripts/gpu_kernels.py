#!/usr/bin/env python3
"""Writes the table of the GPU kernels that the installed TensorFlow registers.

  scripts/gpu_kernels.py [--out=tests/data/gpu_kernels-VERSION.json]

The wheel `tensorflow` has GPU kernels, the wheel `tensorflow-cpu` has none. No GPU and no CUDA
library is needed: kernels are registered when TensorFlow is imported. The table is for tests on
machines without a GPU (tests/integration/test_gpu_kernels.py). It maps each operation to a list of
kernels, each a map from a type attribute to the types that the kernel is registered for; a type
attribute that is not listed is not constrained.
"""
import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = pathlib.Path(__file__).resolve().parent.parent


def gpu_kernels() -> dict[str, list[dict[str, list[str]]]]:
    """{operation: [{type attribute: types} of each GPU kernel]}."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels
    table: dict[str, list[dict[str, list[str]]]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type not in ("GPU", "DEFAULT"):     # DEFAULT: any device without its own
            continue
        constraint = {item.name: sorted(tf.as_dtype(kind).name
                                        for kind in item.allowed_values.list.type)
                      for item in kernel.constraint}
        if constraint not in table.setdefault(kernel.op, []):
            table[kernel.op].append(constraint)
    return {name: sorted(table[name], key=json.dumps) for name in sorted(table)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="file to write (tests/data/gpu_kernels-VERSION.json)")
    options = parser.parse_args()
    import tensorflow as tf
    table = gpu_kernels()
    if not table:
        sys.exit(f"gpu_kernels.py: TensorFlow {tf.__version__} here has no GPU kernels; the wheel "
                 "`tensorflow` (scripts/setup gpu) has them")
    out = pathlib.Path(options.out or ROOT / "tests" / "data"
                       / f"gpu_kernels-{tf.__version__}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(kernels, separators=(',', ':'))}"
             for name, kernels in table.items()]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{out}: {len(table)} operations with GPU kernels, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
