"""`rpr verify` names the first difference; a run says in which environment it is resumed."""
import json
import math
import re
from pathlib import Path

import pytest

from rpr.cli.run import verify
from rpr.experiments import config, gin_files, provenance, verification
from rpr.experiments.run_directory import RunDirectory
from rpr.utils import metrics_log
from rpr.utils.errors import UserError


def recorded(path, losses, tensors):
    """A run directory with these losses by step and checksums by step and tensor."""
    run_dir = RunDirectory(str(path))
    (path / "model").mkdir(parents=True)
    for step, loss in losses.items():
        metrics_log.append(run_dir.metrics, "train", step=step, loss=loss)
    for step, values in tensors.items():
        metrics_log.append_checksums(run_dir.model, step, values)
    return run_dir


@pytest.mark.parametrize("losses, tensors, difference", [
    ({10: 3.5, 20: 3.25}, {0: {"a": "1", "b": "2"}, 20: {"a": "3", "b": "4"}}, ""),
    ({10: 3.5, 20: 3.125}, {0: {"a": "1", "b": "2"}, 20: {"a": "3", "b": "4"}},
     "the loss at step 20 was 3.25 and is 3.125"),
    ({10: 3.5, 20: 3.125}, {0: {"a": "1", "b": "0"}, 20: {"a": "0", "b": "0"}},
     "1 of 2 tensors differ at step 0; the first is b"),
    ({10: 3.5, 20: 3.25}, {0: {"a": "1", "b": "2"}, 20: {"a": "3"}},
     "1 of 2 tensors differ at step 20; the first is b"),
    ({10: 3.5, 20: 3.25, 30: 9.0}, {0: {"a": "1", "b": "2"}, 20: {"a": "3", "b": "4"}}, "")])
def test_the_first_difference_is_named(losses, tensors, difference, tmp_path):
    run = recorded(tmp_path / "run", {10: 3.5, 20: 3.25, 30: 3.0},
                   {0: {"a": "1", "b": "2"}, 20: {"a": "3", "b": "4"}, 30: {}})
    repeated = recorded(tmp_path / "repeated", losses, tensors)
    result = verification._compare(run, repeated, 20)
    assert result == verification.Comparison(2, [0, 20], 2, difference)


def test_losses_that_are_nan_in_both_are_equal(tmp_path):
    runs = [recorded(tmp_path / name, {10: math.nan}, {}) for name in ("run", "repeated")]
    assert verification._compare(*runs, 10) == verification.Comparison(1, [], 0, "")


def test_a_record_without_a_step_or_a_loss_is_left_out(tmp_path):
    run_dir = recorded(tmp_path / "run", {10: 3.5}, {})
    metrics_log.append(run_dir.metrics, "train", step=20)
    metrics_log.append(run_dir.metrics, "train", loss=3.25)
    assert verification._losses(run_dir) == {10: 3.5}


def test_a_run_that_did_not_come_so_far_is_refused(tmp_path):
    run = recorded(tmp_path / "run", {}, {0: {"a": "1"}, 20: {"a": "2"}})
    with pytest.raises(UserError, match="recorded 20 steps.*step 30"):
        verification.repeat_training(None, run, 30)
    with pytest.raises(UserError, match="recorded 20 steps.*step 30"):
        verification.repeat_training(None, recorded(tmp_path / "record", {20: 3.5}, {}), 30)
    with pytest.raises(UserError, match="steps=5: the run recorded no loss"):
        verification.repeat_training(None, run, 5)
    with pytest.raises(UserError, match="nothing to compare"):
        verification.repeat_training(None, recorded(tmp_path / "new", {}, {0: {"a": "1"}}))


@pytest.mark.parametrize("trained_with, threads", [({"threads": 3}, 3), ({}, 1), (None, 1)])
def test_a_repetition_has_the_threads_of_the_run(trained_with, threads, tmp_path, monkeypatch):
    """A study on CPUs gives a run one core, and records in docs/results may lack rpr.json."""
    run_dir = recorded(tmp_path / "run", {10: 3.5}, {})
    (tmp_path / "run" / "environment.json").write_text('{"cores": 1}')
    if trained_with is not None:
        (tmp_path / "run" / "model" / "rpr.json").write_text(json.dumps(trained_with))
    commands = []
    monkeypatch.setattr(verification, "run_command",
                        lambda argv, _: commands.append(argv) or (1, "stopped"))
    with pytest.raises(UserError, match="stopped"):
        verification.repeat_training(
            config.Run("p", "h", 100, checkpoint_steps=50), run_dir)
    assert commands[0][-1] == f"--intra_op_parallelism_threads={threads}"


