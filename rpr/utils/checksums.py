"""checksums.jsonl of a model's directory: the checksum of each tensor of each checkpoint.

One JSON object per line: {"step": 100, "tensors": {"transformer/body/...": "9a0c11d2", ...}}. They
stay when checkpoints are deleted.
"""
import json
import os

from rpr.utils.files import append_line

FILE = "checksums.jsonl"


def append(model_dir: str, step: int, tensors: dict[str, str]) -> None:
    """Adds the checksums of the checkpoint at `step`."""
    append_line(os.path.join(model_dir, FILE), json.dumps({"step": step, "tensors": tensors}))


def read(model_dir: str) -> dict[int, dict[str, str]]:
    """{step: {tensor: checksum}}; empty if there is no file. Lines cut off by a crash are ignored.
    """
    checkpoints = {}
    try:
        with open(os.path.join(model_dir, FILE), encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                    checkpoints[int(entry["step"])] = dict(entry["tensors"])
                except (ValueError, KeyError, TypeError):
                    continue
    except FileNotFoundError:
        pass
    return checkpoints
