"""The Python API: what docs/python.md shows, and the same numbers as the commands give."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report_runs
import tiny_models
from conftest import python_script, rpr_command

import rpr
from rpr import api
from rpr.inference.batches import until_end
from rpr.utils.errors import UserError

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
HAS_PANDAS = importlib.util.find_spec("pandas") is not None


@pytest.fixture(scope="module")
def workplace(trained, tmp_path_factory):
    """A directory with runs/quickstart/{absolute,relative} and the study runs/table2."""
    folder = tmp_path_factory.mktemp("workplace")
    quickstart = folder / "runs" / "quickstart"
    for name, share in (("absolute", 0.3), ("relative", 0.1)):
        run = quickstart / name
        run.mkdir(parents=True)
        (run / "model").symlink_to(trained.output_dir)
        (run / "config.gin").write_text(
            "run.problem = 'translate_text_files'\nrun.hparams_set = 'rpr_tiny'\n"
            "run.train_steps = 20\nrun.checkpoint_steps = 10\nrun.beam_size = 2\n")
        for kind, lines in (("hypotheses", report_runs.damage(report_runs.REFERENCE, share, 1)),
                            ("reference", report_runs.REFERENCE)):
            (run / f"{kind}.test.txt").write_text("".join(line + "\n" for line in lines))
    (quickstart / "data").symlink_to(trained.text.data_dir)
    report_runs.write_clipping_study(folder / "runs" / "table2")
    return folder


def run_python(code, workplace):
    """What a program prints that runs in the workplace."""
    done = subprocess.run([sys.executable, "-c", code], cwd=workplace, check=False, text=True,
                          capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(PAGE.parents[1]),
                               "MPLBACKEND": "Agg"})
    assert not done.returncode, done.stderr
    assert "deprecated" not in done.stderr
    return done.stdout


def test_the_blocks_of_the_page_run(workplace):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"),
                        re.MULTILINE | re.DOTALL)
    blocks = [block for block in blocks if "rpr.study" not in block]      # it trains
    assert len(blocks) == 7
    if not HAS_PANDAS:
        blocks = [block for block in blocks if "rpr.results" not in block]
    printed = run_python("\n".join(blocks), workplace)
    assert sorted(path.name for path in (workplace / "pictures").iterdir()) == [
        f"1.{kind}.png" for kind in ("cross", "decoder", "encoder")]
    assert "(2, 3, 50)" in printed and "p = 0." in printed and "encoder_keys" in printed


def test_the_cells_of_the_tour_run(workplace, tmp_path):
    tour = json.loads((PAGE.parent / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in tour["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 4 and not any(cell.get("outputs") for cell in tour["cells"])
    (tmp_path / "tour.py").write_text("\n".join(cells))
    done = python_script(tmp_path / "tour.py", cwd=workplace)
    assert "max_relative_position=16 1 done" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(workplace):
    return rpr.load(str(workplace / "runs" / "quickstart" / "relative"), alpha=1.0)


def test_weights_have_plain_names(model):
    weights = model.weights()
    assert weights["encoder.0.self_attention.relative_keys"].shape == (2, 9, 16)
    assert weights["decoder.0.cross_attention.q"].shape == (32, 32)
    assert weights["softmax"] is weights["source_embedding"]


@pytest.fixture(scope="module")
def lines(trained):
    return {language: (trained.text.folder / f"test.{language}").read_text(encoding="utf-8")
            .splitlines()[:7] for language in ("en", "de")}


def test_a_loaded_run_scores_sentences_alike_in_any_batch(model, lines):
    together = model.score(lines["en"], lines["de"])
    alone = [model.score([source], [target])[0]
             for source, target in zip(lines["en"], lines["de"], strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert together.dtype == np.float64 and (together < 0).all()


def test_the_loss_of_an_evaluation_is_that_of_all_tokens_for_every_batch_size(model, trained,
                                                                                tmp_path):
    few, many = ({}, {})
    forty = shutil.copytree(trained.text.data_dir, tmp_path / "forty")    # of each sentence
    (forty / f"{trained.text.problem}.datagen.json").unlink()             # which has sizes
    record, = forty.glob("*-test-*")
    record.write_bytes(record.read_bytes() * 40)
    for batch_size, data_dir, metrics in ((60, forty, few), (4000, trained.text.data_dir, many)):
        rpr_command("evaluate", *trained.flags, f"--hparams=batch_size={batch_size}",
                    f"--data_dir={data_dir}", "--eval_use_test_set", f"--json={tmp_path}/json")
        metrics.update(json.loads((tmp_path / "json").read_text()))
    source, target = ((trained.text.folder / f"test.{language}").read_text("utf-8").splitlines()
                      for language in ("en", "de"))
    tokens = sum(len(model._inspector.encode(line, "targets")) for line in target)
    assert few["loss"] == -few["neg_log_perplexity"] == pytest.approx(
        -model.score(source, target).sum() / tokens, rel=1e-5)
    for name in few.keys() - {"checkpoint"}:
        assert few[name] == pytest.approx(many[name], rel=1e-4), name


def test_translations_keep_the_order_and_their_probabilities(model, lines):
    sources = [lines["en"][0], "", lines["en"][1]]
    translations = model.translate(sources, batch_size=2)
    assert len(translations) == 3
    for source, translation in zip(sources, translations, strict=True):
        assert len(translation.tokens) == len(translation.probabilities) > 0
        if translation.ids[-1] == 1:
            np.testing.assert_allclose(
                model.score([source], [translation.text])[0],
                np.log(translation.probabilities.astype("d")).sum(), rtol=1e-3)
    assert model.translate([]) == []
    one = model.translate(lines["en"][0])
    assert list(one.ids) == list(translations[0].ids) and one.text == translations[0].text


def test_attention_of_a_pair(model, lines):
    found = model.attention(lines["en"][0], lines["de"][0])
    source, target = len(found.source), len(found.target)
    assert found.source[-1] == found.target[-1] == "⏎"
    assert found.encoder.shape == (1, 2, source, source)
    assert found.decoder.shape == (1, 2, target, target)
    assert found.cross.shape == (1, 2, target, source)
    np.testing.assert_allclose(found.cross.sum(axis=-1), 1, atol=1e-5)
    assert model.attention(lines["en"][0]).source == found.source


def test_a_built_model_gives_the_logits_of_the_graph():
    inputs = tiny_models.sentences([6, 3], seed=3)[:, :, 0, 0]
    targets = tiny_models.sentences([4, 5], seed=5)[:, :, 0, 0]
    settings = "position=relative,max_relative_position=3,num_hidden_layers=1"
    network = rpr.build("rpr_tiny", settings, vocabulary_size=11, seed=7, extra_length=4)
    logits = network.logits(inputs, targets)
    assert logits.shape == (2, 5, 11)
    np.testing.assert_allclose(network.logits(inputs[1:, :3], targets[1:])[0], logits[1],
                               atol=1e-5)
    chosen = np.take_along_axis(
        logits - np.logaddexp.reduce(logits, axis=2, keepdims=True), targets[:, :, None], 2)
    np.testing.assert_allclose(network.log_probabilities(inputs, targets), chosen[:, :, 0],
                               atol=1e-5)
    ids, scores = network.search(inputs)
    assert len(ids) == len(scores) == 2
    again = rpr.build("rpr_tiny", settings, vocabulary_size=11, seed=7, extra_length=4)
    np.testing.assert_array_equal(again.logits(inputs, targets), logits)


@pytest.mark.parametrize("model, hparams_set", [
    ("lstm_seq2seq", "lstm_seq2seq"), ("universal_transformer", "universal_transformer_tiny"),
    ("universal_transformer", "adaptive_universal_transformer_tiny")])
def test_the_beam_search_of_t2t_without_a_cache_gives_the_score_of_its_best(model, hparams_set):
    network = rpr.build(hparams_set, "hidden_size=8,filter_size=8,num_heads=2,num_hidden_layers=1"
                        if "transformer" in model else "hidden_size=8,num_hidden_layers=1",
                        model=model, vocabulary_size=12, beam_size=2, alpha=0.0, extra_length=2)
    ids, scores = network.search([[3, 4, 1], [5, 1]])
    assert ids.shape[0] == 2 and scores.shape == (2,)
    found = network.log_probabilities([[3, 4, 1]], [until_end(ids[0])], found=True)[0]
    assert scores[0] == pytest.approx(found.sum(), abs=1e-4)


def test_a_study_as_rows(workplace):
    study = workplace / "runs" / "table2"
    arms = json.loads((study / "study.json").read_text())["arms"]
    rows = api.rows(str(study))
    assert [row["arm"] for row in rows] == [arm["name"] for arm in arms for _ in arm["runs"]]
    assert {row["state"] for row in rows} == {"done", "failed", "waiting"}
    assert all(os.path.isdir(row["directory"]) for row in rows if row["state"] == "done")
    quickstart = api.rows(str(workplace / "runs" / "quickstart"))
    assert [row["arm"] for row in quickstart] == ["absolute", "relative"]
    if HAS_PANDAS:
        assert list(rpr.results(str(study)).arm) == [row["arm"] for row in rows]
    else:
        with pytest.raises(UserError, match="pip install pandas"):
            rpr.results(str(study))


@pytest.mark.parametrize("call, says", [
    (lambda model: rpr.load("nowhere"), "nowhere: contains no run"),
    (lambda model: rpr.load(None), "run is missing: must be a path"),
    (lambda model: rpr.load("nowhere", t2t_usr_dir=5), "t2t_usr_dir=5: must be a path"),
    (lambda model: rpr.results(1.5), "path=1.5: must be a path"),
    (lambda model: rpr.load("nowhere", data_dir="\ud800"), r"data_dir='\\ud800': must be text"),
    (lambda model: rpr.run("x.gin", "a\0b"), r"run_dir='a\\x00b': must be text"),
    (lambda model: rpr.study("x", "y", settings={"\ud800": 1}), r"--set=\\ud800=1': must be text"),
    (lambda model: rpr.curves(b"x"), "path=b'x': must be a path"),
    (lambda model: rpr.run(None, "x"), "gin is missing: must be a path"),
    (lambda model: rpr.build("rpr_tiny", checkpoint=5), "checkpoint=5: must be a path"),
    (lambda model: rpr.build("rpr_tiny", vocabulary_size=10**12), "from 2 to 10,000,000"),
    (lambda model: rpr.build("rpr_tinny"), "rpr_tinny.*rpr_tiny"),
    (lambda model: rpr.build("rpr_tiny", "posittion=none"), "posittion.*position"),
    (lambda model: rpr.build("rpr_tiny", beam_size=0), "beam_size=0"),
    (lambda model: rpr.build("rpr_tiny", beam_size=2.5), "beam_size=2.5: must be a whole number"),
    (lambda model: rpr.build("rpr_tiny", alpha="x"), "alpha=x: must be a number"),
    (lambda model: rpr.build("rpr_tiny", alpha=40), "alpha=40: must be a number from 0 to 10"),
    (lambda model: rpr.build("rpr_tiny", vocabulary_size=1), "vocabulary_size=1"),
    (lambda model: rpr.build("rpr_tiny", vocabulary_size=50.5), "vocabulary_size=50.5"),
    (lambda model: rpr.build("rpr_tiny", seed="a"), "seed=a"),
    (lambda model: rpr.build("rpr_tiny", seed=2**64), "seed=18446744073709551616"),
    (lambda model: rpr.build("rpr_tiny", extra_length=-5), "extra_length=-5"),
    (lambda model: rpr.build("rpr_tiny", checkpoint="nope"), "checkpoint=nope: there is no"),
    (lambda model: rpr.build("rpr_tiny", None), "hparams is missing: must be text"),
    (lambda model: rpr.build(5), "hparams_set=5: must be text"),
    (lambda model: rpr.build("europarl_lite"), "rpr.build has no vocabulary"),
    (lambda model: rpr.build("rpr_tiny", "prepend_mode=prepend_inputs_masked_attention"),
     "prepend_mode=prepend_inputs_masked_attention: only rpr decode"),
    (lambda model: model.translate(None), "a list of strings"),
    (lambda model: model.translate(["a"], batch_size=0), "batch_size=0"),
    (lambda model: model.attention(["a"], "b"), r"source=\['a'\]: must be text"),
    (lambda model: model.attention("a", 5), "target=5: must be text"),
    (lambda model: model.score(["a", "b"], ["c"]), "2 sources and 1 targets"),
])
def test_bad_arguments_raise_one_line(model, call, says):
    with pytest.raises(UserError, match=says) as raised:
        call(model)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("call", [
    lambda path: rpr.load(path), lambda path: rpr.curves(path), lambda path: api.rows(path),
    lambda path: rpr.build("rpr_tiny", checkpoint=path)])
def test_a_path_may_begin_in_the_home_directory(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/none: ")):
        call("~/none")


class Labelled(list):
    """A list whose items have other indices, like a filtered pandas Series."""

    def __getitem__(self, index):
        return super().__getitem__((index + 1) % len(self))


def test_sentences_may_come_in_any_iterable(model):
    lines = ["Click the button.", "Opens the dialog in a new window.", "Save."]
    expected = [translation.text for translation in model.translate(lines)]
    for sentences in (Labelled(lines), iter(lines)):
        assert [translation.text for translation in model.translate(sentences)] == expected
    np.testing.assert_array_equal(model.score(Labelled(lines), iter(lines)),
                                  model.score(lines, lines))


@pytest.fixture(scope="module")
def short_network():
    """Of a set of T2T, whose learned positions rpr_transformer reads as its own."""
    return rpr.build("transformer_tiny", "pos=emb,max_length=4,num_hidden_layers=1,vocab_divisor=8",
                     vocabulary_size=20)


@pytest.mark.parametrize("call, says", [
    (lambda network: network.search(5), "a list of whole numbers"),
    (lambda network: network.search([[5, 1], [0, 5, 1]]), "inputs: 0 is padding"),
    (lambda network: network.search([[5, [1]]]), "a list of whole numbers"),
    (lambda network: network.logits(None, None), "a list of whole numbers"),
    (lambda network: network.logits([[3.5]], [[4]]), "inputs: .* a list of whole numbers"),
    (lambda network: network.logits([3], [[4]]), "inputs: .* a list of whole numbers"),
    (lambda network: network.logits([[3, 99]], [[4]]), "inputs: ids must be from 0 to 19"),
    (lambda network: network.logits([[3]], [[-1]]), "targets: ids must be from 0 to 19"),
    (lambda network: network.logits([[3], [4]], [[5]]), "2 inputs and 1 targets"),
    (lambda network: network.logits(*np.zeros([2, 0, 3], int)), "inputs: must be one or more"),
    (lambda network: network.logits([[5, 1]], [[5, 6, 7, 8, 1]]),
     "targets: a sentence of 5 ids; .* max_length=4"),
    (lambda network: network.search([[5, 6, 7, 8, 1]]), "inputs: a sentence of 5 ids"),
])
def test_ids_that_cannot_be_read_raise_one_line(short_network, call, says):
    with pytest.raises(UserError, match=says) as raised:
        call(short_network)
    assert "\n" not in str(raised.value)


def test_a_hypothesis_may_hold_symbols_that_are_not_of_the_vocabulary(short_network):
    assert short_network.log_probabilities([[5, 1]], [[23, 1]], found=True).shape == (1, 2)
    assert short_network.log_probabilities([[5, 1]], [[0, 6, 1]], found=True).shape == (1, 3)
    assert short_network.attention([[5, 1]], [[0, 6, 1]], found=True).cross.shape[-2:] == (3, 2)
    with pytest.raises(UserError, match="targets: 0 is padding"):
        short_network.logits([[5, 1]], [[0, 6, 1]])


def test_a_model_with_one_stack_needs_no_position_scheme_for_the_other():
    encoder = rpr.build("ruoss2023", "position=randomized+rotary,randomized_evaluation=True,"
                        "num_encoder_layers=1", vocabulary_size=20)
    assert encoder.search([[5, 2, 1]])[0].shape[0] == 1
    decoder = rpr.build("rpr_tiny", "position=path+learned,decoder_only=True,max_length=12,"
                        "num_hidden_layers=1", vocabulary_size=20)
    assert decoder.search([[5] * 10 + [1]])[0].shape == (1, 1)
    assert decoder.logits([[5, 6, 1]], [[7] * 9]).shape == (1, 9, 20)
    for call, says in ((lambda: decoder.search([[5] * 11 + [1]]), "first target: .* of 13"),
                       (lambda: decoder.logits([[5, 6, 1]], [[7] * 10]), "together: .* of 13 ids")):
        with pytest.raises(UserError, match=says):
            call()


def test_a_running_eager_program_is_not_switched_to_graph_mode(workplace):
    printed = run_python(
        "import tensorflow as tf\n"
        "tf.constant(1) + 1\n"
        "import rpr\n"
        "try:\n"
        "    rpr.build('rpr_tiny')\n"
        "except RuntimeError as error:\n"
        "    print(error, tf.executing_eagerly())\n", workplace)
    assert "in a process of its own True" in printed
