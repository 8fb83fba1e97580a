#!/usr/bin/env bash
"exec" "${0%/*}/../.venv/bin/python" "$0" "$@"
__doc__ = """What data costs: `rpr datagen` beside stock T2T, and the input beside a training.

datagen: parallel text, repeated to --pairs (stock T2T gets --stock_pairs, for its time is linear).
Both read the same files through translate_text_files, with the same vocabulary, made before. Each
runs in a process of its own. `core_seconds` is what all of its processes computed, which other
programs on the machine do not stretch as they do `seconds`. Peak memory is that of the first process and of the largest worker;
disk is the largest that the data directory grew to.

input: batches of a problem, by T2T's input_fn, as a training reads them, with nothing else running.

  scripts/bench_data datagen --folder=bench
  scripts/bench_data datagen --folder=bench --sources a.en.gz b.en.gz --targets a.de.gz b.de.gz
  scripts/bench_data input --problem=translate_ende_libreoffice --data_dir=data \\
    --hparams_set=rpr_small --metrics=runs/quickstart/relative/metrics.jsonl
"""
import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import statistics
import threading
import time
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import rpr  # noqa: E402

rpr.register()

import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.data_generators import text_problems  # noqa: E402
from tensor2tensor.utils import registry, trainer_lib  # noqa: E402

from problems import libreoffice
from problems import parallel_text  # noqa: E402
from rpr.utils import metrics_log
from rpr.t2t import launcher
from rpr.t2t import trained_model  # noqa: E402

tf.logging.set_verbosity(tf.logging.ERROR)

NAME = "translate_text_files"
DEV = 1000                                            # pairs to develop on, and to test


def main():
    args = _arguments()
    args.call(args)


def datagen(args):
    """Times datagen, ours and T2T's."""
    os.makedirs(args.folder, exist_ok=True)
    vocabulary = os.path.join(args.folder, f"vocab.{NAME}.subwords")
    os.environ["RPR_TEXT_VOCAB_SIZE"] = str(args.vocabulary)
    text = list(itertools.chain.from_iterable(
        parallel_text.read_pairs(*pair) for pair in zip(args.sources, args.targets, strict=True)))
    for split in ("dev", "test"):
        _set_text(args, text, split, DEV)
    cores, rates = len(os.sched_getaffinity(0)), {}
    print(f"{cores} cores, {len(text):,} pairs of text, repeated")
    for program, pairs in (("stock", args.stock_pairs), ("rpr", args.pairs)):
        if not pairs:
            continue
        words = _set_text(args, text, "train", pairs)
        if not os.path.exists(vocabulary):
            begun = time.perf_counter()
            registry.problem(NAME).get_or_create_vocab(args.folder, None)
            print(f"vocabulary: {time.perf_counter() - begun:.1f} s")
        record = _measured(_datagen, program, args.folder, vocabulary)
        rates[program] = pairs / record["seconds"]
        record = {"program": program, "pairs": pairs, "words": words, **record,
                  "pairs_per_second": round(rates[program]),
                  "words_per_second": round(words / record["seconds"])}
        print(json.dumps(record), flush=True)
    if len(rates) == 2:
        print(f"rpr: {rates['rpr'] / rates['stock']:.2f} times stock")


def _set_text(args, text, split, pairs):
    """Writes the text of a split and names it in the environment; returns its words."""
    words = 0
    for side, place in (("SOURCE", 0), ("TARGET", 1)):
        path = os.path.join(args.folder, f"{split}.{side.lower()}")
        with open(path, "w", encoding="utf-8") as out:
            for pair in itertools.islice(itertools.cycle(text), pairs):
                out.write(pair[place] + "\n")
                words += pair[place].count(" ") + 1
        name = "RPR_TEXT_" + ("" if split == "train" else f"{split.upper()}_") + side
        os.environ[name] = path
    return words


