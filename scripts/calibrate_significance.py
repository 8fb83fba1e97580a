#!/usr/bin/env python3
"""How often the tests of rpr.evaluation reject a true null hypothesis, and how often a false one.

Simulates studies: every arm draws an effect on each sentence, every run draws an effect of its seed
and a residual on each sentence. The first two arms are compared. Three designs: "additive" draws
sentence scores whose mean is the score of a run; "BLEU" draws sacreBLEU's sufficient statistics
from damaged copies of the embedded German test set; "recorded" mixes the recorded translations of
a good and a bad model. Prints Markdown tables.
"""
import argparse
import functools
import gzip
import math
import pathlib
import statistics
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from rpr.cli.arguments import number
from rpr.evaluation import designs, significance
from rpr.evaluation.metrics import Metric
from rpr.evaluation.scoring import paired_bootstrap, sentence_statistics
from rpr.evaluation.significance import LEVEL, RunScores

ROOT = pathlib.Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "problems" / "libreoffice_help" / "test.en-de.de.gz"
PAGES = REFERENCE.with_name("test.en-de.pages.gz")
RECORDED = ROOT / "docs" / "results" / "small_schemes" / "runs.tar.xz"
GOOD, BAD, BAD_SHARE = "rotary", "none", 0.3          # recorded arms, share of the bad one
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
    """How the runs of the arms vary.

    Attributes:
      deviations: deviations of the seeds' effects in each arm, BLEU.
      interaction: share of a sentence's variance that all runs of an arm have in common.
      correlation: correlation of the seeds' effects between the arms.
      sentence_deviation: deviation of a run's score on a sentence, BLEU; in the additive design.
    """
    name: str
    deviations: tuple[float, ...]
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

# Numbers of seeds of the arms, and the arms' deviations.
UNEQUAL = [((8, 2), (0.2, 1.0)), ((5, 2), (0.3, 0.9)), ((5, 3), (0.3, 0.9)), ((10, 3), (0.3, 0.6)),
           ((2, 8), (0.2, 1.0))]
# Deviations of the arms of a study, of which the first two are compared.
NOISIER = [Condition(f"{noisy} of {arms} arms", (1.0,) * noisy + (0.3,) * (arms - noisy), 0.5, 0.0,
                     0.1) for arms in (5, 12) for noisy in (1, 2)]


class Tuning(NamedTuple):
    """Four settings of a tuned arm; loss and score get worse with the square of the distance.

    Attributes:
      curvature: by how many BLEU, and as much loss, at distance 1 from the best setting.
      correlation: how alike a run's errors in loss and in score are.
      disagreement: BLEU by which only the score rises from one setting to the next.
    """
    name: str
    curvature: float
    correlation: float
    disagreement: float = 0.0


TUNED = [Tuning("two alike, two far worse", 2.0, 0.7),
         Tuning("two alike, two worse; loss and score disagree", 0.3, 0.7, 1.0),
         Tuning("two alike, two worse", 0.3, 0.7),
         Tuning("all alike", 0.0, 0.7),
         Tuning("all alike in loss, not in score", 0.1, 0.0, 1.0)]

Draw = Callable[[np.random.Generator, Condition, Sequence[int], int, float], list[list[RunScores]]]


def _effects(random: np.random.Generator, condition: Condition, seeds: Sequence[int],
             sentences: int, deviation: float) -> Iterator[list[tuple[float, np.ndarray]]]:
    """The effects of each arm's runs: those of the seed, and those on each sentence."""
    common, share = random.normal(size=max(seeds)), condition.correlation
    for arm, of_seeds in enumerate(condition.deviations):
        of_arm, rest = (deviation * part ** 0.5 for part in (
            condition.interaction, 1 - condition.interaction))
        shared = random.normal(0, of_arm, sentences)
        yield [(of_seeds * (share ** 0.5 * common[seed] + (1 - share) ** 0.5 * random.normal()),
                shared + random.normal(0, rest, sentences)) for seed in range(seeds[arm])]


def draw_additive(random: np.random.Generator, condition: Condition, seeds: Sequence[int],
                  sentences: int, difference: float = 0.0) -> list[list[RunScores]]:
    """Arms whose scores are means over sentences; the second is better by `difference`."""
    arms = _effects(random, condition, seeds, sentences, condition.sentence_deviation)
    values = [[30 + (arm == 1) * difference + effect + each for effect, each in runs]
              for arm, runs in enumerate(arms)]
    return [[RunScores(float(run.mean()), run) for run in runs] for runs in values]


def draw_bleu(random: np.random.Generator, condition: Condition, seeds: Sequence[int],
              sentences: int, difference: float = 0.0) -> list[list[RunScores]]:
    """Arms with real BLEU statistics; the second is better by about `difference`."""
    metric, pool, slope = _bleu_pool()
    drawn = random.integers(len(pool), size=sentences)
    arms = _effects(random, condition, seeds, sentences, LEVEL_DEVIATION)
    return [[significance.run_scores(metric, _damage(
        pool, drawn, CENTRE - ((arm == 1) * difference + effect) / slope + each))
        for effect, each in runs] for arm, runs in enumerate(arms)]


def draw_recorded(random: np.random.Generator, condition: Condition, seeds: Sequence[int],
                  sentences: int, difference: float = 0.0) -> list[list[RunScores]]:
    """Arms whose runs take each sentence from a good or a bad recorded run, in changing shares."""
    metric, good, bad, slope = _recorded_pool()
    drawn = random.integers(good.shape[1], size=sentences)
    arms = []
    for arm, deviation in enumerate(condition.deviations):
        common = random.random(sentences) < condition.interaction
        of_arm = random.random(sentences)
        runs = []
        for _ in range(seeds[arm]):
            effect = (arm == 1) * difference + deviation * random.normal()
            is_bad = np.where(common, of_arm, random.random(sentences)) < BAD_SHARE - effect / slope
            run = random.integers(len(good), size=sentences)
            counts = np.where(is_bad[:, None], bad[run, drawn], good[run, drawn])
            runs.append(significance.run_scores(metric, counts))
        arms.append(runs)
    return arms


@functools.cache
def _recorded_pool() -> tuple[Metric, np.ndarray, np.ndarray, float]:
    """BLEU, statistics [runs, sentences, counts] of good and bad runs, BLEU per share of good."""
    with tarfile.open(RECORDED) as archive:
        def lines(name: str) -> list[str]:
            found = archive.extractfile(name)
            assert found is not None
            return found.read().decode("utf-8").splitlines()

        names = archive.getnames()
        runs = (f"runs/{GOOD}-", f"runs/{BAD}-")
        texts = {name: lines(name) for name in names
                 if name.startswith(runs) and name.endswith("/hypotheses.test.txt")}
        reference = lines(next(name for name in names if name.endswith("/reference.test.txt")))
    metric = Metric("bleu")
    counts = sentence_statistics([metric], texts, [reference])["bleu"]
    good, bad = (np.stack([counts[name] for name in texts if name.startswith(f"runs/{arm}-")])
                 for arm in (GOOD, BAD))
    near = [metric.scores((share * bad + (1 - share) * good).sum(axis=(0, 1)))
            for share in (BAD_SHARE - 0.05, BAD_SHARE + 0.05)]
    return metric, good, bad, float(near[0] - near[1]) / 0.1


def draw_documents(random: np.random.Generator, seeds: int, documents: int | None
                   ) -> dict[str, list[list[RunScores]]]:
    """Two equal arms whose damage varies between documents (None: those of LibreOffice Help)."""
    metric, pool, _ = _bleu_pool()
    sizes = (np.unique(gzip.decompress(PAGES.read_bytes()).split(), return_counts=True)[1]
             if documents is None else
             np.ceil(random.lognormal(math.log(DOCUMENT_SENTENCES), DOCUMENT_SPREAD, documents)))
    document = np.repeat(np.arange(len(sizes)), sizes.astype(int))
    drawn = random.integers(len(pool), size=len(document))
    arms: dict[str, list[list[RunScores]]] = {"documents": [], "sentences": []}
    for _ in range(2):
        of_arm = CENTRE + random.normal(0, LEVEL_DEVIATION * DOCUMENT_SHARE ** 0.5, len(sizes))
        counts = [_damage(pool, drawn, of_arm[document] + random.normal(
            0, LEVEL_DEVIATION * (1 - DOCUMENT_SHARE) ** 0.5, len(document))) for _ in range(seeds)]
        for unit, grouping in (("documents", document), ("sentences", None)):
            arms[unit].append([significance.run_scores(metric, each, grouping)
                               for each in counts])
    return arms


def _damage(pool: np.ndarray, drawn: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The statistics of drawn sentences at these levels of damage, rounded: [sentences, counts]."""
    return pool[drawn, np.clip(np.rint(levels), 0, LEVELS - 1).astype(int)]


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


def reject(baseline: list[RunScores], arm: list[RunScores], *others: list[RunScores]) -> bool:
    """The test of `rpr report`; the other arms of the study show the common spread."""
    spread = significance.estimate_spread([baseline, arm, *others])
    p = significance.compare(baseline, arm, spread).p
    return p is not None and p <= LEVEL


def reject_over_sentences(baseline: list[RunScores], arm: list[RunScores],
                          *_: list[RunScores]) -> bool:
    """A test of these runs that takes their seeds as fixed."""
    means = [RunScores(float(np.mean([run.score for run in runs])),
                       np.mean([run.pseudovalues for run in runs], axis=0), runs[0].freedom)
             for runs in (baseline, arm)]
    return significance.compare_outputs(*means).p <= LEVEL


def reject_over_seeds(baseline: list[RunScores], arm: list[RunScores], *_: list[RunScores]) -> bool:
    """A t-test of the runs' scores with Welch's error; it takes the sentences as fixed."""
    scores = [[run.score for run in runs] for runs in (baseline, arm)]
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in scores))
    freedom = len(baseline) + len(arm) - 2
    return abs(statistics.fmean(scores[1]) - statistics.fmean(scores[0])) >= error * (
        -special.stdtrit(freedom, LEVEL / 2))


TESTS = {"ours": reject, "two arms alone": lambda baseline, arm, *_: reject(baseline, arm),
         "sentences only": reject_over_sentences, "t over seeds": reject_over_seeds}


def rejection_rates(draw: Draw, condition: Condition, seeds: int | Sequence[int], sentences: int,
                    trials: int, difference: float = 0.0, tests: Sequence[str] = tuple(TESTS)
                    ) -> dict[str, float]:
    """Share of the trials in which each test rejects; `seeds` of all arms, or of each arm."""
    seeds = [seeds] * len(condition.deviations) if isinstance(seeds, int) else seeds
    random = np.random.default_rng([*seeds, sentences, round(1000 * difference)])
    counts = dict.fromkeys(tests, 0)
    for _ in range(trials):
        arms = draw(random, condition, seeds, sentences, difference)
        for name in tests:
            counts[name] += TESTS[name](*arms)
    return {name: count / trials for name, count in counts.items()}


def tuned_rejection_rates(tuning: Tuning, seeds: int, trials: int, arms: int = 2,
                          sentences: int = 100) -> dict[str, float]:
    """Share of the trials in which equal arms are rejected, each with its best setting of four."""
    random = np.random.default_rng([seeds, arms])
    places = np.array([-1.5, -0.5, 0.5, 1.5])[:, None]
    deviation = SENTENCE_DEVIATION / 2 / 2 ** 0.5     # as few sentences have to stand for many
    counts = {"ours": 0, "choice taken as given": 0}
    for _ in range(trials):
        ours, given = [], []
        for _ in range(arms):
            errors, more = SEED_DEVIATION * random.normal(size=(2, 4, seeds))
            rise, share = tuning.curvature * places ** 2, tuning.correlation
            losses = rise - share * errors + (1 - share ** 2) ** 0.5 * more
            values = (30 + tuning.disagreement * places - rise + errors)[..., None] + random.normal(
                0, deviation, sentences) + random.normal(0, deviation, (4, seeds, sentences))
            order = losses.mean(axis=1).argsort()
            runs = [[RunScores(float(run.mean()), run) for run in values[place]] for place in order]
            ours.append(designs.with_choice(runs, losses[order].tolist()))
            given.append(runs[0])
        counts["ours"] += reject(*ours)
        counts["choice taken as given"] += reject(*given)
    return {name: count / trials for name, count in counts.items()}


def output_rejection_rates(sentences: int, trials: int) -> tuple[float, float]:
    """Rates of rejection of two exchangeable outputs: by `rpr score`, by sacreBLEU's bootstrap."""
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
        theirs += paired_bootstrap(metric, [first, second], 1000, 12345)[1]["p_value"] <= LEVEL
    return ours / trials, theirs / trials


def document_rejection_rates(seeds: int, documents: int | None, trials: int
                             ) -> dict[str, float]:
    """Share of the trials in which equal arms are rejected, by the unit that the jackknife omits.

    With one seed per arm, outputs are compared as in `rpr score`.
    """
    random = np.random.default_rng([seeds, documents or 0])
    counts = {"documents": 0, "sentences": 0}
    for _ in range(trials):
        for unit, (baseline, arm) in draw_documents(random, seeds, documents).items():
            counts[unit] += (reject if seeds > 1 else reject_over_sentences)(baseline, arm)
    return {unit: count / trials for unit, count in counts.items()}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=number(4), default=1500)
    parser.add_argument("--sentences", type=number(2), default=400)
    args = parser.parse_args()
    error = 1.96 * (LEVEL * (1 - LEVEL) / args.trials) ** 0.5
    print(f"{args.trials:,} trials of {args.sentences} sentences; a test of exactly 5% gives "
          f"{100 * (LEVEL - error):.1f} to {100 * (LEVEL + error):.1f}% in 95% of the cells.\n")
    _print_rates("Equal arms", [
        *((condition.name, draw_additive, condition, (2, 3, 5), 0.0)
          for condition in NULL + SPECIAL),
        ("BLEU design", draw_bleu, NULL[3], (3,), 0.0)], args)
    _print_rates("Equal arms of studies with several arms", [
        (f"{arms} arms, {name}", draw, NULL[3]._replace(deviations=(SEED_DEVIATION,) * arms),
         (2, 3, 5), 0.0) for name, draw in (("additive", draw_additive),
                                              ("recorded", draw_recorded))
        for arms in (2, 5, 12)], args)
    _print_rates("Equal arms with unequal numbers of seeds and deviations", [
        (f"{deviations[0]} and {deviations[1]}, {name}", draw,
         Condition("", deviations, 0.5), (seeds,), 0.0)
        for seeds, deviations in UNEQUAL
        for name, draw in (("additive", draw_additive), ("recorded", draw_recorded))], args)
    _print_rates("Equal arms, one or both with a deviation of 1.0 where the others have 0.3", [
        (condition.name, draw_additive, condition, (2, 3, 5), 0.0) for condition in NOISIER], args)
    _print_table("Equal arms, each with its best setting of four by a loss",
                 ["arms", "seeds", "ours", "choice taken as given"], (
                     ([tuning.name, arms, seeds],
                      tuned_rejection_rates(tuning, seeds, args.trials, arms))
                     for tuning in TUNED for arms, seeds in ((2, 2), (2, 3), (2, 5), (5, 3))))
    _print_rates("Power, recorded translations", [
        (f"{difference:g} BLEU, {arms} arms", draw_recorded,
         Condition("", (0.3,) * arms, 0.5), (2, 3, 5), difference)
        for arms in (2, 5) for difference in (1.0, 2.0)], args)
    ours, theirs = output_rejection_rates(args.sentences, args.trials // 4)
    print(f"Two exchangeable outputs ({args.trials // 4:,} trials): jackknife t-test "
          f"{100 * ours:.1f}%, sacreBLEU's paired bootstrap {100 * theirs:.1f}%.\n")
    _print_table("Equal arms whose quality varies between documents, BLEU design",
                 ["documents", "by document", "by sentence"], (
                     ([name, documents or "LibreOffice Help"],
                      document_rejection_rates(seeds, documents, args.trials))
                     for seeds, name in ((1, "two outputs"), (3, "3 seeds"))
                     for documents in (2, 3, 5, 10, 20, 40, 80, None)))


def _print_rates(title: str, rows: Sequence[tuple[str, Draw, Condition, Sequence[int | tuple[
        int, ...]], float]], args: argparse.Namespace) -> None:
    """Rejections by condition and number of seeds."""
    _print_table(title, ["seeds", *TESTS], (
        ([name, seeds if isinstance(seeds, int) else "/".join(map(str, seeds))],
         rejection_rates(draw, condition, seeds, args.sentences, args.trials, difference))
        for name, draw, condition, numbers, difference in rows for seeds in numbers))


def _print_table(title: str, headings: Sequence[str],
                 rows: Iterable[tuple[Sequence[object], Mapping[str, float]]]) -> None:
    """Rejections in %, row by row."""
    print(f"{title}: rejections in %\n\n| | " + " | ".join(headings) + " |\n| --- |"
          + " ---: |" * len(headings))
    for names, rates in rows:
        cells = [*map(str, names), *(f"{100 * rate:.1f}" for rate in rates.values())]
        print(f"| {' | '.join(cells)} |", flush=True)
    print()


if __name__ == "__main__":
    main()
