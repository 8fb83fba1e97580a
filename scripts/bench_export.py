#!/usr/bin/env python3
"""Compares a run with its export for CTranslate2: speed, hypotheses, BLEU.

  rpr export RUN --format=ctranslate2 --to=DIR
  scripts/bench_export.py RUN DIR source.txt reference.txt

Both translate the same batches of similar length in one process, in turn. CPU seconds are those of
all threads; on a busy machine they are more reliable than wall-clock seconds.

Beam search: a hypothesis is identical, or not, to the original's; `found` counts those that are
among the export's hypotheses. Greedy search: of sentences that differ, the log probabilities of the
two tokens at the first difference are compared, with equal tokens before. Below 1e-4 it is a tie.
"""
import argparse
import os
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr  # noqa: E402

rpr.register()

import numpy as np  # noqa: E402

from rpr.evaluation import scoring, test_sets  # noqa: E402
from rpr.experiments import run_directory  # noqa: E402
from rpr.export.translator import END, Translator  # noqa: E402
from rpr.inference.inspector import until_end  # noqa: E402
from rpr.inference.model_session import ModelSession  # noqa: E402
from rpr.t2t import trained_model  # noqa: E402

TIE = 1e-4                                            # nats
BATCH = 32                                            # sentences
Ids = Sequence[int]


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="a run directory")
    parser.add_argument("exported", help="the directory of its export")
    parser.add_argument("source", help="text, a sentence per line")
    parser.add_argument("reference", nargs="?", help="its translation")
    args = parser.parse_args()
    lines = test_sets.read_lines(args.source)
    exported = Translator(args.exported)
    sentences = [[*exported.source.encode(line), END] for line in lines]
    order = sorted(range(len(lines)), key=lambda number: -len(sentences[number]))
    batches = [order[first:first + BATCH] for first in range(0, len(order), BATCH)]
    trained = trained_model.find_trained_model(run_directory.find_model(args.run)[1])
    settings = exported.settings
    first = settings["beam_size"]
    for beams in dict.fromkeys((first, 1)):
        settings["beam_size"] = beams
        session = ModelSession(trained.name, trained.hparams, trained.checkpoint, beams,
                               settings["alpha"], settings["extra_length"])
        ours, theirs, ((wall, cpu), (their_wall, their_cpu)) = compare(
            session, exported, sentences, batches)
        best = [hypotheses[0].ids for hypotheses in theirs]
        print(f"beam {beams}: {len(lines) / wall:.1f} sentences/s, export "
              f"{len(lines) / their_wall:.1f} ({wall / their_wall:.1f} times); CPU seconds "
              f"{cpu:.1f} and {their_cpu:.1f} ({cpu / their_cpu:.1f} times)")
        pairs = list(zip(ours, theirs, strict=True))
        print(f"  identical {sum(a == found[0].ids for a, found in pairs)} of {len(pairs)}; found "
              f"{sum(a in [each.ids for each in found] for a, found in pairs)}")
        if beams == 1:
            gaps = differences(session, sentences, ours, best)
            print(f"  {sum(gap < TIE for gap in gaps)} ties of {len(gaps)} that differ by a token; "
                  f"largest difference {max(gaps, default=0):.1e}")
        if args.reference and beams == first:
            references = test_sets.read_lines(args.reference)
            for name, found in (("original", ours), ("export", best)):
                text = [exported.target.decode([i for i in ids if i != END]) for ids in found]
                score, = scoring.score({name: text}, {"reference": references}, ["bleu"])
                print(f"  {name}: BLEU {score.scores['bleu'].score:.2f}")


def compare(session: ModelSession, exported: Translator, sentences: Sequence[Ids],
            batches: Sequence[Sequence[int]]) -> tuple[list, list, list]:
    """Best ids of the original, hypotheses of the export, and (wall, CPU) seconds of the two."""
    ours, theirs = [[]] * len(sentences), [[]] * len(sentences)
    seconds = [[0.0, 0.0], [0.0, 0.0]]

    def timed(which: int, function: Callable, batch: list) -> list:
        wall, cpu = time.perf_counter(), time.process_time()
        result = function(batch)
        seconds[which][0] += time.perf_counter() - wall
        seconds[which][1] += time.process_time() - cpu
        return result

    session.search([sentences[batches[0][0]]])        # prepares the graph
    for numbers in batches:
        batch = [sentences[number] for number in numbers]
        ids, _ = timed(0, session.search, batch)
        hypotheses = timed(1, exported.search, batch)
        for place, row, found in zip(numbers, ids, hypotheses, strict=True):
            ours[place], theirs[place] = until_end(row).tolist(), found
    return ours, theirs, seconds


def differences(session: ModelSession, sentences: Sequence[Ids], ours: Sequence[Ids],
                theirs: Sequence[Ids]) -> list[float]:
    """Differences of log probability at the first tokens that differ."""
    gaps = []
    for source, a, b in zip(sentences, ours, theirs, strict=True):
        if a != b:
            length = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            if length is None:                        # one was cut at another length
                continue
            logits = session.logits([source], [[*a[:length], END]])[0, length].astype(np.float64)
            gaps.append(float(abs(logits[a[length]] - logits[b[length]])))
    return gaps


if __name__ == "__main__":
    main()
