"""Seeds until decided: how a study that may stop early judges its arms.

The study plans in advance after how many seeds it looks at its results. An arm stops at the first
look that answers whether it differs from the baseline by more than a margin. The looks share one
level: each spends what a spending function allots to it (Lan and DeMets 1983), so that all of them
together are wrong in at most 5% of the studies. The significance-level approach (Jennison and
Turnbull 2000, section 3.8) turns the boundaries of normal deviates into levels, at which
`significance.compare` tests. docs/statistics.md has the reasons, docs/calibration.md the errors.
"""
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy import special

from rpr.evaluation import significance
from rpr.evaluation.significance import LEVEL, Comparison, RunScores

_NODES = 200                                          # of the quadrature over the scores
# Levels at which the boundaries are computed; p-values in between are interpolated.
_LEVELS = (*np.geomspace(significance.LEAST_P, LEVEL, 40), *np.geomspace(LEVEL, 0.999, 30)[1:])


def pocock(level: float, fraction: float) -> float:
    """What may be spent of a level at a fraction of the runs, with early looks: Pocock's type."""
    return level * math.log(1 + (math.e - 1) * fraction)


@dataclasses.dataclass(frozen=True)
class Plan:
    """When a study looks at its results, and what it asks."""
    seeds: tuple[int, ...]                            # per arm at each look, rising
    margin: float = 0.0                               # does an arm differ by more than this?
    # (level, fraction of the maximum): what may be spent until then.
    spending: Callable[[float, float], float] = pocock


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the last look at an arm showed."""
    seeds: int                                        # of each arm at that look
    answer: bool | None                               # more than the margin? None: still open


@functools.cache
def nominal_levels(plan: Plan, level: float = LEVEL) -> tuple[float, ...]:
    """The two-sided level of the test at each look, for a level of all looks together.

    The scores of the looks are those of a Brownian motion at the fractions of the maximum. Their
    density, where no look has stopped yet, is followed from look to look (Armitage, McPherson and
    Rowe 1969).
    """
    from scipy.optimize import brentq  # slow to import
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    places, density = np.zeros(1), np.ones(1)         # where the motion is, and its probability
    before, spent, levels = 0.0, 0.0, []
    for seeds in plan.seeds:
        fraction = seeds / plan.seeds[-1]
        step = math.sqrt(fraction - before)
        to_spend = plan.spending(level, fraction) - spent
        bound = brentq(_excess, 0.0, 40.0, (places, density, step, to_spend), xtol=1e-10)
        levels.append(2 * float(special.ndtr(-bound / math.sqrt(fraction))))
        new = bound * nodes
        kernel = np.exp(-((new[:, None] - places) / step) ** 2 / 2) / step / math.sqrt(2 * math.pi)
        places, density = new, kernel @ density * weights * bound
        before, spent = fraction, spent + to_spend
    return tuple(levels)


def _excess(bound: float, places: np.ndarray, density: np.ndarray, step: float, to_spend: float
            ) -> float:
    """By how much the probability of a score beyond `bound` exceeds what is to be spent."""
    beyond = special.ndtr((places - bound) / step) + special.ndtr((-places - bound) / step)
    return float(density @ beyond) - to_spend


@functools.cache
def _boundaries(plan: Plan) -> np.ndarray:
    """Logarithms of the nominal levels: [_LEVELS, looks]."""
    return np.log(np.maximum([nominal_levels(plan, level) for level in _LEVELS], 1e-300))


def adjusted_p(plan: Plan, look: int, p: float) -> float:
    """The level of all looks together at which this look, by its number from 0, would stop."""
    found = np.interp(math.log(p), _boundaries(plan)[:, look], np.log(_LEVELS), right=0.0)
    return float(np.exp(found))


def decide(scores: Mapping[str, Sequence[RunScores]], baseline: str, plan: Plan,
           failed: Collection[str] = ()) -> tuple[dict[str, Verdict], dict[str, int]]:
    """Repeats all looks that the finished runs allow.

    Args:
      scores: {arm: finished runs in the order of the seeds, without gaps}.
      baseline, plan: one of the arms; of the study.
      failed: arms whose next run failed; no look waits for them.

    Returns:
      {arm: verdict} of the arms that were looked at, and {arm: number of seeds} that the next look
      needs, or that were needed if all is decided.
    """
    verdicts: dict[str, Verdict] = {}
    needed = dict.fromkeys(scores, 0)
    undecided = [name for name in scores if name != baseline]
    for seeds in plan.seeds:
        if not undecided:
            break
        needed |= dict.fromkeys([baseline, *undecided], seeds)
        missing = {name for name in (baseline, *undecided) if len(scores[name]) < seeds}
        if baseline in missing or missing - set(failed):
            break
        undecided = [name for name in undecided if name not in missing]
        verdicts |= {name: Verdict(seeds, None) for name in undecided}
        for name, found in compare(scores, baseline, plan, verdicts).items():
            if name in undecided and found.p_holm is not None and found.p_holm <= LEVEL:
                verdicts[name] = Verdict(seeds, abs(found.difference) > plan.margin)
        undecided = [name for name in undecided if verdicts[name].answer is None]
    return verdicts, needed


def compare(scores: Mapping[str, Sequence[RunScores]], baseline: str, plan: Plan,
            verdicts: Mapping[str, Verdict]) -> dict[str, Comparison]:
    """Compares arms with the baseline, each at its last look: {arm: comparison}.

    The intervals are repeated confidence intervals (Jennison and Turnbull 1989): those of all looks
    together cover the true difference with 95%, whenever the study stops. p is adjusted for the
    looks, and Holm's correction counts all arms.

    Args:
      scores: as for `decide`, in any metric.
      verdicts: of the arms to compare.
    """
    found: dict[str, Comparison] = {}
    for seeds in sorted({verdict.seeds for verdict in verdicts.values()}):
        shown = {name: runs[:min(seeds, verdicts[name].seeds if name in verdicts else seeds)]
                 for name, runs in scores.items()}
        spread = significance.estimate_spread(shown.values())
        look = plan.seeds.index(seeds)
        for name in (name for name, verdict in verdicts.items() if verdict.seeds == seeds):
            comparison = significance.compare(shown[baseline], shown[name], spread,
                                              nominal_levels(plan)[look], plan.margin)
            if comparison.p is not None:
                comparison = dataclasses.replace(comparison, p=adjusted_p(plan, look, comparison.p))
            found[name] = comparison
    others = len(scores) - 1 - len(found)
    corrected = significance.holm(
        [*(1.0 if each.p is None else each.p for each in found.values()), *[1.0] * others])
    return {name: dataclasses.replace(each, p_holm=None if each.p is None else p)
            for (name, each), p in zip(found.items(), corrected, strict=False)}
