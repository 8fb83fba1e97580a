"""Which checkpoint is read, and what is said about one that is damaged or another model's."""
import glob
import os
import re
import shutil

import pytest
import tensorflow.compat.v1 as tf

import rpr
from rpr.t2t import checkpoints
from rpr.utils.errors import UserError

rpr.register()


@pytest.fixture
def directory(tmp_path):
    """Checkpoints of steps 5, 10 and 20, as a training leaves them."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("transformer/body/table", [30, 20])
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        for step in (5, 10, 20):
            saver.save(session, str(tmp_path / "model.ckpt"), step)
    return str(tmp_path)


def path(directory, step):
    return os.path.join(directory, f"model.ckpt-{step}")


def find(path_or_dir, model="rpr_transformer"):
    return checkpoints.find_checkpoint(path_or_dir, model)


def truncate(directory, step):
    name, = glob.glob(path(directory, step) + ".data*")
    os.truncate(name, 100)


def test_the_checkpoint_that_the_state_file_names_is_read(directory):
    assert find(directory) == path(directory, 20)
    assert find(path(directory, 10)) == path(directory, 10)
    assert checkpoints.repair_state(directory) is None


def test_a_file_that_a_copy_left_unfinished_is_no_part_of_a_checkpoint(directory):
    with open(path(directory, 20) + ".data-00000-of-00001.tempstate7", "wb"):
        pass
    assert find(directory) == path(directory, 20)


def test_a_training_removes_what_a_killed_save_left(directory):
    before = sorted(os.listdir(directory))
    unfinished = path(directory, 25) + "_temp"
    os.mkdir(unfinished)
    for name in (os.path.join(unfinished, "part-00000-of-00002.data-00000-of-00001.tempstate7"),
                 os.path.join(unfinished, "part-00001-of-00002.index"),
                 path(directory, 25) + ".data-00000-of-00001.tempstate7",
                 os.path.join(directory, "checkpoint.tmp0123456789abcdef0123456789abcdef")):
        with open(name, "wb"):
            pass
    assert checkpoints.repair_state(directory) is None
    assert sorted(os.listdir(directory)) == before


@pytest.mark.parametrize("state", [b"", b"garbage", b"\xff\xfe\x00", None,
                                   b'model_checkpoint_path: "model.ckpt-99"\n'])
def test_without_a_usable_state_file_the_newest_complete_checkpoint_is_read(directory, state):
    name = os.path.join(directory, "checkpoint")
    os.unlink(name)
    if state is not None:
        with open(name, "wb") as out:
            out.write(state)
    assert find(directory) == path(directory, 20)
    truncate(directory, 20)
    assert find(directory) == path(directory, 10)
    assert checkpoints.repair_state(directory) == path(directory, 10)
    assert tf.train.latest_checkpoint(directory) == path(directory, 10)
    assert tf.train.get_checkpoint_state(directory).all_model_checkpoint_paths == [
        path(directory, 5), path(directory, 10)]


def test_a_copied_directory_is_read_and_trained_with_its_own_weights(directory, tmp_path_factory):
    tf.train.update_checkpoint_state(directory, path(directory, 20), [path(directory, 20)])
    copy = shutil.copytree(directory, tmp_path_factory.mktemp("copies") / "copy")
    assert "/" in (copy / "checkpoint").read_text()
    assert find(str(copy)) == path(copy, 20) and find(directory) == path(directory, 20)
    assert checkpoints.repair_state(directory) is None
    assert checkpoints.repair_state(str(copy)) == path(copy, 20)
    assert tf.train.latest_checkpoint(str(copy)) == path(copy, 20)
    assert tf.train.get_checkpoint_state(str(copy)).all_model_checkpoint_paths == [
        path(copy, step) for step in (5, 10, 20)]


def test_a_damaged_checkpoint_is_refused_but_a_training_resumes_before_it(directory):
    truncate(directory, 20)
    with pytest.raises(UserError, match="the checkpoint cannot be read: .*ckpt-20.* 100 bytes"):
        find(directory)
    assert checkpoints.repair_state(directory) == path(directory, 10)
    assert find(directory) == path(directory, 10)


def test_missing_and_corrupt_files_are_named(directory):
    data, = glob.glob(path(directory, 20) + ".data*")
    os.unlink(data)
    with pytest.raises(UserError, match=r"a file .*model.ckpt-20.data-\* is missing"):
        find(directory)
    with open(path(directory, 10) + ".index", "wb") as out:
        out.write(b"garbage")
    with pytest.raises(UserError, match="model.ckpt-10: the checkpoint cannot be read"):
        find(path(directory, 10))
    with pytest.raises(UserError, match="no such directory, and no checkpoint of"):
        find(path(directory, 7))


def test_a_training_without_a_complete_checkpoint_is_told_so(directory, tmp_path):
    for step in (5, 10, 20):
        truncate(directory, step)
    with pytest.raises(UserError, match="holds no complete checkpoint .*model.ckpt-20"):
        checkpoints.repair_state(directory)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "checkpoint").touch()
    assert checkpoints.repair_state(str(empty)) is None and not list(empty.iterdir())


def test_glob_characters_in_a_path_are_refused(directory, tmp_path):
    target = str(tmp_path / "[1] *")
    os.mkdir(target)
    for name in glob.glob(os.path.join(directory, "model.ckpt-20.*")):
        os.rename(name, os.path.join(target, os.path.basename(name)))
    with pytest.raises(UserError, match=r"TensorFlow takes .* in a path for a pattern"):
        find(target)


def test_another_models_checkpoint_is_refused(directory):
    assert find(directory, "transformer") == path(directory, 20)
    with pytest.raises(UserError, match="a checkpoint of model=transformer, not of"):
        find(directory, "qkv_seq2seq")


def test_a_run_directory_says_where_its_checkpoints_are(directory, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    os.symlink(directory, run / "model")
    with pytest.raises(UserError, match="a run directory, .* are in model: give .*/run/model"):
        find(str(run))
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="there is no checkpoint in it$"):
        find(str(tmp_path / "none"))


@pytest.mark.parametrize("shape, name, kind, says, checked", [
    ([30, 21], "table", "float32", r"shape \[30,21\] has shape \[30,20\] there",
     r"body/table is float32 \[30, 20\] there, not float32 \[30, 21\]: .* other hparams"),
    ([30, 20], "other", "float32", "no variable transformer/body/other",
     "it has no variable transformer/body/other: it was trained with another model"),
    ([30, 20], "table", "float64", "transformer/body/table is float there, not double",
     "is float32 .* there, not float64"),
])
def test_errors_of_a_restore_are_explained(directory, shape, name, kind, says, checked):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable(f"transformer/body/{name}", shape, kind)
        with pytest.raises((tf.errors.OpError, ValueError)) as raised:
            tf.train.Saver().restore(session, path(directory, 20))
        with pytest.raises(UserError, match=checked):
            checkpoints.saver(path(directory, 20))
        with tf.variable_scope("member"):
            tf.get_variable(f"transformer/body/{name}", shape, kind)
        with pytest.raises(UserError, match=checked):
            checkpoints.saver(path(directory, 20), "member/")
    line = checkpoints.explain(raised.value)
    assert line and re.search(says, line) and "\n" not in line


def test_damaged_values_are_explained(directory):
    name, = glob.glob(path(directory, 20) + ".data*")
    with open(name, "r+b") as data:
        data.seek(100)
        data.write(b"\xff" * 50)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("transformer/body/table", [30, 20])
        with pytest.raises(tf.errors.OpError) as raised:
            tf.train.Saver().restore(session, path(directory, 20))
    assert "its data is damaged" in checkpoints.explain(raised.value)


def test_other_errors_are_left_alone():
    assert checkpoints.explain(KeyError("checkpoint")) is None
    assert checkpoints.explain(ValueError("the shape of x differs")) is None
