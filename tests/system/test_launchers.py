"""T2T's programs through the real command line: what works, and what is refused in one line."""
import json
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import refused, rpr_command, train

from rpr.utils import metrics_log


def variables(directory):
    path = tf.train.latest_checkpoint(str(directory))
    return dict(tf.train.list_variables(path))


def test_training_writes_what_t2t_writes_and_its_metrics(trained):
    files = os.listdir(trained.output_dir)
    assert {"hparams.json", "flags_t2t.txt", "model.ckpt-20.index", "train.log"} <= set(files)
    events = metrics_log.read(str(trained.output_dir / "metrics.jsonl"))
    assert [(e["event"], e["step"]) for e in events if e["event"] != "decode"] == [
        ("start", 0), ("train", 10), ("train", 20)]
    assert events[1]["loss"] > events[2]["loss"] > 0 and events[2]["steps_per_second"] > 0
    weights = {name: shape for name, shape in variables(trained.output_dir).items()
               if name.startswith("transformer/")}
    assert events[0]["parameters"] == sum(int(np.prod(shape)) for shape in weights.values())


def test_a_training_records_tokens_and_padding(trained):
    events = [event for event in metrics_log.read(str(trained.output_dir / "metrics.jsonl"))
              if event["event"] == "train"]
    assert events
    path, = (path for path in trained.output_dir.iterdir() if "tfevents" in path.name)
    written = {value.tag: value.simple_value for event in tf.train.summary_iterator(str(path))
               for value in event.summary.value if event.step == events[-1]["step"]}
    for name in ("source_tokens_per_second", "target_tokens_per_second", "padding", "peak_memory"):
        assert written[f"throughput/{name}"] == pytest.approx(events[-1][name], rel=1e-5)
        assert all(event[name] > 0 for event in events)
    assert all(event["padding"] < 1 for event in events)


def test_logs_are_in_the_file_and_come_back_with_verbose(trained):
    assert "tensorflow" in (trained.output_dir / "train.log").read_text()
    loud = rpr_command("evaluate", *trained.flags, "--eval_steps=1", "--verbose")
    assert "INFO:tensorflow" in loud.stderr


def test_the_launchers_do_what_t2t_users_type(trained, tmp_path):
    source = tmp_path / "source"
    source.write_text("Click the button.\n\nSave the file\n", encoding="utf-8")
    rpr_command(*trained.flags, "--t2t_usr_dir=rpr", f"--decode_from_file={source}",
                f"--decode_to_file={tmp_path}/out", "--decode_hparams=beam_size=2,alpha=0.6",
                launcher="t2t-decoder")
    assert len((tmp_path / "out").read_text(encoding="utf-8").split("\n")) == 4
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    event = metrics_log.read(str(trained.output_dir / "metrics.jsonl"))[-1]
    assert event["event"] == "decode" and event["sentences"] == 3

    done = rpr_command(f"--model_dir={trained.output_dir}", f"--output_dir={tmp_path}/average",
                       "--n=2", launcher="t2t-avg-all")
    assert done.stderr.strip().endswith(
        f"{tmp_path}/average/model.ckpt-20: mean of 2 checkpoints of {trained.output_dir}")
    average = tf.train.load_checkpoint(str(tmp_path / "average" / "model.ckpt-20"))
    readers = [tf.train.load_checkpoint(str(trained.output_dir / f"model.ckpt-{step}"))
               for step in (10, 20)]
    name = "transformer/body/encoder/layer_0/self_attention/multihead_attention/q/kernel"
    np.testing.assert_allclose(average.get_tensor(name),
                               sum(reader.get_tensor(name) for reader in readers) / 2, rtol=1e-5)
    assert average.get_tensor("global_step") == 20
    before = sorted(os.listdir(tmp_path / "average"))
    assert "average: holds averages or kept weights, from which no training resumes" in refused(
        "train", *trained.flags, f"--output_dir={tmp_path}/average", "--hp_num_hidden_layers", "1")
    assert sorted(os.listdir(tmp_path / "average")) == before
    rpr_command("decode", *trained.flags, f"--decode_from_file={source}",
                f"--decode_to_file={tmp_path}/out2",
                f"--checkpoint_path={tmp_path}/average/model.ckpt-20")
    assert len((tmp_path / "out2").read_text(encoding="utf-8").split("\n")) == 4

    done = rpr_command(f"--translation={source}", f"--reference={source}", launcher="t2t-bleu")
    assert "BLEU_cased" in done.stdout


def test_bleu_counts_lines_and_marks_as_score_does(tmp_path):
    text = "Der Hund sieht das Haus .\nDie Katze ruft den Mann heute .\n"
    for name, content in (("ref", text), ("cut", text[:-1]), ("mark", "\ufeff" + text)):
        (tmp_path / name).write_text(content, encoding="utf-8")
        done = rpr_command("bleu", f"--translation={tmp_path}/{name}",
                           f"--reference={tmp_path}/ref")
        assert done.stdout.splitlines() == ["BLEU_uncased = 100.00", "BLEU_cased = 100.00"]


