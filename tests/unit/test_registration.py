"""Registered names: directories of own code, and what is not supported."""
import pytest
from tensor2tensor.data_generators import multi_problem
from tensor2tensor.utils import registry

from rpr.t2t import registration
from rpr.utils.errors import UserError


def test_a_directory_without_code_to_import_is_refused(tmp_path):
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    for name, line in (("nowhere", "no such directory"), ("file.py", "no such directory"),
                       ("empty", "no __init__.py")):
        with pytest.raises(UserError, match=f"{tmp_path}/{name}: .*{line}"):
            registration.register(str(tmp_path / name))


def test_a_directory_that_ends_the_program_is_refused(tmp_path):
    (tmp_path / "ends").mkdir()
    (tmp_path / "ends" / "__init__.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserError, match="__init__.py, line 2: SystemExit: 0"):
        registration.register(str(tmp_path / "ends"))


def test_another_directory_called_rpr_is_not_passed_over(tmp_path):
    (tmp_path / "rpr").mkdir()
    (tmp_path / "rpr" / "__init__.py").touch()
    with pytest.raises(UserError, match="a module named 'rpr' is loaded already"):
        registration.register(str(tmp_path / "rpr"))


def test_a_mixture_of_problems_is_refused():
    name = "mixture_for_test_registration"
    registry.register_problem(name)(type("Mixture", (multi_problem.MultiProblem,), {}))
    with pytest.raises(UserError, match=f"problem={name}: it mixes several problems"):
        registration.find_problem(name)
