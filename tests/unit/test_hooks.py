"""Hooks of a training: which checkpoints are evaluated, and which are kept for development BLEU."""
import shutil

import numpy as np
import tensorflow.compat.v1 as tf
from conftest import killed_before_the_index

from rpr.training import averaging, hooks
from rpr.utils import metrics_log


def save(model_dir, step):
    """A checkpoint as T2T writes it, with a slot of an optimizer; returns the weights."""
    weights = np.random.RandomState(step).normal(size=(30, 20)).astype("f")
    averaging.write_checkpoint(str(model_dir / f"model.ckpt-{step}"), {
        "transformer/w": weights, "training/transformer/w/Adam": weights,
        "global_step": np.int64(step)})
    return weights


def kept(model_dir):
    return sorted(path.stem for path in (model_dir / "kept").glob("model.ckpt-??.index"))


def test_weights_of_multiples_are_kept_bit_for_bit(tmp_path):
    weights = {step: save(tmp_path, step) for step in (0, 10, 20, 30, 40)}
    save(tmp_path, 20)
    for path in tmp_path.glob("model.ckpt-20.*"):     # a copy that somebody made
        shutil.copy(path, str(path).replace("-20.", "-best."))
    hooks.KeepingListener(str(tmp_path), 20).after_save(None, 40)
    assert kept(tmp_path) == ["model.ckpt-20", "model.ckpt-40"]
    for step in (20, 40):
        reader = tf.train.load_checkpoint(str(tmp_path / "kept" / f"model.ckpt-{step}"))
        assert reader.get_tensor("transformer/w").tobytes() == weights[step].tobytes()
        assert not reader.has_tensor("training/transformer/w/Adam")
        assert reader.get_tensor("global_step") == step


def test_none_is_kept_by_default(tmp_path):
    save(tmp_path, 20)
    hooks.KeepingListener(str(tmp_path), 0).after_save(None, 20)
    assert not kept(tmp_path)


def test_killed_while_it_writes_it_keeps_the_checkpoint_later(tmp_path, monkeypatch):
    weights = save(tmp_path, 20)
    with killed_before_the_index(monkeypatch):
        hooks.KeepingListener(str(tmp_path), 20).after_save(None, 20)
    assert not kept(tmp_path)
    save(tmp_path, 40)
    data = next(tmp_path.glob("model.ckpt-40.data-*"))
    data.write_bytes(data.read_bytes()[:100])         # a power cut: not a whole checkpoint
    hooks.KeepingListener(str(tmp_path), 20).keep()
    assert kept(tmp_path) == ["model.ckpt-20"]
    reader = tf.train.load_checkpoint(str(tmp_path / "kept" / "model.ckpt-20"))
    assert reader.get_tensor("transformer/w").tobytes() == weights.tobytes()


def evaluated(path, steps, frequency, restarts=()):
    """The steps that are evaluated; a training that was killed goes on from a checkpoint."""
    found = []

    def evaluate():
        metrics_log.append(path, "eval", step=step, loss=1.0)
        found.append(step)

    def start():
        return hooks.EvaluationListener(path, frequency, steps[-1], evaluate)

    listener = start()
    for before, step in zip((0, *steps), steps, strict=False):
        for number in range(before + 10, step + 1, 10):      # as many events as a training writes
            metrics_log.append(path, "train", step=number, loss=1.0, steps_per_second=4.0,
                               source_tokens_per_second=1234.5, target_tokens_per_second=1234.5)
        listener.after_save(None, step)
        listener = start() if step in restarts else listener
    return found


def test_evaluations_are_far_apart_and_a_restart_changes_nothing(tmp_path):
    steps = range(1000, 21000, 1000)
    for restarts in ((), (3000, 5000, 9000)):
        path = str(tmp_path / f"{len(restarts)}.jsonl")
        assert evaluated(path, steps, 5000, restarts) == [5000, 10000, 15000]


def test_a_training_that_was_stopped_between_evaluations_is_evaluated_at_the_same_steps(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    assert evaluated(path, [5, 10, 15], 10) == [10]
    metrics_log.append(path, "eval", step=15, loss=1.0)          # the last step of the first part
    assert evaluated(path, [20, 25, 30, 35], 10) == [20, 30]


def test_steps_that_are_trained_again_are_evaluated_again(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    assert evaluated(path, range(1000, 4001, 1000), 1000) == [1000, 2000, 3000]
    again = []
    listener = hooks.EvaluationListener(path, 1000, 4000, lambda: again.append(True))
    metrics_log.forget_after(path, 1000)              # the training goes back to this step
    listener.after_save(None, 2000)
    assert again == [True]
