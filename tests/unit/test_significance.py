"""Comparisons of arms: by hand, against float64 loops, and their rejection rates by simulation."""
import dataclasses
import importlib.util
import itertools
import math
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_scoring import SENTENCES, damaged

from rpr.evaluation import significance
from rpr.evaluation.metrics import Metric
from rpr.evaluation.significance import Comparison, RunScores

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "calibrate_significance.py"
TRIALS = 400


@pytest.fixture(scope="module")
def calibration():
    spec = importlib.util.spec_from_file_location("calibrate_significance", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_runs(random, seeds, sentences=50, deviation=1.0, mean=30.0):
    values = mean + deviation * random.normal(size=(seeds, 1)) + random.normal(
        size=(seeds, sentences))
    return [RunScores(float(row.mean()), row, seed) for seed, row in enumerate(values)]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_pseudovalues_leave_one_sentence_out(name):
    reference = SENTENCES * 3
    metric = Metric(name)
    counts, = metric.sentence_statistics([damaged(reference, 0.2, 1)], [reference])
    run = significance.run_scores(metric, counts, 7)
    assert run.seed == 7 and run.score == metric.corpus_score(counts)[0]
    for left_out in (0, 7, 14):
        rest = metric.corpus_score(np.delete(counts, left_out, axis=0))[0]
        assert run.pseudovalues[left_out] == pytest.approx(15 * run.score - 14 * rest, abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "ter"])
def test_pseudovalues_leave_one_document_out(name):
    reference, documents = SENTENCES * 3, list("bbbbaaaccbbabcc")      # unequal, and not in order
    metric = Metric(name)
    counts, = metric.sentence_statistics([damaged(reference, 0.2, 1)], [reference])
    run = significance.run_scores(metric, counts, documents=documents)
    assert run.score == metric.corpus_score(counts)[0]
    for left_out, value in zip("abc", run.pseudovalues, strict=True):
        rest = counts[[document != left_out for document in documents]]
        assert value == pytest.approx(3 * run.score - 2 * metric.corpus_score(rest)[0], abs=1e-9)
    alone = significance.run_scores(metric, counts, documents=[f"{n:02}" for n in range(15)])
    np.testing.assert_array_equal(alone.pseudovalues,
                                  significance.run_scores(metric, counts).pseudovalues)


def test_a_comparison_over_seeds_by_loops():
    """The variance's three parts as sums over runs and sentences, with 3 and 2 runs."""
    random = np.random.default_rng(1)
    baseline, arm = random_runs(random, 3, 20), random_runs(random, 2, 20, mean=31)
    result = significance.compare(baseline, arm)
    squares = residual = 0.0
    for runs in (baseline, arm):
        mean = sum(run.score for run in runs) / len(runs)
        squares += sum((run.score - mean) ** 2 for run in runs)
        for run, sentence in itertools.product(runs, range(20)):
            of_sentence = sum(each.pseudovalues[sentence] for each in runs) / len(runs)
            residual += (run.pseudovalues[sentence] - run.score - of_sentence + mean) ** 2
    seeds = squares / 3 * (1 / 3 + 1 / 2)
    residual = residual / (3 * 19) / 20 * (1 / 3 + 1 / 2)
    paired = [sum(run.pseudovalues[sentence] for run in arm) / 2
              - sum(run.pseudovalues[sentence] for run in baseline) / 3 for sentence in range(20)]
    sentences = sum((value - sum(paired) / 20) ** 2 for value in paired) / 19 / 20
    rest = max(sentences - residual, 0)
    critical = (seeds * stats.t.ppf(0.975, 3) + rest * stats.t.ppf(0.975, 19)) / (seeds + rest)
    half = critical * math.sqrt(seeds + rest)
    assert result.difference == pytest.approx(sum(paired) / 20)
    assert (result.low, result.high) == pytest.approx(
        (result.difference - half, result.difference + half))
    assert result.basis == "seeds"
    assert result.seed_variance == pytest.approx(2 * squares / 3)
    assert result.sentence_variance == pytest.approx(rest)


def test_without_sentence_effects_it_is_students_t_test():
    """Runs that are constant over the sentences: only the seeds vary."""
    scores = [[20.0, 20.4, 20.9], [21.0, 21.9, 21.5]]
    arms = [[RunScores(score, np.full(9, score), seed) for seed, score in enumerate(runs)]
            for runs in scores]
    assert significance.compare(*arms).p == pytest.approx(stats.ttest_ind(*scores).pvalue)
    assert significance.compare(*arms, paired=True).p == pytest.approx(
        stats.ttest_rel(*scores).pvalue)


