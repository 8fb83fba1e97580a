"""metrics.jsonl: the events of a training, one JSON object per line, oldest first.

| event | fields |
| --- | --- |
| `start` | `step`, `parameters` (trainable), `time` |
| `train` | `step`, `loss` (nats per target token), `steps_per_second`, `time`; since the last: |
|         | `source_tokens_per_second`, `target_tokens_per_second`, `padding` (share of positions) |
|         | of the chief's machine; `peak_memory` (bytes, of the fullest GPU, else the process); |
|         | of Transformers `model_tflops` (TFLOP/s by `model_flops`, of that machine), and `mfu` |
|         | (their share of its GPUs' dense peak, where that is known) |
| `eval` | `step`, `loss` (nats per token of the development set) and T2T's metrics on it |
| `decode` | `sentences`, `tokens`, `seconds`, `sentences_per_second`, `tokens_per_second`; `cut` |
|          | (hypotheses of the whole file that stopped at the length limit) |

`time` is in seconds since 1970. A line that a crash cut off is ignored. Steps never decrease:
`forget_after` removes the events that training from a checkpoint repeats.
"""
import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any

from rpr.utils.errors import UserError
from rpr.utils.files import append_line, atomic_path, open_regular
from rpr.utils.schema import AnyFloat, convert

Event = dict[str, Any]

_TAIL = 1 << 16                                       # bytes of the last hundreds of events
_SCHEMA = {"event": str, "step?": int, "parameters?": int, "cut?": (int, None),
           "loss?": (AnyFloat, None), "neg_log_perplexity?": (AnyFloat, None),
           "steps_per_second?": (float, None),
           "model_tflops?": (float, None), "mfu?": (float, None),
           "approx_bleu_score?": (float, None), "time?": (float, None)}
_TRAIN = b'{"event": "train"'
CHECKSUMS = "checksums.jsonl"


def events(path: str, every: int = 1) -> Iterator[Event]:
    """Yields the events of a metrics file, oldest first; nothing if the file does not exist.

    Of the `train` events, only one in `every` is yielded.
    """
    count = 0
    with contextlib.suppress(FileNotFoundError), open_regular(path) as lines:
        for number, line in enumerate(lines, 1):
            if every > 1 and line.startswith(_TRAIN):
                count += 1
                if count % every:
                    continue
            event = _parse(line, f"{path}, line {number}")
            if event:
                yield event


def read(path: str, most_train: int | None = None) -> list[Event]:
    """Returns the events of a metrics file, oldest first; an empty list if it does not exist.

    If it has more than `most_train` events of `train`, evenly spaced ones are returned. A damaged
    file is refused.
    """
    if not os.path.exists(path):
        return []
    every = 1
    if most_train:
        with open_regular(path) as lines:
            every = max(1, -(-sum(line.startswith(_TRAIN) for line in lines) // most_train))
    kept = list(events(path, every))
    if not kept:
        with open_regular(path) as lines:
            if b"\n" in lines.read(_TAIL):
                raise UserError(f"{path} is damaged: no event in it; remove it")
    return kept


def loss_of(event: Event) -> float:
    """The loss of a `train` or `eval` event in nats per token; NaN if it was not recorded.

    Up to version 0.1.0, the `loss` of an `eval` event was the mean of its batches' means. Its
    `neg_log_perplexity` has always been the mean over tokens, with the opposite sign.
    """
    loss = event.get("loss")
    if event["event"] == "eval" and event.get("neg_log_perplexity") is not None:
        loss = -event["neg_log_perplexity"]
    return math.nan if loss is None else loss


def last(path: str) -> dict[str, Event]:
    """The last event of each kind among the last hundreds of events."""
    latest: dict[str, Event] = {}
    with contextlib.suppress(FileNotFoundError), open_regular(path) as lines:
        size = os.fstat(lines.fileno()).st_size
        lines.seek(max(0, size - _TAIL))
        if size > _TAIL:
            lines.readline()                          # the rest of a line
        for line in reversed(lines.readlines()):
            if "train" in latest and line.startswith(_TRAIN):
                continue
            event = _parse(line, path)
            if event:
                latest.setdefault(event["event"], event)
    return latest


def _parse(line: bytes, place: str) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    try:
        return convert(event, _SCHEMA)
    except ValueError as error:
        raise UserError(f"{place} is damaged: {error}; remove the line") from None


def append(path: str, event: str, **fields: Any) -> None:
    """Adds one event."""
    append_line(path, json.dumps({"event": event, **fields}))


def forget_after(path: str, step: int) -> None:
    """Removes the events of steps that a crash lost: training resumes from `step`."""
    if not os.path.exists(path):
        return
    with open_regular(path) as file:
        lines = file.readlines()
    count = len(lines)
    for index in reversed(range(count)):
        event = _parse(lines[index], path)
        if event and event.get("step", step + 1) <= step and event["event"] != "decode":
            break
        if not event or event.get("step", 0) > step:
            del lines[index]
    if len(lines) < count:
        with atomic_path(path) as temporary, open(temporary, "wb") as out:
            out.writelines(lines)


def append_checksums(model_dir: str, step: int, tensors: dict[str, str]) -> None:
    """Adds the checksums of the checkpoint at `step`."""
    append_line(os.path.join(model_dir, CHECKSUMS), json.dumps({"step": step, "tensors": tensors}))


def read_checksums(model_dir: str) -> dict[int, dict[str, str]]:
    """{step: {tensor: checksum}}; {} if there is no file. Ignores lines that a crash cut off."""
    checkpoints, path = {}, os.path.join(model_dir, CHECKSUMS)
    with contextlib.suppress(FileNotFoundError), open_regular(path) as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                checkpoints[int(entry["step"])] = dict(entry["tensors"])
    return checkpoints
