"""Data that T2T's own problems make: what check_data accepts, and what it refuses."""
import os

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
