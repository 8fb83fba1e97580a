#!/usr/bin/env python3
"""Writes the table of the GPU kernels that the installed TensorFlow registers.

  scripts/gpu_kernels.py [--out=tests/data/gpu_kernels-VERSION.json]

The wheel `tensorflow` has GPU kernels, the wheel `tensorflow-cpu` has none. No GPU and no CUDA
library is needed: kernels are registered when TensorFlow is imported. The table is for tests on
machines without a GPU (tests/gpu_kernels.py); scripts/gpu_placement.py describes its content.
"""
import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="file to write (tests/data/gpu_kernels-VERSION.json)")
    options = parser.parse_args()
    import gpu_placement
    import tensorflow as tf

    from rpr.utils import files
    table = gpu_placement.registered_kernels()
    if "MatMul" not in table:
        sys.exit(f"gpu_kernels.py: TensorFlow {tf.__version__} here has no GPU kernels; the wheel "
                 "`tensorflow` (scripts/setup gpu) has them")
    out = options.out or str(ROOT / "tests" / "data" / f"gpu_kernels-{tf.__version__}.json")
    lines = [f"{json.dumps(name)}: {json.dumps(kernels, separators=(',', ':'))}"
             for name, kernels in table.items()]
    files.write_atomically(out, "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{out}: {len(table)} operations with GPU kernels, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
