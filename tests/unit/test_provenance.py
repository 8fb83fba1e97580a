"""Where the data and the code of a run come from: text that changed, records, the user's code."""
import dataclasses
import json
import os
from pathlib import Path

import pytest
from conftest import without_text

from rpr.experiments import config, gin_files, pipeline, provenance, run_directory, sharing
from rpr.utils import files
from rpr.utils.errors import UserError

RUN = config.Run("translate_text_files", "h", 100, checkpoint_steps=50)


@pytest.fixture(autouse=True)
def no_text_in_the_environment(monkeypatch):
    without_text(monkeypatch)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    return run_directory.RunDirectory(str(tmp_path / "run"), str(tmp_path / "data"))


@pytest.fixture
def corpus(run_dir, tmp_path):
    """Text files of a run whose data has been generated."""
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    for path in paths:
        Path(path).write_text("one\ntwo\n", encoding="utf-8")
    os.makedirs(run_dir.data_dir)
    with open(run_directory.data_record(RUN, run_dir.data_dir), "w") as record:
        json.dump({"sources": {f"train {side}": files.sha256(path) for side, path in
                               zip(("source", "target"), paths, strict=True)}}, record)
    described = dataclasses.replace(RUN, text_source=paths[0], text_target=paths[1])
    provenance.record_corpus(described, run_dir)
    return described


def test_lines_and_paths_of_the_corpus_are_recorded(corpus, run_dir):
    sources = json.loads(Path(run_dir.data).read_text())["sources"]
    assert sources["train source"]["path"] == corpus.text_source
    assert sources["train target"]["lines"] == 2 and len(sources) == 2


def test_a_last_line_without_a_line_feed_is_a_line(tmp_path):
    for number, text in enumerate(("a\nb\n", "a\nb", "")):
        (tmp_path / str(number)).write_text(text)
    assert [provenance._file_facts(str(tmp_path / str(number)))["lines"]
            for number in range(3)] == [2, 2, 0]


def test_text_that_the_data_was_not_made_from_is_not_recorded(corpus, run_dir):
    os.unlink(run_dir.data)
    with open(corpus.text_source, "a", encoding="utf-8") as text:
        text.write("three\n")
    with pytest.raises(UserError, match="it is not the train source from which the data in"):
        provenance.record_corpus(corpus, run_dir)
    assert not os.path.exists(run_dir.data)


def test_moved_text_is_accepted_and_changed_text_is_not(corpus, run_dir, tmp_path):
    provenance.check_corpus(corpus, run_dir)
    os.rename(corpus.text_source, tmp_path / "moved.txt")
    moved = dataclasses.replace(corpus, text_source=str(tmp_path / "moved.txt"))
    provenance.check_corpus(moved, run_dir)
    with open(moved.text_source, "a", encoding="utf-8") as text:
        text.write("three\n")
    with pytest.raises(UserError, match=r"made from other text: train source .*moved\.txt"):
        provenance.check_corpus(moved, run_dir)


def test_changed_text_leaves_a_finished_run_and_its_training_alone(corpus, run_dir, tmp_path,
                                                                    monkeypatch):
    pipeline._check_config(corpus, run_dir)
    os.makedirs(run_dir.model)
    Path(run_dir.model, "model.ckpt-50.index").touch()
    Path(run_dir.scores).write_text('{"step": 100}')
    with open(corpus.text_source, "a", encoding="utf-8") as text:
        text.write("three\n")
    with pytest.raises(UserError, match="made from other text: train source"):
        pipeline.complete_run(dataclasses.replace(corpus, train_steps=200), run_dir)
    assert run_dir.read_scores() == {"step": 100} and gin_files.load_run(run_dir.config) == corpus
    os.unlink(run_directory.data_record(RUN, run_dir.data_dir))
    monkeypatch.setattr(sharing, "check", lambda *_: corpus)
    new = run_directory.RunDirectory(str(tmp_path / "new"), run_dir.data_dir)
    with pytest.raises(UserError, match="made from other text: train source"):
        pipeline.complete_run(corpus, new, skip_datagen=True, training_of=run_dir.path)
    assert not os.path.exists(new.path)


