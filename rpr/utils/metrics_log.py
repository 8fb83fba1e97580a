"""metrics.jsonl: what happened in a training, one JSON object a line.

| event | fields |
| --- | --- |
| `start` | `step`, `parameters` (trainable), `time` |
| `train` | `step`, `loss` (nats a target token), `steps_per_second`, `time`; since the last: |
|         | `source_tokens_per_second`, `target_tokens_per_second`, `padding` (share of places), |
|         | of the chief's machine where there are several; `peak_memory` (bytes; of the fullest |
|         | GPU, or without one of the process) |
| `eval` | `step`, `loss` and T2T's metrics on the development set |
| `decode` | `sentences`, `tokens`, `seconds`, `sentences_per_second`, `tokens_per_second` |

`time` is in seconds since 1970.
"""
import contextlib
import json
import os

from rpr.utils.files import _named, write_atomically


def read(path):
    """The events of a metrics file, oldest first; a line that a crash cut is left out."""
    events = []
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return events


def last(path):
    """{event: the last of its kind} among the last hundreds of events."""
    found = {}
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        lines.seek(max(0, os.path.getsize(path) - 65536))
        for line in lines:
            with contextlib.suppress(ValueError):     # the first may begin in the middle
                event = json.loads(line)
                found[event["event"]] = event
    return found


def append(path, event, **fields):
    """Adds one event."""
    line = json.dumps({"event": event, **fields}) + "\n"
    with _named(path), open(path, "ab+") as lines:
        if lines.tell() and lines.seek(-1, os.SEEK_END) >= 0 and lines.read() != b"\n":
            line = "\n" + line                       # the last one was cut
        lines.write(line.encode())


def forget_after(path, step):
    """Drops the events of steps that a crash lost: training goes on from `step`."""
    events = read(path)
    keep = [event for event in events if event.get("step", 0) <= step]
    if os.path.exists(path):
        write_atomically(path, "".join(json.dumps(event) + "\n" for event in keep))
