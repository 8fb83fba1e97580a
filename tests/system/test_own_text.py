"""docs/own_text.md walked with its own commands, on a small text and for a few steps."""
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, refused, rpr_command

PAGE = ROOT / "docs" / "own_text.md"
SMALL = ["--set", 'run.hparams_set="rpr_tiny"', "--set", "run.train_steps=20", "--set",
         "run.checkpoint_steps=10", "--set", "run.average_checkpoints=1", "--set",
         "run.beam_size=1", "--set", "run.eval_steps=1", "--set",
         'run.hparams="num_hidden_layers=1"', "--set", "run.text_vocab_size=300"]
SMALL_STUDY = [*SMALL, "--set", "study.seeds=(1,)",
               "--set", 'study.grid={"max_relative_position": (2,)}']


def commands():
    """The page's commands, without `rpr`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [shlex.split(line)[1:] for block in blocks
            for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def walked(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_text")
    for language in ("en", "de"):
        (folder / f"train.{language}").write_text(
            (text.folder / f"train.{language}").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "gin").symlink_to(ROOT / "gin")
    *_, study, report, columns = commands()
    unset = {name: "" for name in ("SOURCE", "TARGET", "DEV_SOURCE", "DEV_TARGET", "TEST_SOURCE",
                                   "TEST_TARGET", "VOCAB_SIZE")}
    environment = {f"RPR_TEXT_{name}": value for name, value in unset.items()}
    rpr_command(*study, *SMALL_STUDY, cwd=folder, env=with_environment(environment))
    rpr_command(*report, "--skip_model_analysis", cwd=folder)
    done = rpr_command(*columns, "--skip_model_analysis", cwd=folder)
    return folder, study, environment, done


def with_environment(values):
    return {**{name: value for name, value in os.environ.items() if name not in values},
            "PYTHONPATH": str(ROOT)}


def test_the_page_gives_one_model(walked):
    folder, _, environment, _ = walked
    run, decode, export = commands()[:3]
    (folder / "new.en").write_text((folder / "train.en").read_text(encoding="utf-8")[:400],
                                   encoding="utf-8")
    rpr_command(*run, *SMALL, cwd=folder, env=with_environment(environment))
    rpr_command(*decode, cwd=folder)
    rpr_command(*export, cwd=folder)
    assert (folder / "new.de").read_text(encoding="utf-8").count("\n") == len(
        (folder / "new.en").read_text(encoding="utf-8").splitlines())
    assert (folder / "exported" / "model.bin").exists()


def test_the_page_gives_a_table_and_a_report(walked):
    folder, _, _, done = walked
    out = folder / "runs" / "clipping"
    assert (out / "report.html").exists()
    rows = [line for line in (out / "results.md").read_text().splitlines() if line.startswith("|")]
    cells = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows[2:]}
    assert cells == {"max_relative_position=2": "2", "absolute": ""}
    tex = (out / "results.tex").read_text()
    assert r"model & $k$ & BLEU & difference" in tex and r"\label{tab:clipping}" in tex


def test_the_corpus_is_recorded_and_shown(walked):
    folder, *_ = walked
    out = folder / "runs" / "clipping"
    corpus = json.loads((out / "results.json").read_text())["corpus"]
    lines = (folder / "train.en").read_text(encoding="utf-8").count("\n")
    assert Path(corpus["train source"]["path"]) == folder / "train.en"
    assert corpus["train source"]["lines"] == lines
    assert corpus["train target"]["sha256"] in (out / "report.html").read_text()


def test_bad_translations_are_reported(walked):
    *_, done = walked
    assert re.search(r"hypotheses (are empty|stop at the length limit)|brevity penalty",
                     done.stdout)


def test_another_text_is_refused_in_a_finished_study(walked):
    folder, study, environment, _ = walked
    text = folder / "train.en"
    before = text.read_text(encoding="utf-8")
    text.write_text("another " + before, encoding="utf-8")
    try:
        line = refused(*study, *SMALL_STUDY, cwd=folder, env=with_environment(environment))
    finally:
        text.write_text(before, encoding="utf-8")
    assert "made from other text" in line or "other data" in line
