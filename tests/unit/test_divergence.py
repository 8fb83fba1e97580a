"""A training that comes to nothing is noticed in time, and only such a one."""
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given
from hypothesis import strategies as st

from rpr.training import hooks
from rpr.utils import metrics_log

EVERY = hooks.TrainingHook.EVERY


def first_alarm(losses, max_rise=2.0):
    """The number of the record at which the training ends, or None."""
    losses_watch = hooks.DivergenceDetector(max_rise)
    for number, loss in enumerate(losses):
        try:
            losses_watch.add((number + 1) * EVERY, loss)
        except hooks.Diverged:
            return number
    return None


@given(st.lists(st.floats(0, 2), max_size=60), st.floats(0, 10))
def test_noise_and_progress_end_no_training(noise, slope):
    assert first_alarm([10 - min(9.0, slope * n) + x for n, x in enumerate(noise)]) is None


@given(st.lists(st.floats(1, 2), min_size=15, max_size=60), st.floats(4.1, 1e9))
def test_a_loss_that_stays_high_ends_it_within_150_steps(before, high):
    alarm = first_alarm([*before, *[high] * 20])
    assert 0 <= alarm - len(before) < 150 / EVERY
    assert first_alarm([*before, *[high] * 20], max_rise=0) is None


@given(st.floats(0, 10), st.floats(2.1, 1e9))
def test_a_loss_that_rises_at_the_start_ends_it_after_150_steps(first, rise):
    assert first_alarm([first, *[first + rise] * 20]) == 150 / EVERY - 1
    assert first_alarm([first, *[first + rise] * 20], max_rise=0) is None
    assert first_alarm([first, *[first + rise] * 13, first]) is None


def test_no_checkpoint_of_a_training_that_diverged_at_the_start_is_good():
    watch = hooks.DivergenceDetector(2.0)
    with pytest.raises(hooks.Diverged, match="^the loss diverges: it was at least 13.00 in the 140 "
                                             "steps to 150, and 9.00 before them"):
        for step in range(10, 160, 10):
            watch.add(step, 13.0 if step > 10 else 9.0)
    assert watch.good_step == 0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_it_at_once(loss):
    assert first_alarm([3.0, loss]) == 1 == first_alarm([3.0, loss], max_rise=0)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_batches_that_are_harder_than_others_end_no_training(share):
    """Long ones, say, of which nothing is learned yet, while short ones have a loss of 0."""
    random = np.random.default_rng(1)
    losses = 4.0 * (random.random(2000) < share) + random.uniform(0, 0.2, 2000)
    assert first_alarm(losses) is None
    assert 2000 <= first_alarm([*losses, *losses[:20] + 7]) < 2015


@given(st.lists(st.floats(0, 1), min_size=30, max_size=30))
def test_single_bad_batches_end_no_training(noise):
    assert first_alarm([x + (100 if n % 3 == 2 else 0) for n, x in enumerate(noise)]) is None


@pytest.mark.parametrize("kept", [9, 0])              # 0: all; the state file names the last only
def test_the_last_good_checkpoint_is_finite_and_from_before_the_rise(tmp_path, kept):
    hook = hooks.TrainingHook(f"{tmp_path}/metrics.jsonl", 40, str(tmp_path), 2.0)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", [2])
        saver = tf.train.Saver(max_to_keep=kept)
        for step, value in ((10, 1.0), (20, 2.0), (30, np.nan), (40, 3.0)):
            weight.load(np.full([2], value), session)
            saver.save(session, f"{tmp_path}/model.ckpt", global_step=step)
    for good_step, checkpoint in ((39, 20), (19, 10)):
        hook.detector.good_step = good_step
        assert hook.explain(hooks.Diverged("so")) == (
            f"so; the last good checkpoint is {tmp_path}/model.ckpt-{checkpoint}")


def test_records_have_the_loss_without_the_multiplier_of_the_problem(tmp_path):
    hook = hooks.TrainingHook(f"{tmp_path}/metrics.jsonl", 10, str(tmp_path), 2.0,
                              loss_multiplier=2.0)
    with tf.Graph().as_default():
        train = tf.train.create_global_step().assign_add(1)
        tf.losses.add_loss(tf.constant(7.0))
        with tf.train.SingularMonitoredSession([hook]) as session:
            for _ in range(10):
                session.run(train)
    assert metrics_log.last(f"{tmp_path}/metrics.jsonl")["train"]["loss"] == 3.5


@pytest.mark.parametrize(("batches_per_step", "nan_at"), [(1, 13), (1, 20), (3, 13)])
def test_no_checkpoint_and_no_record_follows_a_loss_that_is_nan(tmp_path, batches_per_step, nan_at):
    """At steps of which the hook makes a record, and at others."""
    metrics = tmp_path / "metrics.jsonl"
    hook = hooks.TrainingHook(str(metrics), 40, str(tmp_path), 2.0, batches_per_step)
    with tf.Graph().as_default():
        step = tf.train.create_global_step()
        batch = tf.get_variable("batch", [], tf.int64, tf.zeros_initializer, trainable=False)
        tf.losses.add_loss(tf.where(tf.equal(step, nan_at - 1), np.nan, 1.0))
        with tf.control_dependencies([tf.get_collection(tf.GraphKeys.LOSSES)[-1]]):
            advance = batch.assign_add(1)
        with tf.control_dependencies([advance]):
            train = step.assign(advance // batches_per_step)
        saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
        with tf.train.SingularMonitoredSession([hook, saver]) as session, pytest.raises(
                hooks.Diverged, match=f"the loss is NaN at step {nan_at}$") as caught:
            while True:
                session.run(train)
    assert hook.explain(caught.value).endswith(f"model.ckpt-{nan_at - 1}")
    assert "NaN" not in metrics.read_text()
