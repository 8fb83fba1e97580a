"""metrics.jsonl and files that are written whole: also when a crash or a full disk cuts them."""
import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpr.utils import files, metrics_log
from rpr.utils.errors import UserError


@given(st.integers(0, 200))
def test_a_line_that_was_cut_is_left_out_and_the_next_one_is_whole(tmp_path_factory, length):
    path = str(tmp_path_factory.mktemp("metrics") / "metrics.jsonl")
    for step in (1, 2, 3):
        metrics_log.append(path, "train", step=step)
    whole = os.path.getsize(path)
    os.truncate(path, min(length, whole))
    kept = [event["step"] for event in metrics_log.read(path)]
    assert kept == [1, 2, 3][:len(kept)] and len(kept) >= 3 * min(length, whole) // whole
    metrics_log.append(path, "eval", step=9)
    assert [event["step"] for event in metrics_log.read(path)] == [*kept, 9]


def test_the_last_of_each_kind(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    assert metrics_log.last(path) == {}
    for step in range(5000):
        metrics_log.append(path, "train", step=step)
    metrics_log.append(path, "eval", step=7)
    assert {name: event["step"] for name, event in metrics_log.last(path).items()} == {
        "train": 4999, "eval": 7}


def test_a_full_disk_is_named_and_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    path.write_text("before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device.*status.json"):
        files.write_atomically(str(path), "after")
    assert os.listdir(tmp_path) == ["status.json"] and path.read_text() == "before"


def test_a_json_file_that_is_not_there_holds_nothing(tmp_path):
    path = tmp_path / "status.json"
    assert files.read_json(path) == {}
    path.write_text('{"train": 1}')
    assert files.read_json(path) == {"train": 1}


def test_a_line_that_is_no_event_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "train", "step": 1}\n{"event": "train", "step": "2"}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2 is damaged: step is '2'"):
        metrics_log.read(str(path))
    for fields, told in (('"step": -1', "step is -1"), ('"loss": 1' + "0" * 400, "loss is 1000"),
                         ('"time": 1e999', "time is inf"), ('"cut": 2.5', "cut is 2.5"),
                         ('"steps_per_second": NaN', "steps_per_second is nan"),
                         ('"neg_log_perplexity": "x"', "neg_log_perplexity is 'x'")):
        path.write_text(f'{{"event": "train", {fields}}}\n')
        with pytest.raises(UserError, match=f"line 1 is damaged: {told}.*; remove the line"):
            metrics_log.read(str(path))
    path.write_text("no JSON\n")
    with pytest.raises(UserError, match="no event in it; remove it"):
        metrics_log.read(str(path))
