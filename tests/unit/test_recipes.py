"""Recipes: the gin files that ship with the project, in a checkout and in a wheel."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from rpr.cli import run, study
from rpr.experiments import gin_files
from rpr.utils.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "gin").glob("*.gin"))


def test_a_recipe_is_named_by_its_file():
    assert gin_files.resolve("recipe:toy_reverse") == str(ROOT / "gin" / "toy_reverse.gin")
    assert gin_files.resolve("recipe:small_table2.gin") == str(ROOT / "gin/small_table2.gin")
    assert gin_files.resolve("my/own.gin") == "my/own.gin"


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="quickstart_relativ: no such recipe; nearest: quickstart"):
        gin_files.resolve("recipe:quickstart_relativ")
    with pytest.raises(UserError, match=r"gin/small_table2\.gin: no such gin file; "
                                        r"recipe:small_table2 is the one that ships"):
        gin_files.load_study("elsewhere/gin/small_table2.gin")


def test_run_and_study_take_recipes():
    assert run.main_parser().parse_args(["recipe:quickstart_relative"]).gin.endswith("relative.gin")
    assert study.main_parser().parse_args(["recipe:small_table1"]).gin.endswith("small_table1.gin")


@pytest.fixture(params=["checkout", "sdist"])
def sources(request, tmp_path_factory):
    """A folder from which a wheel can be built."""
    if request.param == "checkout":
        return ROOT
    folder = tmp_path_factory.mktemp("sources")
    for path in ROOT.iterdir():
        if path.name in ("gin", "hparams", "problems", "rpr"):
            shutil.copytree(path, folder / path.name, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name in ("LICENSE", "README.md", "setup.py"):
            shutil.copy(path, folder)
    subprocess.run([sys.executable, "setup.py", "-q", "sdist"], cwd=folder, check=True,
                   capture_output=True, timeout=60)
    archive, = (folder / "dist").iterdir()
    shutil.unpack_archive(archive, folder / "unpacked", filter="data")
    unpacked, = (folder / "unpacked").iterdir()
    return unpacked


def test_a_wheel_contains_the_recipes_and_the_template(sources, tmp_path):
    subprocess.run([sys.executable, "setup.py", "-q", "build_py", f"--build-lib={tmp_path}"],
                   cwd=sources, check=True, capture_output=True, timeout=60)
    code = "from rpr.experiments import gin_files; print(gin_files.resolve('recipe:small_table2'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True,
                          capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    path = pathlib.Path(done.stdout.strip())
    assert path == tmp_path / "rpr" / "recipes" / "small_table2.gin"
    assert path.read_text() == (ROOT / "gin" / "small_table2.gin").read_text()
    assert sorted(file.stem for file in path.parent.iterdir()) == NAMES
    assert (tmp_path / "rpr" / "report" / "page.html.jinja").exists()
    assert (tmp_path / "rpr" / "problems" / "libreoffice_help" / "NOTICE").exists()


def test_multi30k_has_the_settings_of_wu_et_al():
    import rpr
    rpr.register()
    from tensor2tensor.utils import registry
    values = registry.hparams("rpr_multi30k").values()
    published = {"num_hidden_layers": 4, "hidden_size": 128, "filter_size": 256, "num_heads": 4,
                 "layer_prepostprocess_dropout": 0.3, "attention_dropout": 0.0,
                 "shared_embedding_and_softmax_weights": True, "label_smoothing": 0.1}
    assert {name: values[name] for name in published} == published
    peak = values["learning_rate_constant"] * values["learning_rate_warmup_steps"] ** -0.5
    assert peak == pytest.approx(0.005, rel=1e-3)
    for name in ("ende", "ende_lc", "enfr"):
        _, settings = gin_files.load_study(str(ROOT / "gin" / f"multi30k_{name}.gin"))
        assert (settings.average_checkpoints, settings.beam_size) == (10, 5)
        assert registry.problem(settings.problem).approx_vocab_size == 10_000