def test_two_outputs_are_a_paired_t_test():
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, 40))
    result = significance.compare_outputs(RunScores(first.mean(), first),
                                          RunScores(second.mean(), second))
    expected = stats.ttest_rel(second, first)
    assert result.p == pytest.approx(expected.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


@given(st.integers(0, 10 ** 6), st.sampled_from([2, 3, 5]), st.floats(0, 3))
def test_p_and_interval_agree(number, seeds, shift):
    random = np.random.default_rng(number)
    result = significance.compare(random_runs(random, seeds),
                                  random_runs(random, seeds, mean=30 + shift))
    assert (result.p < 0.05) == (not result.low <= 0 <= result.high)
    assert 0 < result.p <= 1


def test_one_seed_has_an_interval_and_no_p():
    random = np.random.default_rng(3)
    one, three = random_runs(random, 1), random_runs(random, 3)
    for arms in ((one, three), (three, one), (one, one)):
        result = significance.compare(*arms)
        assert result.p is None and result.basis == "sentences"
        assert result.low <= result.difference <= result.high
    assert significance.arm_score(one).deviation is None


def test_runs_are_paired_where_they_share_five_seeds():
    random = np.random.default_rng(4)
    five = random_runs(random, 5)
    assert significance.compare(five, five).basis == "paired seeds"
    reordered = five[::-1]
    result = significance.compare(five, reordered)
    assert (result.difference, result.p) == (0.0, 1.0)
    others = [RunScores(run.score, run.pseudovalues, run.seed + 1) for run in five]
    assert significance.compare(five, others).basis == "seeds"
    assert significance.compare(five[:4], five[:4]).basis == "seeds"
    assert significance.compare(five[:3], five[:3], paired=True).basis == "paired seeds"
    with pytest.raises(ValueError, match="same seeds"):
        significance.compare(five, others, paired=True)


def test_holm_by_hand():
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.9, 0.6]) == [1.0, 1.0] and significance.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_p(values):
    corrected = significance.holm(values)
    assert all(value <= more <= 1 for value, more in zip(values, corrected, strict=True))
    pairs = sorted(zip(values, corrected, strict=True))
    assert [more for _, more in pairs] == sorted(corrected)
    assert min(corrected) == min(1, len(values) * min(values))


def test_holm_leaves_out_what_was_not_tested():
    tested = [Comparison(1.0, 0.0, 2.0, p, "seeds") for p in (0.01, None, 0.04)]
    assert [each.p_holm for each in significance.correct(tested)] == [0.02, None, 0.04]


def test_the_smallest_p_passes_holm_for_a_thousand_tests():
    random = np.random.default_rng(5)
    result = significance.compare(random_runs(random, 5), random_runs(random, 5, mean=60))
    assert 1000 * result.p < 0.05


def test_seeds_needed():
    def observed(seed_variance, sentence_variance):
        return Comparison(0.1, -1.0, 1.0, 0.5, "seeds", None, seed_variance, sentence_variance)

    # For two samples: 2 (1.96 + 0.84)^2 (0.54 / 0.5)^2 = 18.3 with normal quantiles; t needs more.
    # From 5 seeds on, runs are paired: S - 1 degrees of freedom.
    assert significance.seeds_needed([observed(2 * 0.54 ** 2, 0.0)], 1000) == 21
    assert significance.seeds_needed([observed(2 * 0.54 ** 2, 0.01)], 1000) > 21
    assert significance.seeds_needed([observed(0.1, 0.04)], 1000) is None
    assert significance.seeds_needed([observed(1e-6, 0.0)], 1000) == 2
    alone = Comparison(0.1, -1.0, 1.0, None, "sentences")
    assert significance.seeds_needed([alone], 1000) is None
    assert significance.seeds_needed([alone, observed(1e-6, 0.0)], 1000) == 2
    # Arms that differ by more vary more between sentences, which says nothing about close arms.
    far = Comparison(-17.0, -19.0, -15.0, 0.0, "seeds", None, 1.0, 0.3)
    assert significance.seeds_needed([far, observed(2 * 0.54 ** 2, 0.0)], 1000) == 21
    assert significance.seeds_needed([far], 1000) is None
    # A few documents leave few degrees of freedom to the test.
    assert significance.seeds_needed([observed(0.01, 0.02)], 1000) == 3
    assert significance.seeds_needed([observed(0.01, 0.02)], 4) is None
    # Nothing shows how unpaired runs vary.
    paired = dataclasses.replace(observed(1e-6, 0.0), basis="paired seeds")
    assert significance.seeds_needed([paired], 1000) == 5


