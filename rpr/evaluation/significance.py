"""Whether arms differ: random seeds and random test sentences in one test.

An arm is a set of runs that differ only in their seed. Jackknife pseudo-values (Tukey 1958; Efron
and Tibshirani 1993, chapter 11) stand for a run's score on a sentence, or on a document where the
documents are known. Documents of unequal sizes n_d have the degrees of freedom of
(sum n_d)^2 / sum n_d^2 equal ones (Carter, Schnepel and Steigerwald 2017). The variance of the
difference between two arms' means is the sum

    V = V_seeds + max(V_sentences - V_residual, 0)

V_seeds follows from the spread of the runs' scores, V_sentences from that of the paired sentences.
Both contain the residual of run by sentence, so it is subtracted once, as in two-way clustered
standard errors (Cameron, Gelbach and Miller 2011). The variances over seeds of two arms are
moderated (Smyth 2004). Each keeps its own (Welch 1947) where the arms have unequal numbers of
seeds, or vary significantly more than the other arms of the study. The critical value is the mean
of Cochran and Cox's (1950) and Satterthwaite's (1946).
docs/statistics.md has the reasons, docs/calibration.md the calibration and the power.
"""
import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from rpr.evaluation.metrics import Metric

LEVEL = 0.05                                          # of tests; intervals cover 1 - LEVEL
# Of the F test by which two arms vary more than the others of their study. At 5%, one pair of equal
# arms in 20 would lose its significance; at 1%, pairs that do vary more are recognized less often.
OUTLYING_LEVEL = 0.01
# What is known of the spread of an arm's runs before a study: how much the logarithms of the arms'
# true variances vary, and the number of arms that this knowledge counts for. The records of BLEU in
# docs/results give -0.3 with a standard error of 0.4; 0.25 is cautious.
PRIOR_EXCESS, PRIOR_ARMS = 0.25, 5
LEAST_EXCESS = 1e-3                                   # below it the variances are taken for equal
# With fewer sentences or documents than this, the residual is too uncertain to be subtracted: equal
# arms would differ significantly too often.
LEAST_UNITS = 5
LEAST_P = 1e-12                                       # smaller p-values are reported as this
LEAST_ERROR = 1e-10                                   # of a difference; less is rounding

Basis = Literal["sentences", "seeds"]


@dataclasses.dataclass(frozen=True, eq=False)
class RunScores:
    """The corpus score of one run, and what each sentence contributes to it."""
    score: float                                      # 0 to 100; TER may exceed 100
    pseudovalues: np.ndarray                          # of the jackknife, [sentences or documents]
    freedom: float | None = None                      # of their variance; None: their number less 1


@dataclasses.dataclass(frozen=True)
class ArmScore:
    """The score of an arm."""
    mean: float
    deviation: float | None                           # sample's, over the runs; None for one run
    # 95% interval of the mean over test sentences, for these runs; None where a single sentence or
    # document shows nothing of others.
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How an arm differs from the baseline in one metric."""
    difference: float                                 # of the means, arm minus baseline
    # 95% interval of the difference; None where there is a single sentence or document, or where
    # arms differ and nothing varies: neither seeds nor sentences show how far chance goes.
    low: float | None
    high: float | None
    # Two-sided; None for an arm of a single run, and where arms differ and nothing varies.
    p: float | None
    # What the interval and p account for. "sentences": other test sentences, for these very runs.
    # "seeds": other seeds and other sentences.
    basis: Basis
    p_holm: float | None = None                       # after Holm's correction, see `correct`
    # Estimated variance, over seeds, of the difference between one run of each arm, and its degrees
    # of freedom; None where an arm has a single run, or where arms differ and nothing varies.
    seed_variance: float | None = None
    seed_freedom: float | None = None
    # The part that more seeds do not reduce; None where `seed_variance` is. The variance is None,
    # too, where there is a single sentence or document.
    sentence_variance: float | None = None
    sentence_freedom: float | None = None
    # Whether the two arms vary over seeds significantly more than the others of the study, so that
    # their own variances count.
    stands_out: bool = False


class Part(NamedTuple):
    """A part of a variance, and its degrees of freedom."""
    variance: float
    freedom: float


class Spread(NamedTuple):
    """The variance over seeds that the arms of a study have in common."""
    variance: float                                   # typical of an arm
    freedom: float                                    # of `variance`
    # Its weight against an arm's own variance, as degrees of freedom. It is infinite, so that all
    # arms get this variance, where nothing shows that the arms differ in spread.
    prior: float
    squares: float                                    # deviations of runs from means of their arms
    degrees: float                                    # of freedom of `squares`


def run_scores(metric: Metric, statistics_: np.ndarray,
               documents: Sequence[str] | np.ndarray | None = None) -> RunScores:
    """The score and the jackknife pseudo-values of a run, from its statistics [sentences, counts].

    `documents` names each sentence's document; None: each sentence stands for itself.
    """
    score = metric.corpus_score(statistics_)[0]
    units, freedom = statistics_, None
    if documents is not None:
        names, indices = np.unique(documents, return_inverse=True)
        units = np.zeros((len(names), statistics_.shape[1]))
        np.add.at(units, indices, statistics_)
        sizes = np.bincount(indices)
        freedom = max(float(sizes.sum() ** 2 / (sizes ** 2).sum()) - 1, 1.0)
    without_one = metric.scores(units.sum(axis=0) - units)
    return RunScores(score, len(units) * score - (len(units) - 1) * without_one, freedom)


def arm_score(runs: Sequence[RunScores]) -> ArmScore:
    """The mean over an arm's runs, with its interval over test sentences."""
    deviation = statistics.stdev(run.score for run in runs) if len(runs) > 1 else None
    mean = _mean_score(runs)
    return ArmScore(mean, deviation, *_interval(mean, [_sentence_part(_mean(runs), runs[0])]))


