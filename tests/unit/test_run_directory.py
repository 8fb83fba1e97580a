"""What a run directory accepts: its configuration and its stages; its state."""
import dataclasses
import fcntl
import json
import os
import sys
from pathlib import Path

import pytest
from conftest import without_text

from rpr.experiments import config, gin_files, pipeline, provenance, run_directory, sharing
from rpr.utils import files
from rpr.utils.errors import UserError

RUN = config.Run("translate_text_files", "h", 100, checkpoint_steps=50)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    return run_directory.RunDirectory(str(tmp_path / "run"), str(tmp_path / "data"))


def trained(run_dir):
    os.makedirs(run_dir.model)
    Path(run_dir.model, "model.ckpt-50.index").touch()


def test_a_directory_without_a_checkpoint_takes_another_configuration(run_dir):
    other = dataclasses.replace(RUN, alpha=0.7)
    pipeline._check_config(RUN, run_dir)
    pipeline._check_config(other, run_dir)
    assert gin_files.load_run(run_dir.config) == other
    trained(run_dir)
    with pytest.raises(UserError, match=r"alpha = 0\.6 \(there: 0\.7\)"):
        pipeline._check_config(RUN, run_dir)
    assert gin_files.load_run(run_dir.config) == other


def test_a_run_that_was_not_trained_leaves_nothing_to_another_one(run_dir):
    pipeline._check_config(RUN, run_dir)
    traces = [run_dir.file("source.test.txt"), run_dir.file("reference.more.txt"), run_dir.data,
              run_dir.status, run_dir.metrics, os.path.join(run_dir.model, "hparams.json"),
              run_dir.file("dev", "scores.50.json")]

    def leave_traces():
        os.makedirs(run_dir.model, exist_ok=True)
        os.makedirs(run_dir.file("dev"), exist_ok=True)
        for path in traces:
            Path(path).write_text("{}")

    leave_traces()
    pipeline._check_config(dataclasses.replace(RUN, eval_frequency=5), run_dir)    # the same run
    assert all(map(os.path.exists, traces))
    pipeline._check_config(dataclasses.replace(RUN, problem="p"), run_dir)
    assert os.listdir(run_dir.path) == ["config.gin"]


@pytest.mark.parametrize("name, text", [
    ("status.json", '{"train": {"state": "done"}}'), ("scores.json", '{"step": 100}')])
def test_a_finished_run_without_checkpoints_takes_no_other_configuration(run_dir, name, text):
    pipeline._check_config(RUN, run_dir)
    Path(run_dir.file(name)).write_text(text)
    with pytest.raises(UserError, match=r"seed = 2 \(there: 1\)"):
        pipeline._check_config(dataclasses.replace(RUN, seed=2), run_dir)
    assert gin_files.load_run(run_dir.config) == RUN
    pipeline._check_config(dataclasses.replace(RUN, eval_frequency=5), run_dir)


def test_the_problems_test_texts_are_copied_with_their_documents(run_dir):
    os.makedirs(run_dir.data_dir)
    for name in ("test.source", "test.reference", "more.source", "more.reference",
                 "more.documents"):
        Path(run_dir.data_dir, f"{RUN.problem}.{name}.txt").write_text(name)
    settings = dataclasses.replace(RUN, test_sets=("more",))
    pipeline.copy_test_texts(settings, run_dir)
    assert sorted(os.listdir(run_dir.path)) == [
        "documents.more.txt", "reference.more.txt", "reference.test.txt", "source.more.txt",
        "source.test.txt"]
    assert Path(run_dir.documents_file("more")).read_text() == "more.documents"
    for path in (Path(run_dir.data_dir, f"{RUN.problem}.more.reference.txt"),
                 Path(run_dir.file("reference.more.txt"))):
        pipeline.copy_test_texts(settings, run_dir)   # a run that has its own needs no other
        path.unlink()
    with pytest.raises(UserError, match=f"{RUN.problem} has no test set more"):
        pipeline.copy_test_texts(settings, run_dir)


def test_texts_that_are_not_those_of_the_record_are_refused(run_dir):
    os.makedirs(run_dir.data_dir)
    paths = [os.path.join(run_dir.data_dir, f"{RUN.problem}.{name}.txt") for name in (
        "dev.source", "dev.reference", "test.source", "test.reference", "test.documents")]
    for path in paths:
        with open(path, "w") as text:
            text.write("one\ntwo\n")
    with open(run_directory.data_record(RUN, run_dir.data_dir), "w") as record:
        json.dump({"texts": {os.path.basename(path): files.describe(path) for path in paths}},
                  record)
    settings = dataclasses.replace(RUN, bleu_frequency=50)
    pipeline.check_dev_texts(settings, run_dir)
    for path in paths:
        os.rename(path, path + ".kept")
        for content, says in ((None, "is missing"), ("one\n", "has changed"),
                              ("one\nTWO\n", "has changed")):
            if content:
                with open(path, "w") as text:
                    text.write(content)
            check = pipeline.check_dev_texts if "dev" in path else pipeline.copy_test_texts
            with pytest.raises(UserError, match=f"{path} {says} since the data next to it"):
                check(settings, run_dir)
        os.replace(path + ".kept", path)
    pipeline.copy_test_texts(settings, run_dir)
    os.unlink(paths[-1])                              # a run that has its own needs no other
    pipeline.copy_test_texts(settings, run_dir)


def test_what_may_change_is_written_down(run_dir):
    pipeline._check_config(RUN, run_dir)
    trained(run_dir)
    moved = dataclasses.replace(RUN, eval_frequency=5, text_source="a", text_target="b")
    pipeline._check_config(moved, run_dir)
    assert gin_files.load_run(run_dir.config) == moved


@pytest.fixture(autouse=True)
def no_text_in_the_environment(monkeypatch):
    without_text(monkeypatch)


