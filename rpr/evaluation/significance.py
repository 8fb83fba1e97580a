"""Scores with their uncertainty: sacreBLEU's paired bootstrap for arms of several seeds; Holm.

One resample draws sentences of the test set, with replacement, and keeps every run's translation of
a sentence together with every other's. The score of an arm is the mean over its seeds of the corpus
score, in the resample as in the table. So the arm's interval, the interval of its difference from
the baseline and p all speak of the number that is shown; a sentence that S seeds translated counts
as one observation, not as S. With one seed an arm this is sacreBLEU's `PairedTest`, draw for draw
(Koehn 2004; p from the centred absolute differences). It says what another test set would change;
what another seed would change is said by the standard deviation over the seeds.
"""
import dataclasses
import statistics

import numpy as np

from rpr.evaluation import scoring

SAMPLES = scoring.PAIRED["bootstrap"][1]


@dataclasses.dataclass
class Estimate:
    """A metric of an arm.

    Attributes:
      mean: over the finished runs, 0 to 100.
      deviation: the sample's standard deviation over them; None for one run.
      low, high: 95% bootstrap interval of the mean.
      difference: of the mean from the baseline's; None, like all below, for the baseline itself.
      difference_low, difference_high: its 95% bootstrap interval.
      p: two-sided paired bootstrap.
      p_holm: p after Holm's correction over all arms that are compared with the baseline.
    """
    mean: float
    deviation: float | None
    low: float
    high: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_holm: float | None = None


class Scorer:
    """A metric of sacreBLEU whose sentences can be drawn again, or apart.

    Args:
      name: "bleu" or "chrf".
      references: {name: lines}.
      test_set, language_pair: where these come from, for the signature and the tokenizer.
    """

    def __init__(self, name, references, test_set, language_pair):
        self._metric = scoring.make_metric(name, None, language_pair, list(references.values()))
        self._where = test_set, language_pair

    def statistics(self, lines):
        """What the corpus score is made of, as sums over sentences: [sentences, counts]."""
        return np.array(self._metric._extract_corpus_statistics(lines, None), np.float64)

    def score(self, statistics_):
        """The corpus score, 0 to 100, of the sentences of [sentences, counts]."""
        return self._scored(statistics_.sum(axis=0))

    def resampled(self, statistics_):
        """The corpus score of each resample: [SAMPLES]; the same draws for all systems."""
        sentences = len(statistics_)
        draws = np.random.default_rng(scoring.SEED).choice(sentences, (SAMPLES, sentences))
        times = np.stack([np.bincount(draw, minlength=sentences) for draw in draws])
        return np.array([self._scored(sums) for sums in times.astype(np.float64) @ statistics_])

    def signature(self):
        """sacreBLEU's, with the bootstrap's seed and size."""
        made = self._metric.get_signature()
        made.update("seed", scoring.SEED)
        made.update("bs", SAMPLES)
        return scoring.signature_text(made, *self._where)

    def _scored(self, sums):
        return float(self._metric._compute_score_from_stats(sums).score)


def estimate(scores, resampled):
    """An arm by itself.

    Args:
      scores: its runs' scores.
      resampled: [runs, SAMPLES].
    """
    low, high = interval(np.mean(resampled, axis=0))
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return Estimate(statistics.fmean(scores), deviation, low, high)


def compare(arm, resampled, baseline, baseline_resampled):
    """Fills in how an arm differs from the baseline, up to Holm's correction.

    Args:
      arm, baseline: `Estimate`s.
      resampled, baseline_resampled: [runs, SAMPLES] of each; the counts of runs may differ.
    """
    # Whole before the subtraction: the same outputs give exactly zero.
    differences = np.mean(resampled, axis=0) - np.mean(baseline_resampled, axis=0)
    arm.difference = arm.mean - baseline.mean
    arm.difference_low, arm.difference_high = interval(differences)
    sizes = np.abs(differences)
    above = np.sum(sizes - sizes.mean() > abs(arm.difference))
    # sacreBLEU finds two identical outputs different, with the smallest p there is.
    arm.p = (int(above) + 1) / (SAMPLES + 1) if sizes.any() else 1.0


def interval(samples):
    """sacreBLEU's 95% interval: the samples without a fortieth at each end."""
    ordered = np.sort(samples)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[-1 - cut])


def holm(p_values):
    """Holm's step-down correction (1979) of a list of p, in the order given."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected
