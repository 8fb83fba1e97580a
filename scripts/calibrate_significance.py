#!/usr/bin/env python3
"""How often the tests of rpr.evaluation reject a true null hypothesis, and how often a false one.

Simulates studies of two arms: every arm draws an effect on each sentence, every run draws an effect
of its seed and a residual on each sentence. Two designs: "additive" draws sentence scores whose
mean is the score of a run; "BLEU" draws sacreBLEU's sufficient statistics from damaged copies of
the embedded German test set, so that the corpus score is a real BLEU. Prints Markdown tables.
"""
import argparse
import functools
import gzip
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from rpr.evaluation import significance
from rpr.evaluation.metrics import Metric
from rpr.evaluation.paired_tests import paired_bootstrap
from rpr.evaluation.scoring import sentence_statistics
from rpr.evaluation.significance import LEVEL, RunScores

REFERENCE = (pathlib.Path(__file__).resolve().parents[1] / "problems" / "libreoffice_help"
             / "test.en-de.de.gz")
SEED_DEVIATION = 0.54                                 # BLEU, between runs of one arm
# Standard deviation of a run's score on a sentence: a difference of two runs on 789 sentences then
# has an interval of +- 0.85 BLEU over sentences, as in our studies.
SENTENCE_DEVIATION = 8.6
LEVELS = 25                                           # of damage, in the BLEU design
LEVEL_DEVIATION = 2.5                                 # of a sentence's damage
CENTRE = 12
# Documents have 12 sentences in the median, and half of them 8 to 18, much as in news test sets.
DOCUMENT_SENTENCES, DOCUMENT_SPREAD = 12, 0.6
DOCUMENT_SHARE = 0.3                                  # of the variance of an arm's damage


class Condition(NamedTuple):
    """How the runs of two arms vary.

    Attributes:
      deviations: of the seeds' effects in the first and the second arm, BLEU.
      interaction: share of a sentence's variance that all runs of an arm have in common.
      correlation: of the seeds' effects between the arms.
      sentence_deviation: of a run's score on a sentence, BLEU; in the additive design.
    """
    name: str
    deviations: tuple[float, float]
    interaction: float
    correlation: float = 0.0
    sentence_deviation: float = SENTENCE_DEVIATION


NULL = [Condition("no seed effect, no interaction", (0, 0), 0.0),
        Condition("no seed effect, interaction", (0, 0), 0.5),
        Condition("seed effect, no interaction", (SEED_DEVIATION,) * 2, 0.0),
        Condition("seed effect, interaction", (SEED_DEVIATION,) * 2, 0.5)]
SPECIAL = [Condition("seed effect four times as large in one arm", (0.2, 0.8), 0.5),
           Condition("seed effect in one arm only", (0.0, SEED_DEVIATION), 0.5),
           Condition("the same, hardly any sentence effect", (0.0, SEED_DEVIATION), 0.5, 0.0, 0.1),
           Condition("seed effects correlate by 0.5", (SEED_DEVIATION,) * 2, 0.5, 0.5)]

Draw = Callable[[np.random.Generator, Condition, int, int, float],
                tuple[list[RunScores], list[RunScores]]]


def draw_additive(random: np.random.Generator, condition: Condition, seeds: int, sentences: int,
                  difference: float = 0.0) -> tuple[list[RunScores], list[RunScores]]:
    """Two arms whose scores are means over sentences; the second is better by `difference`."""
    arms = []
    common = random.normal(size=seeds)
    for arm, deviation in enumerate(condition.deviations):
        of_arm = random.normal(
            0, condition.sentence_deviation * condition.interaction ** 0.5, sentences)
        runs = []
        for seed in range(seeds):
            effect = deviation * _correlated(random, common[seed], condition.correlation)
            values = 30 + arm * difference + effect + of_arm + random.normal(
                0, condition.sentence_deviation * (1 - condition.interaction) ** 0.5, sentences)
            runs.append(RunScores(float(values.mean()), values, seed))
        arms.append(runs)
    return arms[0], arms[1]


def draw_bleu(random: np.random.Generator, condition: Condition, seeds: int, sentences: int,
              difference: float = 0.0) -> tuple[list[RunScores], list[RunScores]]:
    """Two arms with real BLEU statistics; the second is better by about `difference`."""
    metric, pool, slope = _bleu_pool()
    drawn = random.integers(len(pool), size=sentences)
    common = random.normal(size=seeds)
    arms = []
    for arm, deviation in enumerate(condition.deviations):
        of_arm = random.normal(0, LEVEL_DEVIATION * condition.interaction ** 0.5, sentences)
        runs = []
        for seed in range(seeds):
            effect = deviation * _correlated(random, common[seed], condition.correlation)
            levels = CENTRE - (arm * difference + effect) / slope + of_arm + random.normal(
                0, LEVEL_DEVIATION * (1 - condition.interaction) ** 0.5, sentences)
            runs.append(significance.run_scores(metric, _damage(pool, drawn, levels), seed))
        arms.append(runs)
    return arms[0], arms[1]


