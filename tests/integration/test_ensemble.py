"""Ensembles: the mean of the models' probabilities at each step, alike and unlike ones."""
import json
import os
import shutil

import gpu_kernels
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import refused, rpr_command, train
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.utils import decoding

import rpr
from rpr.inference import ensemble
from rpr.utils.errors import UserError

rpr.register()

EOS = 1
INPUTS = tiny_models.sentences([6, 3, 5], seed=3)
MEMBERS = [("rpr_transformer", "rpr_tiny", dict(position="relative", num_hidden_layers=1)),
           ("rpr_transformer", "rpr_tiny", dict(position="sinusoid", hidden_size=16,
                                              num_hidden_layers=1)),
           ("qkv_seq2seq", "qkv_seq2seq_tiny", dict(encoder="cnn"))]


@pytest.fixture(scope="module")
def models():
    """A session, three models that have no hparam in common, and each one's log probabilities."""
    with tf.Graph().as_default(), tf.Session() as session:
        built, wholes = [], []
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        for number, (name, hparams_set, overrides) in enumerate(MEMBERS):
            with tf.variable_scope(f"member_{number}", reuse=tf.AUTO_REUSE) as scope:
                model = tiny_models.make(
                    tiny_models.hparams(hparams_set, **overrides), model=name)
                logits, _ = model({"inputs": inputs, "targets": targets, "target_space_id": 1})
            wholes.append(tf.nn.log_softmax(logits)[:, :, 0, 0])
            built.append((model, scope))
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)

        def whole(which, input_ids, target_ids):
            """[models, sentences, length, symbols] log probabilities."""
            return np.stack(session.run([wholes[number] for number in which], {
                inputs: input_ids, targets: np.asarray(target_ids)[:, :, None, None]}))

        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            for model, _ in built:
                model.set_mode(tf.estimator.ModeKeys.PREDICT)
            yield session, built, whole


def features():
    return {"inputs": tf.constant(INPUTS), "target_space_id": tf.constant(1)}


def decode(models, which, beams=1):
    session, built, _ = models
    hparams = decoding.decode_hparams(
        f"beam_size={beams},alpha=0.6,extra_length=4,return_beams={beams > 1}")
    return session.run(ensemble.decode(features(), [built[number] for number in which], hparams))


