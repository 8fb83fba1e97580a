"""Data that T2T's own problems make: what check_data accepts, and what it refuses."""
import os
import random
import signal
import subprocess
import sys

import pytest
from conftest import rpr_command
from tensor2tensor.data_generators import generator_utils, text_problems, translate

from rpr.problems import checks, datagen
from rpr.utils.errors import UserError


def cut(path):
    os.truncate(path, path.stat().st_size - 5)


class Stock(translate.TranslateProblem):
    """Stock T2T's own datagen, on a few lines."""

    approx_vocab_size = 150
    dataset_splits = [{"split": checks.SPLITS["train"], "shards": 2},
                      {"split": checks.SPLITS["dev"], "shards": 1}]

    @property
    def name(self):
        return "stock"

    def sources(self, tmp_dir):
        return {}

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        for number in range(60):
            yield {"inputs": f"sentence {number}", "targets": f"Satz {number}"}

    def generate_text_for_vocab(self, data_dir, tmp_dir):
        return text_problems.Text2TextProblem.generate_text_for_vocab(self, data_dir, tmp_dir)


@pytest.fixture
def stock(tmp_path):
    problem = Stock()
    problem.generate_data(str(tmp_path), str(tmp_path))
    return problem, tmp_path


def test_stock_data_is_accepted_and_kept(stock):
    problem, data_dir = stock
    checks.check_data(problem, str(data_dir), ["train", "dev"])
    before = {path.name: path.read_bytes() for path in data_dir.iterdir()}
    datagen.generate(problem, str(data_dir), str(data_dir))
    assert {path.name: path.read_bytes() for path in data_dir.iterdir()
            if not path.name.endswith((".lock", ".log"))} == before


def grow_ids(data_dir):
    path = str(next(data_dir.glob("stock-dev-*")))
    generator_utils.write_records([generator_utils.to_example(
        {"inputs": [5, 1], "targets": [9999, 1]}).SerializeToString()], path)


@pytest.mark.parametrize(("damage", "says"), [
    (lambda d: cut(d / "stock-train-00001-of-00002"), "cut off after 29 records"),
    (lambda d: (d / "stock-train-00001-of-00002").unlink(), "1 of 2 train files"),
    (lambda d: (d / "stock-dev-00000-of-00001").write_bytes(b""), "the dev data is empty"),
    (lambda d: (d / "stock-dev-00000-of-00001").unlink(), "there is no dev data of stock"),
    (lambda d: (d / "stock-dev-00000-of-00001").write_bytes(b"not a record" * 40), "cut off"),
    (grow_ids, "contains the id 9999, but the vocabulary has only"),
    (lambda d: (d / "vocab.stock.150.subwords").write_bytes(b""), "the vocabulary is empty"),
    (lambda d: cut(d / "vocab.stock.150.subwords"), "the vocabulary is cut off"),
    (lambda d: (d / "vocab.stock.150.subwords").write_text("hello\nworld\n"),
     "not a sub-word vocabulary of T2T"),
    (lambda d: (d / "vocab.stock.150.subwords").write_bytes(b"\xff\n"), "not UTF-8"),
])
def test_damaged_stock_data_is_found(stock, damage, says):
    problem, data_dir = stock
    damage(data_dir)
    with pytest.raises(UserError, match=says):
        checks.check_data(problem, str(data_dir), ["train", "dev"])


def test_a_changed_byte_in_stock_data_is_found_where_it_is_read(stock):
    problem, data_dir = stock
    path = data_dir / "stock-dev-00000-of-00001"
    found = bytearray(path.read_bytes())
    found[12] ^= 1                                    # the first byte of the first record
    path.write_bytes(found)
    with pytest.raises(UserError, match="is damaged"):
        checks.check_data(problem, str(data_dir), ["dev"])


# Data that T2T's own code makes, in our staging directory.

