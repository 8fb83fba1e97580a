"""Files in directories that other people can write to; records; locks."""
import dataclasses
import json
import os
import stat
import subprocess
import sys
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpr.utils import files, locks, metrics_log
from rpr.utils.errors import UserError
from rpr.utils.schema import convert, parse


@pytest.fixture
def private(tmp_path):
    """A file outside the directory that is written to."""
    path = tmp_path / "private"
    path.write_text("mine")
    return path


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "shared"
    path.mkdir()
    return path


def test_a_long_name_of_characters_of_several_bytes(shared):
    path = shared / ("\u6c49" * 78)                     # 234 bytes
    files.write_atomically(str(path), "text")
    assert path.read_text() == "text"


def test_a_pipe_in_place_of_a_lock_holds_nothing(shared):
    os.mkfifo(shared / ".lock")
    assert not locks.is_held(str(shared / ".lock"))


@pytest.mark.parametrize("name", ["results.md", "results.md.part", ".results.md.tmp"])
def test_a_write_does_not_follow_a_link(private, shared, name):
    (shared / name).symlink_to(private)
    files.write_atomically(str(shared / "results.md"), "theirs")
    assert private.read_text() == "mine"
    assert (shared / "results.md").read_text() == "theirs"
    assert not (shared / "results.md").is_symlink()


def test_temporary_names_differ_and_leave_nothing(shared):
    names = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), files.atomic_path(str(shared / "x")) as path:
            names.append(os.path.basename(path))
            assert os.listdir(shared) == [names[-1]]
            raise ZeroDivisionError
    assert names[0] != names[1] and os.listdir(shared) == []


