"""How a study is expanded into runs, and what its directory says of them."""
import dataclasses
import functools
import json
import os
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rpr
from rpr.cli import report, study
from rpr.cli import run as run_command
from rpr.experiments import config, gin_files, studies
from rpr.utils import locks
from rpr.utils.errors import UserError

BASE = config.Run("p", "h", 100, hparams="dropout=0.1,boundaries=[1,2],max_length=20",
                      checkpoint_steps=50)
ARMS = {"absolute": {"position": "sinusoid"}, "relative": {"position": "relative"}}


def test_a_grid_is_the_product_of_its_settings():
    names = list(config.Study("a=1,b=3", grid={"a": (1, 2), "b": [3]}, arms=ARMS).changes())
    assert names == ["a=1,b=3", "a=2,b=3", "absolute", "relative"]


def test_a_setting_is_a_field_of_the_run_or_a_hparam():
    run = studies.resolve(BASE, {"average_checkpoints": 2, "max_length": 30, "relative_keys": False,
                               "rates": (0.5, 1), "widths": [1, 2]}, seed=7)
    assert (run.average_checkpoints, run.seed, run.problem) == (2, 7, "p")
    assert run.hparams == ("boundaries=[1,2],dropout=0.1,max_length=30,rates=[0.5,1],"
                           "relative_keys=False,widths=[1,2]")


def test_a_space_after_a_comma_is_no_part_of_a_hparams_name():
    base = dataclasses.replace(BASE, hparams="num_heads=2, hidden_size=8")
    assert studies.resolve(base, {"hidden_size": 16}, 1).hparams == "hidden_size=16,num_heads=2"


def test_an_arm_may_set_hparams_as_text_and_by_name():
    text = "position=alibi,dropout=0.1"
    assert studies.resolve(BASE, {"hparams": text}, 1).hparams == text
    assert studies.resolve(BASE, {"hparams": text, "num_heads": 4}, 1).hparams == (
        "dropout=0.1,num_heads=4,position=alibi")
    with pytest.raises(UserError, match="study: hparams of arm 'b': 'alibi' is not NAME=VALUE"):
        studies.study_runs(config.Study("a", arms={"a": {}, "b": {"hparams": "alibi"}}), BASE, "x")


def test_an_error_in_the_settings_of_an_arm_names_it():
    study = config.Study("a", arms={"a": {}, "b": {"beam_size": 0}})
    for check in (lambda: studies.study_runs(study, BASE, "x"),
                  lambda: studies.shortened(study, BASE)):
        with pytest.raises(UserError, match="study: arm 'b': run.beam_size = 0: must be"):
            check()


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "average_checkpoints"]), st.integers(1, 2)),
       st.dictionaries(st.sampled_from(["a", "b", "c", "average_checkpoints"]), st.integers(1, 2)),
       st.integers(1, 2), st.integers(1, 2))
def test_two_runs_share_a_directory_if_and_only_if_they_are_the_same(one, other, seed1, seed2):
    runs = [studies.resolve(BASE, changes, seed)
            for changes, seed in ((one, seed1), (other, seed2))]
    assert (studies.run_id("x", runs[0]) == studies.run_id("x", runs[1])) == (
        ({"average_checkpoints": 1, **one}, seed1) == ({"average_checkpoints": 1, **other}, seed2))


def test_what_may_change_in_a_run_does_not_change_its_directory():
    other = dataclasses.replace(BASE, eval_frequency=5)
    assert studies.run_id("both a^K, a^V", BASE) == studies.run_id("both a^K, a^V", other)
    assert studies.run_id("both a^K, a^V", BASE).startswith("both-a-K-a-V-1-")
    assert studies.run_id(".hidden", BASE).startswith("hidden-1-")


