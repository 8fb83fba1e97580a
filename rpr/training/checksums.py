"""Checksums of the tensors of each checkpoint of a training, kept when checkpoints are deleted.

checksums.jsonl in the model's directory holds one JSON object per checkpoint:
{"step": 100, "tensors": {"transformer/body/...": "9a0c11d2", ...}}, with the CRC-32 of the bytes of
each tensor. `rpr verify` compares them.
"""
import json
import os
import zlib

import tensorflow.compat.v1 as tf

from rpr.utils.files import open_append

CHECKSUMS = "checksums.jsonl"


def checkpoint_checksums(path: str) -> dict[str, str]:
    """{tensor: CRC-32 of its bytes} of a checkpoint.

    Args:
      path: without suffix.
    """
    reader = tf.train.load_checkpoint(path)
    return {name: f"{zlib.crc32(reader.get_tensor(name).tobytes()):08x}"
            for name in sorted(reader.get_variable_to_shape_map())}


def append_checksums(model_dir: str, step: int) -> None:
    """Adds the checksums of the checkpoint at `step`."""
    tensors = checkpoint_checksums(os.path.join(model_dir, f"model.ckpt-{step}"))
    with open_append(os.path.join(model_dir, CHECKSUMS)) as lines:
        lines.write((json.dumps({"step": step, "tensors": tensors}) + "\n").encode())