def test_a_test_text_that_the_run_did_not_have_is_refused(corpus, run_dir):
    added = dataclasses.replace(corpus, text_test_source=corpus.text_source,
                                text_test_target=corpus.text_target)
    with pytest.raises(UserError, match="made from other text: test source is new"):
        provenance.check_corpus(added, run_dir)
    os.unlink(run_dir.data)
    os.unlink(run_directory.data_record(RUN, run_dir.data_dir))
    provenance.check_corpus(added, run_dir)                  # nothing is known of the data


def test_data_of_another_vocabulary_size_is_refused(run_dir):
    os.makedirs(run_dir.data_dir)
    Path(run_directory.data_record(RUN, run_dir.data_dir)).write_text(
        '{"sources": {}, "settings": {"approx_vocab_size": 8192}}')
    for size in (0, 8192):
        provenance.check_corpus(dataclasses.replace(RUN, text_source="a", text_target="b",
                                                    text_vocab_size=size), run_dir)
    with pytest.raises(UserError, match="text_vocab_size = 50: the data in .* made with 8192"):
        provenance.check_corpus(dataclasses.replace(RUN, text_source="a", text_target="b",
                                                    text_vocab_size=50), run_dir)


def test_other_data_in_the_data_directory_is_refused(run_dir):
    os.makedirs(run_dir.data_dir)
    described = dataclasses.replace(RUN, problem="translate_other")
    record = run_directory.data_record(described, run_dir.data_dir)
    for digest in ("ab" * 32, "cd" * 32):
        Path(record).write_text(json.dumps({"sources": {"archive": digest}}))
        provenance.record_corpus(described, run_dir)
    with pytest.raises(UserError, match="made from other text: archive"):
        provenance.check_corpus(described, run_dir)


@pytest.mark.parametrize("of_run, of_data, says", [
    (None, "ab", None), ("ab", None, None), ("ab", "ab", None), ("ab", "cd", "examples")])
def test_older_records_know_nothing_of_examples(run_dir, of_run, of_data, says):
    os.makedirs(run_dir.data_dir)
    described = dataclasses.replace(RUN, problem="own")
    record = run_directory.data_record(described, run_dir.data_dir)
    for digest in (of_run, of_data):
        with open(record, "w") as text:
            json.dump({"sources": {"settings": "ef" * 32,
                                   **({"examples": digest * 32} if digest else {})}}, text)
        provenance.record_corpus(described, run_dir)
    if says:
        with pytest.raises(UserError, match=f"made from other text: {says}"):
            provenance.check_corpus(described, run_dir)
    else:
        provenance.check_corpus(described, run_dir)


def test_the_environment_names_text_that_the_run_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="RPR_TEXT_SOURCE = .*a.txt: no such file"):
        provenance.text_files(RUN)
    (tmp_path / "a.txt").write_text("x\n")
    for name in (RUN.problem, "graph_text_files"):
        assert provenance.text_files(dataclasses.replace(RUN, problem=name)) == {
            "train source": str(tmp_path / "a.txt")}
    assert provenance.text_files(dataclasses.replace(RUN, problem="p")) == {}
    described = dataclasses.replace(RUN, text_source="s", text_target="t", text_vocab_size=99)
    assert described.environment() == {"RPR_TEXT_SOURCE": "s", "RPR_TEXT_TARGET": "t",
                                       "RPR_TEXT_VOCAB_SIZE": "99"}


def test_changed_code_is_said(run_dir, tmp_path, capsys):
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "sub" / "a.py").write_text("1")
    described = provenance.with_usr_dir(RUN, str(code), "x.gin")
    provenance.record_code(described, run_dir)
    (code / "sub" / "a.py").write_text("2")
    (code / "b.py").write_text("3")
    provenance.record_code(described, run_dir)
    assert "since this run began: b.py, sub/a.py" in capsys.readouterr().err.replace("\n", "")


def test_a_record_does_not_choose_which_code_runs(tmp_path):
    described = dataclasses.replace(RUN, usr_dir=str(tmp_path))
    assert provenance.with_usr_dir(described, None, "mine.gin") == described
    for name in ("config.gin", "study.gin"):
        for given in (None, ""):
            with pytest.raises(UserError, match=f"t2t_usr_dir is missing: .* in {tmp_path}$"):
                provenance.with_usr_dir(described, given, f"runs/x/{name}")
        assert provenance.with_usr_dir(described, str(tmp_path), name) == described