def draw_documents(random: np.random.Generator, seeds: int, documents: int
                   ) -> dict[str, list[list[RunScores]]]:
    """Two equal arms with real BLEU statistics, whose damage varies between documents.

    Returns:
      the arms with pseudo-values of documents, and with those of sentences.
    """
    metric, pool, _ = _bleu_pool()
    sizes = np.ceil(random.lognormal(math.log(DOCUMENT_SENTENCES), DOCUMENT_SPREAD, documents))
    document = np.repeat(np.arange(documents), sizes.astype(int))
    drawn = random.integers(len(pool), size=len(document))
    arms: dict[str, list[list[RunScores]]] = {"documents": [], "sentences": []}
    for _ in range(2):
        of_arm = CENTRE + random.normal(0, LEVEL_DEVIATION * DOCUMENT_SHARE ** 0.5, documents)
        counts = [_damage(pool, drawn, of_arm[document] + random.normal(
            0, LEVEL_DEVIATION * (1 - DOCUMENT_SHARE) ** 0.5, len(document))) for _ in range(seeds)]
        for unit, grouping in (("documents", document), ("sentences", None)):
            arms[unit].append([significance.run_scores(metric, each, seed, grouping)
                               for seed, each in enumerate(counts)])
    return arms


def _damage(pool: np.ndarray, drawn: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The statistics of drawn sentences at these levels of damage, rounded: [sentences, counts]."""
    return pool[drawn, np.clip(np.rint(levels), 0, LEVELS - 1).astype(int)]


def _correlated(random: np.random.Generator, common: float, correlation: float) -> float:
    return correlation ** 0.5 * common + (1 - correlation) ** 0.5 * random.normal()


@functools.cache
def _bleu_pool() -> tuple[Metric, np.ndarray, float]:
    """BLEU, statistics [sentences, levels of damage, counts], and BLEU per level at the centre."""
    with gzip.open(REFERENCE, "rt", encoding="utf-8") as text:
        reference = [line.rstrip("\n") for line in text]
    random = np.random.default_rng(1)
    words = sorted({word for line in reference for word in line.split()})
    copies = [_damaged_copies(random, line, words) for line in reference]
    systems = {f"{level}": [levels[level] for levels in copies] for level in range(LEVELS)}
    metric = Metric("bleu")
    counts = sentence_statistics([metric], systems, [reference])["bleu"]
    pool = np.stack([counts[f"{level}"] for level in range(LEVELS)], axis=1)
    scores = metric.scores(pool.sum(axis=0))
    # The levels are spread over the sentences, so the slope is that of the smoothed curve.
    return metric, pool, float((scores[CENTRE - 4] - scores[CENTRE + 4]) / 8)


def _damaged_copies(random: np.random.Generator, line: str, words: Sequence[str]) -> list[str]:
    """The line at every level of damage: some words are replaced, and as many are dropped."""
    drop, replace = random.random((2, len(line.split())))
    others = random.choice(words, len(drop))
    copies = []
    for level in range(LEVELS):
        share = 0.02 + 0.025 * level
        copies.append(" ".join(
            str(other) if replace[place] < share else word
            for place, (word, other) in enumerate(zip(line.split(), others, strict=True))
            if drop[place] >= share) or ".")
    return copies


def reject(baseline: list[RunScores], arm: list[RunScores]) -> bool:
    """The test of `rpr report`, runs not paired."""
    p = significance.compare(baseline, arm, paired=False).p
    return p is not None and p <= LEVEL


def reject_paired(baseline: list[RunScores], arm: list[RunScores]) -> bool:
    """The test of `rpr report`, runs paired by seed."""
    p = significance.compare(baseline, arm, paired=True).p
    return p is not None and p <= LEVEL


def reject_over_sentences(baseline: list[RunScores], arm: list[RunScores]) -> bool:
    """A test of these runs that takes their seeds as fixed."""
    means = [RunScores(float(np.mean([run.score for run in runs])),
                       np.mean([run.pseudovalues for run in runs], axis=0))
             for runs in (baseline, arm)]
    return (significance.compare_outputs(*means).p or 0.0) <= LEVEL


def reject_over_seeds(baseline: list[RunScores], arm: list[RunScores]) -> bool:
    """Student's t-test of the runs' scores, which takes the sentences as fixed."""
    scores = [[run.score for run in runs] for runs in (baseline, arm)]
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in scores))
    freedom = len(baseline) + len(arm) - 2
    return abs(statistics.fmean(scores[1]) - statistics.fmean(scores[0])) >= error * (
        -special.stdtrit(freedom, LEVEL / 2))


TESTS = {"ours": reject, "ours, paired": reject_paired, "sentences only": reject_over_sentences,
         "t over seeds": reject_over_seeds}


def rejection_rates(draw: Draw, condition: Condition, seeds: int, sentences: int, trials: int,
                    difference: float = 0.0, tests: Sequence[str] = tuple(TESTS)
                    ) -> dict[str, float]:
    """Share of the trials in which each test rejects."""
    random = np.random.default_rng([seeds, sentences, round(1000 * difference)])
    counts = dict.fromkeys(tests, 0)
    for _ in range(trials):
        arms = draw(random, condition, seeds, sentences, difference)
        for name in tests:
            counts[name] += TESTS[name](*arms)
    return {name: count / trials for name, count in counts.items()}


def output_rejection_rates(sentences: int, trials: int) -> tuple[float, float]:
    """The same for two exchangeable outputs: our test of `rpr score`, and sacreBLEU's bootstrap."""
    metric, pool, _ = _bleu_pool()
    random = np.random.default_rng(sentences)
    ours = theirs = 0
    for _ in range(trials):
        drawn = random.integers(len(pool), size=sentences)
        first, second = (_damage(pool, drawn, random.normal(CENTRE, LEVEL_DEVIATION, sentences))
                         for _ in range(2))
        p = significance.compare_outputs(significance.run_scores(metric, first),
                                         significance.run_scores(metric, second)).p
        ours += p is not None and p <= LEVEL
        bootstrap = paired_bootstrap([metric], [[first], [second]], 1000, 12345)[1][0]
        theirs += bootstrap.p_value is not None and bootstrap.p_value <= LEVEL
    return ours / trials, theirs / trials


def document_rejection_rates(seeds: int, documents: int, trials: int) -> dict[str, float]:
    """Share of the trials in which equal arms are rejected, by the unit that the jackknife omits.

    Args:
      seeds: runs per arm; with one, outputs are compared as in `rpr score`.
      documents: in the test set.
      trials: number of studies.
    """
    random = np.random.default_rng([seeds, documents])
    counts = {"documents": 0, "sentences": 0}
    for _ in range(trials):
        for unit, (baseline, arm) in draw_documents(random, seeds, documents).items():
            if seeds > 1:
                counts[unit] += reject(baseline, arm)
            else:
                p = significance.compare_outputs(baseline[0], arm[0]).p
                counts[unit] += p is not None and p <= LEVEL
    return {unit: count / trials for unit, count in counts.items()}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--sentences", type=int, default=400)
    args = parser.parse_args()
    error = 1.96 * (LEVEL * (1 - LEVEL) / args.trials) ** 0.5
    print(f"{args.trials:,} trials of {args.sentences} sentences; a test of exactly 5% gives "
          f"{100 * (LEVEL - error):.1f} to {100 * (LEVEL + error):.1f}% in 95% of the cells.\n")
    designs: list[tuple[str, Draw]] = [("additive", draw_additive), ("BLEU", draw_bleu)]
    for name, draw in designs:
        conditions = NULL + SPECIAL if name == "additive" else NULL
        print(f"Equal arms, {name} design: rejections in %\n")
        _print_table([(condition.name, draw, condition, 0.0) for condition in conditions],
                     args.sentences, args.trials)
    print("Power, additive design: rejections in % of a true difference, seed effect and "
          "interaction\n")
    _print_table([(f"{difference:g} BLEU", draw_additive, NULL[3], difference)
                  for difference in (0.5, 1.0, 1.5, 2.0, 3.0)], args.sentences, args.trials)
    ours, theirs = output_rejection_rates(args.sentences, args.trials // 4)
    print(f"Two exchangeable outputs ({args.trials // 4:,} trials): jackknife t-test "
          f"{100 * ours:.1f}%, sacreBLEU's paired bootstrap {100 * theirs:.1f}%.\n")
    print("Equal arms whose quality varies between documents, BLEU design: rejections in %\n\n"
          "| | documents | by document | by sentence |\n| --- | ---: | ---: | ---: |")
    for seeds, name in ((1, "two outputs"), (3, "3 seeds")):
        for documents in (2, 3, 5, 10, 20, 40, 80):
            rates = document_rejection_rates(seeds, documents, args.trials)
            print(f"| {name} | {documents} | {100 * rates['documents']:.1f} | "
                  f"{100 * rates['sentences']:.1f} |", flush=True)


def _print_table(rows: Sequence[tuple[str, Draw, Condition, float]], sentences: int, trials: int
                 ) -> None:
    print("| | seeds | " + " | ".join(TESTS) + " |\n| --- |" + " ---: |" * (len(TESTS) + 1))
    for name, draw, condition, difference in rows:
        for seeds in (2, 3, 5):
            rates = rejection_rates(draw, condition, seeds, sentences, trials, difference)
            cells = " | ".join(f"{100 * rate:.1f}" for rate in rates.values())
            print(f"| {name} | {seeds} | {cells} |", flush=True)
    print()


if __name__ == "__main__":
    main()