def test_a_line_of_checksums_that_was_cut_off_is_ignored(tmp_path):
    metrics_log.append_checksums(str(tmp_path), 0, {"a": "1"})
    with open(tmp_path / "checksums.jsonl", "a", encoding="utf-8") as lines:
        lines.write('{"step": 10, "tens')
    assert metrics_log.read_checksums(str(tmp_path)) == {0: {"a": "1"}}


def test_a_changed_environment_is_reported_once_and_the_first_one_is_kept(tmp_path, capfd):
    run_dir = RunDirectory(str(tmp_path))
    provenance.record_environment(run_dir)
    path = tmp_path / "environment.json"
    first = json.loads(path.read_text())
    assert first["numpy"] and first["tensorflow"] and first["cpu"] and first["command"]
    if "cpu family" in Path("/proc/cpuinfo").read_text():     # of x86
        assert re.search(r" \(family \d+, model \d+\)$", first["cpu"])
    provenance.record_environment(run_dir)
    assert not capfd.readouterr().err
    before = {**first, "cpu": "Z80", "numpy": "0.9", "cores": 99, "command": ["other"]}
    del before["deterministic_ops"]                   # as an earlier version recorded it
    path.write_text(json.dumps(before))
    provenance.record_environment(run_dir)
    told = capfd.readouterr().err
    assert len(told.splitlines()) == 1 and "the last bits may differ" in told
    assert f"numpy 0.9 -> {first['numpy']}" in told and "cpu Z80 -> " in told
    assert not any(name in told for name in ("cores", "command", "deterministic_ops"))
    assert json.loads(path.read_text())["cpu"] == "Z80"


def test_steps_without_a_loss_or_a_checkpoint_prove_nothing(tmp_path):
    runs = [recorded(tmp_path / name, {10: 3.5}, {0: {"a": "1"}}) for name in ("run", "repeated")]
    with pytest.raises(UserError, match="steps=5: the run recorded no loss"):
        verification._compare(*runs, 5)


def test_the_commit_is_left_out_where_git_cannot_say(monkeypatch, tmp_path):
    known = provenance._git_state()
    monkeypatch.setenv("GIT_DIR", str(tmp_path))             # as in a hook of another repository
    assert provenance._git_state() == known
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._git_state() == {}


@pytest.mark.parametrize("gpus, deterministic, is_told", [
    (["H200"], False, True), (["H200"], True, False), ([], False, False)])
def test_a_difference_on_a_gpu_is_explained(gpus, deterministic, is_told, monkeypatch, tmp_path,
                                            text, capfd):
    (tmp_path / "config.gin").write_text(gin_files.as_gin(config.Run(
        text.problem, "rpr_tiny", 10, checkpoint_steps=10)))
    (tmp_path / "environment.json").write_text(json.dumps(
        {"gpus": gpus, "deterministic_ops": deterministic}))
    monkeypatch.setattr(verification, "repeat_training", lambda *_: verification.Comparison(
        1, [0], 1, "the loss at step 10 was 2.0 and is 3.0"))
    assert verify([str(tmp_path), f"--data_dir={text.data_dir}"]) == 1
    assert ("TF_DETERMINISTIC_OPS=1" in capfd.readouterr().err) == is_told


def test_only_the_code_that_the_command_line_names_is_loaded(monkeypatch, tmp_path, text):
    record = tmp_path / "run"
    record.mkdir()
    (record / "config.gin").write_text(gin_files.as_gin(config.Run(
        text.problem, "rpr_tiny", 10, checkpoint_steps=10, usr_dir=str(tmp_path / "theirs"))))
    (tmp_path / "mine").mkdir()
    repeated = []

    def repeat(run, *_):
        repeated.append(run.usr_dir)
        return verification.Comparison(1, [0], 1, "")

    monkeypatch.setattr(verification, "repeat_training", repeat)
    verify([str(record), f"--data_dir={text.data_dir}", f"--t2t_usr_dir={tmp_path}/mine"])
    assert repeated == [str(tmp_path / "mine")]
