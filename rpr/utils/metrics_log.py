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


def read_json(path):
    """What a JSON file holds; an empty dict where there is none."""
    try:
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except FileNotFoundError:
        return {}


def write_atomically(path, text):
    """Writes a whole file or none of it."""
    with _named(path):
        try:
            with open(path + ".part", "w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(path + ".part", path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path + ".part")
            raise


@contextlib.contextmanager
def _named(path):
    """A write to an open file fails without saying which."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise
