"""Whether arms differ: random seeds and random test sentences in one test.

An arm is a set of runs that differ only in their seed. The score of a run is written as a sum of
independent effects: arm, seed, sentence, arm by sentence, and a residual of run by sentence. BLEU
and chrF are not means over sentences, so jackknife pseudo-values (Tukey 1958; Efron and Tibshirani
1993, chapter 11) stand for a run's score on a sentence. The variance of the difference between two
arms' means is the sum of two parts:

    V = V_seeds + max(V_sentences - V_residual, 0)

V_seeds is the variance that the spread of the runs' scores implies, V_sentences the one that the
spread of the paired sentences implies. Both contain the residual, so it is subtracted once, as in
two-way clustered standard errors (Cameron, Gelbach and Miller 2011). V_seeds has few degrees of
freedom, the rest has one less than there are sentences. The critical value is the mean of both t
quantiles weighted by the two parts (Cochran and Cox 1950). The interval and p come from this one
distribution. docs/statistics.md shows the calibration and the power.

Sentences of a document are alike in difficulty. Where the documents are known, they take the place
of the sentences: the jackknife then leaves out one document at a time.
"""
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from rpr.evaluation.metrics import Metric

LEVEL = 0.05                                          # of tests; intervals cover 1 - LEVEL
# From this many seeds on, arms that share their seeds are paired by seed. With fewer, pairing
# loses more by its degrees of freedom than common random numbers gain: at 3 seeds it needs a
# correlation above 0.58 between the arms' scores to pay, at 5 one above 0.31.
LEAST_PAIRED_SEEDS = 5
# With fewer sentences or documents than this, the residual is too uncertain to be subtracted: equal
# arms would differ significantly too often.
LEAST_UNITS = 5
MOST_SEEDS = 1000                                     # that `seeds_needed` considers
LEAST_P = 1e-12                                       # smaller p-values are reported as this

Basis = Literal["sentences", "seeds", "paired seeds"]
SMALLEST_P = 1e-4                                     # smaller ones are shown as "< 0.0001"


@dataclasses.dataclass(frozen=True, eq=False)
class RunScores:
    """The corpus score of one run, and what each sentence contributes to it.

    Attributes:
      score: 0 to 100 (TER may exceed 100).
      pseudovalues: jackknife pseudo-values, [sentences] or [documents].
      seed: of the training; None where unknown.
    """
    score: float
    pseudovalues: np.ndarray
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class ArmScore:
    """The score of an arm.

    Attributes:
      mean: over its runs.
      deviation: sample standard deviation over the runs; None for one run.
      low, high: 95% interval of the mean over test sentences, for these runs.
    """
    mean: float
    deviation: float | None
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How an arm differs from the baseline in one metric.

    Attributes:
      difference: of the means, arm minus baseline.
      low, high: 95% interval of the difference.
      p: two-sided; None where one of the arms has a single run.
      basis: what the interval and p account for. "sentences": other test sentences, for these very
        runs. "seeds": other seeds and other sentences. "paired seeds": the same, with the runs of
        both arms paired by seed.
      p_holm: p after Holm's correction over all tests of a table; None before `correct`.
      seed_variance: estimated variance, over seeds, of the difference between one run of each arm;
        None where an arm has a single run.
      sentence_variance: part of the variance that more seeds do not reduce.
    """
    difference: float
    low: float
    high: float
    p: float | None
    basis: Basis
    p_holm: float | None = None
    seed_variance: float | None = None
    sentence_variance: float = 0.0


class _Part(NamedTuple):
    """A part of a variance, and its degrees of freedom."""
    variance: float
    freedom: float


def run_scores(metric: Metric, statistics_: np.ndarray, seed: int | None = None,
               documents: Sequence[str] | np.ndarray | None = None) -> RunScores:
    """The score and the jackknife pseudo-values of a run.

    Args:
      metric: of the statistics.
      statistics_: [sentences, counts].
      seed: of the training.
      documents: name of each sentence's document; None: each sentence stands for itself.
    """
    score = metric.corpus_score(statistics_)[0]
    units = statistics_ if documents is None else _sum_by_document(statistics_, documents)
    without_one = metric.scores(units.sum(axis=0) - units)
    return RunScores(score, len(units) * score - (len(units) - 1) * without_one, seed)


def _sum_by_document(statistics_: np.ndarray, documents: Sequence[str] | np.ndarray
                     ) -> np.ndarray:
    """[sentences, counts] -> [documents, counts]."""
    names, indices = np.unique(documents, return_inverse=True)
    sums = np.zeros((len(names), statistics_.shape[1]))
    np.add.at(sums, indices, statistics_)
    return sums


def arm_score(runs: Sequence[RunScores]) -> ArmScore:
    """The mean over an arm's runs, with its interval over test sentences."""
    deviation = statistics.stdev(run.score for run in runs) if len(runs) > 1 else None
    interval = _comparison(_mean_score(runs), [_sentence_part(_mean(runs))], "sentences")
    return ArmScore(interval.difference, deviation, interval.low, interval.high)


def compare(baseline: Sequence[RunScores], arm: Sequence[RunScores],
            paired: bool | None = None) -> Comparison:
    """Tests whether two arms differ, for other seeds and other test sentences.

    Args:
      baseline, arm: runs on the same sentences.
      paired: pair the runs by seed; None: where both arms have the same seeds and at least
        `LEAST_PAIRED_SEEDS` of them.

    Returns:
      a `Comparison`. Where an arm has a single run, there is no p-value: nothing shows how far
      another seed would move the score. The interval then accounts for the test sentences only.
    """
    if min(len(baseline), len(arm)) == 1:
        return _compare_over_sentences(baseline, arm)
    seeds = sorted(run.seed for run in arm if run.seed is not None)
    same_seeds = len(set(seeds)) == len(arm) and seeds == sorted(
        run.seed for run in baseline if run.seed is not None) and len(baseline) == len(arm)
    if paired is None:
        paired = same_seeds and len(arm) >= LEAST_PAIRED_SEEDS
    if paired and not same_seeds:
        raise ValueError("runs can be paired only where both arms have the same seeds")
    return _compare_over_seeds(baseline, arm, paired)


def compare_outputs(baseline: RunScores, system: RunScores) -> Comparison:
    """Tests whether two given translations differ in quality, for other test sentences.

    This is about the outputs at hand: a significant difference does not show that training both
    systems again would give a difference.
    """
    part = _sentence_part(system.pseudovalues - baseline.pseudovalues)
    return _comparison(system.score - baseline.score, [part], "sentences")


def _compare_over_sentences(baseline: Sequence[RunScores], arm: Sequence[RunScores]) -> Comparison:
    """The difference with its interval over test sentences, without a p-value."""
    part = _sentence_part(_mean(arm) - _mean(baseline))
    comparison = _comparison(_mean_score(arm) - _mean_score(baseline), [part], "sentences")
    return dataclasses.replace(comparison, p=None)


def _compare_over_seeds(baseline: Sequence[RunScores], arm: Sequence[RunScores], paired: bool
                        ) -> Comparison:
    groups = [_differences(baseline, arm)] if paired else [baseline, arm]
    # Pooled over the arms: with two or three seeds, separate variances would cost most of the
    # degrees of freedom.
    freedom = sum(len(runs) - 1 for runs in groups)
    shares = sum(1 / len(runs) for runs in groups)
    spread = sum(_squares([run.score for run in runs]) for runs in groups) / freedom
    sentences = len(arm[0].pseudovalues)
    residual = 0.0
    if sentences >= LEAST_UNITS:
        residual = (sum(_residual_squares(runs) for runs in groups) / (freedom * (sentences - 1))
                    / sentences)
    seeds = _Part(spread * shares, freedom)
    part = _sentence_part(_mean(arm) - _mean(baseline))
    rest = part._replace(variance=max(part.variance - residual * shares, 0.0))
    return dataclasses.replace(
        _comparison(_mean_score(arm) - _mean_score(baseline), [seeds, rest],
                    "paired seeds" if paired else "seeds"),
        seed_variance=spread * len(groups), sentence_variance=rest.variance)


def _comparison(difference: float, parts: Sequence[_Part], basis: Basis) -> Comparison:
    error = math.sqrt(sum(part.variance for part in parts))
    half = _critical_value(parts, LEVEL) * error
    return Comparison(difference, difference - half, difference + half,
                      _p_value(abs(difference), error, parts), basis)


def _differences(baseline: Sequence[RunScores], arm: Sequence[RunScores]) -> list[RunScores]:
    """The runs' differences, paired by seed."""
    by_seed = {run.seed: run for run in baseline}
    return [RunScores(run.score - by_seed[run.seed].score,
                      run.pseudovalues - by_seed[run.seed].pseudovalues, run.seed) for run in arm]


def _mean_score(runs: Sequence[RunScores]) -> float:
    return statistics.fmean(run.score for run in runs)


def _mean(runs: Sequence[RunScores]) -> np.ndarray:
    """Mean pseudo-values over runs: [sentences]."""
    return np.mean([run.pseudovalues for run in runs], axis=0)


def _squares(values: Sequence[float]) -> float:
    """Sum of squared deviations from the mean."""
    return float(np.sum((np.asarray(values) - np.mean(values)) ** 2))


def _residual_squares(runs: Sequence[RunScores]) -> float:
    """Sum of squares of run by sentence, without the effects of runs and of sentences."""
    values = np.stack([run.pseudovalues for run in runs])
    values = values - values.mean(axis=0)
    return float(np.sum((values - values.mean(axis=1, keepdims=True)) ** 2))