class Plain(text_problems.Text2TextProblem):
    """A problem of T2T's interface alone, with a file of its own."""

    name = "plain"
    approx_vocab_size = 50
    is_generate_per_split = True
    dataset_splits = [{"split": checks.SPLITS["train"], "shards": 4},
                      {"split": checks.SPLITS["dev"], "shards": 1}]

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        with open(os.path.join(data_dir, "of_its_own"), "w") as file:
            file.write(dataset_split)
        for number in range(200):
            yield {"inputs": f"a {number}", "targets": f"b {number}"}


def with_t2t(problem, data_dir):
    datagen.generate_with_t2t(problem, str(data_dir), lambda directory: problem.generate_data(
        directory, str(data_dir) + ".tmp"))


def content(data_dir):
    return {path.name: path.read_bytes() for path in data_dir.iterdir() if path.suffix != ".lock"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("plain") / "data"
    with_t2t(Plain(), data_dir)
    return data_dir


def test_t2ts_own_code_leaves_the_same_data_and_a_record(plain, tmp_path):
    random.seed(1)
    with_t2t(Plain(), tmp_path / "ours")
    random.seed(1)
    Plain().generate_data(str(tmp_path), str(tmp_path))
    assert {name: data for name, data in content(tmp_path / "ours").items()
            if not name.endswith((".txt", ".json"))} == {
                path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    record = checks.read_record(Plain(), str(plain))
    assert {split: len(made) for split, made in record["files"].items()} == {"train": 4, "dev": 1}
    assert len(record["texts"]) == 4 and (plain / "of_its_own").read_text() == "eval"
    assert (plain / "plain.test.source.txt").read_text().count("\n") == 200
    before = content(plain)
    with_t2t(Plain(), plain)
    assert content(plain) == before


KILLED = """
import os, signal, sys
import rpr.t2t.compat; rpr.t2t.compat.install()
from tensor2tensor.data_generators import generator_utils
import test_stock_data
left, shuffle = [int(sys.argv[2])], generator_utils._shuffle_single
def shuffle_or_die(*arguments, **options):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    shuffle(*arguments, **options)
generator_utils._shuffle_single = shuffle_or_die
test_stock_data.with_t2t(test_stock_data.Plain(), sys.argv[1])
"""


@pytest.mark.parametrize("shuffled", [0, 2, 4])
def test_a_kill_9_while_t2t_shuffles_leaves_nothing_that_passes_for_data(plain, tmp_path, shuffled):
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "data", str(shuffled)],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(
                              [here, os.path.dirname(here), *sys.path])}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with pytest.raises(UserError, match="datagen did not finish there"):
        checks.check_data(Plain(), str(tmp_path / "data"), ["train"])
    with_t2t(Plain(), tmp_path / "data")
    assert set(content(tmp_path / "data")) == set(content(plain))
    checks.check_data(Plain(), str(tmp_path / "data"), ["train", "dev"])


@pytest.mark.parametrize("moved", range(0, 12, 3))
def test_a_kill_while_data_of_t2t_moves_into_place(plain, tmp_path, monkeypatch, moved):
    replace, data_dir = os.replace, tmp_path / "data"

    def replace_or_die(source, target):
        nonlocal moved
        if os.path.dirname(target) == str(data_dir):
            if not moved:
                raise KeyboardInterrupt
            moved -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_or_die)
    with pytest.raises(KeyboardInterrupt):
        with_t2t(Plain(), data_dir)
    monkeypatch.undo()
    with pytest.raises(UserError, match="datagen did not finish there"):
        checks.check_data(Plain(), str(data_dir), ["train"])
    with_t2t(Plain(), data_dir)
    assert set(content(data_dir)) == set(content(plain))


