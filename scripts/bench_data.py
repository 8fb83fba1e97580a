#!/usr/bin/env python3
"""Measures data generation and the input pipeline.

datagen: `rpr datagen` against stock T2T on parallel text that is repeated to --pairs (stock T2T
gets --stock_pairs; its time is linear). Both read the same files through translate_text_files and
use the same vocabulary, which is made before. Each runs in its own process. `core_seconds` is the
CPU time of all its processes, which depends less on other programs on the machine than `seconds`.
Peak memory is that of the main process and of the largest worker; disk is the largest size of the
data directory.

input: batches of a problem from T2T's input_fn, with nothing else running.

resume: CPU seconds from nothing to the first batch of a training that begins at some batch, which
include scanning the training files; what resuming costs apart from building the graph.

  scripts/bench_data.py datagen --folder=bench
  scripts/bench_data.py datagen --folder=bench --sources a.en.gz b.en.gz --targets a.de.gz b.de.gz
  scripts/bench_data.py input --problem=translate_ende_libreoffice --data_dir=data \\
    --hparams_set=rpr_small --metrics=runs/quickstart/relative/metrics.jsonl
  scripts/bench_data.py resume --problem=translate_ende_libreoffice --data_dir=data \\
    --hparams_set=rpr_small
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
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NAME = "translate_text_files"
HELD_OUT_PAIRS = 1000                                 # in the development set, and in the test set
FIRST_BATCHES = (0, 1000, 1_000_000)                  # with which trainings resume


def main() -> None:
    arguments = _arguments()
    prepare()
    from rpr.utils.errors import UserError
    try:
        arguments.measure(arguments)
    except (UserError, ValueError, OSError) as error:
        sys.exit(f"bench_data.py: {error}")


def prepare() -> None:
    """Registers the problems and silences TensorFlow's warnings."""
    import tensorflow.compat.v1 as tf
    tf.logging.set_verbosity(tf.logging.ERROR)
    import rpr
    rpr.register()


def measure_datagen(arguments: argparse.Namespace) -> None:
    """Prints the cost of data generation, ours and T2T's."""
    from tensor2tensor.utils import registry

    from rpr.problems import parallel_text
    os.makedirs(arguments.folder, exist_ok=True)
    vocabulary = os.path.join(arguments.folder, f"vocab.{NAME}.subwords")
    os.environ["RPR_TEXT_VOCAB_SIZE"] = str(arguments.vocabulary)
    text = list(itertools.chain.from_iterable(
        parallel_text.read_pairs(*pair)
        for pair in zip(arguments.sources, arguments.targets, strict=True)))
    for split in ("dev", "test"):
        _write_text(arguments.folder, text, split, HELD_OUT_PAIRS)
    rates = {}
    print(f"{len(os.sched_getaffinity(0))} cores, {len(text):,} pairs of text, repeated")
    for program, pairs in (("stock", arguments.stock_pairs), ("rpr", arguments.pairs)):
        words = _write_text(arguments.folder, text, "train", pairs)
        if not os.path.exists(vocabulary):
            start = time.perf_counter()
            registry.problem(NAME).get_or_create_vocab(arguments.folder, None)
            print(f"vocabulary: {time.perf_counter() - start:.1f} s")
        record = _in_new_process(_generate, program, arguments.folder, vocabulary)
        rates[program] = pairs / record["seconds"]
        print(json.dumps({"program": program, "pairs": pairs, "words": words, **record,
                          "pairs_per_second": round(rates[program]),
                          "words_per_second": round(words / record["seconds"])}), flush=True)
    print(f"rpr: {rates['rpr'] / rates['stock']:.2f} times stock")


def _write_text(folder: str, text: Sequence[tuple[str, str]], split: str, pairs: int) -> int:
    """Writes the text of a split and names it in the environment; returns its number of words."""
    words = 0
    for side, column in (("SOURCE", 0), ("TARGET", 1)):
        path = os.path.join(folder, f"{split}.{side.lower()}")
        with open(path, "w", encoding="utf-8") as out:
            for pair in itertools.islice(itertools.cycle(text), pairs):
                out.write(pair[column] + "\n")
                words += pair[column].count(" ") + 1
        name = "RPR_TEXT_" + ("" if split == "train" else f"{split.upper()}_") + side
        os.environ[name] = path
    return words