def test_a_wmt_test_set_is_decoded_and_scored(trained, tmp_path, sacrebleu_cache, monkeypatch):
    monkeypatch.setenv("SACREBLEU", str(sacrebleu_cache))
    test_set = ["--test_set=wmt21", "--language_pair=en-de"]
    rpr_command("decode", *trained.flags, *test_set, f"--decode_to_file={tmp_path}/out",
                "--decode_hparams=beam_size=1,batch_size=128,extra_length=1,max_input_size=20")
    scores = json.loads(rpr_command("score", tmp_path / "out", *test_set, "--json").stdout)
    assert scores["lines"] == 1002 and "test:wmt21|lang:en-de" in scores["bleu"]["signature"]


def test_an_evaluation_without_its_data_is_refused_in_one_line(tmp_path):
    line = refused("evaluate", "--problem=translate_ende_libreoffice", "--model=rpr_transformer",
                   "--hparams_set=rpr_tiny", f"--data_dir={tmp_path}/no",
                   f"--output_dir={tmp_path}/o")
    assert f"--data_dir={tmp_path}/no" in line and not list(tmp_path.iterdir())


def test_score_file(trained, tmp_path):
    """It dies on tf.placeholder where T2T was loaded in TF2 mode."""
    (tmp_path / "pairs").write_text("Save the file\tSpeichern\n", encoding="utf-8")
    copy = tmp_path / "copy"                          # step 10 as step 20; the state is T2T's
    shutil.copytree(trained.output_dir, copy, ignore=shutil.ignore_patterns("model.ckpt-*"))
    for path in trained.output_dir.glob("model.ckpt-10.*"):
        shutil.copy(path, copy / path.name.replace("-10.", "-20."))
    (copy / "checkpoint").write_text(
        f'model_checkpoint_path: "{trained.output_dir}/model.ckpt-20"\n')
    scores = []
    for directory in (trained.output_dir, copy):
        rpr_command("decode", *trained.flags, f"--output_dir={directory}",
                    f"--score_file={tmp_path}/pairs", f"--decode_to_file={tmp_path}/scores")
        scores.append(float((tmp_path / "scores").read_text()))
    assert scores[1] > scores[0] > 0                  # its own weights, which are less trained
    (tmp_path / "pairs").write_bytes(b"\xef\xbb\xbfSave the file\tSpeichern\r\na\rb\tSpeichern")
    rpr_command("decode", *trained.flags, f"--score_file={tmp_path}/pairs",
                f"--output={tmp_path}/scores")
    marked = (tmp_path / "scores").read_text().splitlines()
    assert len(marked) == 2 and float(marked[0]) == pytest.approx(scores[0], abs=1e-5)
    # Its hparams.json is read there, too: one layer, where the set has two.
    rpr_command("decode", *trained.flags, f"--output_dir=~/{trained.output_dir.name}",
                f"--score_file={tmp_path}/pairs", f"--output={tmp_path}/scores",
                env={**os.environ, "HOME": str(trained.output_dir.parent)})
    assert (tmp_path / "scores").read_text().splitlines() == marked


# What T2T does silently, or late, or with a page of traceback.

def test_unknown_names_are_refused_with_the_nearest(text, tmp_path):
    there = [f"--output_dir={tmp_path}/no", "--train_steps=1"]
    model, hparams = "--model=rpr_transformer", "--hparams_set=rpr_tiny"
    line = refused("train", *text.flags, *there, "--model=rpr_transfromer", hparams)
    assert "rpr_transformer" in line
    line = refused("train", *text.flags, *there, model, hparams, "--hparams=max_relative_positon=3")
    assert "max_relative_position" in line
    line = refused("train", text.flags[1], *there, model, hparams, "--problem=translate_text_file")
    assert "translate_text_files" in line
    assert not (tmp_path / "no").exists()


def test_a_model_with_other_hparams_is_not_trained_on(trained):
    def content():
        return {path.name: path.read_bytes() for path in trained.output_dir.iterdir()
                if path.is_file() and path.name != ".train.lock"}

    before = content()
    line = refused("train", *trained.flags, "--train_steps=30", "--hparams=max_relative_position=3")
    assert "max_relative_position=3 (there: 4)" in line
    line = refused("train", *trained.flags[:3], "--hparams_set=rpr_tiny_absolute",
                   *trained.flags[4:], "--train_steps=30")
    assert "position=sinusoid (there: relative)" in line
    assert content() == before


def test_a_graph_that_cannot_be_built_leaves_no_directory(text, tmp_path):
    """T2T raises for this schedule while it builds the graph."""
    line = refused("train", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                   f"--output_dir={tmp_path}/model", "--train_steps=10", "--schedule=train",
                   "--hparams=learning_rate_schedule=single_cycle_cos_decay")
    assert "single_cycle_cos_decay" in line and not list(tmp_path.iterdir())


