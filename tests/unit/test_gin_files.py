"""Files of settings: a user's own may use gin, those in run and study directories are data."""
import dataclasses
import os
import re
import subprocess
import sys
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpr import cli
from rpr.experiments import config, gin_files
from rpr.utils.errors import UserError

BASE = ("run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 100\n"
        "run.checkpoint_steps = 50\n")
DYNAMIC = "from __gin__ import dynamic_registration\nimport os\n"


@pytest.mark.parametrize("name", ["x.gin", "config.gin"])
def test_an_unknown_setting_is_named_with_the_nearest(tmp_path, name):
    path = tmp_path / name
    path.write_text(BASE + "run.train_step = 50\n")
    with pytest.raises(UserError, match="no setting run.train_step; nearest: run.train_steps"):
        gin_files.load_run(str(path))


@pytest.mark.parametrize("text", [
    DYNAMIC + "run.problem = @os.system()\nos.system.command = 'touch pwned'\n" + BASE,
    BASE + "run.seed = @os.getpid()\n",
    "run.problem = __import__('os').system('touch pwned')\n" + BASE,
    "run.problem = open('pwned', 'w')\n" + BASE,
    "include 'x.gin'\n" + BASE,
    "name = 'p'\n" + BASE + "run.hparams = %name\n",
    BASE + "run.seed = 1 if True else 2\n",
    BASE + "run.problem, run.model = 'a', 'b'\n",
    BASE + "run.problem = run.model = 'a'\n",
    BASE + "run.hparams.x = 'a'\n",
    BASE + "import os\n",
    BASE + "run.hparams = f'{1}'\n",
])
@pytest.mark.parametrize("name", ["config.gin", "study.gin"])
def test_a_file_of_a_run_directory_is_data(tmp_path, monkeypatch, text, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_text(text)
    for load in (gin_files.load_run, gin_files.load_study):
        with pytest.raises(UserError, match=name) as error:
            load(str(path))
        assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == [name]


def test_a_file_of_your_own_keeps_the_features_of_gin(tmp_path):
    (tmp_path / "base.gin").write_text(BASE)
    path = tmp_path / "mine.gin"
    path.write_text("include 'base.gin'\nSEED = 7\nrun.seed = %SEED\n")
    assert gin_files.load_run(str(path)).seed == 7
    assert gin_files.load_run(str(path), ["run.seed = 8"]).seed == 8


def test_an_included_file_is_looked_for_beside_the_one_that_names_it(tmp_path, monkeypatch):
    for seed, name in enumerate(("here", "there", "working")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "base.gin").write_text(BASE + f"run.seed = {seed}\n")
        (tmp_path / name / "mine.gin").write_text("include 'base.gin'\n")
    monkeypatch.chdir(tmp_path / "working")
    (tmp_path / "there" / "mine.gin").write_text("include 'base.gin'\ninclude 'more.gin'\n")
    (tmp_path / "working" / "more.gin").write_text("run.eval_steps = 7\n")
    runs = [gin_files.load_run(str(tmp_path / name / "mine.gin")) for name in ("here", "there")]
    assert [run.seed for run in runs] == [0, 1] and runs[1].eval_steps == 7


@pytest.mark.parametrize("name", ["mine.gin", "config.gin"])
def test_set_changes_a_setting(tmp_path, name):
    path = tmp_path / name
    path.write_text(BASE)
    changed = gin_files.load_run(str(path), ["run.eval_frequency = 5", 'run.hparams="x=%y"',
                                             "run.test_sets=['a:en-de']"])
    assert changed.eval_frequency == 5
    assert changed.hparams == "x=%y"
    assert changed.test_sets == ("a:en-de",)


@pytest.mark.parametrize("text, words", [
    ("study.seeds=x", "a tuple, as a Python literal"),
    ("study.seeds=(1,", "a tuple, as a Python literal"),
    ("study.seeds=%x", "a tuple, as a Python literal"),
    ("study.seeds=@os.getpid()", "a tuple, as a Python literal"),
    ("study.seeds=3", "a tuple"),
    ("run.train_steps=", "a whole number from 1 to 1,000,000,000"),
    ("run.train_steps=-3", "a whole number from 1 to 1,000,000,000"),
    ("run.alpha=1e999", "a number from"),
    ("run.train_steps=5\nrun.seed=3", "a whole number"),
    ("run.problem='p", "text, as a Python literal"),
    ("run.problem=5", "text"),
    ("run.seeed=3", "nearest: run.seed"),
    ("seeds=(1, 2)", "nearest: study.seeds"),
    ("run.seed", "run.NAME or study.NAME=VALUE"),
    ("import os", "run.NAME or study.NAME=VALUE"),
    ("", "run.NAME or study.NAME=VALUE"),
])
@pytest.mark.parametrize("name", ["mine.gin", "study.gin"])
def test_a_wrong_set_is_refused_by_its_flag(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(BASE + "study.baseline = 'a'\nstudy.arms = {'a': {}}\n")
    with pytest.raises(UserError) as error:
        gin_files.load_study(str(path), ["run.seed=5", text])
    typed = text.replace("\n", "\\n")
    assert str(error.value).startswith(f"set={typed}: must be ")
    assert words in str(error.value)


def test_set_of_a_run_takes_no_setting_of_a_study(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(BASE)
    with pytest.raises(UserError, match=r"set=study.seeds=\(1,\): must be run.NAME=VALUE"):
        gin_files.load_run(str(path), ["study.seeds=(1,)"])


def test_settings_that_contradict_each_other_are_refused_with_file_and_set(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(BASE)
    with pytest.raises(UserError, match="mine.gin with overrides: run.checkpoint_steps = 50"):
        gin_files.load_run(str(path), ["run.train_steps=120"])


@pytest.mark.parametrize("line, reason", [
    ("run.hparams = dropout=0.1", "'dropout' is not a number.*mine.gin, line 5"),
    ("run.seed = %x", "x/gin.macro"), ("run.seed =", "mine.gin, line 5"),
    ("alpha = 1.0", "alpha = 1.0 has no effect.*nearest: run.alpha"),
    ("beam_sise = 3", "beam_sise = 3 has no effect.*nearest: run.beam_size"),
    ("a/alpha = 1.0", "a/alpha = 1.0 has no effect.*nearest: run.alpha")])
def test_what_gin_refuses_is_said_in_plain_words(tmp_path, line, reason):
    path = tmp_path / "mine.gin"
    path.write_text(BASE + line + "\n")
    with pytest.raises(UserError, match=f"^{path}: .*{reason}"):
        gin_files.load_run(str(path))


def test_a_macro_may_have_the_name_of_a_setting(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(BASE + "alpha = 1.0\nrun.alpha = %alpha\n")
    assert gin_files.load_run(str(path)).alpha == 1.0


@pytest.mark.parametrize("name", ["mine.gin", "study.gin"])
def test_a_study_has_no_seed_of_a_run(tmp_path, name):
    path = tmp_path / name
    path.write_text(BASE + "study.baseline = 'a'\nstudy.arms = {'a': {}}\n")
    with pytest.raises(UserError, match="run.seed = 7: the seeds of a study are study.seeds"):
        gin_files.load_study(str(path), ["run.seed=7"])


def test_a_record_belongs_to_its_own_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gin_files.default_directory("a/study.gin") == str(tmp_path / "runs" / "study")
    for record, name in (("study.json", "study.gin"), ("status.json", "config.gin")):
        (tmp_path / record).touch()
        assert gin_files.default_directory(name) == str(tmp_path)
        assert gin_files.default_directory("a/x.gin") == str(tmp_path / "runs" / "x")


def test_a_pipe_is_no_gin_file(tmp_path):
    os.mkfifo(tmp_path / "x.gin")
    with pytest.raises(UserError, match="x.gin: is a pipe"):
        gin_files.load_run(str(tmp_path / "x.gin"))


def test_an_included_file_is_looked_for_in_silence(tmp_path):
    (tmp_path / "base.gin").write_text(BASE)
    for name in ("base", "nowhere"):
        (tmp_path / f"{name}_included.gin").write_text(f"include '{name}.gin'\n")
    script = ("import sys\nfrom rpr.experiments import gin_files\n"
              "gin_files.load_run(sys.argv[1])\n")
    done = subprocess.run([sys.executable, "-P", "-c", script, tmp_path / "base_included.gin"],
                          capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    with pytest.raises(UserError, match="nowhere_included.gin: Unable to open file: nowhere.gin"):
        gin_files.load_run(str(tmp_path / "nowhere_included.gin"))


@given(st.text() | st.binary())
def test_any_text_in_a_run_directory_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "config.gin"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="replace"))
    with pytest.raises(UserError) as error:
        gin_files.load_run(str(path))
    assert "\n" not in str(error.value)


lines = st.lists(st.sampled_from([*BASE.splitlines(), "run.alpha = ", "run.seed", "= 3", "(", "'",
                                  "@run()", "%x", "#", "study.seeds = (1,)", "\\", "run.x.y = 1"]))


@given(lines)
def test_any_gin_file_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "x.gin"
    path.write_text("\n".join(text))
    try:
        gin_files.load_run(str(path))
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error)


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | (
    st.lists(st.integers(), max_size=3))


@given(st.sampled_from([field.name for field in dataclasses.fields(config.Run)]), values)
def test_any_value_of_a_setting_is_accepted_or_refused_by_name(name, value):
    required = {"problem": "p", "hparams_set": "h", "train_steps": 100, "checkpoint_steps": 50}
    try:
        run = config.Run(**{**required, name: value})
    except UserError as error:
        assert f"run.{name}" in str(error) or "run.train_steps" in str(error)
        return
    field = next(field for field in dataclasses.fields(run) if field.name == name)
    kind = (int, float) if field.type is float else typing.get_origin(field.type) or field.type
    value = getattr(run, name)                        # a list has become a tuple
    assert isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    low, high = field.metadata["minimum"], field.metadata["maximum"]
    assert (low is None or value >= low) and (high is None or value <= high)


names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=120)


@given(st.dictionaries(names, st.dictionaries(names, values, max_size=2), max_size=3))
def test_any_arms_are_accepted_and_read_back_or_refused(tmp_path_factory, arms):
    baseline = next(iter(arms), "")
    try:
        study = config.Study(baseline, arms=arms)
    except UserError as error:
        assert "\n" not in str(error)
        return
    path = tmp_path_factory.mktemp("studies") / "study.gin"
    path.write_text(BASE + gin_files.as_gin(study), encoding="utf-8")
    assert gin_files.load_study(str(path))[0] == study


def test_set_takes_text_with_and_without_quotes(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(BASE)
    for text in ("num_heads=2,dropout=0.1", "'num_heads=2,dropout=0.1'"):
        assert gin_files.load_run(str(path), [f"run.hparams={text}"]).hparams == (
            "num_heads=2,dropout=0.1")


def test_a_byte_order_mark_is_no_part_of_a_gin_file(tmp_path):
    (tmp_path / "x.gin").write_text("\ufeff" + BASE, encoding="utf-8")
    assert gin_files.load_run(str(tmp_path / "x.gin")).problem == "p"


@pytest.mark.parametrize(("text", "says"), [
    ("run.problem = 'p'\nrun.hparams_set = 'h'\n", "run.train_steps is missing"),
    (BASE + "x/run.seed = 7\n", "'x/run.seed': gin's scopes have no effect; the setting is "
                                "run.seed")])
def test_what_a_gin_file_lacks_or_cannot_set_is_named(text, says, tmp_path):
    (tmp_path / "x.gin").write_text(text)
    with pytest.raises(UserError, match=re.escape(says)):
        gin_files.load_run(str(tmp_path / "x.gin"))


@pytest.mark.parametrize("command, kinds", [
    ("run", {"run": config.Run}), ("study", {"run": config.Run, "study": config.Study})])
def test_help_lists_every_setting_and_no_internal_flag(command, kinds, capsys):
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    for prefix, kind in kinds.items():
        for field in dataclasses.fields(kind):
            assert f"  {prefix}.{field.name} (" in text
            assert " ".join(field.metadata["help"].split()) in " ".join(text.split())
    assert "from 1 to 1,000, default 4" in text and "skip_datagen" not in text
