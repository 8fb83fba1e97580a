"""Parts of gpu_check.py, in processes of their own with a time limit."""
import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from rpr.utils import processes

T = TypeVar("T")


class Result(NamedTuple):
    """Lines of the Markdown table, (what, value), and all that was measured, for the JSON file."""
    rows: list[tuple[str, str]]
    records: Any


def in_time(items: Mapping[str, T], options: argparse.Namespace) -> Iterator[tuple[str, T]]:
    """The items that a part can do before its time is up, if none takes twice the longest yet."""
    longest = 0.0
    for item in items.items():
        start = time.monotonic()
        if start + 2 * longest > options.deadline:
            return
        yield item
        longest = max(longest, time.monotonic() - start)


def run_part(function: Callable[[argparse.Namespace], Result], seconds: float,
             options: argparse.Namespace) -> dict[str, Any]:
    """Runs a part in a separate process: {"seconds", "rows", "records"} or {"seconds", "error"}.

    `options.deadline` tells the part when its time is up.
    """
    start = time.monotonic()
    options.deadline = start + seconds
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # This process has no TensorFlow session and has not touched a GPU, so it can be forked.
    process = multiprocessing.get_context("fork").Process(
        target=_run_in_child, args=(function, options, sender, os.getpid()))
    process.start()
    sender.close()
    try:
        if receiver.poll(seconds):
            outcome = receiver.recv()
            process.join(10)                          # prints what it has printed so far
        else:
            outcome = {"error": f"took longer than {seconds} seconds"}
    except EOFError:                                  # it was killed, or crashed
        process.join()
        outcome = {"error": f"ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
    return {"seconds": round(time.monotonic() - start, 1), **outcome}


def _run_in_child(function: Callable[[argparse.Namespace], Result], options: argparse.Namespace,
                  sender: Connection, parent: int) -> None:
    processes.die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sender.send(function(options)._asdict())
    except BaseException as error:                    # whatever it is, the other parts go on
        sender.send({"error": f"{type(error).__name__}: {error}"[-2000:]})