def _in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a new process, which may have children."""
    with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=prepare) as pool:
        return pool.submit(function, *arguments).result()


def _generate(program: str, folder: str, vocabulary: str) -> dict[str, Any]:
    """Generates the data with one program; returns its cost."""
    from tensor2tensor.data_generators import text_problems
    from tensor2tensor.utils import registry
    data_dir = os.path.join(folder, program)
    shutil.rmtree(data_dir, ignore_errors=True)
    os.mkdir(data_dir)
    shutil.copy(vocabulary, data_dir)
    problem, sizes, finished = registry.problem(NAME), [0], threading.Event()

    def watch_size() -> None:
        while not finished.wait(0.5):
            sizes.append(_size(data_dir))

    watcher = threading.Thread(target=watch_size)
    watcher.start()
    start, cpu_start = time.perf_counter(), time.process_time()
    if program == "stock":
        text_problems.Text2TextProblem.generate_data(problem, data_dir, folder)
    else:
        problem.generate_data(data_dir, folder)
    seconds = time.perf_counter() - start
    finished.set()
    watcher.join()
    usages = [resource.getrusage(which)
              for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open("/proc/self/status", encoding="utf-8") as status:     # ru_maxrss survives an exec
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages) - cpu_start
    return {"seconds": round(seconds, 1), "core_seconds": round(cpu_seconds, 1),
            "peak_MB": peak // 1024, "peak_worker_MB": usages[1].ru_maxrss // 1024,
            "peak_disk_MB": max(sizes) // 10**6, "data_MB": _size(data_dir) // 10**6}


def _size(folder: str) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(directory, name))
            except FileNotFoundError:                 # it was moved meanwhile
                pass
    return total


def measure_input(arguments: argparse.Namespace) -> None:
    """Prints the speed of T2T's input pipeline."""
    import tensorflow.compat.v1 as tf

    from rpr.utils import metrics_log
    problem, hparams = _problem(arguments)
    dataset = problem.input_fn(tf.estimator.ModeKeys.TRAIN, hparams, arguments.data_dir)
    features, targets = tf.data.make_one_shot_iterator(dataset).get_next()
    sizes = [tf.size(targets), tf.reduce_sum(tf.cast(tf.not_equal(targets, 0), tf.int32)),
             tf.reduce_sum(tf.cast(tf.not_equal(features["inputs"], 0), tf.int32))]
    rates, totals, cpu_seconds = [], [0, 0, 0], 0.0
    per_round = max(1, arguments.batches // 10)
    with tf.Session() as session:
        for _ in range(per_round):                    # the buckets fill
            session.run(sizes)
        for _ in range(10):
            start, cpu_seconds = time.perf_counter(), cpu_seconds - time.process_time()
            for _ in range(per_round):
                totals = [total + size for total, size in
                          zip(totals, session.run(sizes), strict=True)]
            rates.append(per_round / (time.perf_counter() - start))
            cpu_seconds += time.process_time()
    rate, batches = statistics.median(rates), 10 * per_round
    record = {"batches_per_second": round(rate, 1),
              "core_ms_a_batch": round(1000 * cpu_seconds / batches, 2),
              "source_tokens_per_second": round(rate * totals[2] / batches),
              "target_tokens_per_second": round(rate * totals[1] / batches),
              "target_padding": round(1 - totals[1] / totals[0], 3)}
    if arguments.metrics:
        steps = statistics.median(event["steps_per_second"]
                                  for event in metrics_log.read(arguments.metrics)
                                  if event["event"] == "train")
        record |= {"steps_per_second": steps, "batches_a_step": round(rate / steps, 1)}
    print(json.dumps(record))


def measure_resume(arguments: argparse.Namespace) -> None:
    """Prints the median CPU time to the first batch, for each batch to begin with."""
    import tensorflow.compat.v1 as tf

    from rpr.training.input_pipeline import Stream, reproducible_input
    config = types.SimpleNamespace(data_parallelism=None, train_distribute=None)
    seconds: dict[int, list[float]] = {first: [] for first in FIRST_BATCHES}
    for _ in range(5):
        for first, measured in seconds.items():
            problem, hparams = _problem(arguments)
            with tf.Graph().as_default(), tf.Session() as session:
                began = time.process_time()
                dataset = reproducible_input(problem, hparams, arguments.data_dir,
                                             lambda first=first: Stream(1, first, 1))(None, config)
                session.run(tf.data.make_one_shot_iterator(dataset).get_next()[1])
                measured.append(time.process_time() - began)
    print(json.dumps({"core_seconds_to_first_batch": {
        first: round(statistics.median(measured), 2) for first, measured in seconds.items()}}))


def _problem(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The problem that the arguments name, and its hparams."""
    from tensor2tensor.utils import trainer_lib

    from rpr.t2t import trained_model
    from rpr.t2t.registration import find_problem
    from rpr.utils.interfaces import ModelRequest
    problem = find_problem(arguments.problem)
    hparams = trained_model.build_hparams(ModelRequest(
        "rpr_transformer", hparams_set=arguments.hparams_set, hparams=arguments.hparams))
    hparams.add_hparam("data_dir", arguments.data_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    return problem, hparams


def _arguments() -> argparse.Namespace:
    from rpr.cli.arguments import number
    corpus = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "problems",
                          "libreoffice_help")
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("datagen", help="data generation")
    part.set_defaults(measure=measure_datagen)
    part.add_argument("--folder", required=True, help="for text and data, which are kept")
    for flag, language in (("--sources", "en"), ("--targets", "de")):
        part.add_argument(flag, nargs="+", help="line-aligned text (default: LibreOffice Help)",
                          default=[os.path.join(corpus, f"train.en-de.{language}.gz")])
    part.add_argument("--pairs", type=number(1), default=2_000_000)
    part.add_argument("--stock_pairs", type=number(1), default=200_000)
    part.add_argument("--vocabulary", type=number(1), default=2**15,
                      help="approximate sub-words")
    part = parts.add_parser("input", help="the input pipeline")
    part.set_defaults(measure=measure_input)
    _add_problem_flags(part)
    part.add_argument("--batches", type=number(1), default=1000)
    part.add_argument("--metrics", help="metrics.jsonl of a training with the same batches")
    part = parts.add_parser("resume", help="the start of a training that resumes")
    part.set_defaults(measure=measure_resume)
    _add_problem_flags(part)
    return parser.parse_args()


def _add_problem_flags(part: argparse.ArgumentParser) -> None:
    part.add_argument("--problem", required=True)
    part.add_argument("--data_dir", required=True)
    part.add_argument("--hparams_set", required=True)
    part.add_argument("--hparams", default="")


if __name__ == "__main__":
    main()
