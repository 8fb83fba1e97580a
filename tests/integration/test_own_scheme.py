"""A scheme from a user's directory: the example of docs/your_own_scheme.md as commands."""
import re

import pytest
from conftest import ROOT, python_script, refused, rpr_command

from rpr import positions

EXAMPLE = ROOT / "docs" / "examples" / "log_distance"


def test_the_page_shows_the_example():
    page = (ROOT / "docs" / "your_own_scheme.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block == (EXAMPLE / "__init__.py").read_text(encoding="utf-8")
    gin = EXAMPLE.with_suffix(".gin").read_text(encoding="utf-8")
    settings, = re.findall(r"^```\n(run\..*?)^```", page, re.MULTILINE | re.DOTALL)
    assert all(line in gin.splitlines() for line in settings.splitlines())


def test_the_scheme_and_its_hparams_are_listed():
    lines = rpr_command("list", "schemes", f"--t2t_usr_dir={EXAMPLE}").stdout.splitlines()
    place, = [i for i, line in enumerate(lines) if line.split()[:1] == ["log_distance"]]
    assert "-c log(1 + |i - j|)" in lines[place]
    assert lines[place + 1].split() == (
        "log_distance_c=1.0: slope of the logarithmic bias (a number, at least 0)").split()
    relative = lines[[line.split()[:1] for line in lines].index(["relative"]):]
    assert [line.split(":")[0].strip() for line in relative[5:7]] == [
        "max_relative_position", "heads_share_relative_embedding"]


def test_a_value_out_of_range_is_refused(text, tmp_path):
    message = refused(
        "train", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
        f"--output_dir={tmp_path}/model", "--train_steps=2", f"--t2t_usr_dir={EXAMPLE}",
        "--hparams=position=log_distance,log_distance_c=-1")
    assert "log_distance_c=-1" in message and "a number, at least 0" in message
    assert not (tmp_path / "model").exists()


def test_a_scheme_that_fails_its_checks_ends_with_exit_code_1(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text(
        "from rpr import positions\n\n\n@positions.register('broken')\n"
        "class Broken(positions.Scheme):\n    def bias(self, layout, dtype):\n"
        "        return layout.offset.not_there\n")
    done = rpr_command("check-scheme", "broken", f"--t2t_usr_dir={tmp_path}/own", check=False)
    assert done.returncode == 1 and "FAILED: " in done.stdout and "own/__init__.py" in done.stdout


def run_code(tmp_path, code):
    """In a fork: registering a scheme here would add it to the tests of all schemes."""
    (tmp_path / "code.py").write_text(code)
    return python_script(tmp_path / "code.py", cwd=ROOT)


def test_its_hparam_can_be_varied_in_a_study(tmp_path):
    run = run_code(
        tmp_path,
        "from rpr.experiments import gin_files, studies\n"
        "from rpr.t2t import preflight\n"
        "from rpr.utils.interfaces import ModelRequest\n"
        f"settings = gin_files.load_study({str(EXAMPLE.with_suffix('.gin'))!r})\n"
        "runs = [study_run.run for study_run in studies.study_runs(*settings, 'study')]\n"
        "preflight.check_runs([ModelRequest(\n"
        "    run.model, run.problem, run.hparams_set, run.hparams, t2t_usr_dir=run.usr_dir)\n"
        "    for run in runs])\n"
        "print(sorted({run.hparams for run in runs}))\n")
    assert "log_distance_c=2.0,position=log_distance" in run.stdout, run.stderr


REGISTER = """
import dataclasses
from rpr import positions
from rpr.positions import Scheme, Setting
{body}
"""


@pytest.mark.parametrize("body, message", [
    ('positions.register("alibi")(Scheme)', "'alibi' is registered already"),
    ('positions.register("a+b")(Scheme)', "letters, digits and _"),
    ('class A(Scheme):\n    settings = Setting("rotary_base", 1.0),\npositions.register("a")(A)',
     "another scheme declares the hparam rotary_base"),
    ('class A(Scheme):\n    settings = Setting("dropout", 1.0),\npositions.register("a")(A)\n'
     'import rpr.hparams\nfrom tensor2tensor.utils import registry; registry.hparams("rpr_tiny")',
     "declares the hparam dropout, which the model has"),
    ('class A(Scheme):\n    settings = Setting("decoder_only", 1),\npositions.register("a")(A)\n'
     'import rpr.hparams\nfrom tensor2tensor.utils import registry; registry.hparams("rpr_tiny")',
     "declares the hparam decoder_only, which the model has"),
])
def test_a_registration_that_would_shadow_another_is_an_error(body, message, tmp_path):
    body = body.replace("(Scheme):", "(positions.bias.Alibi):")
    run = run_code(tmp_path, REGISTER.format(body=body))
    assert run.returncode and re.search(rf"(Value|User)Error: .*{message}", run.stderr), run.stderr


def some(attributes, base=positions.bias.Alibi):
    return type("Some", (base,), attributes)


@pytest.mark.parametrize("scheme, message", [
    (some({}, object), "Some must derive from rpr.positions.Scheme"),
    (some({"biases": lambda self, layout, dtype: None}, positions.Scheme),
     "overrides none of the methods place, embed, rotate, logits, bias, "),
    (some({"bias": lambda self, layout: None}), r"bias\(\) must take layout, dtype"),
    (some({"__init__": lambda self, hparams: None}), r"__init__\(\) must take hparams, side"),
    (some({"sides": "targets"}), "sides = 'targets': must be a tuple of inputs, targets and "),
    (some({"sides": ("decoder",)}), r"sides = \('decoder',\): must be"),
    (some({"settings": positions.Setting("some_c", 1.0)}), "settings: must be a tuple of Setting"),
    (some({"settings": (1.0,)}), "settings: must be a tuple of Setting"),
    (some({"settings": (positions.Setting("some-c", 1.0),)}), "'some-c': a name consists of"),
    (some({"settings": (positions.Setting("some_c", 0, above=0),)}),
     "the default some_c=0: must be a whole number above 0"),
    (some({"settings": (positions.Setting("some_c", (1, 2)),)}), r"the default some_c=\(1, 2\): "
     "must be True or False, a number or text"),
])
def test_a_class_that_cannot_be_a_scheme_is_refused(scheme, message):
    with pytest.raises(ValueError, match=f"position scheme 'some': .*{message}"):
        positions.register("some")(scheme)
    assert "some" not in positions.SCHEMES


def test_register_without_a_name_is_refused():
    with pytest.raises(ValueError, match=r'write @positions.register\("a_name"\) above Some'):
        positions.register(some({}))
