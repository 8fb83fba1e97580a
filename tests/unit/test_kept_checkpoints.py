"""Checkpoints that are kept for development BLEU: weights only, whole, also after a kill."""
import numpy as np
import tensorflow.compat.v1 as tf
from conftest import killed_before_the_index

from rpr.training import averaging, hooks


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
