"""sacreBLEU's paired tests of two systems, draw for draw, in memory that does not grow.

sacreBLEU's `PairedTest` holds all draws and all resampled statistics: 7 GB for 100,000 sentences
and one metric. Here they are made in blocks, and a block's sums are one matrix product. The same
seed gives the same draws and, to rounding, the same scores and p-values.
"""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rpr.evaluation.metrics import Metric

DRAWS_PER_BLOCK = 4_000_000
# The bits of 32 random selections come from one word, so blocks of a multiple of 32 rows continue
# the same sequence.
BITS_PER_WORD = 32
TIE = 1e-9                                            # differences this close are equal


class Resampled(NamedTuple):
    """The bootstrap of one system.

    Attributes:
      mean: mean of the resampled scores.
      interval: half the width of their central 95%.
      p_value: p of the difference from the baseline; None for the baseline itself.
    """
    mean: float
    interval: float
    p_value: float | None


def paired_bootstrap(metrics: Sequence[Metric], systems: Sequence[Sequence[np.ndarray]],
                     samples: int, seed: int) -> list[list[Resampled]]:
    """Paired bootstrap resampling (Koehn 2004) as sacreBLEU does it.

    p takes absolute differences before it centres them, and is about half of a two-sided p-value.

    Args:
      metrics: M metrics.
      systems: for each system the M arrays [sentences, counts]; the first is the baseline.
      samples: number of resamples.
      seed: seed of the draws.

    Returns:
      for each system a `Resampled` per metric.
    """
    sentences = len(systems[0][0])
    columns = np.concatenate([array for arrays in systems for array in arrays], axis=1)
    random = np.random.default_rng(seed)
    rows = max(1, DRAWS_PER_BLOCK // sentences)
    sums = np.concatenate([
        _times_drawn(random.choice(sentences, size=(min(rows, samples - start), sentences)))
        @ columns for start in range(0, samples, rows)])
    scores = _split_scores(sums, metrics, len(systems))
    cut = samples // 40                               # sacreBLEU's `estimate_ci` drops each end
    results: list[list[Resampled]] = []
    for arrays, resampled in zip(systems, scores, strict=True):
        results.append([])
        for metric, base, array, base_drawn, drawn in zip(
                metrics, systems[0], arrays, scores[0], resampled, strict=True):
            p_value = None
            if arrays is not systems[0]:
                sizes = np.abs(drawn - base_drawn)
                above = int(np.sum(sizes - sizes.mean() > _observed(metric, base, array)))
                p_value = (above + 1) / (samples + 1)
            low, high = np.sort(drawn)[[cut, samples - cut - 1]]
            results[-1].append(Resampled(float(drawn.mean()), float(0.5 * (high - low)), p_value))
    return results


def paired_randomization(metrics: Sequence[Metric], baseline: Sequence[np.ndarray],
                         system: Sequence[np.ndarray], trials: int, seed: int) -> list[float]:
    """Paired approximate randomization (Riezler and Maxwell 2005) as sacreBLEU does it.

    Args:
      metrics: M metrics.
      baseline, system: M arrays [sentences, counts].
      trials: in each, the outputs for half of the sentences are exchanged at random.
      seed: seed of the exchanges.

    Returns:
      a two-sided p-value per metric.
    """
    sentences = len(baseline[0])
    first, second = np.concatenate(baseline, axis=1), np.concatenate(system, axis=1)
    total = first.sum(axis=0) + second.sum(axis=0)
    random = np.random.default_rng(seed)
    rows = max(1, DRAWS_PER_BLOCK // sentences // BITS_PER_WORD) * BITS_PER_WORD
    exchanged = np.concatenate([
        random.integers(2, size=(min(rows, trials - start), sentences), dtype=bool).astype(float)
        @ (first - second) for start in range(0, trials, rows)]) + second.sum(axis=0)
    sizes = np.abs(np.array(_split_scores(exchanged, metrics, 1)[0])
                   - np.array(_split_scores(total - exchanged, metrics, 1)[0]))
    observed = [_observed(metric, *arrays)
                for metric, *arrays in zip(metrics, baseline, system, strict=True)]
    return [(int(np.sum(size > difference + TIE)) + 1) / (trials + 1)
            for size, difference in zip(sizes, observed, strict=True)]


def _times_drawn(draws: np.ndarray) -> np.ndarray:
    """Converts drawn indices to counts of each sentence, [samples, sentences]."""
    samples, sentences = draws.shape
    offsets = np.arange(samples)[:, None] * sentences
    counts = np.bincount((draws + offsets).ravel(), minlength=samples * sentences)
    return counts.reshape(samples, sentences).astype(np.float64)


def _split_scores(sums: np.ndarray, metrics: Sequence[Metric], systems: int
                  ) -> list[list[np.ndarray]]:
    """[samples, counts of all] -> for each system and metric the scores [samples]."""
    scores: list[list[np.ndarray]] = []
    start = 0
    for _ in range(systems):
        scores.append([])
        for metric in metrics:
            scores[-1].append(metric.scores(sums[:, start:start + metric.counts]))
            start += metric.counts
    return scores


def _observed(metric: Metric, first: np.ndarray, second: np.ndarray) -> float:
    """The absolute difference of two systems' scores."""
    return abs(float(metric.scores(first.sum(axis=0)) - metric.scores(second.sum(axis=0))))
