"""Every flag that a command shows has a reader; every other flag of T2T is refused."""
import inspect
import re
import types
from pathlib import Path

import pytest
import tiny_models
from absl import flags
from conftest import refused
from tensor2tensor.bin import t2t_decoder, t2t_trainer
from tensor2tensor.utils import decoding

import rpr
from rpr.cli import launcher
from rpr.cli.decode import _is_by_t2t, _without_effect
from rpr.t2t import preflight
from rpr.utils import console

# Functions of T2T that a command calls, and that read flags by themselves.
CALLED = (t2t_trainer.create_run_config, t2t_trainer.create_experiment_fn,
          t2t_trainer.set_hparams_from_args,
          t2t_trainer.generate_data, t2t_trainer.save_metadata, t2t_decoder.create_decode_hparams,
          t2t_decoder.decode)


def test_a_flag_that_is_shown_is_read():
    ours = [path.read_text(encoding="utf-8") for path in Path(rpr.__file__).parent.rglob("*.py")
            if path.name != "launcher.py"]            # which lists names and ranges
    sources = "\n".join([*ours, *map(inspect.getsource, CALLED)])
    # Another test may have imported T2T's problems, some of which define flags of their own.
    shown = [name for name in launcher._shown("$") if "data_generators" not in (
        flags.FLAGS.find_module_defining_flag(name))]
    unread = [name for name in shown
              if not re.search(rf"\b(FLAGS|flags|request)\.{name}\b|[\"']{name}[\"']", sources)]
    assert unread == []


@pytest.mark.parametrize("command, flag", [
    ("evaluate", "eval_run_autoregressive"), ("decode", "use_tpu"), ("evaluate", "ps_replicas=2"),
    ("decode", "eval_early_stopping_metric_minimize=false")])
def test_a_flag_that_nothing_reads_is_refused(command, flag, tmp_path):
    line = refused(command, f"--{flag}", "--problem=translate_ende_libreoffice", cwd=tmp_path)
    assert line.startswith(f"rpr {command}: --{flag.partition('=')[0]}=")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag, allowed", [
    ("train_steps=x", "must be a whole number"), ("max_loss_rise=x", "must be a number"),
    ("profile=2", "must be true or false"),
    ("schedule=x", "must be one of train, continuous_train_and_eval")])
def test_a_value_of_another_kind_is_refused_with_what_is_allowed(flag, allowed):
    assert refused("train", f"--{flag}").startswith(f"rpr train: --{flag}: {allowed}")


@pytest.mark.parametrize("command, flag", [
    ("evaluate", "train_steps=5"), ("decode", "eval_steps=5"), ("datagen", "x"), ("bleu", "x")])
def test_a_refusal_names_the_command_alone(command, flag):
    line = refused(command, *["--" * ("=" in flag) + flag])
    assert re.search(f": rpr {command} (does not use it|takes flags only, such as --[^ ]*)$", line)


def test_a_single_bleu_reads_no_source():
    assert "--source=x" in refused("bleu", "--source=x")


@pytest.mark.parametrize("model, is_file, given, said", [
    ("rpr_transformer", True, "beam_size=2,num_samples=3", ["num_samples=3", "on a file or a"]),
    ("rpr_transformer", False, "beam_size=2,num_samples=3", []),
    ("rpr_transformer", False, "min_length_ratio=0.5", ["min_length_ratio=0.5"]),
    ("rpr_transformer", False, "shards=2", ["shards=2", "use --decode_shards"]),
    ("rpr_transformer", True, "force_decode_length=True", ["force_decode_length", "with rpr_tra"]),
    ("transformer", True, "force_decode_length=True", []),
    ("rpr_transformer", True, "write_beam_scores=True", ["with return_beams=False"]),
    ("rpr_transformer", True, "write_beam_scores=True,return_beams=True", [])])
def test_a_decoding_says_which_settings_it_does_not_read(monkeypatch, model, is_file, given, said):
    lines = []
    monkeypatch.setattr(console, "say", lambda line, style: lines.append(line))
    given = preflight.parse_hparams(decoding.decode_hparams(), given)
    preflight.say_what_has_no_effect(given, _without_effect(given, model, is_file, False))
    assert len(lines) == bool(said) and all(part in lines[0] for part in said)


@pytest.mark.parametrize("sides, hparams, beam_size, is_read", [
    ("targets", "", 1, True), ("targets", "", 2, False), ("inputs targets", "", 1, False),
    ("inputs targets", "sampling_method=random", 1, True),
    ("inputs targets", "sampling_method=random", 2, False),
    ("inputs targets", "prepend_mode=prepend_inputs_masked_attention", 1, True)])
def test_a_setting_that_t2ts_greedy_loop_reads_has_an_effect(sides, hparams, beam_size, is_read):
    values = tiny_models.hparams().parse(hparams)
    values.problem_hparams = types.SimpleNamespace(vocabulary=dict.fromkeys(sides.split()))
    given = {"force_decode_length": True}
    dead = _without_effect(given, "rpr_transformer", True, _is_by_t2t(values, beam_size))
    assert ("force_decode_length" not in dead) == is_read


@pytest.mark.parametrize("words, says", [
    ("--score_file=pairs --output=out --decode_hparams=beam_size=2",
     "--decode_hparams=beam_size=2: not with --score_file"),
    ("--score_file=pairs --output=out --metrics_file=m", "--metrics_file=m: not with --score_file"),
    ("--score_file=pairs --output=out --worker_gpu=2", "--worker_gpu=2: only to decode --input"),
    ("--score_file=pairs --output=pairs", "--output=pairs: is read and would be written"),
    ("--score_file=pairs --output=out --keep_timestamp", "--keep_timestamp=True: only to decode"),
    ("--score_file=pairs --output=out --engine=ctranslate2", "--engine=ctranslate2: only to"),
    ("--decode_interactive --output=out", "--decode_to_file=out: not with --decode_interactive"),
    ("--input=in --keep_timestamp", "--keep_timestamp=True: only to decode --input"),
    ("--input=in --output=out --decode_in_memory", "--decode_in_memory=True: not with --"),
    ("--input=in --output=out --decode_reference=two", "two has 2 lines, in has 1"),
    ("--input=in --output=pairs --decode_reference=pairs", "--output=pairs and --decode_re"),
    ("--input=in --eval_use_test_set", "--eval_use_test_set=True: not with --decode_from_file"),
    ("--score_file=pairs --output=out --eval_use_test_set", "_test_set=True: not with --score_"),
    ("--decode_interactive --eval_use_test_set", "_test_set=True: not with --decode_interactive"),
    ("--test_set=x --language_pair=en-de --decode_hparams=delimiter=;",
     "--decode_hparams=delimiter=;: not with --test_set"),
    ("--input=in --output=out --decode_reference=in --decode_hparams=delimiter=;",
     "--decode_hparams=delimiter=;: not with --decode_reference"),
    ("--decode_reference=two", "--decode_reference=two: only with --input or --test_set")])
def test_a_flag_without_effect_on_a_decoding_is_refused(trained, tmp_path, words, says):
    for name, content in (("pairs", "a\tb\n"), ("in", "a\n"), ("two", "a\nb\n")):
        (tmp_path / name).write_text(content)
    assert says in refused("decode", *trained.flags, *words.split(), cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "pairs", "two"]