@pytest.mark.parametrize("wrong, words", [
    (dict(baseline="none"), ["study.baseline", "'none'", "absolute, relative"]),
    (dict(paper_bleu={"big": 1}), ["study.paper_bleu", "'big'"]),
    (dict(seeds=()), ["study.seeds"]),
    (dict(seeds=(1, 1)), ["study.seeds", "different"]),
    (dict(baseline="relativ"), ["study.baseline", "'relativ'; nearest: relative; there are abs"]),
    (dict(baseline="x", arms={f"{n:03}": {"a": n} for n in range(99)}),
     ["no arm 'x'; there are 000, 001, 002, 003, ..., 095, 096, 097, 098"]),
    (dict(seeds=1), ["study.seeds = 1: must be a tuple, such as (1,)"]),
    (dict(grid={"a": 1}), ["study.grid", "'a'"]),
    (dict(arms={**ARMS, "x": 1}), ["study.arms", "'x'"]),
    (dict(arms={**ARMS, "x": {"seed": 1}}), ["'x'", "study.seeds"]),
    (dict(arms={**ARMS, "x": {"hparams": None}}), ["'x'", "hparams = None", "text"]),
    (dict(grid={"a": (1,)}, arms={**ARMS, "a=1": {}}), ["'a=1'", "already"]),
    (dict(tune={"a": 1}), ["study.tune", "'a'"]),
    (dict(tune={"train_steps": (1, 2)}), ["study.tune", "train_steps", "setting of a run"]),
    (dict(tune={"position": ("sinusoid",)}), ["'absolute'", "position", "study.tune"]),
    (dict(tune={name: tuple(range(11)) for name in "abc"}), ["study.tune", "1,331 settings"]),
    (dict(seeds=(1, 2, 3), looks=(2,)), ["study.looks = (2,)", "3, the number of study.seeds"]),
    (dict(seeds=(1, 2, 3), looks=(3, 2, 3)), ["study.looks = (3, 2, 3)", "rising"]),
    (dict(seeds=(1, 2), looks=(1, 2)), ["study.looks", "1: must be", "at least 2"]),
    (dict(seeds=(1, 2), looks=(2,), tune={"a": (1,)}), ["study.looks", "not with study.tune"]),
    (dict(seeds=(1, 2), looks=(2,), arms={"absolute": {}}), ["study.looks", "a single arm"]),
    (dict(baseline="a=1", seeds=(1, 2), looks=(2,), arms={}, grid={"a": (1, 1)}),
     ["study.looks", "a single arm"]),
    (dict(margin=0.5), ["study.margin = 0.5", "study.looks"]),
    (dict(seeds=(1, 2), looks=(2,), margin=-1), ["study.margin = -1", "at least 0"]),
])
def test_a_wrong_study_is_refused_by_name(wrong, words):
    with pytest.raises(UserError) as error:
        config.Study(**{"baseline": "absolute", "arms": ARMS, **wrong})
    for word in words:
        assert word in str(error.value)


def test_arms_that_are_the_same_run_are_refused():
    described = config.Study("a", arms={"a": {"x": 1}, "b": {"x": 1}})
    with pytest.raises(UserError, match="'a' and 'b' are the same run"):
        studies.study_runs(described, BASE, "study")


def test_each_arm_tries_every_setting_with_the_same_seeds(tmp_path):
    described = config.Study("absolute", arms=ARMS, seeds=(1, 2),
                             tune={"dropout": (0.1, 0.3), "rate": (1, 2, 4)})
    runs = studies.prepare(described, BASE, str(tmp_path))
    assert len({study_run.directory for study_run in runs}) == len(runs) == 2 * 2 * 6
    arms = json.loads((tmp_path / "study.json").read_text())["arms"]
    for arm in arms:
        assert [(run["seed"], run["tuned"]) for run in arm["runs"]] == [
            (seed, {"dropout": dropout, "rate": rate})
            for seed in (1, 2) for dropout in (0.1, 0.3) for rate in (1, 2, 4)]
    first = gin_files.load_run(str(tmp_path / arms[0]["runs"][-1]["directory"] / "config.gin"))
    assert {"dropout=0.3", "rate=4", "position=sinusoid"} < set(first.hparams.split(","))
    more = studies.prepare(dataclasses.replace(described, tune={**described.tune,
                                                                "rate": (1, 2, 4, 8)}),
                           BASE, str(tmp_path))
    assert {run.directory for run in runs} < {run.directory for run in more}
    again = dataclasses.replace(described, tune={"rate": (1, "1")})
    with pytest.raises(UserError, match="study.tune: .* are the same run"):
        studies.study_runs(again, BASE, str(tmp_path))


