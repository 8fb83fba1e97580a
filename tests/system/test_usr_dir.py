"""Problems, hparams sets and schemes in a directory of the user's own, through runs and studies."""
import json
import os

import pytest
from conftest import refused, rpr_command
from test_study import TINY, runs

CODE = '''
"""Code of a user."""
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

import rpr.problems.text_files
import rpr.positions


@rpr.positions.register("own_scheme")
class OwnScheme(rpr.positions.Scheme):
    """-c log(1 + |i - j|)."""
    settings = (rpr.positions.Setting("own_slope", 1.0, "slope", minimum=0),)

    def __init__(self, hparams, side):
        self._slope = hparams.own_slope

    def bias(self, layout, dtype):
        distances = tf.cast(tf.abs(layout.relative_positions()), dtype)
        return -self._slope * tf.math.log(1 + distances)


@registry.register_problem("translate_own_text")
class TranslateOwnText(rpr.problems.text_files.TranslateTextFiles):
    """Our text."""


@registry.register_hparams("own_tiny")
def own_tiny():
    """A tiny model."""
    hparams = registry.hparams("rpr_tiny")
    hparams.position = "own_scheme"
    return hparams
'''


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own_code"
    folder.mkdir()
    (folder / "__init__.py").write_text(CODE)
    return folder


def write(path, **changes):
    settings = {**TINY, "problem": "translate_own_text", "hparams_set": "own_tiny",
                "average_checkpoints": 1, **changes}
    path.write_text("".join(f"run.{name} = {value!r}\n" for name, value in settings.items())
                    + "study.baseline = 'own_slope=1.0'\nstudy.grid = {'own_slope': (1.0,)}\n")
    return path


def test_a_study_of_own_code(own, text, tmp_path):
    gin = write(tmp_path / "own.gin", usr_dir=str(own))
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/study")
    assert "own_slope" in done.stdout and "report.html" in done.stdout    # the table and its page
    for name, run in runs(tmp_path / "study").items():
        assert json.loads((run / "model" / "hparams.json").read_text())["own_slope"] == float(
            name.removeprefix("own_slope="))
        code = json.loads((run / "code.json").read_text())
        assert code["usr_dir"] == str(own) and list(code["files"]) == ["__init__.py"]
    run = next(iter(runs(tmp_path / "study").values()))
    line = refused("translate", run, "hello")
    assert "--t2t_usr_dir is missing" in line and str(own) in line
    rpr_command("translate", run, "hello", f"--t2t_usr_dir={own}")
    (own / "__init__.py").write_text(CODE + "# changed\n")
    done = rpr_command("run", run / "config.gin", f"--run_dir={run}",
                       f"--data_dir={tmp_path}/study/data", f"--t2t_usr_dir={own}")
    assert "changed in run.usr_dir since this run began: __init__.py" in done.stderr


@pytest.mark.parametrize("code, words", [
    ("import rpr\n\nx = (", "__init__.py, line 3: SyntaxError"),
    ("import no_such_module", "__init__.py, line 1: ModuleNotFoundError: No module"),
    ("import rpr\n\n\n@rpr.positions.register('alibi')\nclass A(rpr.positions.Scheme):\n"
     "    pass\n", "__init__.py, line 4: ValueError: position scheme 'alibi' is registered")])
def test_an_error_in_own_code_is_named_with_its_line(tmp_path, code, words):
    folder = tmp_path / "own_code"
    folder.mkdir()
    (folder / "__init__.py").write_text(code)
    line = refused("list", "schemes", f"--t2t_usr_dir={folder}")
    assert f"--t2t_usr_dir={folder}: {words}" in line


PLAIN = """
from tensor2tensor.data_generators import text_problems
from tensor2tensor.utils import registry


@registry.register_problem
class PlainReverse(text_problems.Text2TextProblem):
    approx_vocab_size = 100
    is_generate_per_split = False
    dataset_splits = [{"split": split, "shards": 1} for split in ("train", "eval")]

    def generate_samples(self, data_dir, tmp_dir, dataset_split):
        for number in range(60):
            words = [f"w{number * k % 13}" for k in range(1, 5)]
            yield {"inputs": " ".join(words), "targets": " ".join(reversed(words))}


@registry.register_problem
class PlainModel(text_problems.Text2SelfProblem):
    pass
"""


def test_a_plain_problem_of_t2t_has_the_texts_that_a_run_needs(text, tmp_path):
    folder = tmp_path / "plain_code"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLAIN)
    flags = ["--problem=plain_reverse", f"--data_dir={tmp_path}/data", f"--t2t_usr_dir={folder}",
             f"--tmp_dir={tmp_path}/tmp"]
    done = rpr_command("datagen", *flags)
    assert "has no test split: its development set is the test set" in done.stderr
    for split in ("dev", "test"):
        source, reference = ((tmp_path / "data" / f"plain_reverse.{split}.{kind}.txt").read_text()
                             .splitlines() for kind in ("source", "reference"))
        assert len(source) == 30
        assert [line.split()[::-1] for line in source] == [line.split() for line in reference]
    record = json.loads((tmp_path / "data" / "plain_reverse.datagen.json").read_text())
    assert sum(file["records"] for file in record["files"]["train"].values()) == 30
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()
              if path.suffix not in (".log", ".lock")}
    rpr_command("datagen", *flags)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    gin = write(tmp_path / "own.gin", usr_dir=str(folder), problem="plain_model")
    line = refused("study", gin, f"--study_dir={tmp_path}/study", "--set",
                   "run.hparams_set=rpr_tiny", "--set", "study.grid={'num_heads': (2,)}", "--set",
                   "study.baseline=num_heads=2")
    assert "run.problem = plain_model: a run translates" in line


def test_own_code_that_fails_in_a_stage_is_named_in_the_status(own, text, tmp_path):
    broken = CODE.replace("        distances =",
                          "        assert False, 'no distances'\n        distances =")
    (own / "__init__.py").write_text(broken)
    gin = write(tmp_path / "own.gin", usr_dir=str(own))
    gin.write_text("".join(line + "\n" for line in gin.read_text().splitlines()
                           if line.startswith("run.")))
    number = broken.splitlines().index("        assert False, 'no distances'") + 1
    line = f"{own}/__init__.py, line {number}: AssertionError: no distances"
    for attempts in (1, 2):
        done = rpr_command("run", gin, f"--run_dir={tmp_path}/run", check=False)
        assert done.returncode == 1 and f"rpr train: {line}; the traceback is in" in done.stderr
        assert "stage train failed" in done.stderr
        entry = json.loads((tmp_path / "run" / "status.json").read_text())["train"]
        assert (entry["reason"], entry["state"], entry["attempts"]) == (line, "failed", attempts)
    (own / "__init__.py").write_text(CODE.replace("hparams = registry", "None.x = registry"))
    line = refused("run", gin, f"--run_dir={tmp_path}/other")
    assert f"{own}/__init__.py, line " in line and "AttributeError: 'NoneType'" in line


@pytest.mark.parametrize("changes, words", [
    ({}, ["translate_own_text"]),
    ({"usr_dir": "own_code", "hparams": "position=own_schem"}, ["own_schem"]),
])
def test_what_own_code_does_not_have_is_refused(own, text, tmp_path, changes, words):
    gin = write(tmp_path / "own.gin", **changes)
    line = refused("study", gin, f"--study_dir={tmp_path}/study", cwd=tmp_path)
    assert all(word in line for word in words), line
    assert sorted(os.listdir(tmp_path)) == ["own.gin", "own_code"]