def _sentence_part(values: np.ndarray) -> _Part:
    """Variance of the mean of [sentences] values; infinite for a single sentence."""
    sentences = len(values)
    if sentences < 2:
        return _Part(math.inf, 1)
    return _Part(float(np.var(values, ddof=1)) / sentences, sentences - 1)


def _critical_value(parts: Sequence[_Part], level: float) -> float:
    """Cochran and Cox's two-sided critical value: t quantiles weighted by the variances."""
    quantiles = [-float(special.stdtrit(part.freedom, level / 2)) for part in parts]
    total = sum(part.variance for part in parts)
    if not 0 < total < math.inf:
        return max(quantiles)
    return sum(part.variance / total * quantile
               for part, quantile in zip(parts, quantiles, strict=True))


def _p_value(size: float, error: float, parts: Sequence[_Part]) -> float:
    """The level at which a difference of `size` is just significant."""
    if size == 0 or math.isinf(error):
        return 1.0
    if error == 0:
        return 0.0
    from scipy.optimize import brentq  # 80 ms, which most commands need not wait

    def excess(log_p: float) -> float:
        return _critical_value(parts, math.exp(log_p)) - size / error

    least = math.log(LEAST_P)
    return LEAST_P if excess(least) <= 0 else math.exp(brentq(excess, least, 0.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979) of p-values, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def correct(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Fills in `p_holm` for all comparisons of a table (all arms, all metrics)."""
    tested = [comparison.p for comparison in comparisons if comparison.p is not None]
    corrected = iter(holm(tested))
    return [comparison if comparison.p is None
            else dataclasses.replace(comparison, p_holm=next(corrected))
            for comparison in comparisons]


def may_be_small(comparison: Comparison, difference: float = 0.5) -> bool:
    """Whether the interval has a difference of at most so many points, in either direction."""
    return comparison.low <= difference and comparison.high >= -difference


def seeds_needed(comparisons: Sequence[Comparison], units: int, difference: float = 0.5,
                 power: float = 0.8) -> int | None:
    """Seeds per arm that detect a difference at p <= 0.05, at the variance observed.

    Only arms whose difference may be that small count: very different arms also differ more from
    sentence to sentence.

    Args:
      comparisons: of one metric, whose variances are averaged; those of single runs are left out.
      units: number of sentences, or of documents where these are the units.
      difference: true difference in points.
      power: probability of detecting it.

    Returns:
      seeds per arm; None where nothing shows the variance over seeds, or where even `MOST_SEEDS`
      are too few.
    """
    observed = _of_close_arms(comparisons, difference)
    if not observed:
        return None
    seed_variance = statistics.fmean(comparison.seed_variance or 0.0 for comparison in observed)
    sentences = _Part(statistics.fmean(comparison.sentence_variance for comparison in observed),
                      units - 1)
    # With fewer seeds runs are not paired, and nothing shows the variance of unpaired ones.
    paired = any(comparison.basis == "paired seeds" for comparison in observed)
    for seeds in range(LEAST_PAIRED_SEEDS if paired else 2, MOST_SEEDS + 1):
        freedom = (seeds - 1) * (1 if seeds >= LEAST_PAIRED_SEEDS else 2)    # as `compare` tests
        if _is_detected([_Part(seed_variance / seeds, freedom), sentences], difference, power):
            return seeds
    return None


def is_test_set_too_small(comparisons: Sequence[Comparison], units: int, difference: float = 0.5,
                          power: float = 0.8) -> bool:
    """Whether no number of seeds detects a difference: the args are those of `seeds_needed`."""
    variances = [comparison.sentence_variance
                 for comparison in _of_close_arms(comparisons, difference)]
    return bool(variances) and not _is_detected([_Part(statistics.fmean(variances), units - 1)],
                                                difference, power)


def _of_close_arms(comparisons: Sequence[Comparison], difference: float) -> list[Comparison]:
    """Those that show a variance over seeds, of arms whose difference may be that small."""
    return [comparison for comparison in comparisons
            if comparison.seed_variance is not None and may_be_small(comparison, difference)]


def _is_detected(parts: Sequence[_Part], difference: float, power: float) -> bool:
    # Two-sided quantile of the test, one-sided quantile of the power.
    quantiles = _critical_value(parts, LEVEL) + _critical_value(parts, 2 * (1 - power))
    return quantiles * math.sqrt(sum(part.variance for part in parts)) <= difference


def p_text(p: float | None) -> str:
    """A p-value as it is shown; empty if there is none."""
    if p is None:
        return ""
    return f"{p:.4f}" if p >= SMALLEST_P else f"< {SMALLEST_P:.4f}"