def estimate_spread(arms: Iterable[Sequence[RunScores]]) -> Spread:
    """The common variance over seeds, by the moments of the logarithms (Smyth 2004, section 6).

    Arms with a single run do not count.

    Raises:
      ValueError: no arm has two runs.
    """
    several = [[run.score for run in runs] for runs in arms if len(runs) > 1]
    if not several:
        raise ValueError("no arm has two runs")
    freedoms = np.array([len(scores) - 1.0 for scores in several])
    variances = np.array([statistics.variance(scores) for scores in several])
    total, squares = float(freedoms.sum()), float(freedoms @ variances)
    pooled = squares / total
    if pooled == 0:
        return Spread(0.0, total, math.inf, squares, total)
    logarithms = (np.log(np.maximum(variances, 1e-6 * pooled)) - special.digamma(freedoms / 2)
                  + np.log(freedoms / 2))
    observed = float(np.sum((logarithms - logarithms.mean()) ** 2))
    degrees = len(several) - 1
    excess = ((observed - degrees * float(np.mean(special.polygamma(1, freedoms / 2)))
               + PRIOR_ARMS * PRIOR_EXCESS) / (degrees + PRIOR_ARMS))
    prior = math.inf if excess < LEAST_EXCESS else _prior_freedom(excess)
    weights = 1 / (1 / freedoms + 1 / prior)
    return Spread(float(np.average(variances, weights=weights)), float(weights.sum()), prior,
                  squares, total)


def _prior_freedom(excess: float) -> float:
    """The degrees of freedom d with trigamma(d / 2) = `excess`."""
    from scipy.optimize import brentq  # 80 ms, which most commands need not wait
    return 2 * math.exp(brentq(
        lambda logarithm: special.polygamma(1, math.exp(logarithm)) - excess, -20.0, 20.0))


def compare(baseline: Sequence[RunScores], arm: Sequence[RunScores], spread: Spread | None = None,
            level: float = LEVEL, margin: float = 0.0) -> Comparison:
    """Tests whether two arms differ, for other seeds and other test sentences.

    Args:
      baseline, arm: runs on the same sentences.
      spread: of all arms of the study; None: of these two.
      level: the interval covers 1 - `level`.
      margin: p is that of a difference of just so many points, in the direction observed.

    Returns:
      a `Comparison`; where an arm has a single run, without p and over test sentences only.
    """
    groups = [baseline, arm]
    difference = _mean_score(arm) - _mean_score(baseline)
    part = _sentence_part(_mean(arm) - _mean(baseline), arm[0])
    if min(map(len, groups)) == 1:
        return dataclasses.replace(_comparison(difference, [part], "sentences"), p=None)
    spread = spread or estimate_spread(groups)
    balanced = len(baseline) == len(arm)
    stands_out = balanced and _stand_out(groups, spread)
    if balanced and not stands_out:
        seeds = [_moderated_part(groups, spread)]
    else:
        seeds = [Part(statistics.variance(run.score for run in runs) / len(runs), len(runs) - 1)
                 for runs in groups]
    sentences = len(arm[0].pseudovalues)
    residual = 0.0
    if sentences >= LEAST_UNITS:
        residual = sum(_residual_squares(runs) / (len(runs) - 1) / (sentences - 1) / sentences
                       / len(runs) for runs in groups)
    rest = part._replace(variance=max(part.variance - residual, 0.0))
    found = _comparison(difference, [*seeds, rest], "seeds", level, margin)
    if found.p is None:
        return found
    return dataclasses.replace(
        found,
        # A moderated part is that of both arms, which then have equally many runs.
        seed_variance=sum(part.variance * len(runs) for part, runs
                          in zip(seeds, groups, strict=len(seeds) > 1)),
        seed_freedom=_satterthwaite(seeds),
        sentence_variance=rest.variance if math.isfinite(rest.variance) else None,
        sentence_freedom=rest.freedom, stands_out=stands_out)


def compare_outputs(baseline: RunScores, system: RunScores) -> Comparison:
    """Tests whether two given translations differ in quality, for other test sentences.

    This is about the outputs at hand: a significant difference does not show that training both
    systems again would give a difference.
    """
    part = _sentence_part(system.pseudovalues - baseline.pseudovalues, system)
    return _comparison(system.score - baseline.score, [part], "sentences")


