"""Studies that stop early: published boundaries, decisions that stay, errors, the report."""
import csv
import json
import shutil

import calibrate_looks as calibration
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import read_scored, unchanged, write_run, write_study
from scipy import special, stats
from test_significance import TRIALS, assert_calibrated, random_runs

from rpr.cli import study as study_command
from rpr.evaluation import looks
from rpr.evaluation.looks import Plan, Verdict
from rpr.experiments import gin_files, scheduler, studies
from rpr.report import columns, study_reader, tables
from rpr.utils.errors import UserError


def test_the_boundaries_are_the_published_ones():
    """Five equal looks, two-sided 5%, Lan and DeMets's spending (ld98; Reboussin et al. 2000)."""
    published = {looks.pocock: [2.438, 2.427, 2.410, 2.397, 2.386],
                 calibration.obrien_fleming: [4.877, 3.357, 2.680, 2.290, 2.031]}
    for spending, bounds in published.items():
        levels = np.array(looks.nominal_levels(Plan((1, 2, 3, 4, 5), spending=spending)))
        np.testing.assert_allclose(-special.ndtri(levels / 2), bounds, atol=6e-4)
    assert looks.nominal_levels(Plan((8,))) == pytest.approx((0.05,))


@pytest.mark.parametrize("seeds", [(5,), (2, 12), (3, 4, 6)])
@pytest.mark.parametrize("level", [1e-6, 0.012, 0.05, 0.3, 0.9])
def test_an_adjusted_p_is_the_level_of_all_looks_together(seeds, level):
    plan = Plan(seeds)
    for look, nominal in enumerate(looks.nominal_levels(plan, level)):
        assert looks.adjusted_p(plan, look, nominal) == pytest.approx(level, rel=0.01)
        assert looks.adjusted_p(plan, look, 1.0) == 1.0


def arms_of(number, shifts, seeds=6):
    random = np.random.default_rng(number)
    return {f"{place}": random_runs(random, seeds, mean=30 + shift, deviation=0.5)
            for place, shift in enumerate(shifts)}


def first(scores, seeds):
    return {name: runs[:seeds] for name, runs in scores.items()}


def test_what_is_decided_needs_no_further_seeds():
    scores, plan = arms_of(1, (0, 0, 9)), Plan((3, 4, 6))
    verdicts, needed = looks.decide(first(scores, 2), "0", plan)
    assert verdicts == {} and needed == {"0": 3, "1": 3, "2": 3}
    verdicts, needed = looks.decide(first(scores, 3), "0", plan)
    assert verdicts == {"1": Verdict(3, None), "2": Verdict(3, True)}
    assert needed == {"0": 4, "1": 4, "2": 3}
    verdicts, needed = looks.decide(first(scores, 4) | {"1": scores["1"][:3]}, "0", plan)
    assert verdicts["1"] == Verdict(3, None) and needed == {"0": 4, "1": 4, "2": 3}
    verdicts, needed = looks.decide(scores, "0", plan)
    assert verdicts == {"1": Verdict(6, None), "2": Verdict(3, True)}
    assert needed == {"0": 6, "1": 6, "2": 3}


def test_a_margin_is_answered_in_both_directions():
    scores = arms_of(2, (0, 0.2, 9))
    verdicts, needed = looks.decide(scores, "0", Plan((3, 4, 6), margin=4))
    assert verdicts == {"1": Verdict(3, False), "2": Verdict(3, True)} and needed["0"] == 3


def test_no_look_waits_for_an_arm_that_failed():
    scores, plan = arms_of(1, (0, 0, 9)), Plan((3, 4, 6))
    scores["2"] = scores["2"][:1]
    assert looks.decide(scores, "0", plan)[0] == {}
    verdicts, needed = looks.decide(scores, "0", plan, ["2"])
    assert verdicts == {"1": Verdict(6, None)} and needed == {"0": 6, "1": 6, "2": 3}
    scores["0"] = scores["0"][:3]                     # nothing goes on without the baseline
    verdicts, needed = looks.decide(scores, "0", plan, ["0", "2"])
    assert verdicts == {"1": Verdict(3, None)} and needed["1"] == 4


