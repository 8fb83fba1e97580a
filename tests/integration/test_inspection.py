"""A trained model looked into: the same hypotheses as `rpr decode`, and where its heads look."""
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import rpr_command

import rpr
from rpr.experiments import run_directory
from rpr.inference import file_decoder, inspector
from rpr.inference.batches import until_end
from rpr.models.beam_search import EOS_ID
from rpr.problems import toy
from rpr.report import model_analysis
from rpr.t2t import trained_model
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest

rpr.register()

BEAM, ALPHA = 3, 0.6


def request_of(trained, checkpoint):
    return ModelRequest(
        model="rpr_transformer", problem=trained.text.problem, hparams_set="rpr_tiny",
        data_dir=str(trained.text.data_dir), output_dir=str(trained.output_dir),
        checkpoint_path=checkpoint)


@pytest.fixture(scope="module")
def model(trained, lively):
    return inspector.Inspector(trained_model.find_trained_model(request_of(trained, lively)), BEAM,
                               ALPHA, extra_length=20)


@pytest.fixture(scope="module")
def lines(trained):
    return (trained.text.folder / "test.en").read_text(encoding="utf-8").splitlines()[:8]


def test_hypotheses_are_those_of_decode(model, trained, lively, lines, tmp_path):
    (tmp_path / "in").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    rpr_command("decode", *trained.flags, f"--checkpoint_path={lively}",
                f"--decode_from_file={tmp_path}/in", f"--decode_to_file={tmp_path}/out",
                f"--decode_hparams=beam_size={BEAM},alpha={ALPHA},batch_size=1,extra_length=20")
    texts = [model.translate(line).text for line in lines]
    assert texts == (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert len(set(texts)) > 4


def test_the_score_is_made_of_the_probabilities(model, lines):
    ended = 0
    for line in lines:
        translation = model.translate(line)
        assert len(translation.ids) == len(translation.tokens) == len(translation.probabilities)
        expected = np.log(translation.probabilities.astype(np.float64)).sum()
        if translation.ids[-1] == EOS_ID:
            expected /= ((5 + len(translation.ids)) / 6) ** ALPHA
            ended += 1
        np.testing.assert_allclose(translation.score, expected, rtol=1e-4)
    assert ended


def test_a_greedy_hypothesis_of_t2ts_loop_without_a_cache_has_its_log_probability():
    """With relative attention; the loop itself gives no scores."""
    session = rpr.build(
        "transformer_tiny", "self_attention_type=dot_product_relative,max_relative_position=4,"
        "num_hidden_layers=1", model="transformer", vocabulary_size=16, beam_size=1, extra_length=6)
    with session._session.graph.as_default():
        tiny_models.lively(session._session, seed=8)
    inputs = tiny_models.sentences([6, 3, 5, 4, 2, 5])[:, :, 0, 0]
    ids, scores = session.search(inputs)
    found = [until_end(row) for row in ids]
    expected = [row[:len(ids)].sum() for row, ids in zip(
        session.log_probabilities(inputs, found, found=True), found, strict=True)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert len({len(ids) for ids in found}) > 1              # some end before the limit


def test_a_file_is_scored_with_the_vocabularies_of_the_model(model, trained, lively, lines):
    """They are those of the problem, swapped where its name ends in _rev."""
    found = trained_model.find_trained_model(request_of(trained, lively))
    source, target = model.encode(lines[0]), model.encode(lines[1], "targets")
    expected = -model.log_probabilities([source], [target]).mean()
    with tf.Graph().as_default():
        score, = file_decoder.score_lines(found, [f"{lines[0]}\t{lines[1]}"])
    assert score == pytest.approx(expected, rel=1e-4)
    vocabulary = found.hparams.problem_hparams.vocabulary
    swapped = {"inputs": toy.Tokens("ab"), "targets": vocabulary["targets"]}
    found.hparams.problem_hparams.vocabulary = swapped
    found.hparams.problem_hparams.loss_multiplier = 2.0         # as T2T's problems of characters
    with tf.Graph().as_default():
        score, = file_decoder.score_lines(found, [f"b a\t{lines[1]}"])
    assert score == pytest.approx(
        -model.log_probabilities([[3, 2, EOS_ID]], [target]).mean(), rel=1e-4)


def test_weights_are_distributions_over_what_may_be_seen(model, lines):
    sources = [model.encode(line) for line in lines[:3]]
    targets = [model.encode(line, "targets")[:9 + row] for row, line in enumerate(lines[:3])]
    together = model.attention(sources, targets)
    longest, heads = max(map(len, sources)), 2
    assert together.encoder.shape == (1, 3, heads, longest, longest)
    assert together.decoder.shape == (1, 3, heads, 11, 11)
    assert together.cross.shape == (1, 3, heads, 11, longest)
    for weights in together:
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert not np.triu(together.decoder, 1).any()
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model.attention([source], [target])
        for kind, rows, columns in (("encoder", source, source), ("decoder", target, target),
                                    ("cross", target, source)):
            of_batch = getattr(together, kind)[:, row, :, :len(rows), :len(columns)]
            np.testing.assert_allclose(of_batch, getattr(alone, kind)[:, 0], atol=1e-5)


def test_attention_by_distance_counts_each_pair_once():
    random = np.random.RandomState(0)
    weights = random.rand(2, 3, 7, 7)
    expected = np.zeros([2, 3, 5])
    for i in range(7):
        for j in range(7):
            expected[:, :, min(max(j - i, -2), 2) + 2] += weights[:, :, i, j]
    np.testing.assert_allclose(inspector.sum_by_distance(weights, 2), expected, rtol=1e-12)


@pytest.fixture
def run_of_trained(trained, tmp_path):
    """The run's directory that `trained` would have been made in."""
    run_dir = run_directory.RunDirectory(str(tmp_path / "run"), str(trained.text.data_dir))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(trained.output_dir)
    (tmp_path / "run" / "config.gin").write_text(
        "run.problem = 'translate_text_files'\nrun.hparams_set = 'rpr_tiny'\n"
        "run.train_steps = 20\nrun.checkpoint_steps = 10\n", encoding="utf-8")
    for name, language in ((run_dir.source, "en"), (run_dir.reference, "de")):
        with open(name, "w", encoding="utf-8") as out:
            out.write((trained.text.folder / f"test.{language}").read_text(encoding="utf-8"))
    return run_dir


def test_attention_by_distance_of_a_run(run_of_trained):
    _, request = run_directory.find_model(run_of_trained.path, run_of_trained.data_dir)
    model = inspector.Inspector(trained_model.find_trained_model(request), beam_size=1)
    by_side = model_analysis.attention_by_distance(
        model, *(Path(path).read_text(encoding="utf-8").splitlines()
                 for path in (run_of_trained.source, run_of_trained.reference)),
        max_length=256, sentences=5, max_distance=4)
    assert {side: shares.shape for side, shares in by_side.items()} == {
        "encoder": (1, 2, 9), "decoder": (1, 2, 9)}
    for shares in by_side.values():
        np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
    assert not by_side["decoder"][:, :, 5:].any() and by_side["encoder"][:, :, 5:].all()


def test_the_analysis_of_a_run_says_which_row_is_distance_0(run_of_trained, tmp_path):
    (tmp_path / "data").symlink_to(run_of_trained.data_dir)
    arrays = model_analysis._analyse(run_of_trained, None)
    assert arrays["encoder_keys"].shape[2] == 2 * arrays["clip_left"] + 1
    assert {"source_lengths", "encoder_attention", "decoder_values"} <= set(arrays)


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="config.gin"):
        run_directory.find_model(str(tmp_path))
