"""metrics.jsonl: what happened in a training, one JSON object a line.

| event | fields |
| --- | --- |
| `start` | `step`, `parameters` (trainable), `time` |
| `train` | `step`, `loss` (nats a target token), `steps_per_second`, `time`; since the last: |
|         | `source_tokens_per_second`, `target_tokens_per_second`, `padding` (share of places) |
| `eval` | `step`, `loss` and T2T's metrics on the development set |
| `decode` | `sentences`, `tokens`, `seconds`, `sentences_per_second`, `tokens_per_second` |

`time` is in seconds since 1970.
"""
import json
import os


def read(path):
    """The events of a metrics file, oldest first; a last line that a crash cut is left out."""
    try:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []


def append(path, event, **fields):
    """Adds one event."""
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(json.dumps({"event": event, **fields}) + "\n")


def forget_after(path, step):
    """Drops the events of steps that a crash lost: training goes on from `step`."""
    events = read(path)
    keep = [event for event in events if event.get("step", 0) <= step]
    if os.path.exists(path):
        write_atomically(path, "".join(json.dumps(event) + "\n" for event in keep))


def write_atomically(path, text):
    """Writes a whole file or none of it."""
    with open(path + ".part", "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(path + ".part", path)
