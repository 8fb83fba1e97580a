"""Language models: a run, losses in windows, continuations, causal schemes, and their scores."""
import json
import os
import re
import subprocess
import sys
import tarfile
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import ROOT, python_script, refused, rpr_command
from tensor2tensor.utils import registry, trainer_lib

import rpr
from rpr.evaluation import ratio_metrics
from rpr.inference import language_model
from rpr.training import input_pipeline
from rpr.utils.errors import UserError

PAGE = (ROOT / "docs" / "language_models.md").read_text(encoding="utf-8")
GIN = re.findall(r"^```\n(run\.problem.*?)^```", PAGE, re.M | re.S)[0].split("study.baseline")[0]
SMALL = """
run.hparams_set = "rpr_tiny"
run.hparams = "num_hidden_layers=1,position=rotary,max_length=60"
run.train_steps = 10
run.checkpoint_steps = 10
run.average_checkpoints = 1
run.eval_steps = 1
"""


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    (folder / "run.gin").write_text(
        GIN + SMALL + f"run.text_source = '{text.folder}/train.en'\n"
        f"run.text_test_source = '{text.folder}/test.en'\n")
    environment = {name: value for name, value in os.environ.items() if "RPR_TEXT" not in name}
    rpr_command("run", folder / "run.gin", f"--run_dir={folder}/runs/small", env=environment)
    return folder / "runs" / "small"


@pytest.fixture(scope="module")
def model(run):
    return rpr.load(str(run))


def test_a_run_scores_each_token_of_its_test_set(run, model):
    lines = (run / "source.test.txt").read_text().splitlines()
    losses = ratio_metrics.read_losses(str(run / "losses.test.jsonl"))
    assert [len(row) for row in losses] == [len(line.encode()) + 1 for line in lines]
    scores = json.loads((run / "scores.json").read_text())
    mean = np.concatenate(losses).mean()
    assert scores["token_loss"]["score"] == pytest.approx(mean)
    assert scores["perplexity"]["score"] == pytest.approx(np.exp(mean))
    assert model.score(lines) == pytest.approx([-row.sum() for row in losses], rel=1e-4)


def test_losses_are_those_of_the_softmax(model):
    ids = model.encode("The file")
    logits = model._run(model._logits, [ids])[0].astype(np.float64)
    expected = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(ids)), ids]
    assert model.losses(["The file"])[0] == pytest.approx(expected, rel=1e-5)


def test_a_record_of_language_models_is_reported_again(run, tmp_path):
    rpr_command("report", run.parent, "--baseline=small")
    python_script("make_record.py", run.parent, tmp_path / "record")
    with tarfile.open(tmp_path / "record" / "runs.tar.xz") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    rpr_command("report", tmp_path / "unpacked", "--baseline=small")
    tables = [(folder / "results.csv").read_text()
              for folder in (run.parent, tmp_path / "unpacked")]
    assert "perplexity" in tables[0] and tables[0] == tables[1]


@pytest.mark.parametrize("window, stride", [(7, 7), (7, 1), (8, 3), (100, 20)])
def test_a_token_sees_what_its_window_has_before_it(model, window, stride):
    """Against one call per token with the text from the beginning of its window."""
    ids = model.encode("Click the icon to open.")
    expected, seen = [], 0
    for start in range(0, len(ids), stride):
        end = min(start + window, len(ids))
        for place in range(seen, end):
            row = model._run(model._losses, [ids[start:place + 1]])[0]
            expected.append(row[-1])
        seen = max(seen, end)
    found = model.losses(["Click the icon to open.", "x"], window, stride)[0]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_continuation_is_the_most_probable_token_after_token(model):
    ids = model._continued(model.encode("The")[:-1], 3, 0.0, None)
    for place in range(3, len(ids)):
        logits = model._run(model._logits, [[*ids[:place], 1]])[0, place]
        assert ids[place] == logits[1:].argmax() + 1
    assert model.generate("The", 5, 1.0, seed=2) == model.generate("The", 5, 1.0, seed=2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_continuation_with_a_cache_is_that_without_one(model, temperature, monkeypatch):
    cached = [model.generate(prefix, 20, temperature, seed=3) for prefix in ("", "The file")]
    monkeypatch.setattr(language_model.incremental, "IncrementalDecoder", type(None))
    assert cached == [model.generate(prefix, 20, temperature, seed=3)
                      for prefix in ("", "The file")]
    assert all(len(text) > 8 for text in cached)


def test_a_continuation_ends_with_the_positions_of_the_scheme(model, monkeypatch):
    whole = model._continued(model.encode("The")[:-1], 20, 0.0, None)
    monkeypatch.setattr(model, "_longest", 9)
    assert model._continued(model.encode("The")[:-1], 20, 0.0, None) == whole[:9]
    with pytest.raises(UserError, match="a prefix of 9 tokens leaves no place .* max_length=9"):
        model._continued(whole[:9], 1, 0.0, None)


@pytest.mark.parametrize("position", ["learned", "relative", "cope", "path", "bipe+rotary",
                                      "transformer_xl", "sinusoid@1:sinusoid+alibi", "forgetting"])
def test_a_cached_step_without_an_encoder_gives_the_logits_of_the_whole_text(position):
    values = tiny_models.hparams("rpr_tiny", decoder_position=position,
                                 num_hidden_layers=1 + ("@" in position))
    ids = tiny_models.sentences([7, 7], seed=3)
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values)
        del model._problem_hparams.modality["inputs"]
        logits = [model({"targets": tf.constant(ids)})[0][:, :, 0, 0]]
        with tf.variable_scope(model.name, reuse=True):
            step, caches, sources = model.init_step({"targets": tf.constant(ids)}, 1)
            rows = []
            for token in [np.zeros(2, np.int32), *ids[:, :-1, 0, 0].T]:
                row, caches = step(tf.constant(token), caches, sources)
                rows.append(row)
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        whole, steps = session.run([logits[0], tf.stack(rows, axis=1)])
    np.testing.assert_allclose(steps, whole, rtol=1e-4, atol=1e-4)
    assert np.ptp(whole, axis=-1).min() > 0.1