def test_the_same_directory_takes_more_arms_but_no_other_run(tmp_path):
    few = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    (tmp_path / ".study.json.0123456789abcdef.tmp").touch()               # of a killed writer
    more = studies.prepare(config.Study("absolute", arms={**ARMS, "none": {"position": "none"}},
                                     seeds=(1, 2), paper_bleu={"none": 12.5}), BASE, str(tmp_path))
    assert {m.directory for m in few} < {m.directory for m in more} and len(more) == 6
    assert not list(tmp_path.glob(".study.json.*"))
    written = json.loads((tmp_path / "study.json").read_text())
    assert written["baseline"] == "absolute"
    assert [(arm["name"], arm["paper_bleu"], [run["seed"] for run in arm["runs"]])
            for arm in written["arms"]] == [("absolute", None, [1, 2]), ("relative", None, [1, 2]),
                                            ("none", 12.5, [1, 2])]
    for arm in written["arms"]:
        for run in arm["runs"]:
            there = gin_files.load_run(str(tmp_path / run["directory"] / "config.gin"))
            assert there.seed == run["seed"] and f"position={arm['changes']['position']}" in (
                there.hparams)
    (tmp_path / few[0].directory / "status.json").write_text("{}")        # it has begun
    with pytest.raises(UserError, match=r"alpha = 0\.5 \(there: 0\.6\)"):
        studies.prepare(config.Study("absolute", arms=ARMS), dataclasses.replace(BASE, alpha=0.5),
                      str(tmp_path))