def test_a_written_file_has_the_permissions_of_the_umask(shared):
    before = os.umask(0o027)
    try:
        files.write_atomically(str(shared / "x"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((shared / "x").stat().st_mode) == 0o640


def test_a_device_is_written_to_and_stays_a_device():
    files.write_atomically("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_standard_stream_that_is_a_file_is_written_and_stays_a_link(shared):
    with open(shared / "out", "wb") as out:           # as /dev/stdout of `rpr ... > out`
        files.write_atomically(f"/dev/fd/{out.fileno()}", "x")
    assert (shared / "out").read_text() == "x" and os.listdir(shared) == ["out"]


def test_the_longest_name_of_a_path_is_that_of_the_most_bytes():
    with pytest.raises(UserError, match="a name of 300 bytes"):
        files.refuse_unusable(f"/tmp/{'x' * 200}/{'中' * 100}")


def test_what_a_killed_writer_left_is_removed_and_no_file_of_a_living_one(shared, private):
    (shared / ".x.0123456789abcdef.tmp").touch()
    (shared / "other.tmp").write_text("stays")
    (shared / ".user.tmp").write_text("stays")
    (shared / ".x.1123456789abcdef.tmp").symlink_to(private)
    with files.atomic_path(str(shared / "x")) as temporary:
        files.remove_temporary_files(str(shared))
        assert sorted(os.listdir(shared)) == sorted(
            [os.path.basename(temporary), ".user.tmp", ".x.1123456789abcdef.tmp", "other.tmp"])
    assert sorted(os.listdir(shared)) == [".user.tmp", ".x.1123456789abcdef.tmp", "other.tmp", "x"]
    assert private.read_text() == "mine"
    files.remove_temporary_files(str(shared / "missing"))


def test_nothing_is_appended_through_a_link(private, shared):
    (shared / "metrics.jsonl").symlink_to(private)
    with pytest.raises(UserError, match=r"metrics\.jsonl is a symbolic link"):
        metrics_log.append(str(shared / "metrics.jsonl"), "train", step=1)
    assert private.read_text() == "mine"


@pytest.mark.parametrize("path", ["../private", "/etc/passwd", "link", "link/x", "a/../../private"])
def test_a_path_that_leads_out_of_a_directory_is_refused(private, shared, path):
    (shared / "link").symlink_to(private.parent)
    with pytest.raises(UserError, match="is not inside"):
        files.below(str(shared), path)


def test_a_path_inside_a_directory_that_is_reached_by_a_link(shared, tmp_path):
    (tmp_path / "link").symlink_to(shared)
    assert files.below(str(tmp_path / "link"), "runs/x") == str(tmp_path / "link" / "runs/x")


SCHEMA = {"name": str, "runs?": [{"seed": int, "bleu": (float, None)}], "state": ("on", "off")}


@pytest.mark.parametrize("value", [
    {"name": "a", "state": "on", "more": 1},
    {"name": "a", "state": "on", "runs": [{"seed": 1, "bleu": 2}, {"seed": 1, "bleu": None}]}])
def test_a_record_that_matches_stays_as_it_is(value):
    assert convert(value, SCHEMA) == value


@pytest.mark.parametrize("value, problem", [
    ([], "it is [], where an object is needed"),
    ({"name": "a"}, "'state' is missing"),
    ({"name": 1, "state": "on"}, "name is 1, where text is needed"),
    ({"name": "a", "state": "up"}, "state is 'up', where 'on' or 'off' is needed"),
    ({"name": "a", "state": "on", "runs": {}}, "runs is {}, where a list is needed"),
    ({"name": "a", "state": "on", "runs": [{"seed": True, "bleu": 1}]},
     "runs[0].seed is True, where a whole number from 0 is needed"),
    ({"name": "a", "state": "on", "runs": [{"seed": -1, "bleu": 1}]},
     "runs[0].seed is -1, where a whole number from 0 is needed"),
    ({"name": "a", "state": "on", "runs": [{"seed": 1}]}, "runs[0]: 'bleu' is missing"),
])
def test_a_schema_says_where_a_record_differs(value, problem):
    with pytest.raises(ValueError) as error:
        convert(value, SCHEMA)
    assert str(error.value) == problem


@dataclasses.dataclass
class Inner:
    kind: Literal["a", "b"]
    values: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outer:
    name: str
    inner: Inner | None
    more: dict[str, Inner] = dataclasses.field(default_factory=dict)


def test_objects_become_instances():
    record = {"name": "x", "inner": {"kind": "a", "values": [1, 2.5]}, "more": {"y": {"kind": "b"}}}
    assert convert(record, Outer) == Outer("x", Inner("a", [1, 2.5]), {"y": Inner("b")})
    assert convert({"name": "x", "inner": None}, Outer) == Outer("x", None)


@pytest.mark.parametrize("change, problem", [
    ({"inner": {"kind": "c"}}, "inner.kind is 'c', where 'a' or 'b' is needed"),
    ({"inner": {"kind": "a", "values": ["1"]}}, "inner.values[0] is '1', where a number is needed"),
    ({"other": 1}, "'other' is unknown"), ({"more": {"y": {}}}, "more.y: 'kind' is missing"),
    ({"name": None}, "name is None, where text is needed")])
def test_an_object_with_other_fields_is_refused(change, problem):
    with pytest.raises(ValueError) as error:
        convert({"name": "x", "inner": None} | change, Outer)
    assert str(error.value) == problem


@pytest.mark.parametrize("text, told", [
    ("1" * 5000, "is too large"), (str(2**63), "is too large"), ("-1e999", "is too large"),
    ("NaN", "NaN is not valid"), ("[" * 900 + "]" * 900, "nested too deeply"),
    ("[" * 9999, "nested too deeply"), ('{"a": ' * 900 + "1" + "}" * 900, "nested too deeply"),
    ("{", "Expecting property name")])
def test_json_that_nothing_can_be_done_with_is_refused(text, told):
    with pytest.raises(ValueError, match=told) as error:
        parse(text)
    assert len(str(error.value)) < 120


def test_json_text_can_be_used_in_paths_and_files():
    assert parse(r'{"a\u0000": ["\ud800", "\ud83d\ude00\n"]}') == {
        "a\ufffd": ["\ufffd", "\U0001f600\n"]}


json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                           lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(json_values, st.integers(0, 40), st.binary(max_size=4))
def test_a_damaged_record_is_read_or_refused_in_one_line(tmp_path_factory, value, at, change):
    path = tmp_path_factory.mktemp("records") / "status.json"
    text = bytearray(json.dumps(value).encode())
    text[at:at + len(change)] = change
    path.write_bytes(text)
    try:
        assert convert(files.read_json(str(path), SCHEMA), SCHEMA)
    except UserError as error:
        assert str(error).startswith(f"{path} is damaged: ") and "; remove it" in str(error)


def test_a_lock_belongs_to_its_owner_alone_and_says_who_holds_it(shared):
    path = str(shared / ".lock")
    open(path, "w").close()
    os.chmod(path, 0o644)
    with locks.lock(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with (pytest.raises(UserError, match=f"is using it: process {os.getpid()} on "),
              locks.lock(path, wait=False)):
            pass


WAITER = """
import sys
from rpr.utils import locks
with locks.locked(sys.argv[1]):
    print("mine", flush=True)
"""


def test_a_process_that_waits_says_for_whom(shared):
    target = str(shared / "data")
    with locks.locked(target):
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, target], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = waiter.stderr.readline()
        assert f"waiting for process {os.getpid()} on " in line and ".data.lock" in line
        assert waiter.poll() is None
    assert waiter.communicate(timeout=60)[0] == "mine\n"


def test_a_lock_is_not_opened_through_a_link(private, shared):
    (shared / ".lock").symlink_to(private)
    with pytest.raises(UserError, match="symbolic link"), locks.lock(str(shared / ".lock")):
        pass
    assert private.read_text() == "mine"


def test_nothing_is_written_into_a_hard_link_in_place_of_a_lock(private, shared):
    os.link(private, shared / ".lock")
    with pytest.raises(UserError, match="hard link"), locks.lock(str(shared / ".lock")):
        pass
    assert private.read_text() == "mine"


def test_few_of_many_events_are_parsed(tmp_path, monkeypatch):
    path = str(tmp_path / "metrics.jsonl")
    line = '{{"event": "train", "step": {}, "loss": 3.0, "steps_per_second": 1.0}}\n'
    with open(path, "w") as out:
        out.write('{"event": "start", "step": 0, "parameters": 7}\n')
        out.writelines(map(line.format, range(10, 1_000_000, 10)))
    parse, parsed = metrics_log._parse, []
    monkeypatch.setattr(metrics_log, "_parse", lambda *line: parsed.append(1) or parse(*line))
    assert metrics_log.last(path)["train"]["step"] == 999_990
    metrics_log.forget_after(path, 999_000)
    assert metrics_log.last(path)["train"]["step"] == 999_000
    events = metrics_log.read(path, most_train=1000)
    assert events[0]["parameters"] == 7 and 900 < len(events) <= 1001
    steps = [event["step"] for event in events]
    assert steps == sorted(steps) and steps[-1] > 990_000
    assert len(parsed) < len(events) + 200


@given(st.lists(st.sampled_from(["train", "eval", "decode"]), max_size=30), st.integers(0, 31),
       st.booleans())
def test_forgetting_keeps_what_is_not_repeated(tmp_path_factory, kinds, step, cut):
    path = str(tmp_path_factory.mktemp("metrics") / "metrics.jsonl")
    for number, kind in enumerate(kinds):
        metrics_log.append(path, kind, **({} if kind == "decode" else {"step": number}))
    if cut and kinds:
        os.truncate(path, os.path.getsize(path) - 3)
    before = metrics_log.read(path) if kinds else []
    metrics_log.forget_after(path, step)
    kept = metrics_log.read(path) if os.path.exists(path) else []
    assert kept == [event for event in before if event.get("step", 0) <= step]