@pytest.mark.parametrize(("call", "says"), [
    (lambda model: model.score("a"), "texts: must be a list of strings"),
    (lambda model: model.score([1]), "texts: must be a list of strings"),
    (lambda model: model.losses("abc"), "texts: must be a list of strings"),
    (lambda model: model.losses(["\ud800"]), r"'\\ud800' is not text that UTF-8 can encode"),
    (lambda model: model.generate("a\ud800", 2), r"'a\\ud800' is not text that UTF-8 can encode"),
    (lambda model: model.losses(["abc"], window=2.5), "window=2.5: must be a whole number"),
    (lambda model: model.losses(["abc"], 4, "x"), "stride=x: must be a whole number"),
    (lambda model: model.losses(["abc"], stride=2), "stride=2: only with a window"),
    (lambda model: model.generate(["a"]), r"prefix=\['a'\]: must be text"),
    (lambda model: model.generate("a", 2.5), "length=2.5: must be a whole number"),
    (lambda model: model.generate("a", 0), "length=0: must be a whole number, at least 1"),
    (lambda model: model.generate("a", temperature="hot"), "temperature=hot: must be a number"),
    (lambda model: model.generate("a", temperature=-1), "temperature=-1: must be a number, at"),
    (lambda model: model.generate("a", seed=-1), "seed=-1: must be a whole number, at least 0")])
def test_bad_arguments_raise_one_line(model, call, says):
    with pytest.raises(UserError, match=says):
        call(model)


def test_what_cannot_be_is_refused(run, model, tmp_path):
    with pytest.raises(UserError, match="beam_size=4: a language model has no beam search"):
        rpr.load(str(run), beam_size=4)
    with pytest.raises(UserError, match="stride=9: must be from 1 to the window, 8"):
        model.losses(["a"], 8, 9)
    gin = (run / "config.gin").read_text()
    for old, new, expected in (
            ("run.metrics = ('perplexity', 'token_loss')", "", "is a language model: set"),
            ("'token_loss'", "'bleu'", "go with no other metric"),
            ("run.bleu_frequency = 0", "run.bleu_frequency = 10",
             "run.bleu_frequency: a language model translates nothing"),
            ("run.text_target = ''", "run.text_target = 'x'",
             "run.text_target: lm_text_files_characters has text_source only")):
        assert old in gin
        (tmp_path / "x.gin").write_text(gin.replace(old, new))
        assert expected in refused("run", tmp_path / "x.gin", f"--run_dir={tmp_path}/x")