def test_a_run_that_went_on_to_more_steps_by_itself_is_refused(tmp_path):
    study = config.Study("absolute", arms=ARMS)
    runs = studies.prepare(study, BASE, str(tmp_path))
    run_dir = runs[1].run_dir
    more = gin_files.load_run(run_dir.config, ["run.train_steps=150"])
    with open(run_dir.config, "w") as file:
        file.write(gin_files.as_gin(more))
    studies.check(BASE, runs, str(tmp_path))          # it has not begun
    for path in (run_dir.status, run_dir.scores):
        with open(path, "w") as file:
            file.write('{"step": 150}' if path == run_dir.scores else '{}')
    with pytest.raises(UserError, match=rf"^{run_dir.path} holds another run: train_steps = 100 "
                                        r"\(there: 150\); move it"):
        studies.prepare(study, BASE, str(tmp_path))
    assert gin_files.load_run(run_dir.config) == more


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`rpr study` with a study in tmp_path/s, without data, checks of names and the report."""
    (tmp_path / "x.gin").write_text(gin_files.as_gin(BASE).replace("run.seed = 1\n", "")
                                    + gin_files.as_gin(config.Study("absolute", arms=ARMS)))
    for module, name in ((study, "check_new_runs"), (studies, "make_data"), (report, "main"),
                         (studies, "restore_test_texts")):
        monkeypatch.setattr(module, name, lambda *_: None)
    return lambda *flags: study.main([str(tmp_path / "x.gin"), f"--study_dir={tmp_path}/s", *flags])


def test_a_smoke_test_replaces_no_study(command, tmp_path, monkeypatch):
    described = config.Study("absolute", arms=ARMS)
    runs = studies.prepare(described, BASE, str(tmp_path / "s-smoke"))
    with pytest.raises(UserError, match="--smoke: .*s-smoke holds a study that is not a smoke"):
        command("--smoke")
    assert os.path.exists(runs[0].run_dir.config)
    shutil.rmtree(tmp_path / "s-smoke")
    held = []
    monkeypatch.setattr(study, "_complete", lambda _, described, run, runs, *__: held.append((
        locks.is_held(str(tmp_path / ".s-smoke.lock")), os.listdir(tmp_path / "s-smoke"),
        studies.prepare(described, run, runs[0].study_dir))))
    command("--smoke")
    command("--smoke")
    assert [entry[:2] for entry in held] == [(True, ["data"])] * 2


def test_a_study_whose_data_is_refused_leaves_no_directory(command, tmp_path, monkeypatch):
    def refuse(runs, _):
        os.makedirs(os.path.join(runs[0].run_dir.data_dir, "download"))
        open(os.path.join(runs[0].run_dir.data_dir, ".x.lock"), "w").close()
        raise UserError("6 and 5 lines")

    monkeypatch.setattr(studies, "make_data", refuse)
    for flags in (["--smoke"], []):
        with pytest.raises(UserError, match="6 and 5 lines"):
            command(*flags)
        assert {path.name for path in tmp_path.iterdir()} == {"x.gin", ".s-smoke.lock"}
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine").touch()
    with pytest.raises(UserError, match="6 and 5 lines"):
        command("--smoke")
    assert os.listdir(tmp_path / "s") == ["mine"] and not (tmp_path / "s-smoke").exists()


def test_what_a_killed_command_left_of_a_smoke_test_is_removed(command, tmp_path, monkeypatch):
    left, removed = [], []
    monkeypatch.setattr(study, "_complete", lambda _, described, run, runs, *__: left.append((
        os.listdir(tmp_path / "s-smoke"), studies.prepare(described, run, runs[0].study_dir))))
    command("--smoke")
    rmdir = os.rmdir

    def killed(path, **options):                      # after the first directory
        rmdir(path, **options)
        removed.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rmdir", killed)
        command("--smoke")
    assert removed
    command("--smoke")
    assert [names for names, _ in left] == [["data"]] * 2


def test_a_dry_run_refuses_what_the_study_does_and_knows_only_its_own_smoke_test(
        command, tmp_path, capsys):
    smoke = studies.shortened(config.Study("absolute", arms=ARMS), BASE)
    other = studies.shortened(config.Study("absolute", arms=ARMS),
                              dataclasses.replace(BASE, hparams_set="other"))
    for described, line in ((other, "the hours are unknown"), (smoke, "about 0.0 hours")):
        for study_run in studies.prepare(*described, str(tmp_path / "s-smoke")):
            for name, record in (("status.json", {"train": {"state": "done"}}), ("metrics.jsonl", {
                    "event": "train", "step": 1, "steps_per_second": 2.0})):
                (tmp_path / "s-smoke" / study_run.directory / name).write_text(json.dumps(record))
        command("--dry_run")
        assert line in capsys.readouterr().err.replace("\n", " ")
        shutil.rmtree(tmp_path / "s-smoke")
    runs = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path / "s"))
    (tmp_path / "s" / runs[0].directory / "status.json").write_text("{}")
    with pytest.raises(UserError, match=r"alpha = 0\.5 \(there: 0\.6\)"):
        command("--dry_run", "--set=run.alpha=0.5")


def test_a_study_directory_may_begin_with_a_tilde(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path / "mine"))
    with pytest.raises(UserError, match=f"^{tmp_path}/mine holds another run"):
        (tmp_path / "mine" / "runs" / "x").mkdir()
        (tmp_path / "mine" / "runs" / "x" / "status.json").touch()
        command("--study_dir=~/mine", "--dry_run", "--set=run.alpha=0.5")


def test_the_python_api_plans_and_repeats_flags(monkeypatch):
    asked = []
    monkeypatch.setattr(rpr.api.pipeline, "run_command",
                        lambda argv, *_, **__: asked.append(argv) or (0, ""))
    assert rpr.study("x.gin", "s", dry_run=True, submitit_option=["a=1", "b=2"]) == []
    assert asked == [["study", "x.gin", "--study_dir=s", "--dry_run", "--submitit_option=a=1",
                      "--submitit_option=b=2"]]


def test_a_run_of_a_study_has_its_directory_and_the_data_of_the_study(tmp_path, monkeypatch):
    runs = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path / "s"))
    found = []
    monkeypatch.setattr(run_command, "check_new_runs", lambda _: None)
    monkeypatch.setattr(run_command, "complete_run", lambda _, run_dir, *__: found.append(run_dir))
    run_command.main([runs[0].run_dir.config])
    assert [(run_dir.path, run_dir.data_dir) for run_dir in found] == [
        (runs[0].run_dir.path, str(tmp_path / "s" / "data"))]


def test_a_run_under_way_gets_a_further_test_set_at_its_end(command, tmp_path, monkeypatch):
    runs = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path / "s"))
    states, lock = [], locks.lock(runs[0].run_dir.lock)

    def run_all(planned, *_, **__):
        states.append([study_run.state() for study_run in planned])
        if len(states) == 1:
            lock.__exit__(None, None, None)
        for study_run in planned:
            tests = gin_files.load_run(study_run.run_dir.config).test_sets
            checkpoint = study_run.run_dir.checkpoint(BASE) + ".index"
            os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
            for path in (checkpoint, study_run.run_dir.scores, *(
                    study_run.run_dir.record_of("scores.json", name) for name in tests)):
                with open(path, "w") as record:
                    record.write('{"step": 100}')
        return []

    monkeypatch.setattr(study.scheduler, "run_all", run_all)
    lock.__enter__()
    command("--set=run.test_sets=('wmt21:en-de',)")
    assert states == [["running", "waiting"], ["waiting", "done"]]


def test_looks_need_every_run_of_the_first_one(tmp_path, capsys):
    described = config.Study("absolute", arms=ARMS, seeds=(1, 2, 3, 4), looks=(2, 3, 4))
    begun = [study_run for study_run in studies.study_runs(described, BASE, str(tmp_path))
             if study_run.run.seed in (1, 2) or (study_run.arm, study_run.run.seed) == (
                 "relative", 3)]
    studies.prepare(described, BASE, str(tmp_path), begun)
    assert [study_run.name for study_run in studies.load(str(tmp_path))] == [
        study_run.name for study_run in begun]
    shutil.rmtree(tmp_path / "runs")                  # killed before it wrote their configurations
    study.main([f"--status={tmp_path}"])
    assert "0 of 4 runs done" in capsys.readouterr().err


def test_the_status_shows_data_generation(tmp_path):
    runs = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    assert studies.data_line(runs, str(tmp_path)) == ""
    problem = BASE.problem
    (tmp_path / "datagen.json").write_text(json.dumps(
        {"problem": problem, "state": "running", "started": time.time() - 120, "reason": ""}))
    with locks.lock(str(tmp_path / ".datagen.lock")):
        assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: begun 2 min ago"
    # By Ctrl-C or a kill.
    assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: stopped"
    # Then by `rpr run` for one of the runs.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{problem}.datagen.json").write_text("{}")
    assert studies.data_line(runs, str(tmp_path)) == ""
    # Data of other text is there and stays; generating it again failed.
    (tmp_path / "datagen.json").write_text(json.dumps(
        {"problem": problem, "state": "failed", "started": time.time(), "reason": "other text"}))
    assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: failed: other text"


def test_runs_that_a_study_leaves_out_are_named(tmp_path):
    described = config.Study("absolute", arms=ARMS, seeds=(1, 2))
    both = {study_run.directory for study_run in studies.prepare(described, BASE, str(tmp_path))}
    assert studies.runs_outside(str(tmp_path), both) == []
    fewer = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    directories = {study_run.directory for study_run in fewer}
    outside = studies.runs_outside(str(tmp_path), directories)
    assert set(outside) == both - directories and len(outside) == len(ARMS)


def test_an_arm_sets_neither_the_seed_nor_the_code(tmp_path):
    for setting in ("seed", "usr_dir"):
        with pytest.raises(UserError, match=f"arm 'a' sets (the )?{setting}"):
            config.Study("a", arms={"a": {setting: str(tmp_path)}})


def test_text_in_a_hparam_keeps_its_spaces():
    changes = {"pretrained_source_embeddings": "/data/my vectors/en.vec", "kernel_sizes": [3, 5]}
    run = studies.resolve(dataclasses.replace(BASE, hparams=""), changes, 1)
    assert run.hparams == (
        "kernel_sizes=[3,5],pretrained_source_embeddings=/data/my vectors/en.vec")


@pytest.mark.parametrize("call, says", [
    (functools.partial(rpr.study, "recipe:length_copy", dry_run=True, devices=0),
     "--devices: '0': must be"),
    (functools.partial(rpr.study, "recipe:length_copy", dry_run=True, settings=["run.seed"]),
     "settings=.*: must be a dict"),
    (functools.partial(rpr.load, hparams=3), "hparams=3: must be text")])
def test_bad_arguments_of_the_python_api_are_refused(tmp_path, call, says):
    with pytest.raises(UserError, match=says):
        call(str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()
