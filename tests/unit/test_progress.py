"""The table that follows a study, on terminals of any size."""
import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from rpr.experiments import config, progress, run_directory, studies

STATES = ["done"] * 3 + ["waiting"] * 3 + ["running", "failed"]


def printed(width, rows, metric="bleu"):
    run = SimpleNamespace(train_steps=1000, metric=metric)
    found = [SimpleNamespace(name=f"max_relative_position-{i}-1-ab12cd", run=run)
             for i in range(len(STATES))]
    of = {member.name: progress.Progress(state, "train", 250, 2.5, 3.25, 12.34, 60.0)
          for member, state in zip(found, STATES, strict=True)}
    out = io.StringIO()
    Console(file=out, width=width).print(progress.table(found, of, rows))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_are_whole_on_a_narrow_terminal(width):
    lines = printed(width, None)
    assert len(lines) == 1 + len(STATES)
    for i, line in enumerate(lines[1:]):
        assert f"position-{i}-1" in line and "250/1,000" in line and "3.250" in line
    # 750 steps at 2.5 a second are 5 minutes; only a run that trains has a time left.
    assert [("5:00" in line) for line in lines[1:]] == [state == "running" for state in STATES]


@pytest.mark.parametrize("metric, name, score", [
    ("bleu", "BLEU", "12.3"), ("token_accuracy", "accuracy", "12.3"),
    ("token_loss", "per token", "12.340")])
def test_scores_are_those_of_the_studys_metric(metric, name, score):
    lines = printed(80, None, metric)
    head = lines[-len(STATES) - 1]
    assert all(line[:head.index(name) + len(name)].endswith(f" {score}")
               for line in lines[-len(STATES):])


def test_what_runs_and_what_failed_stays_in_sight():
    lines = printed(80, 4)
    assert [int(line.split("-")[1]) for line in lines[1:]] == [6, 7, 0, 1]


def a_run(name, steps=100):
    run = config.Run("p", "h", steps, hparams=name, checkpoint_steps=50)
    found = studies.StudyRun("/nowhere", name, {}, run, {})
    found.name = name
    return found


def left(runs, states, max_parallel):
    return progress.seconds_left(runs, states, max_parallel, {})


def test_the_time_left_is_unknown_before_a_run_is_done():
    runs = [a_run("a"), a_run("b")]
    going = progress.Progress("running", "train", 90, 5.0, 3.0, seconds=60.0)
    assert left(runs, {"a": going, "b": progress.Progress("waiting")}, 1) is None
    assert "left" not in progress.summary(
        runs, {"a": going, "b": progress.Progress("waiting")}, 1, {})


def test_the_time_left_comes_from_whole_runs():
    runs = [a_run("a"), a_run("b"), a_run("c"), a_run("d", 200)]
    states = {"a": progress.Progress("done", "score", 100, 5.0, 3.0, seconds=100.0),
              "b": progress.Progress("running", "decode", 100, 5.0, 3.0, seconds=70.0),
              "c": progress.Progress("failed"), "d": progress.Progress("waiting")}
    assert left(runs, states, 1) == pytest.approx(30 + 200)
    assert left(runs, states, 2) == pytest.approx(200)                      # the longest one


def test_the_time_left_counts_the_steps_of_earlier_attempts():
    runs = [a_run("a"), a_run("b"), a_run("c")]
    resumed = {"a": progress.Progress("done", "score", 100, 2.0, 3.0, seconds=60.0),
               "b": progress.Progress("running", "train", 80, 2.0, 3.0, seconds=5.0),
               "c": progress.Progress("waiting", "train", 50, 2.0, 3.0)}
    assert left(runs, resumed, 1) == pytest.approx(20 + 35)


def test_a_finished_run_is_not_read_again(tmp_path, monkeypatch):
    run_dir = run_directory.RunDirectory(str(tmp_path))
    (tmp_path / "status.json").write_text('{"train": {"state": "done", "seconds": 2.0}}')
    (tmp_path / "scores.json").write_text('{"step": 100, "chrf": {"score": 12.5}}')
    run = SimpleNamespace(train_steps=100, metric="chrf")
    member = SimpleNamespace(name="a", run=run, run_dir=run_dir, study_dir=str(tmp_path))
    view = progress.View([member], 1, {})
    view._show()
    assert view._progress["a"].score == 12.5
    monkeypatch.setattr(progress, "of", None)
    view._show()


def test_a_training_that_goes_on_to_more_steps_is_the_stage_that_runs(tmp_path):
    run_dir = run_directory.RunDirectory(str(tmp_path))
    status = {name: {"state": "done", "started": 10.0 + at, "seconds": 1.0}
              for at, name in enumerate(("datagen", "train", "decode", "score"))}
    status["train"] = {"state": "running", "started": 50.0}
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert progress.of(SimpleNamespace(name="a", run_dir=run_dir)).stage == "train"


def test_a_damaged_file_is_a_failure_with_its_reason(tmp_path):
    run_dir = run_directory.RunDirectory(str(tmp_path))
    (tmp_path / "status.json").write_text("[]")
    found = progress.of(SimpleNamespace(name="a", run_dir=run_dir))
    assert found.state == "failed" and "status.json is damaged" in found.reason
