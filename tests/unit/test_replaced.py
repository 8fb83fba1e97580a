"""T2T's programs that cannot run end in one line, and all that its wheel installs are covered."""
import importlib.metadata
import os
import sys

import pytest

from rpr import cli


def scripts(distribution):
    """The commands that a distribution installs."""
    paths = (str(path) for path in importlib.metadata.files(distribution))
    return {os.path.basename(path) for path in paths if "/bin/" in path and "t2t-" in path}


@pytest.mark.parametrize("name", cli.INSTEAD)
def test_a_replaced_program_says_what_to_use(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"/somewhere/{name}", "--help"])
    assert cli.replaced() == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"{name}: ") and err.count("\n") == 1


def test_every_program_of_the_wheel_is_replaced_or_works():
    working = {"t2t-avg-all", "t2t-bleu", "t2t-datagen", "t2t-decoder", "t2t-eval", "t2t-trainer"}
    assert scripts("tensor2tensor") <= working | set(cli.INSTEAD)
    installed = {entry.name: entry.value for entry in importlib.metadata.distribution(
        "rpr").entry_points if entry.group == "console_scripts"}
    assert working | set(cli.INSTEAD) <= set(installed)
    assert all(installed[name] == "rpr.cli:replaced" for name in cli.INSTEAD)
