"""Averages of checkpoints: the mean of what a model computes with, in bounded memory."""
import itertools
import json
import os
import shutil
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import killed_before_the_index, refused
from tensor2tensor.utils import bleu_hook

from rpr.t2t import checkpoints
from rpr.training import averaging
from rpr.utils.errors import UserError

STEPS = (100, 200, 300)
SHAPES = {"transformer/a": (40, 30), "transformer/b": (7,), "transformer/c": (50, 10),
          "transformer/scalar": ()}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Three checkpoints as T2T writes them: with slots of an optimizer and averages of losses."""
    folder, random = tmp_path_factory.mktemp("model"), np.random.RandomState(1)
    for step in STEPS:
        values = {name: np.float32(random.normal(size=shape)) for name, shape in SHAPES.items()}
        values |= {f"training/{name}/{slot}": np.float32(random.normal(size=shape))
                   for name, shape in SHAPES.items() for slot in ("Adam", "Adam_1")}
        values |= {"training/beta1_power": np.float32(0.5), "losses_avg/problem_0/total_loss":
                   np.float32(3), "global_step": np.int64(step),
                   "train_stats/problem_0_steps": np.int32(step)}
        averaging.write_checkpoint(str(folder / f"model.ckpt-{step}"), values)
    return folder


def test_waiting_in_vain_for_enough_checkpoints_is_an_error(model_dir, tmp_path, monkeypatch):
    clock = types.SimpleNamespace(time=itertools.count(time.time(), 100).__next__,
                                  sleep=lambda _: None, asctime=time.asctime,
                                  localtime=time.localtime)
    monkeypatch.setattr(bleu_hook, "time", clock)
    with pytest.raises(UserError, match="n.*after a wait of 1 min .* has only 3 checkpoints"):
        averaging.average_all(str(model_dir), str(tmp_path / "out"), 4, 1, wait_minutes=1)


def killed(**_):
    raise KeyboardInterrupt


def paths(model_dir):
    return [str(model_dir / f"model.ckpt-{step}") for step in STEPS]


@pytest.mark.parametrize("file_bytes", [1, 3000, 1 << 26])
def test_the_mean_in_float64_and_nothing_of_the_optimizer(model_dir, tmp_path, monkeypatch,
                                                          file_bytes):
    monkeypatch.setattr(averaging, "_FILE_BYTES", file_bytes)
    path = str(tmp_path / "model.ckpt-300")
    averaging.write_mean(path, paths(model_dir), 300)
    average = tf.train.load_checkpoint(path)
    assert set(average.get_variable_to_shape_map()) == {
        *SHAPES, "global_step", "train_stats/problem_0_steps"}
    assert average.get_tensor("global_step") == 300
    readers = [tf.train.load_checkpoint(source) for source in paths(model_dir)]
    for name in SHAPES:
        exact = np.mean([np.float64(reader.get_tensor(name)) for reader in readers], axis=0)
        assert average.get_tensor(name).dtype == np.float32
        np.testing.assert_allclose(average.get_tensor(name), exact, rtol=1e-7)
    files = len(os.listdir(tmp_path)) - 1             # and the index
    assert files == {1: len(SHAPES), 3000: 2, 1 << 26: 1}[file_bytes]


def test_killed_it_leaves_no_checkpoint_and_the_next_one_is_whole(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(averaging, "_FILE_BYTES", 3000)
    path = str(tmp_path / "model.ckpt-300")
    averaging.write_mean(path, paths(model_dir)[:2], 200)     # an older one of the same name
    with killed_before_the_index(monkeypatch):
        averaging.write_mean(path, paths(model_dir), 300)
    assert not os.path.exists(path + ".index")
    averaging.write_mean(path, paths(model_dir), 300)
    assert tf.train.load_checkpoint(path).get_tensor("global_step") == 300
    assert not list(tmp_path.glob("*.part*"))


def test_the_parts_of_a_killed_one_are_no_checkpoints(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(averaging, "_FILE_BYTES", 3000)
    path = str(tmp_path / "model.ckpt-300")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tf.raw_ops, "MergeV2Checkpoints", killed)
        averaging.write_mean(path, paths(model_dir), 300)
    assert list(tmp_path.iterdir())
    assert checkpoints.newest(str(tmp_path)) is None
    assert not list(bleu_hook.stepfiles_iterator(str(tmp_path)))      # T2T's search for them
    averaging.write_mean(str(tmp_path / "model.ckpt-200"), paths(model_dir)[:2], 200)
    assert all(file.name.startswith("model.ckpt-200.") for file in tmp_path.iterdir())


def test_every_window_of_checkpoints_is_averaged(model_dir, tmp_path):
    written = averaging.average_all(str(model_dir), str(tmp_path / "out"), 2)
    assert [os.path.basename(path) for path in written] == ["model.ckpt-200", "model.ckpt-300"]
    assert tf.train.latest_checkpoint(str(tmp_path / "out")) == written[-1]
    assert "/" not in (tmp_path / "out" / "checkpoint").read_text()     # it can be copied
    values = [np.float64(tf.train.load_checkpoint(path).get_tensor("transformer/b"))
              for path in (*paths(model_dir)[1:], written[-1])]
    np.testing.assert_allclose(values[2], (values[0] + values[1]) / 2, rtol=1e-7)


def test_averages_in_a_relative_directory_are_listed_by_their_names(model_dir, tmp_path,
                                                                    monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert averaging.average_all(str(model_dir), "out", 1) == [
        f"out/model.ckpt-{step}" for step in (100, 200, 300)]
    listed = tf.train.get_checkpoint_state("out").all_model_checkpoint_paths
    assert list(listed) == [f"out/model.ckpt-{step}" for step in (100, 200, 300)]


def test_what_describes_the_model_is_that_of_the_model(model_dir, tmp_path):
    (model_dir / "hparams.json").write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "hparams.json").write_text('{"cut')
    (tmp_path / "out" / ".hparams.json.0123456789abcdef.tmp").touch()     # of a killed one
    averaging.average_all(str(model_dir), str(tmp_path / "out"), 2)
    assert (tmp_path / "out" / "hparams.json").read_text() == "{}"
    assert not list((tmp_path / "out").glob(".*"))


def test_what_describes_kept_weights_is_in_the_directory_above(model_dir, tmp_path):
    kept = shutil.copytree(model_dir, tmp_path / "model" / "kept",
                           ignore=shutil.ignore_patterns("hparams.json"))
    (tmp_path / "model" / "hparams.json").write_text("{}")
    averaging.average_all(str(kept), str(tmp_path / "out"), 2)
    assert (tmp_path / "out" / "hparams.json").read_text() == "{}"


def test_averages_of_another_training_are_not_replaced(model_dir, tmp_path):
    out = str(tmp_path / "out")
    averaging.check_output(str(model_dir), out)       # there is none yet
    for seed in (1, 1, 2):                            # again, after more steps or with another n
        (model_dir / "rpr.json").write_text(json.dumps({"random_seed": seed, "threads": [seed, 1]}))
        if seed == 1:
            averaging.check_output(str(model_dir), out)
            averaging.average_all(str(model_dir), out, 2)
    with pytest.raises(UserError, match="out: holds checkpoints of another training than"):
        averaging.check_output(str(model_dir), out)


def test_checkpoints_of_different_models_are_not_averaged(tmp_path):
    paths = [str(tmp_path / f"model.ckpt-{step}") for step in (1, 2)]
    for size, path in enumerate(paths, 2):
        averaging.write_checkpoint(path, {"transformer/a": np.zeros(size, np.float32)})
    with pytest.raises(UserError, match="model.ckpt-2 is of another model .*transformer/a has "
                                        r"the shape \[3\] instead of \[2\]"):
        averaging.write_mean(str(tmp_path / "model.ckpt-3"), paths, 3)
    assert not list(tmp_path.glob("model.ckpt-3*"))
    before = set(tmp_path.iterdir())
    assert "is of another model" in refused("average", f"--model_dir={tmp_path}", "--n=2",
                                            f"--output_dir={tmp_path}/average")
    assert set(tmp_path.iterdir()) == before
