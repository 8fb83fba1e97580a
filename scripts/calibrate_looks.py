#!/usr/bin/env python3
"""Errors, power and runs of studies that stop early: rpr.evaluation.looks on simulated scores.

Draws arms as scripts/calibrate_significance.py does, in its additive design, with 100 sentences
whose mean is as uncertain as that of 400. Prints Markdown tables: how often a study of equal arms
gives an answer, which is an error whichever arm it is about; and, for arms that differ, the power
and the number of runs, as a share of the runs of a study with a fixed number of seeds.
"""
import argparse
import math
from typing import NamedTuple

import calibrate_significance as calibration
import numpy as np
from scipy import special

from rpr.cli.arguments import number
from rpr.evaluation import looks
from rpr.evaluation.looks import Plan

FIXED = 8                                             # seeds of the study without looks
MOST = 10                                             # seeds of the longest plan
SENTENCES, SENTENCE_DEVIATION = 100, calibration.SENTENCE_DEVIATION / 2
HARDLY_ANY = 0.1                                      # deviation of the sentences


def obrien_fleming(level: float, fraction: float) -> float:
    """What may be spent with the strictest looks first: O'Brien and Fleming's type."""
    return 4 * float(special.ndtr(special.ndtri(level / 4) / math.sqrt(fraction)))


class Cell(NamedTuple):
    """What a table's row simulates.

    Attributes:
      deviations: of the seeds' effects in each arm, BLEU.
      sentences: deviation of a run's score on a sentence.
      difference: of the second arm, BLEU.
    """
    name: str
    plan: Plan
    deviations: tuple[float, ...] = (calibration.SEED_DEVIATION,) * 2
    sentences: float = SENTENCE_DEVIATION
    difference: float = 0.0


class Outcome(NamedTuple):
    """Shares of the trials: with an answer, rejected with `FIXED` seeds; runs as part of those."""
    answered: float
    fixed: float
    runs: float


LOOKS = {"Pocock, looks at 3 to 8 seeds": Plan((3, 4, 5, 6, 7, 8)),
         "Pocock, looks at 3 to 10 seeds": Plan((3, 4, 5, 6, 7, 8, 9, 10)),
         "O'Brien-Fleming, looks at 3 to 9 seeds": Plan(
             (3, 4, 5, 6, 7, 8, 9), spending=obrien_fleming)}
USUAL = LOOKS["Pocock, looks at 3 to 8 seeds"]
NULL = [Cell("2 arms", USUAL), Cell("2 arms, hardly any sentence effect", USUAL,
                                    sentences=HARDLY_ANY),
        Cell("2 arms, deviations 0.2 and 0.8", USUAL, (0.2, 0.8)),
        Cell("2 arms, looks at 2, 3, 5 and 10 seeds, hardly any sentence effect",
             Plan((2, 3, 5, 10)), sentences=HARDLY_ANY),
        Cell("2 arms that differ by the margin, 0.5 BLEU, deviation 0.3",
             Plan(USUAL.seeds, margin=0.5), (0.3,) * 2, HARDLY_ANY, 0.5),
        Cell("5 arms, an answer about any of them, hardly any sentence effect", USUAL,
             (calibration.SEED_DEVIATION,) * 5, HARDLY_ANY)]
POWER = [Cell(name, plan, sentences=HARDLY_ANY, difference=difference)
         for difference in (0.8, 1.0, 1.2, 1.5) for name, plan in LOOKS.items()]
SENTENCE_POWER = [Cell(name, plan, difference=2.0) for name, plan in LOOKS.items()]


def simulate(cell: Cell, trials: int) -> Outcome:
    """Answers, rejections and runs of simulated studies."""
    arms = len(cell.deviations)
    random = np.random.default_rng([arms, round(1000 * cell.difference)])    # for all plans
    condition = calibration.Condition("", cell.deviations, 0.5,
                                      sentence_deviation=cell.sentences)
    answered = fixed = runs = 0
    for _ in range(trials):
        drawn = calibration.draw_additive(random, condition, [MOST] * arms, SENTENCES,
                                          cell.difference)
        scores = {str(number): of_arm for number, of_arm in enumerate(drawn)}
        verdicts, needed = looks.decide(scores, "0", cell.plan)
        answered += any(verdict.answer is not None for verdict in verdicts.values())
        runs += sum(needed.values())
        fixed += calibration.reject(*(of_arm[:FIXED] for of_arm in drawn))
    return Outcome(answered / trials, fixed / trials, runs / (trials * arms * FIXED))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=number(8), default=4000, help="of equal arms; an eighth "
                        "as many of others (default: 4000)")
    args = parser.parse_args()
    print(f"{args.trials:,} trials; answers in %; each is an error\n\n| | answered |\n"
          "| --- | ---: |")
    for cell in NULL:
        print(f"| {cell.name} | {100 * simulate(cell, args.trials).answered:.1f} |", flush=True)
    for title, cells in (("hardly any sentence effect", POWER), ("sentences", SENTENCE_POWER)):
        print(f"\nTwo arms that differ, {title}: power in %, and runs in % of those of {FIXED} "
              f"seeds, {args.trials // 8:,} trials\n\n| difference | plan | power with {FIXED} "
              "seeds | power | runs |\n| ---: | --- | ---: | ---: | ---: |")
        for cell in cells:
            found = simulate(cell, args.trials // 8)
            print(f"| {cell.difference:g} | {cell.name} | {100 * found.fixed:.1f} | "
                  f"{100 * found.answered:.1f} | {100 * found.runs:.0f} |", flush=True)


if __name__ == "__main__":
    main()
