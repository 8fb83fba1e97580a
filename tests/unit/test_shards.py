"""TFRecords written by many processes are those of one, even after a kill."""
import os
import pathlib
import random
import signal
import sys
import types

import pytest
import tensorflow.compat.v1 as tf
from conftest import without_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.data_generators import generator_utils, text_encoder
from tensor2tensor.utils import registry

from rpr.problems import checks, datagen, shards
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
        without_text(patch)
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
    monkeypatch.setattr(shards, "_CHUNK_PAIRS", 40)


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


@pytest.mark.parametrize(("target", "name", "calls"), [
    (shards.console.Task, "update", 3), (shards.console.Task, "update", 15),
    (datagen.files, "sha256", 2), (datagen, "_move_into_place", 0)])
def test_after_a_kill_the_same_command_gives_the_same_files(undisturbed, tmp_path, small_chunks,
                                                            target, name, calls):
    data_dir = tmp_path / "data"
    killed(data_dir, target, name, calls)
    with pytest.raises(UserError, match="did not finish"):
        checks.check_data(registry.problem(NAME), str(data_dir), ["train"])
    generate(data_dir)
    assert content(data_dir) == undisturbed


def test_after_a_kill_other_text_is_used(tmp_path, small_chunks, monkeypatch):
    killed(tmp_path / "data", shards.console.Task, "update", 5)
    write_text(tmp_path, ("another sentence", "ein anderer Satz"), monkeypatch)
    generate(tmp_path / "data")
    generate(tmp_path / "other")
    assert content(tmp_path / "data") == content(tmp_path / "other")


def test_a_worker_that_dies_ends_in_one_line(undisturbed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(UserError, match="worker process"):
        patch.setattr(shards._Worker, "start", die)
        generate(tmp_path / "data")
    generate(tmp_path / "data")
    assert content(tmp_path / "data") == undisturbed


def test_what_a_worker_refuses_reaches_the_user(tmp_path, monkeypatch):
    def refuse(_):
        raise UserError("not a token")

    monkeypatch.setattr(type(registry.problem(NAME)), "targets_prefix", property(refuse))
    with pytest.raises(UserError, match="not a token"):
        generate(tmp_path / "data")


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=200), max_size=60), st.none() | st.text())
def test_any_records_are_shuffled_as_a_list_is(tmp_path_factory, records, seed):
    folder = tmp_path_factory.mktemp("records")
    raw, path = str(folder / "raw"), str(folder / "whole")
    with tf.io.TFRecordWriter(raw) as writer:
        for record in records:
            writer.write(record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards._Worker, "problem", types.SimpleNamespace(packed_length=None),
                      raising=False)
        assert shards._finish(raw, path, seed) == len(records)
    if seed is not None:
        random.Random(seed).shuffle(records)
    assert list(tf.io.tf_record_iterator(path)) == records
    assert os.listdir(folder) == ["whole"]