def test_a_file_is_not_decoded_and_what_is_typed_is_continued(run, model, tmp_path):
    t2t = ["--problem=lm_text_files_characters", "--model=rpr_transformer",
           "--hparams_set=rpr_tiny", f"--data_dir={run.parent / 'data'}",
           f"--output_dir={run / 'model'}"]
    there = sorted(os.listdir(run / "model"))
    for command in (["decode", run], ["decode", *t2t, f"--output={tmp_path}/out"]):
        line = refused(*command, f"--input={run}/source.test.txt")
        assert "no source text" in line and "--decode_interactive" in line
    assert "has no source text" in refused("decode", run)
    (tmp_path / "tab").write_text("a\nb\tc\n")
    line = refused("decode", run, f"--score_file={tmp_path}/tab", f"--output={tmp_path}/out")
    assert "--score_file=" in line and "line 2 has a tab" in line and "rpr perplexity" in line
    (tmp_path / "tab").unlink()
    assert sorted(os.listdir(run / "model")) == there and not os.listdir(tmp_path)
    done = rpr_command("decode", run, "--decode_interactive",
                       "--decode_hparams=beam_size=1,extra_length=5", stdin="The\n")
    assert model.generate("The", 5).removeprefix("The") in done.stdout


def test_files_of_losses_are_compared_pairwise(run, tmp_path):
    losses = run / "losses.test.jsonl"
    done = rpr_command("perplexity", run, f"--input={run}/source.test.txt", "--window=8",
                       f"--output={tmp_path}/windows")
    assert re.search(r"position +1  loss \d+\.\d{4}  \(12 tokens\)", done.stdout)
    done = rpr_command("score", losses, tmp_path / "windows", "--metrics=token_loss", "--json")
    first, second = json.loads(done.stdout)
    expected = [np.concatenate(ratio_metrics.read_losses(str(path))).mean()
                for path in (losses, tmp_path / "windows")]
    assert [first["token_loss"]["score"], second["token_loss"]["score"]] == pytest.approx(expected)
    assert second["token_loss"]["difference"] == pytest.approx(expected[1] - expected[0])
    (tmp_path / "bad").write_text("[1.0]\n")
    assert "different tokens" in refused("score", losses, tmp_path / "bad",
                                         "--metrics=perplexity")


@pytest.mark.parametrize("position", ["sinusoid", "relative", "forgetting"])
def test_packed_lines_do_not_see_each_other(run, position):
    """In batches of a packed training; a line begins with the end mark of the one before it."""
    data_dir = str(run.parent / "data")
    hparams = trainer_lib.create_hparams(
        "rpr_tiny", f"batch_size=400,max_length=200,position={position},num_hidden_layers=1,"
        "pack_dataset=True,use_custom_ops=False", data_dir=data_dir,
        problem_name="lm_text_files_characters")
    with tf.Graph().as_default(), tf.Session() as session:
        batches = input_pipeline.reproducible_input(
            hparams.problem, hparams, data_dir, lambda: input_pipeline.Stream(1, 0, 1))(
                {}, types.SimpleNamespace(data_parallelism=None, train_distribute=None,
                                          use_tpu=False, session_config=None))
        iterator = tf.data.make_initializable_iterator(batches)
        session.run(iterator.initializer)
        packed = session.run(iterator.get_next()[0])
        model = registry.model("rpr_transformer")(hparams, "eval", hparams.problem_hparams)
        row = packed["targets_segmentation"].max(axis=1).argmax()
        fed = {name: packed[name][row:row + 1] for name in (
            "targets", "targets_segmentation", "targets_position")}
        first, second = (np.flatnonzero(fed["targets_segmentation"][0] == n) for n in (1, 2))
        ids = tf.placeholder(tf.int32, [1, None, 1, 1])
        together, _ = model({**fed, "targets": ids})
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            alone, _ = model({"targets": ids[:, :len(first)]})
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        other = fed["targets"].copy()
        other[0, first[:-1]] = 50
        (usual, one), (changed, _) = (session.run(
            [together[0, :, 0, 0], alone[0, :, 0, 0]], {ids: targets})
            for targets in (fed["targets"], other))
    np.testing.assert_allclose(usual[first], one, atol=1e-4)
    assert fed["targets"][0, first[-1]].item() == 1 and len(second) > 5
    np.testing.assert_allclose(changed[second], usual[second], atol=1e-4)
    assert np.abs(changed[first] - usual[first]).max() > 1e-2


def test_the_text_of_the_study_of_contexts(tmp_path):
    """All training lines are cut at 128 tokens; test lines are longer, and of one page."""
    example = ROOT / "docs" / "examples" / "help_documents.py"
    subprocess.run([sys.executable, example, tmp_path], check=True)
    lines = {split: (tmp_path / f"{split}.txt").read_text(encoding="ascii").splitlines()
             for split in ("train", "dev", "test")}
    assert min(map(len, lines["train"][:-1])) >= 128
    assert max(map(len, lines["test"])) <= 2047 and len(lines["test"]) >= 49
    assert "max_target_seq_length=128" in (ROOT / "gin" / "lm_extrapolation.gin").read_text()
