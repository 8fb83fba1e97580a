"""The batches that a training reads from T2T's files, by number."""
import contextlib
import json
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models  # noqa: F401  registers the hparams sets
from conftest import python_script
from tensor2tensor.utils import data_reader, registry, trainer_lib

from rpr.training import input_pipeline
from rpr.training.input_pipeline import BATCH_NUMBER, Stream, reproducible_input
from rpr.utils.errors import UserError


def read(text, count, stream=None, towers=1, packed=False, session_config=None,
         few_shapes=False, suffix="", **changes):
    """The first batches of a stream: [{feature: array}]."""
    hparams = trainer_lib.create_hparams("rpr_tiny", "batch_size=256,max_length=64",
                                         data_dir=str(text.data_dir),
                                         problem_name=text.problem + suffix)
    hparams.override_from_dict({**changes, "pack_dataset": packed, "use_custom_ops": False})
    parallelism = types.SimpleNamespace(n=towers) if towers > 1 else None
    config = types.SimpleNamespace(data_parallelism=parallelism, train_distribute=None,
                                   use_tpu=False, session_config=session_config)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        dataset = reproducible_input(hparams.problem, hparams, str(text.data_dir),
                                     lambda: stream or Stream(1, 0, 1), few_shapes)({}, config)
        iterator = tf.data.make_initializable_iterator(dataset)
        features, targets = iterator.get_next()
        session.run(iterator.initializer)
        batches = [session.run([features, targets]) for _ in range(count)]
    for features, targets in batches:
        np.testing.assert_array_equal(features["targets"], targets)
    return [features for features, _ in batches]


def assert_same(batches, expected):
    assert [batch[BATCH_NUMBER] for batch in batches] == [
        batch[BATCH_NUMBER] for batch in expected]
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, value in batch.items():
            np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_is_resumed_anywhere_and_shared_among_processes(packed, text):
    """Packed batches come from T2T's own pipeline."""
    batches = read(text, 12, packed=packed)
    assert [batch[BATCH_NUMBER] for batch in batches] == list(range(12))
    assert packed == ("inputs_segmentation" in batches[0])
    assert_same(read(text, 5, Stream(1, 7, 1), packed=packed), batches[7:])
    for index in range(2):
        assert_same(read(text, 6, Stream(1, index, 2), packed=packed), batches[index::2])
    assert not np.array_equal(read(text, 1, Stream(2, 0, 1), packed=packed)[0]["targets"],
                              batches[0]["targets"])


def test_the_first_session_has_the_threads_of_the_training(text, monkeypatch):
    """TensorFlow gives all sessions of a process the threads of the first one."""
    seen, session = [], tf.Session

    def recorded(*args, config=None, **kwargs):
        seen.append(config)
        return session(*args, config=config, **kwargs)

    monkeypatch.setattr(input_pipeline.tf, "Session", recorded)
    one_thread = tf.ConfigProto(intra_op_parallelism_threads=1)
    read(text, 1, session_config=one_thread)
    assert seen == [None, one_thread]                 # the test's own, then that of the scan


def sentences(batches):
    """The targets without padding, sorted."""
    return sorted(tuple(row[row > 0]) for batch in batches for row in batch["targets"][..., 0, 0])


def test_an_epoch_holds_the_sentences_that_t2t_reads(text):
    """All that are not too long, each once; here a batch is an epoch."""
    with tf.Graph().as_default(), tf.Session() as session:
        hparams = trainer_lib.create_hparams("rpr_tiny", data_dir=str(text.data_dir),
                                             problem_name=text.problem)
        dataset = hparams.problem.dataset("train", str(text.data_dir), hparams=hparams)
        dataset = dataset.filter(lambda x: data_reader.example_length(x) <= 64)
        following = tf.data.make_one_shot_iterator(dataset).get_next()["targets"]
        expected = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                expected.append(tuple(session.run(following)))
    assert len(expected) > 200
    epochs = read(text, 2, use_fixed_batch_size=True, batch_size=len(expected))
    for epoch in epochs:
        assert sentences([epoch]) == sorted(expected)
    assert not np.array_equal(epochs[0]["targets"], epochs[1]["targets"])


def test_batches_have_t2ts_sizes(text):
    scheme = data_reader.batching_scheme(256, 64, 8, 1.1)
    for towers in (1, 2):
        for batch in read(text, 20, towers=towers):
            longest = max(batch["inputs"].shape[1], batch["targets"].shape[1])
            bucket = sum(longest >= boundary for boundary in scheme["boundaries"])
            assert len(batch["inputs"]) == towers * scheme["batch_sizes"][bucket]
            assert len(batch["inputs"]) * longest <= towers * 256 or longest > 64