def test_a_test_set_is_too_small_only_by_its_sentences():
    def observed(seed_variance, sentence_variance):
        return Comparison(0.1, -1.0, 1.0, 0.5, "seeds", None, seed_variance, sentence_variance)

    assert significance.is_test_set_too_small([observed(0.1, 0.04)], 1000)
    assert significance.is_test_set_too_small([observed(0.1, 0.02)], 4)
    assert not significance.is_test_set_too_small([observed(1e4, 0.0)], 1000)
    assert significance.seeds_needed([observed(1e4, 0.0)], 1000) is None
    assert not significance.is_test_set_too_small([], 1000)


def arms_of_three_seeds(units):
    random = np.random.default_rng(3)
    return [[RunScores(float(run.mean()), run, seed) for seed, run in enumerate(
        random.normal(30, 0.5, size=(3, units)))] for _ in range(2)]


def test_one_unit_shows_nothing():
    compared = significance.compare(*arms_of_three_seeds(1))
    assert (compared.low, compared.high, compared.p) == (-math.inf, math.inf, 1.0)


@pytest.mark.parametrize("units", [2, 4])
def test_the_residual_is_not_subtracted_where_units_are_few(units):
    baseline, arm = arms_of_three_seeds(units)
    difference = np.mean([run.pseudovalues for run in arm], axis=0) - np.mean(
        [run.pseudovalues for run in baseline], axis=0)
    assert significance.compare(baseline, arm).sentence_variance == pytest.approx(
        np.var(difference, ddof=1) / units)


def assert_calibrated(rate, least=0.0):
    """Not above 5%, nor below `least`, by more than chance explains in one of 1,000 tests."""
    count = round(rate * TRIALS)
    assert count <= stats.binom.ppf(0.999, TRIALS, 0.05)
    assert count >= stats.binom.ppf(0.001, TRIALS, least)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("number", range(4))
def test_equal_arms_are_rejected_in_five_percent(calibration, number, seeds):
    """With and without an effect of the seed, and of arm by sentence; at worst 2.5%."""
    rates = calibration.rejection_rates(calibration.draw_additive, calibration.NULL[number], seeds,
                                        100, TRIALS, tests=["ours", "ours, paired"])
    assert_calibrated(rates["ours"], 0.025)
    if seeds >= significance.LEAST_PAIRED_SEEDS:
        assert_calibrated(rates["ours, paired"], 0.025)


def test_equal_arms_are_rejected_in_five_percent_with_bleu(calibration):
    rates = calibration.rejection_rates(calibration.draw_bleu, calibration.NULL[3], 3, 400, TRIALS,
                                        tests=["ours", "sentences only"])
    assert_calibrated(rates["ours"], 0.025)


def test_the_simulation_shows_a_test_that_ignores_seeds(calibration):
    """The calibration can fail: a test over sentences alone rejects far more than 5%."""
    rates = calibration.rejection_rates(calibration.draw_additive, calibration.NULL[2], 3, 400,
                                        TRIALS, tests=["sentences only"])
    with pytest.raises(AssertionError):
        assert_calibrated(rates["sentences only"])
    assert rates["sentences only"] > 0.1


def test_equal_outputs_are_rejected_in_five_percent(calibration):
    ours, sacrebleus = calibration.output_rejection_rates(200, 200)
    assert stats.binom.ppf(0.001, 200, 0.05) <= 200 * ours <= stats.binom.ppf(0.999, 200, 0.05)
    assert sacrebleus > ours                          # its p is about half of a two-sided one


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_arms_whose_quality_varies_between_documents(calibration, seeds):
    rates = calibration.document_rejection_rates(seeds, 30, TRIALS)
    assert_calibrated(rates["documents"], 0.025)
    with pytest.raises(AssertionError):
        assert_calibrated(rates["sentences"])


def test_power_grows_with_seeds_and_difference(calibration):
    def power(seeds, difference):
        return calibration.rejection_rates(calibration.draw_additive, calibration.NULL[3], seeds,
                                           400, 200, difference, ["ours"])["ours"]

    assert power(5, 2.0) > 0.8 and power(3, 2.0) > 0.5
    assert power(2, 2.0) < power(3, 2.0) < power(5, 2.0)
