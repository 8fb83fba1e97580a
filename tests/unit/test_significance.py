"""Comparisons of arms: by hand, against float64 loops, and their rejection rates by simulation."""
import itertools
import math

import calibrate_significance as calibration
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import SENTENCES, damage
from scipy import stats

from rpr.evaluation import designs, looks, ratio_metrics, significance
from rpr.evaluation.metrics import Metric
from rpr.evaluation.significance import Comparison, RunScores

TRIALS = 400


def random_runs(random, seeds, sentences=50, deviation=1.0, mean=30.0):
    values = mean + deviation * random.normal(size=(seeds, 1)) + random.normal(
        size=(seeds, sentences))
    return [RunScores(float(row.mean()), row) for row in values]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_pseudovalues_leave_one_sentence_out(name):
    reference = SENTENCES * 3
    metric = Metric(name)
    counts, = metric.sentence_statistics([damage(reference, 0.2, 1)], [reference])
    run = significance.run_scores(metric, counts)
    assert run.score == metric.corpus_score(counts)[0]
    for left_out in (0, 7, 14):
        rest = metric.corpus_score(np.delete(counts, left_out, axis=0))[0]
        assert run.pseudovalues[left_out] == pytest.approx(15 * run.score - 14 * rest, abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "ter"])
def test_pseudovalues_leave_one_document_out(name):
    reference, documents = SENTENCES * 3, list("bbbbaaaccbbabcc")      # unequal, and not in order
    metric = Metric(name)
    counts, = metric.sentence_statistics([damage(reference, 0.2, 1)], [reference])
    run = significance.run_scores(metric, counts, documents=documents)
    assert run.score == metric.corpus_score(counts)[0]
    for left_out, value in zip("abc", run.pseudovalues, strict=True):
        rest = counts[[document != left_out for document in documents]]
        assert value == pytest.approx(3 * run.score - 2 * metric.corpus_score(rest)[0], abs=1e-9)
    alone = significance.run_scores(metric, counts, documents=[f"{n:02}" for n in range(15)])
    np.testing.assert_array_equal(alone.pseudovalues,
                                  significance.run_scores(metric, counts).pseudovalues)


def test_a_comparison_over_unequal_numbers_of_seeds_by_loops():
    """The variance's parts as sums over runs and sentences, with 3 and 2 runs."""
    random = np.random.default_rng(1)
    baseline, arm = random_runs(random, 3, 20), random_runs(random, 2, 20, mean=31)
    result = significance.compare(baseline, arm)
    seeds, residual = [], 0.0
    for runs in (baseline, arm):
        mean = sum(run.score for run in runs) / len(runs)
        seeds.append(sum((run.score - mean) ** 2 for run in runs) / (len(runs) - 1) / len(runs))
        for run, sentence in itertools.product(runs, range(20)):
            of_sentence = sum(each.pseudovalues[sentence] for each in runs) / len(runs)
            residual += ((run.pseudovalues[sentence] - run.score - of_sentence + mean) ** 2
                         / (len(runs) - 1) / 19 / 20 / len(runs))
    paired = [sum(run.pseudovalues[sentence] for run in arm) / 2
              - sum(run.pseudovalues[sentence] for run in baseline) / 3 for sentence in range(20)]
    sentences = sum((value - sum(paired) / 20) ** 2 for value in paired) / 19 / 20
    variances, freedoms = [*seeds, max(sentences - residual, 0)], [2, 1, 19]
    total = sum(variances)
    freedom = total ** 2 / sum(value ** 2 / each for value, each
                               in zip(variances, freedoms, strict=True))
    cochran_cox = sum(value / total * stats.t.ppf(0.975, each)
                      for value, each in zip(variances, freedoms, strict=True))
    half = (cochran_cox + stats.t.ppf(0.975, freedom)) / 2 * math.sqrt(total)
    assert result.difference == pytest.approx(sum(paired) / 20)
    assert (result.low, result.high) == pytest.approx(
        (result.difference - half, result.difference + half))
    assert result.basis == "seeds"
    assert result.seed_variance == pytest.approx(3 * seeds[0] + 2 * seeds[1])
    assert result.sentence_variance == pytest.approx(variances[2])


def of_seeds_alone(scores):
    """Runs that are constant over the sentences."""
    return [RunScores(score, np.full(9, score)) for score in scores]


def test_without_sentence_effects_it_is_a_t_test():
    equal = [[20.0, 20.4, 20.9], [21.0, 21.4, 21.9]]
    assert significance.compare(*map(of_seeds_alone, equal)).p == pytest.approx(
        stats.ttest_ind(*equal).pvalue, rel=0.1)
    spread = significance.Spread(0.2, 100.0, math.inf, 20.0, 100.0)
    p = significance.compare(*map(of_seeds_alone, equal), spread).p
    assert p == pytest.approx(2 * stats.t.sf(1 / math.sqrt(0.2 * 2 / 3), 100))
    # A common variance without weight leaves each arm its own.
    scores = [[20.0, 20.4, 20.9], [21.0, 23.9, 20.5]]
    p = significance.compare(*map(of_seeds_alone, scores), significance.Spread(
        1.0, 5.0, 1e-9, 100.0, 9.0)).p
    assert p == pytest.approx(stats.ttest_ind(*scores, equal_var=False).pvalue, rel=1e-6)


@pytest.mark.parametrize("share", [0.99, 1.01, 1e9])
def test_two_arms_that_vary_more_than_the_others_keep_their_own_variances(share):
    """By an F test at 1%; 1e9: the others hardly vary."""
    others = [[20.0, 20.4, 20.9], [20.0, 20.1, 20.5], [21.0, 21.2, 21.9]]
    pooled = np.mean([np.var(arm, ddof=1) for arm in others])
    pair = np.array([[-1.0, 0.0, 1.0], [0.0, 1.0, 2.0]])       # both of variance 1
    pair *= math.sqrt(share * pooled * stats.f.isf(0.01, 4, 6))
    pair = list(map(of_seeds_alone, pair))
    spread = significance.estimate_spread([*pair, *map(of_seeds_alone, others)])
    alone = significance.compare(*pair, spread._replace(prior=0.0, squares=0.0, degrees=0.0))
    assert alone.seed_variance == pytest.approx(2 * pair[0][2].score ** 2)
    compared = significance.compare(*pair, spread)
    assert (compared.seed_variance == pytest.approx(alone.seed_variance)) == (share > 1)
    assert (compared.p > alone.p) == compared.stands_out == (share > 1)


def test_the_prior_degrees_of_freedom_are_found_in_many_arms():
    """Variances of an inverse chi-squared distribution with 8 degrees of freedom."""
    random = np.random.default_rng(1)
    variances = 0.3 * 8 / random.chisquare(8, 1000)
    arms = [of_seeds_alone(random.normal(30, variance ** 0.5, 4)) for variance in variances]
    spread = significance.estimate_spread(arms)
    assert spread.prior == pytest.approx(8, rel=0.25)
    alike = significance.estimate_spread(
        of_seeds_alone(random.normal(30, 0.5, 4)) for _ in range(1000))
    assert alike.prior > 30 and alike.variance == pytest.approx(0.25, rel=0.1)
    with pytest.raises(ValueError, match="no arm has two runs"):
        significance.estimate_spread([of_seeds_alone([30.0])])
    assert significance.estimate_spread([of_seeds_alone([30.0, 30.0])]).variance == 0


@given(st.floats(0.01, 5), st.floats(0, 5), st.integers(2, 12), st.integers(2, 12))
def test_a_seed_more_never_widens_the_interval(seed_variance, rest, seeds, arms):
    """At the variance expected, with one seed more in each arm."""
    def half(seeds):
        spread = significance.Spread(seed_variance, arms / (1 / (seeds - 1) + 1 / 9), 9.0, 0, 0)
        values = np.array([-1.0, 1.0] * (seeds // 2) + [0.0] * (seeds % 2))
        values *= math.sqrt(seed_variance / np.var(values, ddof=1))
        part = significance._moderated_part([of_seeds_alone(values)] * 2, spread)
        parts = [part, significance.Part(rest, 999)]
        return significance.critical_value(parts, 0.05) * math.sqrt(part.variance + rest)

    assert half(seeds + 1) <= half(seeds) + 1e-9


def test_the_choice_of_a_setting_is_repeated_without_each_seed():
    """Setting 0 is chosen; without seed 2 it would be setting 1."""
    scores = np.array([[30.0, 31.0, 32.5], [28.0, 29.0, 29.5]])
    losses = np.array([[2.0, 2.0, 1.0], [1.9, 1.9, 1.8]])
    runs = designs.with_choice([of_seeds_alone(row) for row in scores], losses.tolist())
    mean = scores[0].mean()
    without = [(31 + 32.5) / 2, (30 + 32.5) / 2, (28 + 29) / 2]
    values = np.array([3 * mean - 2 * each for each in without])
    np.testing.assert_allclose([run.score for run in runs], values + mean - values.mean())
    kept = designs.with_choice([of_seeds_alone(row) for row in scores], [[0] * 3, [9] * 3])
    np.testing.assert_allclose([run.score for run in kept], scores[0])
    assert designs.with_choice([of_seeds_alone([30.0]), of_seeds_alone([29.0])], [[1], [2]]
                               )[0].score == 30.0


@pytest.mark.parametrize("number", range(2))
def test_equal_tuned_arms_are_rejected_in_five_percent(number):
    """Where loss and score disagree, a test that takes the choice as given rejects far more."""
    rates = calibration.tuned_rejection_rates(calibration.TUNED[number], 3, TRIALS)
    assert_calibrated(rates["ours"], 0.02)
    assert number == 0 or rates["choice taken as given"] > 0.07


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
        assert result.sentence_variance is result.sentence_freedom is None
        assert result.low <= result.difference <= result.high
    assert significance.arm_score(one).deviation is None


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


def observed(seed_variance, sentence_variance, units=1000):
    return Comparison(0.1, -1.0, 1.0, 0.5, "seeds", None, seed_variance, 4.0, sentence_variance,
                      units - 1)


def test_seeds_needed():
    # For two samples: 2 (1.96 + 0.84)^2 (0.54 / 0.5)^2 = 18.3 with normal quantiles; t needs more.
    assert designs.seeds_needed([observed(2 * 0.54 ** 2, 0.0)]) == 20
    assert designs.seeds_needed([observed(2 * 0.54 ** 2, 0.01)]) > 20
    assert designs.seeds_needed([observed(0.1, 0.04)]) is None
    assert designs.seeds_needed([observed(1e-6, 0.0)]) == 2
    alone = Comparison(0.1, -1.0, 1.0, None, "sentences")
    assert designs.seeds_needed([alone]) is None
    assert designs.seeds_needed([alone, observed(1e-6, 0.0)]) == 2
    # Arms that differ by more vary more between sentences, which says nothing about close arms.
    far = Comparison(-17.0, -19.0, -15.0, 0.0, "seeds", None, 1.0, 4.0, 0.3)
    assert designs.seeds_needed([far, observed(2 * 0.54 ** 2, 0.0)]) == 20
    assert designs.seeds_needed([far]) is None
    # A few documents leave few degrees of freedom to the test.
    assert designs.seeds_needed([observed(0.01, 0.02)]) == 2
    assert designs.seeds_needed([observed(0.01, 0.02, 4)]) is None
    few, many = (designs.seeds_needed([observed(2 * 0.54 ** 2, 0.0)], quantile=quantile)
                 for quantile in (0.1, 0.9))
    assert few < 20 < many


def test_a_test_set_is_too_small_only_by_its_sentences():
    assert designs.is_test_set_too_small([observed(0.1, 0.04)])
    assert designs.is_test_set_too_small([observed(0.1, 0.02, 4)])
    assert not designs.is_test_set_too_small([observed(1e4, 0.0)])
    assert designs.seeds_needed([observed(1e4, 0.0)]) is None
    assert not designs.is_test_set_too_small([])


def test_documents_of_unequal_size_count_for_fewer():
    metric, counts = Metric("bleu"), np.random.default_rng(0).integers(1, 9, (40, 10)) + 1
    for names, effective in ((["a"] * 20 + ["b"] * 20, 2), (["a"] * 30 + ["b"] * 10, 1.6),
                             (["a"] * 20 + ["b"] * 10 + ["c"] * 10, 40 ** 2 / 600)):
        run = significance.run_scores(metric, counts, names)
        assert run.freedom == pytest.approx(max(effective - 1, 1))
    assert significance.run_scores(metric, counts).freedom is None


def arms_of_three_seeds(units):
    random = np.random.default_rng(3)
    return [[RunScores(float(run.mean()), run) for run in (
        random.normal(30, 0.5, size=(3, units)))] for _ in range(2)]


# In the second case the differences are equal up to rounding only.
@pytest.mark.parametrize("lengths", [[1] * 3, [5, 7, 9, 4, 3, 17]])
def test_a_difference_that_nothing_varies_has_no_p(lengths):
    """Two sentences that differ alike are no evidence, nor do they make an arm's seeds vary."""
    metric, sizes = ratio_metrics.make_metric("perplexity"), np.array(lengths, np.float64)
    first, second = (significance.run_scores(metric, np.stack([sizes * loss, sizes], axis=1))
                     for loss in (0.7, 1.4))
    of_arms = significance.compare([first] * 2, [second] * 2)
    assert of_arms.seed_variance is None and not designs.may_be_small(of_arms)
    for found in (of_arms, significance.compare_outputs(first, second)):
        assert found.difference > 2 and found.low is found.high is found.p is None
    same = significance.compare([first] * 2, [first] * 3)
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)
    assert significance.arm_score([first]).low == pytest.approx(first.score)
    arms = {"a": [first] * 4, "b": [second] * 4}
    assert looks.decide(arms, "a", looks.Plan((2, 4)))[0]["b"] == looks.Verdict(4, None)
    found = looks.compare(arms, "a", looks.Plan((2, 4)), {"b": looks.Verdict(4, None)})["b"]
    assert found.p is found.p_holm is None


def test_one_unit_shows_nothing():
    compared = significance.compare(*arms_of_three_seeds(1))
    assert (compared.low, compared.high, compared.p) == (None, None, 1.0)
    assert compared.sentence_variance is None and designs.may_be_small(compared)
    assert designs.seeds_needed([compared]) is None
    assert designs.is_test_set_too_small([compared])


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


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("number", range(4))
def test_equal_arms_are_rejected_in_five_percent(number, seeds):
    """With and without an effect of the seed, and of arm by sentence; at worst 2.5%."""
    rates = calibration.rejection_rates(calibration.draw_additive, calibration.NULL[number], seeds,
                                        100, TRIALS, tests=["ours"])
    assert_calibrated(rates["ours"], 0.025)


def test_equal_arms_of_a_large_study_are_rejected_in_five_percent():
    condition = calibration.NULL[3]._replace(deviations=(0.54,) * 8)
    rates = calibration.rejection_rates(calibration.draw_recorded, condition, 2, 200, TRIALS,
                                        tests=["ours"])
    assert_calibrated(rates["ours"], 0.025)


@pytest.mark.parametrize("number", range(5))
def test_unequal_numbers_of_seeds_and_spreads_keep_the_level(number):
    seeds, deviations = calibration.UNEQUAL[number]
    condition = calibration.Condition("", deviations, 0.5)
    rates = calibration.rejection_rates(calibration.draw_additive, condition, seeds, 200, TRIALS,
                                        tests=["ours"])
    assert_calibrated(rates["ours"], 0.02)


def test_two_noisy_arms_among_quiet_ones_are_not_rejected_as_with_a_common_variance():
    """A common variance for all pairs rejects 21% here."""
    condition = next(condition for condition in calibration.NOISIER
                     if condition.name == "2 of 12 arms")
    rates = calibration.rejection_rates(calibration.draw_additive, condition, 3, 50, TRIALS,
                                        tests=["ours"])
    assert rates["ours"] < 0.12


def test_equal_arms_are_rejected_in_five_percent_with_bleu():
    rates = calibration.rejection_rates(calibration.draw_bleu, calibration.NULL[3], 3, 400, TRIALS,
                                        tests=["ours", "sentences only"])
    assert_calibrated(rates["ours"], 0.025)


def test_the_simulation_shows_a_test_that_ignores_seeds():
    """The calibration can fail: a test over sentences alone rejects far more than 5%."""
    rates = calibration.rejection_rates(calibration.draw_additive, calibration.NULL[2], 3, 400,
                                        TRIALS, tests=["sentences only"])
    with pytest.raises(AssertionError):
        assert_calibrated(rates["sentences only"])
    assert rates["sentences only"] > 0.1


def test_equal_outputs_are_rejected_in_five_percent():
    ours, sacrebleus = calibration.output_rejection_rates(200, 200)
    assert stats.binom.ppf(0.001, 200, 0.05) <= 200 * ours <= stats.binom.ppf(0.999, 200, 0.05)
    assert sacrebleus > ours                          # its p is about half of a two-sided one


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_arms_whose_quality_varies_between_documents(seeds):
    rates = calibration.document_rejection_rates(seeds, 30, TRIALS)
    assert_calibrated(rates["documents"], 0.025)
    with pytest.raises(AssertionError):
        assert_calibrated(rates["sentences"])


def test_power_grows_with_seeds_and_difference():
    def power(seeds, difference):
        return calibration.rejection_rates(calibration.draw_additive, calibration.NULL[3], seeds,
                                           400, 200, difference, ["ours"])["ours"]

    assert power(5, 2.0) > 0.8 and power(3, 2.0) > 0.5
    assert power(2, 2.0) < power(3, 2.0) < power(5, 2.0)


def test_other_arms_of_a_study_add_power():
    rates = calibration.rejection_rates(
        calibration.draw_recorded, calibration.NULL[3]._replace(deviations=(0.3,) * 8), 2, 400, 200,
        2.0, ["ours", "two arms alone"])
    assert rates["ours"] > rates["two arms alone"] + 0.1