def _stand_out(groups: Sequence[Sequence[RunScores]], spread: Spread) -> bool:
    """Whether two arms vary significantly more than the others of the study, by an F test."""
    degrees = sum(len(group) - 1 for group in groups)
    squares = sum((len(group) - 1) * statistics.variance(run.score for run in group)
                  for group in groups)
    other_degrees = spread.degrees - degrees
    if other_degrees <= 0 or squares == 0:
        return False
    other_squares = max(spread.squares - squares, 1e-9 * squares)    # 0: none of them varies
    ratio = squares / degrees / (other_squares / other_degrees)
    return bool(special.fdtrc(degrees, other_degrees, ratio) <= OUTLYING_LEVEL)


def _moderated_part(groups: Sequence[Sequence[RunScores]], spread: Spread) -> Part:
    """The variance, over seeds, of the difference between two means of equally many runs."""
    runs = len(groups[0])
    own = (runs - 1) / (runs - 1 + spread.prior)
    moderated = [own * statistics.variance(run.score for run in group)
                 + (1 - own) * spread.variance for group in groups]
    variance = sum(moderated)
    if variance == 0:
        return Part(0.0, spread.freedom)
    # The error of an arm's variance given the common one, and that of the common one.
    error = (sum(value ** 2 for value in moderated) / (runs - 1 + spread.prior)
             + (2 * (1 - own) * spread.variance) ** 2 / spread.freedom)
    return Part(variance / runs, variance ** 2 / error)


def _comparison(difference: float, parts: Sequence[Part], basis: Basis, level: float = LEVEL,
                margin: float = 0.0) -> Comparison:
    error = math.sqrt(sum(part.variance for part in parts))
    if difference and error <= LEAST_ERROR * abs(difference):
        return Comparison(difference, None, None, None, basis)
    return Comparison(difference, *_interval(difference, parts, level),
                      _p_value(abs(abs(difference) - margin), error, parts), basis)


def _interval(estimate: float, parts: Sequence[Part], level: float = LEVEL
              ) -> tuple[float | None, float | None]:
    """The interval of an estimate whose variance has these parts; none if it is infinite."""
    error = math.sqrt(sum(part.variance for part in parts))
    if math.isinf(error):
        return None, None
    half = critical_value(parts, level) * error
    return estimate - half, estimate + half


def _mean_score(runs: Sequence[RunScores]) -> float:
    return statistics.fmean(run.score for run in runs)


def _mean(runs: Sequence[RunScores]) -> np.ndarray:
    """Mean pseudo-values over runs: [sentences]."""
    return np.mean([run.pseudovalues for run in runs], axis=0)


def _residual_squares(runs: Sequence[RunScores]) -> float:
    """Sum of squares of run by sentence, without the effects of runs and of sentences."""
    values = np.stack([run.pseudovalues for run in runs])
    values = values - values.mean(axis=0)
    return float(np.sum((values - values.mean(axis=1, keepdims=True)) ** 2))


def _sentence_part(values: np.ndarray, like: RunScores) -> Part:
    """Variance of the mean of [sentences] values; infinite for a single sentence."""
    sentences = len(values)
    if sentences < 2:
        return Part(math.inf, 1)
    freedom = sentences - 1 if like.freedom is None else like.freedom
    return Part(float(np.var(values, ddof=1)) / sentences, freedom)


def critical_value(parts: Sequence[Part], level: float) -> float:
    """Two-sided critical value at a level: the mean of Cochran and Cox's and of Satterthwaite's.

    `parts` are the independent parts of the variance.
    """
    quantiles = [-float(special.stdtrit(part.freedom, level / 2)) for part in parts]
    total = sum(part.variance for part in parts)
    if not 0 < total < math.inf:
        return max(quantiles)
    weighted = sum(part.variance / total * quantile
                   for part, quantile in zip(parts, quantiles, strict=True))
    return (weighted - float(special.stdtrit(_satterthwaite(parts), level / 2))) / 2


def _satterthwaite(parts: Sequence[Part]) -> float:
    """Degrees of freedom of the sum of independent variances."""
    squares = sum(part.variance ** 2 / part.freedom for part in parts)
    total = sum(part.variance for part in parts)
    return total ** 2 / squares if squares else sum(part.freedom for part in parts)


def _p_value(size: float, error: float, parts: Sequence[Part]) -> float:
    """The level at which a difference of `size` is just significant."""
    if size == 0 or not 0 < error < math.inf:
        return 1.0                                    # 0: equal scores; infinite: one sentence
    from scipy.optimize import brentq  # as above

    def excess(log_p: float) -> float:
        return critical_value(parts, math.exp(log_p)) - size / error

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
    """Fills in `p_holm` for comparisons that are one family: those of a metric in a table."""
    tested = [comparison.p for comparison in comparisons if comparison.p is not None]
    corrected = iter(holm(tested))
    return [comparison if comparison.p is None
            else dataclasses.replace(comparison, p_holm=next(corrected))
            for comparison in comparisons]


def p_text(p: float | None) -> str:
    """A p-value as it is shown; empty if there is none."""
    if p is None:
        return ""
    return f"{p:.4f}" if round(p, 4) else "< 0.0001"
