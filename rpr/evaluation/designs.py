"""What a study's design adds to the test of arms: tuned settings, and the number of seeds."""
import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import special

from rpr.evaluation.significance import LEVEL, Comparison, Part, RunScores, critical_value

DIFFERENCE = 0.5                                      # in points: a true one that is to be detected
POWER = 0.8                                           # the probability of detecting it
MOST_SEEDS = 1000                                     # that `seeds_needed` considers


def with_choice(settings: Sequence[Sequence[RunScores]], losses: Sequence[Sequence[float]]
                ) -> list[RunScores]:
    """The runs of a chosen setting, with scores that vary over seeds as the choice makes them vary.

    The choice is repeated without each of the S seeds. The jackknife pseudo-values over seeds,
    S * score - (S - 1) * score without the seed (Tukey 1958), stand for the runs' scores. They are
    shifted to the mean of the chosen runs. `settings` has the runs of each setting, the chosen one
    first, in the same order of seeds; `losses` those by which the setting of least mean is chosen.
    """
    scores = np.array([[run.score for run in runs] for runs in settings])
    loss, seeds, mean = np.array(losses), scores.shape[1], float(scores[0].mean())
    if seeds == 1:
        return list(settings[0])
    chosen = (loss.sum(axis=1, keepdims=True) - loss).argmin(axis=0)
    without = (scores.sum(axis=1, keepdims=True) - scores)[chosen, np.arange(seeds)] / (seeds - 1)
    values = seeds * mean - (seeds - 1) * without
    return [dataclasses.replace(run, score=float(value)) for run, value
            in zip(settings[0], values + (mean - values.mean()), strict=True)]


def may_be_small(comparison: Comparison) -> bool:
    """Whether the interval has a difference of at most `DIFFERENCE`, in either direction.

    Not where nothing shows the variance over seeds.
    """
    low, high = comparison.low, comparison.high
    return comparison.seed_variance is not None and (
        low is None or high is None or low <= DIFFERENCE and high >= -DIFFERENCE)


def seeds_needed(comparisons: Sequence[Comparison], quantile: float | None = None) -> int | None:
    """Seeds per arm that detect `DIFFERENCE` at p <= 0.05, at the variance observed.

    Only arms whose difference may be that small count: very different arms also differ more from
    sentence to sentence. The study that is planned has two arms.

    Args:
      comparisons: those by one metric, whose variances are averaged; single runs are left out.
      quantile: plan for this quantile of the variance over seeds instead, given what was observed.

    Returns:
      None where nothing shows the variance over seeds, or where even `MOST_SEEDS` are too few.
    """
    observed = list(filter(may_be_small, comparisons))
    if not observed:
        return None
    seed_variance = statistics.fmean(comparison.seed_variance or 0.0 for comparison in observed)
    if quantile is not None:
        freedom = statistics.fmean(comparison.seed_freedom or 1.0 for comparison in observed)
        seed_variance *= freedom / float(special.chdtri(freedom, quantile))
    sentences = _sentence_variance(observed)
    for seeds in range(2, MOST_SEEDS + 1):
        if _is_detected([Part(seed_variance / seeds, 2 * (seeds - 1)), sentences]):
            return seeds
    return None


def is_test_set_too_small(comparisons: Sequence[Comparison]) -> bool:
    """Whether no number of seeds detects `DIFFERENCE`."""
    observed = list(filter(may_be_small, comparisons))
    return bool(observed) and not _is_detected([_sentence_variance(observed)])


def _sentence_variance(comparisons: Sequence[Comparison]) -> Part:
    """The mean over comparisons; infinite where there is a single sentence."""
    variances = [math.inf if comparison.sentence_variance is None else comparison.sentence_variance
                 for comparison in comparisons]
    return Part(statistics.fmean(variances),
                statistics.fmean(comparison.sentence_freedom or 1.0 for comparison in comparisons))


def _is_detected(parts: Sequence[Part]) -> bool:
    quantiles = critical_value(parts, LEVEL) + critical_value(parts, 2 * (1 - POWER))
    return quantiles * math.sqrt(sum(part.variance for part in parts)) <= DIFFERENCE
