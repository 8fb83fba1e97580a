"""Registered test sets, and what is said about one of sacreBLEU's that cannot be fetched."""
import errno
import gzip
import json
import os
import subprocess
import sys

import pytest
from conftest import NEWSTEST

from rpr import cli
from rpr.evaluation import test_sets
from rpr.problems import parallel_text
from rpr.utils.errors import UserError


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setenv("RPR_TEST_SETS", str(tmp_path / "sets"))
    (tmp_path / "src").write_text("one\ntwo \n\n", encoding="utf-8")
    (tmp_path / "ref").write_text("eins\nzwei\n\n", encoding="utf-8")
    with gzip.open(tmp_path / "ref2.gz", "wt", encoding="utf-8") as text:
        text.write("ein\nzwo\n\n")
    return tmp_path


def add(texts, *more, name="mine", pair="en-de"):
    return cli.main(["test-set", "add", name, str(texts / "src"), str(texts / "ref"), *more,
                     f"--language_pair={pair}"])


def test_a_registered_test_set_is_found_by_its_name(texts, capsys):
    assert add(texts, str(texts / "ref2.gz")) == 0
    assert test_sets.test_set_source("mine", "en-de") == ["one", "two", ""]
    assert test_sets.test_set_references("mine", "en-de") == {
        "reference.0": ["eins", "zwei", ""], "reference.1": ["ein", "zwo", ""]}
    (texts / "src").unlink()
    assert test_sets.test_set_source("mine", "en-de") == ["one", "two", ""]
    capsys.readouterr()
    assert cli.main(["test-set", "list"]) == 0
    assert capsys.readouterr().out == f"mine\ten-de\t{texts}/sets/mine.en-de\n"


def test_a_file_among_the_test_sets_is_none(texts):
    add(texts)
    (texts / "sets" / "README.md").write_text("These are ours.")
    assert [name for name, _, _ in test_sets.registered()] == ["mine"]


def test_a_byte_order_mark_is_no_part_of_the_text(texts, tmp_path):
    for suffix, opened in ((".txt", open), (".gz", gzip.open)):
        path = str(tmp_path / f"marked{suffix}")
        with opened(path, "wb") as text:
            text.write("\ufeffDas ist gut.\n\ufeffJa.\n".encode())
        assert test_sets.read_lines(path) == ["Das ist gut.", "\ufeffJa."]
        lines = list(parallel_text.raw_lines(path))
        assert lines == [b"Das ist gut.\n", "\ufeffJa.\n".encode()]


def test_the_same_text_may_be_registered_again_and_no_other(texts, capsys):
    assert add(texts) == add(texts) == 0
    (texts / "ref").write_text("eins\ndrei\n\n", encoding="utf-8")
    assert add(texts) == 1
    assert "registered with other text" in capsys.readouterr().err
    assert test_sets.test_set_references("mine", "en-de")["reference.0"][1] == "zwei"
    assert os.listdir(texts / "sets") == ["mine.en-de"]


@pytest.mark.parametrize("arguments, says", [
    (dict(name="../mine"), "letters, digits"), (dict(name="a/b"), "letters, digits"),
    (dict(name="wmt14"), "sacreBLEU has a test set of this name"),
    (dict(pair="english"), "--language_pair=english"),
])
def test_names_that_are_refused(texts, capsys, arguments, says):
    assert add(texts, **arguments) == 1
    assert says in capsys.readouterr().err and not (texts / "sets").exists()


def test_a_disk_that_fills_up_leaves_nothing(texts, monkeypatch):
    write = test_sets.files.write_atomically

    def fail(path, content):
        if path.endswith("reference.0"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(test_sets.files, "write_atomically", fail)
    with pytest.raises(OSError, match="No space"):
        test_sets.register("mine", "en-de", str(texts / "src"), [str(texts / "ref")])
    assert os.listdir(os.environ["RPR_TEST_SETS"]) == []


def test_files_of_unequal_length_are_refused(texts, capsys):
    (texts / "ref").write_text("eins\n", encoding="utf-8")
    assert add(texts) == 1
    line = capsys.readouterr().err
    assert "has 1 lines" in line and "has 3" in line and not (texts / "sets").exists()


def test_another_language_pair_is_named(texts):
    add(texts)
    with pytest.raises(UserError, match="the registered test set mine has en-de"):
        test_sets.test_set_source("mine", "de-en")
    with pytest.raises(UserError, match="test_set=min: no such test set"):
        test_sets.test_set_source("min", "en-de")


def test_documents_of_a_registered_test_set(texts, capsys):
    (texts / "documents").write_text("a\nb\nb\n")
    (texts / "page").write_text("a\na\na\n")
    for name, flags in (("none", []), ("two", [f"--documents={texts / 'documents'}"]),
                        ("single", [f"--documents={texts / 'page'}"])):
        assert add(texts, *flags, name=name) == 0
    assert [test_sets.test_set_documents(name, "en-de") for name in ("none", "two", "single")] == [
        None, ["a", "b", "b"], None]
    assert list(test_sets.test_set_references("two", "en-de")) == ["reference.0"]
    (texts / "page").write_text("a\n")
    assert add(texts, f"--documents={texts / 'page'}", name="short") == 1
    assert "page has 1 lines" in capsys.readouterr().err


def test_documents_of_a_test_set_of_sacrebleu(monkeypatch, tmp_path):
    from sacrebleu.dataset import DATASETS
    for name, documents in (("wmt14/full", "a\na\nb\n"), ("mtnt1.1/test", None)):
        pair = sorted(DATASETS[name].langpairs)[0]
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path))
        for field in DATASETS[name].fieldnames(pair):
            with open(DATASETS[name]._get_txt_file_path(pair, field), "w") as text:
                text.write(documents if field == "docid" and documents else "x\ny\nz\n")
        assert test_sets.test_set_documents(name, pair) == (
            documents.split() if documents else None)


@pytest.mark.parametrize("name, files", [
    ("wmt21", ["raw/wmt21.test.tgz"]),
    ("wmt14/full", ["raw/wmt14_full.test-full.tgz", "wmt14_full.en-de.src",
                    "wmt14_full.en-de.ref"])])
def test_without_a_network_the_files_of_the_cache_are_named(monkeypatch, tmp_path, name, files):
    from sacrebleu.dataset import DATASETS

    def fail(*args, **kwargs):
        raise OSError("no network")

    dataset = DATASETS[name]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    monkeypatch.setattr(dataset, "maybe_download", fail)
    with pytest.raises(UserError) as raised:
        test_sets.test_set_source(name, "en-de")
    line = str(raised.value)
    assert all(f"{tmp_path}/{file}" in line for file in files)
    assert "no network" in line and "\n" not in line


def test_the_source_comes_in_its_own_order(sacrebleu_cache):
    code = ("import json; from rpr.evaluation import test_sets; print(json.dumps(["
            "test_sets.test_set_source('wmt21', 'en-de'), "
            "list(test_sets.test_set_references('wmt21', 'en-de').values())]))")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                          env={"SACREBLEU": str(sacrebleu_cache)})
    source, references = json.loads(done.stdout)
    expected = [" ".join(line.split()) for line in (NEWSTEST / "newstest2021.en-de.src.en")
                .read_text(encoding="utf-8").splitlines()]
    assert source == expected and len(references) == 1 and len(references[0]) == len(source)


def test_a_small_gzip_file_of_large_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(test_sets, "_MOST_BYTES", 1000)
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a" * 1001))
    with pytest.raises(UserError, match="more than 1,000 bytes"):
        test_sets.read_lines(str(path))
