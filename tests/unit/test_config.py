"""gin files and the run that they describe."""
import pathlib

import pytest

from rpr.experiments import config, gin_files, studies
from rpr.utils.errors import UserError

GIN = pathlib.Path(__file__).parents[2] / "gin"


@pytest.mark.parametrize("path", sorted(GIN.glob("*.gin")), ids=lambda path: path.stem)
def test_every_gin_file_describes_a_run_or_a_study_and_opens_with_its_command(path):
    text = path.read_text()
    verb = "study" if "study.baseline" in text else "run"
    if verb == "study":
        described, run = gin_files.load_study(str(path))
        assert len(studies.study_runs(described, run, "study")) > 1
    else:
        run = gin_files.load_run(str(path))
    assert run.train_steps > 0
    assert f"rpr {verb} gin/{path.name}" in text.split("run.problem")[0]


def test_the_resolved_configuration_is_read_back_the_same(tmp_path):
    run = config.Run("translate_text_files", "rpr_tiny", 100, hparams="dropout=0,position=none",
                         checkpoint_steps=10, average_checkpoints=3, alpha=0.5)
    path = tmp_path / "config.gin"
    path.write_text(gin_files.as_gin(run))
    assert gin_files.load_run(str(path)) == run


@pytest.mark.parametrize("line, words", [
    ("run.train_stepz = 1", ["train_stepz"]),
    ("rum.train_steps = 1", ["rum"]),
    ("run.train_steps = 0", ["train_steps", "from 1 to"]),
    ("run.train_steps = '5'", ["train_steps", "whole number"]),
    ("run.checkpoint_steps = 300", ["checkpoint_steps", "300", "2000"]),
    ("run.average_checkpoints = 50", ["average", "20 checkpoints"]),
    ("run.checkpoint_steps = 2000", ["average", "2000 steps has 1 checkpoint"]),
    ("run.metrics = 'bleu'", ["run.metrics", "must be a tuple, such as ('bleu',)"]),
    ("run.bleu_frequency = 150", ["bleu_frequency = 150", "checkpoint_steps = 100"]),
    ("run.bleu_frequency = 2100", ["bleu_frequency = 2100", "train_steps = 2000"]),
    ("run.test_set = 'wmt14'", ["language_pair"]),
])
def test_a_wrong_line_is_refused_by_name(line, words):
    with pytest.raises(UserError) as error:
        gin_files.load_run(str(GIN / "quickstart_relative.gin"), [line])
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("test_sets", [("a", "a"), ("test",), ("a/b", "a_b"),
                                       ("a:en-de", "a_en-de")])
def test_test_sets_whose_files_would_have_the_same_name_are_refused(test_sets):
    with pytest.raises(UserError, match="run.test_sets"):
        config.Run("p", "h", 100, checkpoint_steps=50, test_sets=test_sets)


def test_a_language_model_has_no_test_set_of_sacrebleu():
    given = {"train_steps": 100, "checkpoint_steps": 50, "metrics": ("perplexity",)}
    assert config.Run("lm", "h", test_sets=("late",), **given).is_language_model
    with pytest.raises(UserError, match="run.test_sets = .*wmt14:en-de.*language model"):
        config.Run("lm", "h", test_sets=("late", "wmt14:en-de"), **given)


@pytest.mark.parametrize("name, value", [
    ("beam_size", 1), ("alpha", 1.0), ("language_pair", "en-de"), ("bleu_frequency", 50),
    ("decode_batch_size", 7)])
def test_a_language_model_has_no_setting_of_translation(name, value):
    given = {"train_steps": 100, "checkpoint_steps": 50, "metrics": ("perplexity",)}
    with pytest.raises(UserError, match=f"run.{name}: a language model translates nothing"):
        config.Run("lm", "h", **{name: value}, **given)


def test_characters_have_no_size_of_the_vocabulary():
    with pytest.raises(UserError, match="run.text_vocab_size = 99: the vocabulary of lm_.* bytes"):
        config.Run("lm_text_files_characters", "h", 1000, text_vocab_size=99)
    assert config.Run("lm_text_files", "h", 1000, text_vocab_size=99).text_vocab_size == 99


@pytest.mark.parametrize("problem, given, says", [
    ("lm_text_files_character", {"text_source": "a"}, "nearest: lm_text_files_characters"),
    ("translate_text_file", {"text_source": "a", "text_target": "b"},
     "nearest: translate_text_files"),
    ("toy", {"text_vocab_size": 100}, "text_vocab_size .*translate_text_files, graph_.* = toy$"),
    ("toy", {"text_target": "b"}, "run.text_target is a setting"),
    ("translate_text_files", {"text_source": "a"}, "set both or neither"),
    ("graph_text_files", {"text_source": "a"}, "set both or neither"),
    ("lm_text_files", {"text_target": "a"}, "run.text_target: lm_text_files has text_source only"),
])
def test_settings_of_text_files_name_the_problems_that_have_them(problem, given, says):
    with pytest.raises(UserError, match=says):
        config.Run(problem, "h", 1000, **given)


def test_a_missing_setting_is_named(tmp_path):
    path = tmp_path / "x.gin"
    path.write_text("run.problem = 'p'\n")
    with pytest.raises(UserError, match="hparams_set"):
        gin_files.load_run(str(path))


def test_no_such_file():
    with pytest.raises(UserError, match="no such gin file"):
        gin_files.load_run("nowhere.gin")
