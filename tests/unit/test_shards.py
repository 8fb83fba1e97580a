"""TFRecords from many processes: the bytes of one, killed or not."""
import glob
import json
import os
import pathlib
import random
import signal
import sys
import types

import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.data_generators import generator_utils, text_encoder
from tensor2tensor.utils import registry

from problems import checks, shards
from rpr.utils.errors import UserError

NAME, PAIRS = "translate_text_files", 500


def write_text(folder, words, patch):
    for side, word in zip(("SOURCE", "TARGET"), words, strict=True):
        path = folder / f"{side} {word}"
        path.write_text("".join(f"{word} {number * number}\n" for number in range(PAIRS)))
        patch.setenv(f"RPR_TEXT_{side}", str(path))


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("RPR_TEXT_"):
                patch.delenv(name)
        patch.setenv("RPR_TEXT_VOCAB_SIZE", "150")
        write_text(tmp_path_factory.mktemp("text"), ("sentence number", "Satz Nummer"), patch)
        yield


def generate(data_dir):
    registry.problem(NAME).generate_data(str(data_dir), str(data_dir) + ".tmp")


def content(data_dir):
    return {path.name: path.read_bytes() for path in pathlib.Path(data_dir).iterdir()
            if not path.name.endswith(".lock")}


@pytest.fixture(scope="module")
def undisturbed(environment, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
    generate(data_dir)
    return content(data_dir)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(shards, "_CHUNK", 40)
    monkeypatch.setattr(shards, "_SAVE_SECONDS", 0.0)


def test_the_files_are_those_of_one_loop(undisturbed, tmp_path):
    """A record goes to the next file, each file is shuffled by its name and number."""
    problem = registry.problem(NAME)
    for name in undisturbed:
        if name.endswith(".subwords"):
            (tmp_path / name).write_bytes(undisturbed[name])
            encoder = text_encoder.SubwordTextEncoder(str(tmp_path / name))
    for split, count in (("train", 10), ("dev", 1), ("test", 1)):
        expected = [[] for _ in range(count)]
        for number, pair in enumerate(problem.text_pairs(split, None), start=1):
            source, target = (encoder.encode(text) + [text_encoder.EOS_ID] for text in pair)
            expected[number % count].append({"inputs": source, "targets": target})
        for shard, samples in enumerate(expected):
            if split == "train":
                random.Random(f"{NAME} {shard}").shuffle(samples)
            path = tmp_path / "records"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for sample in samples:
                    writer.write(generator_utils.to_example(sample)
                                 .SerializeToString(deterministic=True))
            name = generator_utils.sharded_name(f"{NAME}-{split}", shard, count)
            assert undisturbed[name] == path.read_bytes()


@pytest.mark.parametrize("cores", [1, 3])
def test_the_number_of_workers_does_not_show(undisturbed, tmp_path, small_chunks, monkeypatch,
                                             cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    generate(tmp_path / "data")
    assert content(tmp_path / "data") == undisturbed


# Killed.

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def after(calls, function, then=die):
    """The function, but for its call after so many."""
    count = iter(range(sys.maxsize))

    def counted(*args, **kwargs):
        return (then if next(count) == calls else function)(*args, **kwargs)
    return counted


def killed(data_dir, target, name, calls):
    """Runs datagen in a process that is killed with kill -9 at a call of target.name."""
    child = os.fork()
    if not child:
        try:
            setattr(target, name, after(calls, getattr(target, name)))
            generate(data_dir)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def chunks_done(data_dir):
    path = data_dir / f".{NAME}.datagen" / "unfinished" / "progress.json"
    return json.loads(path.read_text())["splits"]["train"]["chunks"]


@pytest.mark.parametrize(("target", "name", "calls"), [
    (shards.Progress, "save", 1), (shards.Progress, "save", 5), (shards, "_save", 4),
    (shards.console.Task, "update", 3), (shards.console.Task, "update", 15),
    (shards.os, "fsync", 6)])
def test_a_kill_9_while_shards_are_written(undisturbed, tmp_path, small_chunks, target, name,
                                           calls):
    data_dir = tmp_path / "data"
    killed(data_dir, target, name, calls)
    with pytest.raises(UserError, match="did not finish"):
        checks.check_data(registry.problem(NAME), str(data_dir), ["train"])
    generate(data_dir)
    assert content(data_dir) == undisturbed


def test_killed_again_and_again_it_gets_there(undisturbed, tmp_path, small_chunks, monkeypatch):
    data_dir, done = tmp_path / "data", []
    for _ in range(3):
        killed(data_dir, shards.Progress, "save", 4)      # the first is at the start
        done.append(chunks_done(data_dir))
    assert 0 < done[0] < done[1] < done[2]
    first, encode = [], shards._in_order
    monkeypatch.setattr(shards, "_in_order", lambda pool, split, samples, pairs, count: (
        first.append((split, pairs)), encode(pool, split, samples, pairs, count))[1])
    generate(data_dir)
    assert first == [("train", 40 * done[-1]), ("dev", 0), ("test", 0)]
    assert content(data_dir) == undisturbed


def test_a_file_that_lost_its_end_with_the_machine(undisturbed, tmp_path, small_chunks):
    data_dir = tmp_path / "data"
    killed(data_dir, shards.Progress, "save", 5)
    path, = glob.glob(str(data_dir / f".{NAME}.datagen" / "unfinished" / "train-3"))
    os.truncate(path, os.path.getsize(path) // 2)
    generate(data_dir)
    assert content(data_dir) == undisturbed


def test_other_text_begins_anew(tmp_path, small_chunks, monkeypatch):
    killed(tmp_path / "data", shards.Progress, "save", 5)
    write_text(tmp_path, ("another sentence", "ein anderer Satz"), monkeypatch)
    generate(tmp_path / "data")
    generate(tmp_path / "other")
    assert content(tmp_path / "data") == content(tmp_path / "other")


def test_a_worker_that_dies_ends_in_one_line(undisturbed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(UserError, match="worker died"):
        patch.setattr(shards._Worker, "begin", die)
        generate(tmp_path / "data")
    generate(tmp_path / "data")
    assert content(tmp_path / "data") == undisturbed


def test_what_a_worker_refuses_reaches_the_user(tmp_path, monkeypatch):
    def refuse(_):
        raise UserError("not a token")

    monkeypatch.setattr(type(registry.problem(NAME)), "targets_prefix", property(refuse))
    with pytest.raises(UserError, match="not a token"):
        generate(tmp_path / "data")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=60), st.none() | st.text())
def test_any_records_are_shuffled_as_a_list_is(tmp_path_factory, records, seed):
    folder = tmp_path_factory.mktemp("records")
    raw, path = str(folder / "raw"), str(folder / "whole")
    with tf.io.TFRecordWriter(raw) as writer:
        for record in records:
            writer.write(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards._Worker, "problem", types.SimpleNamespace(packed_length=None))
        assert shards._finish(raw, path, seed) == len(records)
    if seed is not None:
        random.Random(seed).shuffle(records)
    assert list(tf.io.tf_record_iterator(path)) == records
    assert os.listdir(folder) == ["whole"]