@given(st.integers(0, 10 ** 6), st.lists(st.floats(-2, 2), min_size=1, max_size=4),
       st.sampled_from([0.0, 0.5]))
def test_more_runs_change_no_decision_and_intervals_agree_with_it(number, shifts, margin):
    scores, plan = arms_of(number, (0, *shifts)), Plan((3, 4, 6), margin)
    verdicts, _ = looks.decide(scores, "0", plan)
    for seeds in (3, 4, 6):
        early = looks.decide(first(scores, seeds), "0", plan)[0]
        for name, verdict in early.items():
            assert verdict.answer is None or verdicts[name] == verdict
    for name, found in looks.compare(scores, "0", plan, verdicts).items():
        apart = max(found.low, -found.high) > margin
        alike = -margin < found.low and found.high < margin
        assert (found.p < 0.05) == (apart or alike) and found.p <= found.p_holm
        assert (verdicts[name].answer is not None) == (found.p_holm <= 0.05)
        assert verdicts[name].answer in (None, apart)


def test_equal_arms_are_told_apart_in_five_percent():
    assert_calibrated(calibration.simulate(calibration.NULL[1], TRIALS).answered, 0.025)


def test_the_simulation_shows_looks_at_the_full_level():
    """The calibration can fail: with 5% at each look, equal arms differ far more often."""
    plan = Plan((3, 4, 5, 6, 8),
                spending=lambda level, fraction: min(2.6 * level, 0.9995) * fraction)
    cell = calibration.Cell("", plan, sentences=calibration.HARDLY_ANY)
    assert calibration.simulate(cell, 150).answered > stats.binom.ppf(0.99, 150, 0.05) / 150


def test_a_clear_difference_needs_half_of_the_runs():
    cell = calibration.Cell("", Plan((3, 4, 6, 8)), difference=2.5)
    found = calibration.simulate(cell, 100)
    assert found.answered > 0.9 and found.runs < 0.6


@pytest.fixture
def early(tmp_path):
    """Looks at 2 and 3 seeds; "bad" is decided at the first one and has no third run."""
    for name, share, seeds in (("base", 0.1, 3), ("alike", 0.11, 3), ("bad", 0.6, 2)):
        for seed in range(1, seeds + 1):
            write_run(tmp_path, f"{name}-{seed}", share, seed)
    write_study(tmp_path, unchanged({"base": 3, "alike": 3, "bad": 2}), "base", looks=[2, 3],
                margin=0.0)
    return tmp_path


def test_a_report_says_at_which_look_arms_were_decided(early):
    results = read_scored(early)
    _, alike, bad = results.arms
    assert [(arm.answer, arm.looked) for arm in results.arms] == [
        ("", 0), ("open", 3), ("yes", 2)]
    assert bad.differences["bleu"].high < 0 and bad.differences["bleu"].p_holm <= 0.05
    assert alike.differences["bleu"].low < 0 < alike.differences["bleu"].high
    assert bad.differences["chrf"].high < 0 and not results.pairs and not results.unfinished
    page = tables.to_markdown(results)
    assert "| yes (2 seeds) |" in page and "looks planned at 2, 3 seeds" in page
    assert "corrected for all arms" in page and "rank" not in page
    assert " & answer" in (tex := tables.to_latex(results)) and "& yes (2 seeds)" in tex
    rows = list(csv.DictReader(tables.to_csv(results).splitlines()))
    assert [(row["looked"], row["answer"]) for row in rows[1:]] == [("3", "open"), ("2", "yes")]
    # The difference is that of the seeds of the look.
    means = [np.mean([run.scores["bleu"] for run in arm.runs[:2]])
             for arm in (results.arms[0], bad)]
    assert bad.differences["bleu"].difference == pytest.approx(means[1] - means[0])
    assert columns.choose(results, ["answer"])[0].cells[1] == "open (3 seeds)"


FAILED = {"train": {"state": "failed", "code": 1, "reason": "NaN"}}


def write_looks(folder, arms):
    """A study that looks at 2 and 4 seeds; {arm: share of damaged words of each run, or None}."""
    for name, shares in arms.items():
        for seed, share in enumerate(shares, 1):
            write_run(folder, f"{name}-{seed}", share or 0.1, seed, done=share is not None,
                      status=None if share else FAILED)
    write_study(folder, unchanged({name: len(shares) for name, shares in arms.items()}), "base",
                looks=[2, 4])
    return read_scored(folder)


def test_runs_after_a_failed_one_do_not_count(tmp_path):
    """A decision leaves such runs out, and so must the interval and p that are shown with it."""
    clear = {"base": [0.1] * 4, "x": [0.3] * 4}
    whole, cut = (write_looks(tmp_path / name, clear | {"failed": shares}) for name, shares in (
        ("whole", [0.1, None, 0.9, 0.1]), ("cut", [0.1, None])))
    for results in (whole, cut):
        assert [(arm.answer, arm.looked) for arm in results.arms] == [("", 0), ("yes", 2), ("", 0)]
        assert results.arms[1].differences["bleu"].p_holm <= 0.05
    assert whole.arms[1].differences == cut.arms[1].differences


def test_a_study_without_a_look_says_why(tmp_path):
    results = write_looks(tmp_path, {"base": [0.1, None, 0.1], "x": [0.3] * 3})
    assert not results.arms[1].answer and not results.arms[1].differences
    assert ("No differences yet: the first look needs 2 seeds of the baseline, base, and of each "
            "other arm") in tables.to_markdown(results)


def test_the_command_looks_and_trains_until_all_is_decided(tmp_path, monkeypatch, capsys):
    """Runs that end at once: with the right answers, and with none in the arm "bad"."""
    started = []

    def run_all(runs, *_, **__):
        for member in (each for each in runs if each.state() != "done"):
            started.append(member.name[:-7])
            write_run(tmp_path, "new", 0.9 if member.arm == "bad" else 0.1, member.run.seed)
            (tmp_path / "new" / "config.gin").write_text(gin_files.as_gin(member.run))
            shutil.rmtree(member.run_dir.path)
            (tmp_path / "new").rename(member.run_dir.path)
        return []

    for owner, name in ((study_command, "check_new_runs"), (studies, "make_data"),
                        (studies, "restore_test_texts")):
        monkeypatch.setattr(owner, name, lambda *_: [])
    monkeypatch.setattr(scheduler, "run_all", run_all)
    gin = tmp_path / "x.gin"
    gin.write_text(
        "run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\n"
        "run.checkpoint_steps = 1000\nstudy.baseline = 'base'\nstudy.seeds = (5, 6, 7, 8)\n"
        "study.arms = {'base': {}, 'bad': {'position': 'none'}, 'same': {'beam_size': 1}}\n"
        "study.looks = (2, 3, 4)\n")
    study_command.main([str(gin), f"--study_dir={tmp_path}/s", "--cores=1"])
    assert started == ["base-5", "bad-5", "same-5", "base-6", "bad-6", "same-6", "base-7", "same-7",
                       "base-8", "same-8"]
    shown = " ".join(capsys.readouterr().err.split())
    assert "bad decided after 2 seeds, same open after 4 seeds" in shown
    listed = json.loads((tmp_path / "s" / "study.json").read_text())
    assert [len(arm["runs"]) for arm in listed["arms"]] == [4, 2, 4]
    assert len(studies.load(str(tmp_path / "s"))) == 10


@pytest.mark.parametrize("changes", [{"baseline": "bad"}, {"chosen": ["base,bad"]},
                                     {"against": "again"}])
def test_planned_comparisons_are_not_changed(early, changes):
    with pytest.raises(UserError, match="study.looks compares all of its arms, and no others, "
                                        "with base"):
        study_reader.read_study(str(early), **changes)