def test_batches_of_a_fixed_number_of_sentences_have_little_padding(text):
    batches = read(text, 20, use_fixed_batch_size=True, batch_size=4)
    assert {len(batch["targets"]) for batch in batches} == {4}
    assert np.mean([(batch["targets"] == 0).mean() for batch in batches]) < 0.1


@pytest.mark.parametrize("changes", [{}, {"use_fixed_batch_size": True, "batch_size": 8}])
def test_few_shapes_have_full_rows_and_whole_epochs(changes, text):
    batches = read(text, 150, few_shapes=True, **changes)
    shapes = {tuple(batch[side].shape[:2] for side in ("inputs", "targets")) for batch in batches}
    everything = {tuple(batch["inputs"].shape[:2]) for batch in read(text, 150)}
    assert len(shapes) <= 12 and (changes or len(shapes) < len(everything))
    for (rows, longest), (target_rows, longest_target) in shapes:
        assert rows == target_rows
        assert rows == 8 if changes else rows * max(longest, longest_target) <= 256
    for batch in batches:
        assert batch["targets"].any(axis=(1, 2, 3)).all()     # no row is padding
    assert_same(read(text, 3, Stream(1, 50, 1), few_shapes=True, **changes), batches[50:53])


def test_few_shapes_are_refused_where_batches_are_not_read_by_number(text):
    with pytest.raises(UserError, match="^xla_compile: packed and split"):
        read(text, 1, packed=True, few_shapes=True)


@pytest.mark.parametrize("suffix", ["", "_rev", "_copy"])
def test_the_fast_scan_finds_what_decoding_each_example_finds(suffix, text, monkeypatch):
    expected = read(text, 3, suffix=suffix)
    monkeypatch.setattr(input_pipeline, "_unprocessed_fields", lambda *_: None)
    assert_same(read(text, 3, suffix=suffix), expected)
    if not suffix:
        assert_same(read(text, 2, max_target_seq_length=1000), expected[:2])
    padded = read(text, 2, few_shapes=True, suffix=suffix)
    monkeypatch.undo()
    assert_same(read(text, 2, few_shapes=True, suffix=suffix), padded)


def test_the_benchmark_of_the_input_reads_batches(text):
    done = python_script("bench_data.py", "input", *text.flags, "--hparams_set=rpr_tiny",
                         "--batches=10")
    found = json.loads(done.stdout)
    assert found["batches_per_second"] > 0 and 0 < found["target_padding"] < 1


def test_a_decoder_alone_counts_source_and_target_together(text):
    batches = read(text, 20, decoder_only=True, max_length=50, batch_size=200)
    sums = [((batch["inputs"] > 0).sum(axis=1) + (batch["targets"] > 0).sum(axis=1)).ravel()
            for batch in batches]
    assert max(map(np.max, sums)) <= 50
    assert all(len(of_batch) * of_batch.max() <= 200 for of_batch in sums)
    assert any(len(of_batch) > 4 for of_batch in sums)
    for batch in read(text, 5, few_shapes=True, decoder_only=True, max_length=50, batch_size=200):
        assert batch["inputs"].shape[0] * (
            batch["inputs"].shape[1] + batch["targets"].shape[1]) <= 200


@pytest.mark.parametrize("few_shapes", [False, True])
def test_a_language_model_has_the_same_batches_with_decoder_only(few_shapes):
    problem = types.SimpleNamespace(has_inputs=False, max_length=lambda hparams: 64,
                                    get_hparams=lambda: types.SimpleNamespace(
                                        batch_size_multiplier=1))
    lengths = np.random.RandomState(0).randint(1, 60, 300)
    lengths = np.stack([lengths, 0 * lengths, lengths], axis=1)
    batches = []
    for decoder_only in (False, True):
        hparams = registry.hparams("rpr_tiny")
        hparams.override_from_dict({"decoder_only": decoder_only, "batch_size": 256})
        order = input_pipeline._order(problem, hparams, lengths, 1, 1, few_shapes)
        batches.append([order.batch(number).tolist() for number in range(10)])
    assert batches[0] == batches[1]


def test_examples_that_cannot_be_split_are_refused(text, monkeypatch):
    with pytest.raises(UserError, match="split_to_length=1: .* of 300 .* source and target"):
        read(text, 1, split_to_length=1)
    side = input_pipeline._SIDES[1]
    for lengths, bad in (([4, 8], 0), ([4, 6], 1)):          # of a language model
        monkeypatch.setattr(input_pipeline, "_scan", lambda *_, lengths=lengths: (
            None, np.array([[length, 0, length] for length in lengths]), None))
        problem = types.SimpleNamespace(
            example_reading_spec=lambda: ({side: tf.VarLenFeature(tf.int64)}, None))
        with pytest.raises(UserError, match="of 1 of 2") if bad else contextlib.nullcontext():
            input_pipeline._check_split(problem, 4, [], None)
