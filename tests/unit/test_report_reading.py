"""What a report reads of runs and records: damaged files, losses and times."""
import json

import pytest
from report_runs import REFERENCE, read_scored, unchanged, write_run, write_study

from rpr.report import plots, study_reader, tables
from rpr.report.results import load_record
from rpr.utils.errors import UserError


def test_references_of_another_length_are_refused(tmp_path):
    for name in ("a", "b"):
        run = write_run(tmp_path, name)
        (run / "reference.test.txt").write_text("first\n" + "".join(
            line + "\n" for line in REFERENCE))
    with pytest.raises(UserError, match="reference.test.txt has 61 lines, its source has 60"):
        read_scored(tmp_path, "a")


@pytest.mark.parametrize("name, text, told", [
    ("status.json", '{"score": {"state": "done", "started": 1e18}}', "score.started is 1e.18"),
    ("status.json", '{"train": {"state": "done", "seconds": NaN}}', "NaN is not valid JSON"),
    ("scores.json", '{"step": 1000, "exact": Infinity}', "Infinity is not valid JSON"),
    ("metrics.jsonl", '{"event": "decode", "cut": "x"}\n', "line 1 is damaged: cut is 'x'")])
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, text, told):
    run = write_run(tmp_path, "a")
    (run / name).write_text(text)
    with pytest.raises(UserError, match=f"{name}.*{told}"):
        read_scored(tmp_path, "a")


def test_a_loss_that_is_not_finite_is_left_out(tmp_path):
    write_run(tmp_path, "a")
    run = write_run(tmp_path, "b", done=False)
    with open(run / "metrics.jsonl", "a") as metrics:
        metrics.write('{"event": "train", "step": 1010, "loss": Infinity, "time": 2.0}\n')
        metrics.write('{"event": "eval", "step": 1010, "loss": NaN}\n')
    results = read_scored(tmp_path, "a")
    losses = results.arms[1].runs[0]
    assert losses.train_losses[-1][0] == losses.dev_losses[-1][0] == 1000 and losses.loss is None
    assert plots.plot_curves(results)
    assert "Infinity" not in tables.to_json(results) and "NaN" not in tables.to_json(results)


def test_an_arm_with_a_diverged_run_has_no_mean_loss(tmp_path):
    """The mean of its other runs would look as if all had converged."""
    for arm in "ab":
        for seed in (1, 2):
            write_run(tmp_path, f"{arm}-{seed}", seed=seed)
    write_study(tmp_path, unchanged(dict.fromkeys("ab", 2)), "a")
    told = "Empty where that of a run is missing or not finite"
    assert told not in tables.to_markdown(read_scored(tmp_path))
    with open(tmp_path / "b-2" / "metrics.jsonl", "a") as metrics:
        metrics.write('{"event": "eval", "step": 1000, "loss": NaN}\n')
    results = read_scored(tmp_path)
    assert results.arms[0].loss == pytest.approx(900 / 1099, abs=1e-4)
    assert results.arms[1].loss is None
    assert told in tables.to_markdown(results)


@pytest.mark.parametrize("at, value, told", [
    (("arms", 0, "loss"), "x", "arms.0..loss is 'x', where a number is needed"),
    (("arms", 1, "differences", "bleu", "p"), [], "differences.bleu.p is"),
    (("arms", 1, "differences", "bleu", "basis"), "x", "differences.bleu.basis is"),
    (("arms", 0, "runs", 0, "train_losses"), [[1]], "a point of a curve has a step and a value"),
    (("arms", 0, "runs", 0, "train_losses"), [3], r"train_losses.0. is 3, where a list is needed"),
    (("arms", 0, "runs", 0, "environment"), 7, "there is no environment 7"),
    (("environments",), ["x"], "environments.0. is 'x', where an object is needed"),
    (("corpus",), {"train": "x"}, "corpus.train is 'x'"),
    (("pairs", 0, "first"), "nobody", "no arm is called 'nobody'"),
    (("arms", 1, "scores"), {}, "=0 is compared and has no score"),
    (("seeds_range",), [3], "seeds_range has 1 values"),
    (("arms", 0, "runs", 1, "scores"), {}, "=16: a finished run has no bleu"),
    (("arms", 0, "scores", "bleu", "deviation"), -1, "=16: the spread of bleu is negative"),
    (("arms", 0, "scores", "chrf", "high"), 1.0, "=16: the spread of chrf is negative"),
    (("baseline",), "nobody", "no arm is called 'nobody'"),
    (("more",), 1, "'more' is unknown"),
    (("arms", 1, "name"), "max_relative_position=16", "the arm name '.*16' occurs twice"),
    (("arms", 0, "runs", 1, "path"), "runs/k16-1", "the run directory 'runs/k16-1' occurs twice"),
    (("arms", 0, "by_length"), [1.0], "scores of 1 lengths, there are"),
    (("arms", 0, "interval_by_length"), [[1.0]], "an interval has two ends"),
    (("arms", 0, "steps"), -1, r"arms.0..steps is -1, where a whole number from 0 is needed"),
    (("arms", 0, "paper_bleu"), 10**400, "the number 1000.* is too large")])