def test_t2t_uses_the_vocabulary_that_is_there(plain, tmp_path):
    data_dir, name = tmp_path / "data", Plain().vocab_filename
    data_dir.mkdir()
    given = (plain / name).read_bytes() + b"'a_'\n"
    (data_dir / name).write_bytes(given)
    (data_dir / "other").mkdir()
    with_t2t(Plain(), data_dir)
    assert (data_dir / name).read_bytes() == given and not (data_dir / name).is_symlink()
    assert (data_dir / "other").is_dir() and not (data_dir / "other").is_symlink()
    checks.check_data(Plain(), str(data_dir), ["train", "dev"])


def test_data_of_stock_t2t_gets_a_record_if_it_is_complete(tmp_path):
    Plain().generate_data(str(tmp_path), str(tmp_path))
    before = content(tmp_path)
    (tmp_path / "plain-unshuffled-train-00003-of-00004").write_bytes(b"")
    with pytest.raises(UserError, match=r"did not finish there \(plain-unshuffled-train-00003-of-"
                                        r"00004 is unfinished\): remove plain-\*, and the same"):
        with_t2t(Plain(), tmp_path)
    (tmp_path / "plain-unshuffled-train-00003-of-00004").unlink()
    (tmp_path / "plain-dev-00000-of-00001").rename(tmp_path / "kept")
    with pytest.raises(UserError, match=r"\(there is no dev data\): remove plain-\*"):
        with_t2t(Plain(), tmp_path)
    (tmp_path / "kept").rename(tmp_path / "plain-dev-00000-of-00001")
    (tmp_path / ".plain.dev.source.txt.0123456789abcdef.tmp").touch()     # of a killed writer
    with_t2t(Plain(), tmp_path)
    assert not list(tmp_path.glob(".plain.dev.*"))
    assert before.items() < content(tmp_path).items()
    assert (tmp_path / "plain.datagen.json").exists()


class PlainTokens(Plain):
    vocab_type = text_problems.VocabType.TOKEN


def test_a_vocabulary_of_tokens_has_to_be_given(tmp_path):
    with pytest.raises(UserError, match="plain needs a vocabulary of yours there, vocab.plain.toke"
                                        "ns: <pad>, <EOS>, then the words, one a line"):
        with_t2t(PlainTokens(), tmp_path)
    assert not content(tmp_path)
    words = ["<pad>", "<EOS>", "a", "b", *map(str, range(200))]
    (tmp_path / "vocab.plain.tokens").write_text("".join(word + "\n" for word in words))
    with_t2t(PlainTokens(), tmp_path)
    checks.check_data(PlainTokens(), str(tmp_path), ["train", "dev"])


T2T_PROBLEM = '''
from tensor2tensor.data_generators import problem, text_problems
from tensor2tensor.utils import registry

@registry.register_problem
class TinyProblem(text_problems.Text2TextProblem):
    __module__ = "tensor2tensor.data_generators.tiny"
    approx_vocab_size = 50
    is_generate_per_split = True
    dataset_splits = [{"split": problem.DatasetSplit.TRAIN, "shards": 1},
                      {"split": problem.DatasetSplit.EVAL, "shards": 1}]

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        for number in range(20):
            yield {"inputs": f"a {number}", "targets": f"b {number}"}
'''


def test_a_problem_of_t2t_comes_with_a_warning(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(T2T_PROBLEM)
    done = rpr_command("datagen", "--problem=tiny_problem", f"--data_dir={tmp_path}/data",
                       f"--tmp_dir={tmp_path}/tmp", f"--t2t_usr_dir={tmp_path}/own")
    warning, *_, last = done.stderr.splitlines()
    assert "tiny_problem is a problem of tensor2tensor itself" in warning and "http" in warning
    assert last == f"tiny_problem: 20 training, 20 development examples in {tmp_path}/data"


def test_data_that_a_training_makes_with_t2t_comes_with_the_warning(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(Plain, "__module__", "tensor2tensor.data_generators.plain")
    for _ in range(2):                                # the second time it is there
        with_t2t(Plain(), tmp_path / "data")
    assert capfd.readouterr().err.count("plain is a problem of tensor2tensor itself") == 1
