"""Registered names: directories of own code."""
import pytest

from rpr.t2t import registration
from rpr.utils.errors import UserError


def test_a_directory_without_code_to_import_is_refused(tmp_path):
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    for name, line in (("nowhere", "no such directory"), ("file.py", "no such directory"),
                       ("empty", "no __init__.py")):
        with pytest.raises(UserError, match=f"{tmp_path}/{name}: .*{line}"):
            registration.register(str(tmp_path / name))
