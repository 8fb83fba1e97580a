"""Registered names: packages of the user's that hide ours, and directories of own code."""
import sys
import types

import pytest

from rpr.t2t import registration
from rpr.utils.errors import UserError


@pytest.mark.parametrize("name", ["problems", "hparams"])
def test_a_package_that_hides_ours_is_named(name, tmp_path, monkeypatch):
    hiding = types.ModuleType(name)
    hiding.__path__ = [str(tmp_path / name)]
    monkeypatch.setitem(sys.modules, name, hiding)
    with pytest.raises(UserError, match=rf"{tmp_path}/{name} hides this project's package "
                                        rf"'{name}': rename it"):
        registration.register()


def test_a_directory_without_code_to_import_is_refused(tmp_path):
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    for name, line in (("nowhere", "no such directory"), ("file.py", "no such directory"),
                       ("empty", "no __init__.py")):
        with pytest.raises(UserError, match=f"--t2t_usr_dir={tmp_path}/{name}: .*{line}"):
            registration.register(str(tmp_path / name))