def _measured(function, *args):
    """What a function returns in a fresh process, which may have children of its own."""
    with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def _datagen(program, folder, vocabulary):
    data_dir = os.path.join(folder, program)
    shutil.rmtree(data_dir, ignore_errors=True)
    os.mkdir(data_dir)
    shutil.copy(vocabulary, data_dir)
    problem, sizes, done = registry.problem(NAME), [0], threading.Event()

    def watch():
        while not done.wait(0.5):
            sizes.append(_size(data_dir))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun, started = time.perf_counter(), time.process_time()
    if program == "stock":
        text_problems.Text2TextProblem.generate_data(problem, data_dir, folder)
    else:
        problem.generate_data(data_dir, folder)
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open("/proc/self/status", encoding="utf-8") as status:     # ru_maxrss outlives an exec
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])
    return {"seconds": round(seconds, 1), "core_seconds":
            round(sum(part.ru_utime + part.ru_stime for part in used) - started, 1),
            "peak_MB": peak // 1024, "peak_worker_MB": used[1].ru_maxrss // 1024,
            "peak_disk_MB": max(sizes) // 10**6, "data_MB": _size(data_dir) // 10**6}


def _size(folder):
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(where, name))
            except FileNotFoundError:                 # moved meanwhile
                pass
    return total


def read_input(args):
    """Times T2T's input pipeline alone."""
    hparams = trained_model.build_hparams(types.SimpleNamespace(
        model="rpr_transformer", hparams_set=args.hparams_set, hparams=args.hparams,
        output_dir=None))
    problem = registry.problem(args.problem)
    hparams.add_hparam("data_dir", args.data_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    dataset = problem.input_fn(tf.estimator.ModeKeys.TRAIN, hparams, args.data_dir)
    features, targets = tf.data.make_one_shot_iterator(dataset).get_next()
    sizes = [tf.size(targets), tf.reduce_sum(tf.cast(tf.not_equal(targets, 0), tf.int32)),
             tf.reduce_sum(tf.cast(tf.not_equal(features["inputs"], 0), tf.int32))]
    rates, totals, used = [], [0, 0, 0], 0.0
    with tf.Session() as session:
        for _ in range(args.batches // 10):           # the buckets fill
            session.run(sizes)
        for _ in range(10):
            begun, used = time.perf_counter(), used - time.process_time()
            for _ in range(args.batches // 10):
                totals = [total + size for total, size in
                          zip(totals, session.run(sizes), strict=True)]
            rates.append(args.batches // 10 / (time.perf_counter() - begun))
            used += time.process_time()
    rate = statistics.median(rates)
    batches = args.batches // 10 * 10
    record = {"batches_per_second": round(rate, 1),
              "core_ms_a_batch": round(1000 * used / batches, 2),
              "source_tokens_per_second": round(rate * totals[2] / batches),
              "target_tokens_per_second": round(rate * totals[1] / batches),
              "target_padding": round(1 - totals[1] / totals[0], 3)}
    if args.metrics:
        steps = statistics.median(event["steps_per_second"] for event in metrics_log.read(args.metrics)
                                  if event["event"] == "train")
        record |= {"steps_per_second": steps, "batches_a_step": round(rate / steps, 1)}
    print(json.dumps(record))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("datagen")
    part.set_defaults(call=datagen)
    part.add_argument("--folder", required=True, help="for text and data; they stay")
    for side in ("en", "de"):
        part.add_argument("--sources" if side == "en" else "--targets", nargs="+",
                          default=[os.path.join(libreoffice.FOLDER, f"train.en-de.{side}.gz")])
    part.add_argument("--pairs", type=int, default=2_000_000, help="0: not at all")
    part.add_argument("--stock_pairs", type=int, default=200_000, help="0: not at all")
    part.add_argument("--vocabulary", type=int, default=2**15, help="sub-words, about")
    part = parts.add_parser("input")
    part.set_defaults(call=read_input)
    part.add_argument("--problem", required=True)
    part.add_argument("--data_dir", required=True)
    part.add_argument("--hparams_set", required=True)
    part.add_argument("--hparams", default="")
    part.add_argument("--batches", type=int, default=1000)
    part.add_argument("--metrics", help="metrics.jsonl of a training with the same batches")
    return parser.parse_args()


if __name__ == "__main__":
    main()