def test_a_model_is_not_decoded_as_another(trained, tmp_path):
    (tmp_path / "in").write_text("Save\n", encoding="utf-8")
    files = [f"--decode_from_file={tmp_path}/in", f"--decode_to_file={tmp_path}/out"]
    line = refused("decode", *trained.flags, *files, "--hparams=max_relative_position=3")
    assert "max_relative_position=3 (there: 4)" in line
    line = refused("decode", *trained.flags[:3], "--hparams_set=rpr_small", *trained.flags[4:],
                   *files)
    assert "hparams_set=rpr_tiny" in line
    line = refused("decode", *trained.flags[:2], "--model=lstm_seq2seq", *trained.flags[3:], *files)
    assert "model=transformer" in line
    assert os.listdir(tmp_path) == ["in"]


def copy_of(trained, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(trained.text.data_dir, data)
    return data, [f"--problem={trained.text.problem}", f"--data_dir={data}", *trained.flags[2:]]


def test_a_missing_or_foreign_vocabulary_is_refused(trained, tmp_path):
    (tmp_path / "in").write_text("Save\n", encoding="utf-8")
    files = [f"--decode_from_file={tmp_path}/in", f"--decode_to_file={tmp_path}/out"]
    data, flags = copy_of(trained, tmp_path)
    vocabulary = next(data.glob("vocab*"))
    kept = vocabulary.read_bytes()
    vocabulary.write_bytes(kept.replace(b"'e_'", b"'\xc3\xa9_'"))
    assert vocabulary.read_bytes() != kept and vocabulary.name in refused("decode", *flags, *files)
    vocabulary.unlink()
    assert vocabulary.name in refused("decode", *flags, *files)
    # A whole other data directory: sound in itself, and not what the model was trained with.
    vocabulary.write_bytes(kept.replace(b"'e_'", b"'\xc3\xa9_'"))
    for record in data.glob("*.datagen.json"):
        record.unlink()
    assert f"--data_dir={data}: its vocabulary (" in refused("decode", *flags, *files)


def test_a_checkpoint_with_other_bytes_is_named_and_not_the_data(trained, tmp_path):
    shutil.copytree(trained.output_dir, tmp_path / "model")
    path = max((tmp_path / "model").glob("model.ckpt-20.data-*"), key=os.path.getsize)
    path.write_bytes(bytes(byte ^ 255 if not at % 50 else byte
                           for at, byte in enumerate(path.read_bytes())))
    flags = [flag for flag in trained.flags if not flag.startswith("--output_dir")]
    line = refused("train", *flags, f"--output_dir={tmp_path}/model", "--train_steps=30",
                   "--hparams=num_hidden_layers=1")
    assert "--output_dir=" in line and "the checkpoint cannot be read" in line
    assert "--data_dir" not in line


def test_data_of_a_reversed_problem_is_that_of_the_plain_one(text, tmp_path):
    train(text._replace(problem="translate_text_files_rev", data_dir=tmp_path / "data"),
          tmp_path / "model", "--generate_data", f"--tmp_dir={tmp_path}/tmp", steps=1)
    for kind in ("source", "reference"):
        name = f"translate_text_files.test.{kind}.txt"
        assert (tmp_path / "data" / name).read_text() == (text.data_dir / name).read_text()


def test_training_resumes_although_the_state_file_is_empty(trained, tmp_path):
    """As after a power cut."""
    shutil.copytree(trained.output_dir, tmp_path / "model")
    (tmp_path / "model" / "checkpoint").write_bytes(b"")
    done = train(trained.text, tmp_path / "model", steps=30)
    assert f"resuming from {tmp_path}/model/model.ckpt-20" in done.stderr
    assert "tensorflow" not in done.stderr                   # without --verbose
    events = metrics_log.read(str(tmp_path / "model" / "metrics.jsonl"))
    assert [event["step"] for event in events if event["event"] == "start"] == [0, 20]
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("model.ckpt-30")
    assert re.search(r"/model/model\.ckpt-30: training loss \d+\.\d{3} at step 30$",
                     done.stderr.strip())


def test_gpus_that_tensorflow_does_not_find_are_said(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0\necho 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = ["evaluate", f"--output_dir={tmp_path}"]
    warning, error = rpr_command(*command, check=False, env=environment).stderr.splitlines()
    assert "finds no GPU, though there should be 2 (GPU 0, 1): using the CPU" in warning
    assert error == "rpr evaluate: --data_dir is missing"
    hidden = {**environment, "CUDA_VISIBLE_DEVICES": ""}
    assert len(rpr_command(*command, check=False, env=hidden).stderr.splitlines()) == 1


def test_list_shows_each_with_a_description():
    shown = rpr_command("list", env={**os.environ, "COLUMNS": "200"}).stdout
    for name, words in (("rpr_transformer", "position scheme"), ("rpr_base_k64", "k=64"),
                        ("translate_ende_libreoffice", "LibreOffice"), ("relative", "Shaw")):
        line = next(line for line in shown.splitlines() if line.split()[:1] == [name])
        assert words in line


def test_list_shows_the_hparams_of_a_set_with_their_ranges():
    shown = rpr_command("list", "--hparams_set=rpr_tiny").stdout
    for line in ("  position=relative: position scheme(s), joined by + (rpr list schemes) (text)",
                 "  max_relative_position=4: a whole number from 0 to 100,000",
                 "  label_smoothing=0.1: a number, at least 0 and below 1",
                 "  optimizer=adam"):
        assert line in shown