def test_the_states_of_a_run(run_dir):
    def note(name, **content):
        Path(run_dir.file(name)).write_text(json.dumps(content))
    assert run_directory.state(run_dir) == "waiting"
    note("status.json", train={"state": "failed", "code": -9})
    assert run_directory.state(run_dir) == "waiting"          # a kill is no failure
    note("status.json", train={"state": "failed", "code": 1})
    assert run_directory.state(run_dir) == "failed"
    note("scores.json", step=100)
    assert run_directory.state(run_dir) == "done"
    with open(run_dir.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_directory.state(run_dir) == "running"


def test_a_stage_that_sigint_ended_waits_to_be_resumed(run_dir, monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 130\n")      # as `rpr` ends, which catches the signal
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(UserError, match="stage train was killed by SIGINT"):
        made = pipeline.Pipeline(RUN, run_dir, os.open(os.devnull, os.O_RDONLY))
        made._do(next(stage for stage in made.stages if stage.name == "train"))
    assert run_directory.state(run_dir) == "waiting"


def test_the_frequency_of_bleu_may_change_in_a_run(run_dir):
    often = dataclasses.replace(RUN, bleu_frequency=50)
    assert often.identity() == RUN.identity()
    assert (pipeline.Pipeline(often, run_dir, 0).hashes
            == pipeline.Pipeline(RUN, run_dir, 0).hashes)
    assert (list(often.bleu_steps()), list(RUN.bleu_steps())) == ([50, 100], [])


def test_development_bleu_is_read_by_step(run_dir):
    assert run_dir.read_dev_bleu() == {}
    os.makedirs(run_dir.file("dev"))
    for step in (1000, 50):
        with open(run_dir.file("dev", f"scores.{step}.json"), "w") as scores:
            json.dump({"bleu": {"score": step / 100}, "lines": 3}, scores)
    for name in ("scores.x.json", "hypotheses.50.txt", "scores.7.json.tmp"):
        Path(run_dir.file("dev", name)).touch()
    assert list(run_dir.read_dev_bleu().items()) == [(50, 0.5), (1000, 10.0)]
    Path(run_dir.file("dev", "scores.60.json")).write_text('{"bleu": {"score": "high"}}')
    with pytest.raises(UserError, match=r"dev/scores\.60\.json is damaged: bleu.score"):
        run_dir.read_dev_bleu()


@pytest.mark.parametrize("name", ["dev", "dev/scores.50.json"])
def test_development_bleu_is_not_read_through_a_link(run_dir, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    os.makedirs(elsewhere)
    (elsewhere / "scores.50.json").write_text('{"bleu": {"score": 1.0}}')
    if name == "dev":
        os.symlink(elsewhere, run_dir.file("dev"))
    else:
        os.makedirs(run_dir.file("dev"))
        os.symlink(elsewhere / "scores.50.json", run_dir.file(name))
    with pytest.raises(UserError, match=f"{name} is a symbolic link"):
        run_dir.read_dev_bleu()


def test_what_killed_writers_left_in_a_run_is_removed(run_dir, monkeypatch):
    os.makedirs(run_dir.file("dev"))
    for folder in ("", "dev"):
        Path(run_dir.file(folder, ".scores.json.0123456789abcdef.tmp")).touch()
    monkeypatch.setattr(pipeline.Pipeline, "complete", lambda *_: None)
    pipeline.complete_run(dataclasses.replace(RUN, problem="p"), run_dir)
    assert not list(Path(run_dir.path).rglob("*.tmp"))


def test_without_text_of_a_development_set_there_is_no_bleu_of_it(run_dir):
    os.makedirs(run_dir.data_dir)
    settings = dataclasses.replace(RUN, bleu_frequency=50)
    for split, check in (("test", pipeline.copy_test_texts), ("dev", pipeline.check_dev_texts)):
        for kind in ("source", "reference"):
            with pytest.raises(UserError, match=f"{split}.{kind}.txt"):
                check(settings, run_dir)
            Path(run_dir.data_dir, f"{RUN.problem}.{split}.{kind}.txt").touch()
    pipeline.copy_test_texts(settings, run_dir)
    pipeline.check_dev_texts(settings, run_dir)


def test_a_finished_run_without_its_checkpoints_is_not_trained_again(run_dir):
    stages = {stage.name: stage for stage in run_directory.stages(RUN, run_dir)}
    done = pipeline.Pipeline(RUN, run_dir, 0)
    done.status = {name: {"input": done.hashes[name], "state": "done"}
                   for name in ("train", "decode")}
    assert done.is_done(stages["train"], is_removable=True)
    assert not done.is_done(stages["decode"])
    done.status["train"]["input"] = "other"
    assert not done.is_done(stages["train"], is_removable=True)


def test_checkpoints_may_be_gone_once_nothing_needs_them(run_dir):
    planned = pipeline.Pipeline(dataclasses.replace(RUN, average_checkpoints=2), run_dir, 0)
    planned.status = {name: {"input": input_hash, "state": "done"}
                      for name, input_hash in planned.hashes.items()}

    def make(name):
        stage = next(stage for stage in planned.stages if stage.name == name)
        os.makedirs(os.path.dirname(stage.output), exist_ok=True)
        Path(stage.output).touch()

    assert planned.removable() == set()               # copied before it was decoded
    make("average")
    assert planned.removable() == {"train"}
    make("decode")
    assert planned.removable() == {"train", "average"}


def test_a_test_set_that_is_decoded_already_needs_no_checkpoint(run_dir):
    more = dataclasses.replace(RUN, test_sets=("more",))
    pipeline.update_config(RUN, run_dir)
    for path in (run_dir.scores, run_dir.record_of("scores.json", "more")):
        Path(path).write_text('{"step": 100}')
    pipeline.update_config(more, run_dir)
    assert os.path.exists(run_dir.scores) and gin_files.load_run(run_dir.config) == more


def test_a_run_without_its_checkpoints_gets_no_further_test_sets(run_dir):
    more = dataclasses.replace(RUN, test_sets=("more",))
    pipeline.update_config(RUN, run_dir)
    Path(run_dir.scores).write_text('{"step": 100}')
    with pytest.raises(UserError, match="cannot decode more, since its checkpoints are gone"):
        pipeline.update_config(more, run_dir)
    assert os.path.exists(run_dir.scores) and gin_files.load_run(run_dir.config) == RUN
    os.makedirs(run_dir.model)
    Path(run_dir.checkpoint(more) + ".index").touch()
    pipeline.update_config(more, run_dir)
    assert not os.path.exists(run_dir.scores)


def test_a_finished_run_is_scored_again_in_other_metrics(run_dir):
    Path(run_dir.hypotheses).touch()
    decoded = {"decode": {"state": "done", "input": pipeline.Pipeline(RUN, run_dir, 0).hashes[
        "decode"]}}
    for changes, status, is_done in (({"eval_frequency": 5}, decoded, True),
                                     ({"metrics": ("chrf",)}, {}, True),
                                     ({"metrics": ("chrf",)}, decoded, False)):
        pipeline.update_config(RUN, run_dir)
        Path(run_dir.status).write_text(json.dumps(status))
        Path(run_dir.scores).write_text('{"step": 100}')
        pipeline.update_config(dataclasses.replace(RUN, **changes), run_dir)
        assert os.path.exists(run_dir.scores) == is_done


def test_what_a_stage_does_is_independent_of_the_names_of_its_directories(tmp_path):
    hashes = [pipeline.Pipeline(RUN, run_directory.RunDirectory(
                  str(tmp_path / name), str(tmp_path / data)), 0).hashes
              for name, data in (("run", "data"), ("d", "data"), ("exp", "exp_data"))]
    assert hashes[0] == hashes[1] == hashes[2]


def test_code_and_environment_are_those_of_the_training(run_dir, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / "scheme.py").write_text("broken")
    mine = dataclasses.replace(RUN, usr_dir=str(own))

    def fail(*_):
        raise UserError("the graph cannot be built")

    monkeypatch.setattr(pipeline.Pipeline, "_do", fail)
    for code in ("broken", "works"):
        (own / "scheme.py").write_text(code)
        with pytest.raises(UserError, match="cannot be built"):
            pipeline.complete_run(mine, run_dir)
        with open(run_dir.file("code.json")) as record:
            assert json.load(record)["files"] == provenance.digests(str(own))


def test_the_target_language_chooses_the_tokenizer_of_own_text(run_dir):
    chinese = dataclasses.replace(RUN, language_pair="en-zh", bleu_frequency=50)
    scoring, = (stage for stage in run_directory.stages(chinese, run_dir)
                if stage.name == "score")
    for argv in (scoring.argv, run_directory.dev_stages(chinese, run_dir, 50)[1].argv):
        assert "--language_pair=en-zh" in argv and any("--reference=" in arg for arg in argv)
    with_sacrebleu = dataclasses.replace(chinese, test_set="wmt20", test_sets=("more",))
    scoring, = (stage for stage in run_directory.stages(with_sacrebleu, run_dir)
                if stage.name == "score more")
    for argv in (scoring.argv, run_directory.dev_stages(with_sacrebleu, run_dir, 50)[1].argv):
        assert "--language_pair=en-zh" in argv and any("--reference=" in arg for arg in argv)


def test_a_copied_checkpoint_with_another_name_does_not_end_more_steps(run_dir):
    os.makedirs(run_dir.model)
    Path(run_dir.model, "hparams.json").write_text("{}")
    Path(run_dir.model, "model.ckpt-best.index").touch()
    assert sharing.more_steps_obstacle(run_dir) == "its checkpoints are gone"
    Path(run_dir.checkpoint(RUN) + ".index").touch()
    assert sharing.more_steps_obstacle(run_dir) == ""