@settings(max_examples=50)
@given(seed=st.integers(0, 999), models=st.integers(1, 4), scale=st.sampled_from([0.1, 3.0, 60.0]))
def test_the_mean_is_of_probabilities(seed, models, scale):
    logits = scale * np.random.RandomState(seed).randn(models, 3, 7)
    chances = np.exp(logits - logits.max(axis=2, keepdims=True))
    expected = (chances / chances.sum(axis=2, keepdims=True)).mean(axis=0)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(ensemble.mean_log_probabilities(
            [tf.constant(model_logits, tf.float32) for model_logits in logits]))
    np.testing.assert_allclose(np.exp(got), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("member, beams", [(0, 3), (1, 1), (2, 3)])
def test_a_model_with_itself_is_the_model(models, member, beams):
    session, built, _ = models
    model, scope = built[member]
    with tf.variable_scope(scope, auxiliary_name_scope=False):
        alone = model.infer(features(), decode_length=4, beam_size=beams, top_beams=beams,
                            alpha=0.6)
    alone = session.run({name: alone[name] for name in ("outputs", "scores")})
    twice = decode(models, [member, member], beams)
    real = np.atleast_2d(alone["scores"]) > -1e6             # else: fewer have ended than beams
    np.testing.assert_allclose(np.atleast_2d(twice["scores"])[real],
                               np.atleast_2d(alone["scores"])[real], atol=1e-4)
    steps = twice["outputs"].shape[-1]
    ids = alone["outputs"][..., :steps].reshape(-1, steps)
    ids_of_two = twice["outputs"].reshape(-1, steps)
    for ids_alone, ids_twice in zip(ids[real.ravel()], ids_of_two[real.ravel()], strict=True):
        end = np.append(np.flatnonzero(ids_alone == EOS), steps)[0] + 1
        np.testing.assert_array_equal(ids_alone[:end], ids_twice[:end])


def test_edges_in_a_line_do_not_make_hypotheses_longer():
    """Words 4 and 5, an end mark, and an edge between them."""
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("member_0") as scope:
            model = tiny_models.make(tiny_models.hparams(
                position="graph", num_edge_labels=3, num_hidden_layers=1), "infer")
        model._problem_hparams.add_hparam("edges_in_text", True)
        found = ensemble.decode(
            {"inputs": tf.constant([[4, 5, EOS, 2, 3, 3, EOS]])[:, :, None, None]},
            [(model, scope)], decoding.decode_hparams("beam_size=1,extra_length=2"))["outputs"]
        session.run(tf.global_variables_initializer())
        assert session.run(found).shape[1] <= 3 + 2


def test_unlike_models_choose_together(models):
    """Greedy and beam: what comes out scores what the mean of the whole models' says."""
    _, _, whole = models
    which = [0, 1, 2]
    for beams in (1, 2):
        got = decode(models, which, beams)
        ids = got["outputs"].reshape(3 * beams, -1)
        chances = np.exp(whole(which, np.repeat(INPUTS, beams, axis=0), ids)).mean(axis=0)
        limits = np.repeat(np.count_nonzero(INPUTS, axis=(1, 2, 3)) + 4, beams)
        for row, symbols, score, limit in zip(chances, ids, got["scores"].ravel(), limits,
                                              strict=True):
            ends = np.flatnonzero(symbols == EOS)
            count = ends[0] + 1 if len(ends) else min(limit, len(symbols))
            if beams == 1:
                np.testing.assert_array_equal(symbols[:count], row.argmax(axis=1)[:count])
            if score > -1e6:
                penalty = ((5 + count) / 6) ** 0.6 if len(ends) and beams > 1 else 1
                total = np.log(row[np.arange(count), symbols[:count]]).sum()
                assert score == pytest.approx(total / penalty, abs=1e-4)
    alone = [decode(models, [number])["outputs"] for number in which]
    assert any(ids.shape != alone[0].shape or (ids != alone[0]).any() for ids in alone[1:])
    assert gpu_kernels.lacking(models[0].graph) == []


@pytest.fixture(scope="module")
def runs(trained, lively, tmp_path_factory):
    """A run's directory of the lively Transformer, and a recurrent model of a few steps."""
    run = tmp_path_factory.mktemp("ensemble")
    shutil.copytree(trained.output_dir, run / "transformer" / "model")
    (run / "transformer" / "average").mkdir()
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(lively + suffix, run / "transformer" / "average")
    tf.train.update_checkpoint_state(
        str(run / "transformer" / "average"), str(run / "transformer/average/model.ckpt-20"))
    train(trained.text, run / "recurrent", "--model=qkv_seq2seq", "--hparams_set=qkv_seq2seq_tiny",
          steps=10)
    return run


def test_from_the_command_line(trained, lively, runs, tmp_path):
    lines = (trained.text.folder / "train.en").read_text(encoding="utf-8").splitlines()[:8]
    (tmp_path / "in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = [f"--data_dir={trained.text.data_dir}", f"--decode_from_file={tmp_path}/in",
             "--decode_hparams=beam_size=2,alpha=0.6,batch_size=3,extra_length=9"]
    transformer, recurrent = runs / "transformer", runs / "recurrent"
    (tmp_path / "tmp").mkdir()
    rpr_command("decode", *flags, f"--ensemble={transformer},{transformer}",
                f"--decode_to_file={tmp_path}/twice", f"--metrics_file={tmp_path}/metrics",
                env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert not list((tmp_path / "tmp").iterdir())
    rpr_command("decode", *flags, *trained.flags, f"--checkpoint_path={lively}",
                f"--decode_to_file={tmp_path}/alone")
    assert (tmp_path / "twice").read_text() == (tmp_path / "alone").read_text()
    assert json.loads((tmp_path / "metrics").read_text())["sentences"] == 8
    rpr_command("decode", *flags, f"--ensemble={transformer},{recurrent}",
                f"--decode_to_file={tmp_path}/both")
    both = (tmp_path / "both").read_text()
    assert both.count("\n") == 8 and both != (tmp_path / "alone").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alone", "both", "in", "metrics", "tmp", "twice"]


def test_a_recurrent_model_translates_and_shows_where_it_looks(trained, runs, tmp_path):
    flags = [*trained.text.flags, "--model=qkv_seq2seq", "--hparams_set=qkv_seq2seq_tiny",
             f"--output_dir={runs}/recurrent", f"--show_attention={tmp_path}/a"]
    made = json.loads(rpr_command("translate", *flags, "Click the button.", "--json").stdout)
    assert len(made["tokens"]) == len(made["probabilities"]) > 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["1.cross.png"]


def test_bad_ensembles_are_refused_in_one_line(trained, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((trained.output_dir / "rpr.json").read_text())
    (other / "rpr.json").write_text(json.dumps({**record, "vocabulary": {"vocab.other": "0" * 64}}))
    data_dir = str(trained.text.data_dir)
    with pytest.raises(UserError, match=f"{other}: it was trained with another vocabulary .vocab"):
        ensemble.find_members([str(trained.output_dir), str(other)], data_dir)
    (other / "rpr.json").write_text(json.dumps(
        {**record, "vocabulary": {}, "problem": "length_copy_10"}))
    with pytest.raises(UserError, match="another vocabulary .that of length_copy_10. than"):
        ensemble.find_members([str(trained.output_dir), str(other)], data_dir)
    with pytest.raises(UserError, match=f"{tmp_path}: neither a run directory"):
        ensemble.find_members([str(trained.output_dir), str(tmp_path)], data_dir)
    assert "--output_dir=" in refused("decode", *trained.flags, "--ensemble=x")
    assert "'run': not with --ensemble, which names" in refused("decode", "run", "--ensemble=x")