def test_a_value_that_a_report_cannot_show_is_refused(clipping, tmp_path, at, value, told):
    data = json.loads(tables.to_json(clipping))
    place = data
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match=f"results.json is damaged: .*{told}.*; or it is of "
                       "another version") as error:
        load_record(str(tmp_path))
    assert "\n" not in str(error.value)


def test_the_time_of_a_training_is_that_of_all_attempts(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path, name)                     # its last attempt took 120 s
    with open(tmp_path / "a" / "metrics.jsonl", "w") as out:
        for event, step, time in (("start", 0, 1e9), ("start", 0, 1e9 + 500),
                                  ("train", 10, 1e9 + 510), ("train", 20, 1e9 + 530),
                                  ("start", 20, 1e9 + 900), ("train", 30, 1e9 + 1000)):
            out.write(json.dumps({"event": event, "step": step, "time": time, "loss": 1.0}) + "\n")
        out.write(json.dumps({"event": "eval", "step": 30, "loss": 1.0}) + "\n")
    status = json.loads((tmp_path / "a" / "status.json").read_text())
    status["train"]["started"] = 1e9 + 890
    (tmp_path / "a" / "status.json").write_text(json.dumps(status))
    # A kill in the last evaluation: the second attempt, of 120 s, found the training finished.
    write_run(tmp_path, "c")
    with open(tmp_path / "c" / "metrics.jsonl", "w") as out:
        for event, step, time in (("start", 0, 1e9), ("train", 30, 1e9 + 3600),
                                  ("eval", 30, 1e9 + 9000)):
            out.write(json.dumps({"event": event, "step": step, "time": time, "loss": 1.0}) + "\n")
    status["train"]["started"] = 1e9 + 8900
    (tmp_path / "c" / "status.json").write_text(json.dumps(status))
    runs = {arm.name: arm.runs[0] for arm in read_scored(tmp_path, "a").arms}
    assert runs["b"].seconds["train"] == 120.0 and runs["b"].train_minutes == 2.0
    assert runs["a"].seconds["train"] == 150.0 and runs["a"].train_minutes == 2.5
    assert runs["a"].seconds["score"] == 1.0 and runs["c"].seconds["train"] == 3720.0


def test_a_run_under_way_has_its_last_step(tmp_path):
    write_run(tmp_path, "a")
    run = write_run(tmp_path, "b", done=False, status={"train": {"state": "running"}})
    with open(run / "metrics.jsonl", "a") as metrics:
        for step in range(1001, 1000 + study_reader.MOST_RECORDS):
            metrics.write(json.dumps({"event": "train", "step": step, "loss": 1.0}) + "\n")
    assert "train, step 1,199" in read_scored(tmp_path, "a").arms[1].runs[0].note


def test_events_without_a_step_are_left_out(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path, name)
    write_run(tmp_path, "c", done=False, status={"train": {"state": "running", "started": 1e9}})
    for name in ("a", "c"):
        (tmp_path / name / "metrics.jsonl").write_text(
            '{"event": "start"}\n{"event": "train", "loss": 1.0}\n{"event": "eval", "loss": 1.0}\n')
    runs = {arm.name: arm.runs[0] for arm in read_scored(tmp_path, "b").arms}
    assert runs["a"].train_losses == runs["a"].dev_losses == [] and runs["a"].parameters is None
    assert "step 0" in runs["c"].note
