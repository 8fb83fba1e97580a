#!/usr/bin/env python3
"""Measures beam search, of this project and of stock tensor2tensor (T2T), with the same weights.

The models decode the same batches of 32 sentences in one process, in turn: beam 4, alpha 0.6.

  absolute, relative   rpr_transformer with sinusoids or relative positions, k = 16
  t2t                  T2T's `transformer` with the weights of absolute

Weights and sentences are random; the lengths are those of the embedded test set. Every search then
goes on to its limit. With --run=RUN, a run of absolute positions such as the quickstart's, weights
and test text are the run's: searches end when their result is certain.

  scripts/bench_decoding.py
  scripts/bench_decoding.py --run=runs/quickstart/absolute --sentences=800 --more=50
"""
import argparse
import gzip
import math
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_step  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.utils import trainer_lib  # noqa: E402

from rpr.cli.arguments import number, output_file  # noqa: E402
from rpr.evaluation import test_sets  # noqa: E402
from rpr.experiments import run_directory  # noqa: E402
from rpr.inference.batches import until_end  # noqa: E402
from rpr.inference.model_session import pad  # noqa: E402
from rpr.t2t import trained_model  # noqa: E402
from rpr.utils import files  # noqa: E402

VARIANTS = ("absolute", "relative", "t2t")


def main(argv: Sequence[str] | None = None) -> list[dict]:
    """Prints the sentences per second; returns the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(bench_step.SETS), default="small")
    parser.add_argument("--variants", type=lambda x: x.split(","), default="absolute,t2t")
    parser.add_argument("--run", help="directory of a run with sinusoids, of this size")
    parser.add_argument("--sentences", type=number(1), default=64)
    parser.add_argument("--more", type=int, default=10, help="words beyond the source's")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--json", type=output_file, help="file for the records")
    args = parser.parse_args(argv)
    allowed = ("absolute", "t2t") if args.run else VARIANTS
    for variant in args.variants:
        if variant not in allowed:
            parser.error(f"--variants={variant}: allowed are {', '.join(allowed)}")
    records = _measure(args, *(_trained if args.run else _random)(args))
    if args.json:
        files.write_json(args.json, records)
    return records


def _random(args: argparse.Namespace) -> tuple[list, int, None]:
    """Random sentences about as long as those of the embedded test set, and their vocabulary."""
    random, symbols = np.random.RandomState(1), bench_step.SETS[args.size][1]
    with gzip.open(bench_step.CORPUS / "test.en-de.en.gz", "rt", encoding="utf-8") as lines:
        return [random.randint(2, symbols, math.ceil(1.3 * len(line.split())) + 1)
                for line in lines], symbols, None


def _trained(args: argparse.Namespace) -> tuple[list, int, str]:
    """The test sentences of a run, the size of its vocabulary, and its checkpoint."""
    trained = trained_model.find_trained_model(run_directory.find_model(args.run)[1])
    encoder = trained.hparams.problem_hparams.vocabulary["inputs"]
    lines = test_sets.read_lines(run_directory.RunDirectory(args.run).file("source.test.txt"))
    return [[*encoder.encode(line), 1] for line in lines], encoder.vocab_size, trained.checkpoint


def _measure(args: argparse.Namespace, sentences: list, symbols: int, checkpoint: str | None
             ) -> list[dict]:
    sentences = sorted(sentences[:args.sentences], key=len, reverse=True)     # as T2T's decoder
    batches = [pad(sentences[start:start + 32])[:, :, None, None]
               for start in range(0, len(sentences), 32)]
    calls, weights = {}, {}
    for variant in sorted(args.variants, key=VARIANTS.index):
        with tf.Graph().as_default(), tf.device(f"/{args.device}:0"):
            tf.set_random_seed(1)
            ids = tf.placeholder(tf.int32, [None, None, 1, 1])
            model = bench_step.build_model(variant, bench_step.SETS[args.size][0], symbols,
                                           tf.estimator.ModeKeys.PREDICT)
            decoded = model.infer({"inputs": ids, "target_space_id": tf.constant(1)},
                                  args.more, 4, 1, 0.6)["outputs"]
            session = tf.Session(config=trainer_lib.create_session_config())
            session.run(tf.global_variables_initializer())
            variables = {v.op.name: v for v in tf.trainable_variables()}
            if checkpoint:
                tf.train.Saver(variables).restore(session, checkpoint)
            elif variant == "absolute":
                weights = session.run(variables)
            elif variant == "t2t":
                for name, value in weights.items():
                    variables[name].load(value, session)
            calls[variant] = session.make_callable(decoded, [ids])
    times, outputs = {variant: [] for variant in calls}, {}
    for turn in range(6):
        for variant, call in calls.items():
            start = time.perf_counter()
            outputs[variant] = [call(ids) for ids in batches]
            if turn:                                          # the first allocates
                times[variant].append(time.perf_counter() - start)
    medians = {variant: statistics.median(values) for variant, values in times.items()}
    records = []
    for variant, median in medians.items():
        ratio = medians["t2t"] / median if "t2t" in medians else None
        records.append({"size": args.size, "variant": variant, "run": args.run,
                        "sentences_per_second": len(sentences) / median, "ratio_to_t2t": ratio})
        print(f"{args.size:6} {variant:9} {len(sentences) / median:8.1f} sentences/s"
              + (f"  {ratio:.2f} times t2t's" if ratio else ""))
    if {"absolute", "t2t"} <= set(outputs):
        # T2T limits the hypotheses of a batch by its longest sentence, we by each sentence.
        alike = [list(until_end(row)) == list(until_end(t2t_row)) for ids, ours, theirs in zip(
            batches, outputs["absolute"], outputs["t2t"], strict=True)
            for source, row, t2t_row in zip(ids, ours, theirs, strict=True)
            if checkpoint or source.all()]
        print(f"{sum(alike)} of {len(alike)} hypotheses are the same in absolute and t2t")
    return records


if __name__ == "__main__":
    main()
