"""`rpr decode`: translates a file or a test set with a run, with T2T's flags, or an ensemble."""
import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags as absl_flags
from tensor2tensor.bin import t2t_decoder
from tensor2tensor.utils import decoding, trainer_lib

from rpr.cli import arguments
from rpr.evaluation import test_sets
from rpr.experiments.config import Run
from rpr.inference import ensemble, file_checks, file_decoder
from rpr.inference.file_decoder import ProgressEstimator
from rpr.t2t import launcher, trained_model
from rpr.utils import metrics_log, processes
from rpr.utils.console import QuietLogs
from rpr.utils.errors import UserError

PROGRAM = """rpr decode RUN --input=FILE|--test_set=NAME [--output=FILE]
  decodes with the checkpoint and the beam search of a run directory; without --output it prints
rpr decode --output_dir=DIR --model=... --problem=... --hparams_set=... --data_dir=... (t2t-decoder)
  decodes with the model that T2T's flags name"""


def main(argv: list[str], logs: QuietLogs | None) -> None:
    """`rpr decode`, with the flags of t2t-decoder and those defined here."""
    _define_flags()
    flags, words = launcher.parse(argv, PROGRAM)
    run = arguments.fill_flags(flags, words)
    if flags.ensemble:
        _refuse_model_flags(flags)
        models = ensemble.find_members(flags.ensemble, flags.data_dir)
    else:
        models = [trained_model.find_trained_model(flags)]
    decode_hparams = _decode_hparams(flags, run)
    _check_devices(flags.worker_gpu)
    _take_shard(flags, decode_hparams)
    to_terminal = _prepare_files(flags, run)
    if flags.score_file and "inputs" in models[0].hparams.problem_hparams.vocabulary:
        file_checks.check_pairs(flags.score_file, "score_file")
    model_dir = models[0].hparams.model_dir
    if logs and not flags.ensemble and os.access(model_dir, os.W_OK):
        logs.keep(os.path.join(model_dir, "decode.log"))
    tf.logging.set_verbosity(tf.logging.INFO)
    trainer_lib.set_random_seed(flags.random_seed)
    if flags.score_file and not flags.ensemble:
        t2t_decoder.main(None)
        return
    event = _decode(_worker_argv(words, flags, models), flags, models, decode_hparams)
    metrics_file = flags.metrics_file
    if not metrics_file and not flags.ensemble and not run:
        metrics_file = os.path.join(model_dir, launcher.METRICS_FILE)
    if event and metrics_file:
        metrics_log.append(metrics_file, "decode", **event)
    if to_terminal:
        with open(flags.decode_to_file, "rb") as text:
            shutil.copyfileobj(text, sys.stdout.buffer)
        sys.stdout.flush()


def _define_flags():
    absl_flags.DEFINE_alias("input", "decode_from_file")
    absl_flags.DEFINE_alias("output", "decode_to_file")
    absl_flags.DEFINE_string("test_set", None, "Decode the source of a test set that `sacrebleu "
                             "--list` knows, such as wmt14/full, or a registered one.")
    absl_flags.DEFINE_string("language_pair", None, "Language pair of --test_set, such as en-de.")
    absl_flags.DEFINE_string("metrics_file", None, "JSON lines file to which sentences/s and "
                             "tokens/s are appended (default with T2T's flags: metrics.jsonl in "
                             "--output_dir).")
    absl_flags.DEFINE_list("ensemble", None, "Run directories (their averaged checkpoint is used) "
                           "or model directories, separated by commas: decode with the mean of "
                           "the models' probabilities. The models must share a vocabulary.")


def _refuse_model_flags(flags):
    """With --ensemble the directories decide what other flags say of a single model."""
    for name in ("output_dir", "checkpoint_path", "model", "hparams_set", "hparams", "problem"):
        if flags[name].value:
            raise UserError(f"--{name}={flags[name].value}: not with --ensemble, whose directories "
                            "decide it")
    launcher.need(flags, "data_dir")


def _decode_hparams(flags: Any, run: Run | None) -> Any:
    """T2T's decode hparams: the run's search, changed by --decode_hparams."""
    given = flags.decode_hparams
    if run:
        values = {"beam_size": run.beam_size, "alpha": run.alpha,
                  "batch_size": run.decode_batch_size}
        flags.decode_hparams = ",".join(
            [f"{name}={value}" for name, value in values.items()
             if not re.search(rf"(^|,)\s*{name}\s*=", given)] + ([given] if given else []))
    try:
        decode_hparams = t2t_decoder.create_decode_hparams()
    except (ValueError, KeyError) as error:
        raise UserError(f"--decode_hparams={given}: {error}") from None
    file_checks.check_search(decode_hparams, given)
    return decode_hparams


def _check_devices(count):
    gpus = len(tf.config.list_physical_devices("GPU"))
    cores = len(os.sched_getaffinity(0))
    if gpus and count > gpus:
        raise UserError(f"--worker_gpu={count}: {gpus} GPUs are visible")
    if not gpus and count > cores:                    # the processes share the CPU
        raise UserError(f"--worker_gpu={count}: no GPU is visible; without one it is at most "
                        f"{cores}, the number of cores")


def _take_shard(flags, decode_hparams):
    """Names the files of the shard that --decode_shards asks for: T2T's in000, in001, ..."""
    if decode_hparams.shards == 1:
        return
    if flags.test_set:
        raise UserError(f"--decode_shards={flags.decode_shards}: a file can be decoded in shards, "
                        "not a --test_set")
    if flags.decode_from_file:
        for name in ("decode_from_file", "decode_to_file"):
            if flags[name].value:
                flags[name].value = decoding._add_shard_to_filename(
                    flags[name].value, decode_hparams)
        decode_hparams.shards = 1


def _prepare_files(flags: Any, run: Run | None) -> bool:
    """Checks --input and --output, and sets them where --test_set or a run stands for them.

    Returns:
      whether the output is a temporary file, to be printed.
    """
    if flags.test_set:
        if flags.decode_from_file:
            raise UserError(f"--input={flags.decode_from_file} and --test_set={flags.test_set}: "
                            "only one of them can be decoded")
        flags.language_pair = flags.language_pair or (run.language_pair if run else None)
        launcher.need(flags, "language_pair")
        flags.decode_from_file = _test_set_file(flags.test_set, flags.language_pair)
    elif flags.decode_from_file:
        file_checks.check_input(flags.decode_from_file, _given(flags, "input", "decode_from_file"))
    elif run and not flags.decode_interactive and not flags.score_file:
        raise UserError("--input or --test_set is missing: the text to decode")
    if flags.score_file:
        file_checks.check_input(flags.score_file, "score_file")
        launcher.need(flags, "decode_to_file")
    if flags.metrics_file:
        file_checks.check_output(flags.metrics_file, "metrics_file")
    if flags.decode_to_file:
        name = _given(flags, "output", "decode_to_file")
        file_checks.check_output(flags.decode_to_file, name)
        file_checks.check_other(flags.decode_to_file, name, flags.decode_from_file or "")
    elif flags.decode_from_file and (run or flags.test_set):
        flags.decode_to_file = os.path.join(processes.temporary_directory("decode"), "output")
        return True
    return False


def _given(flags, alias, name):
    """The name by which a flag was given, for messages."""
    return alias if flags[alias].present else name


def _test_set_file(name, pair):
    """The source of a test set as a file for T2T's decoder."""
    source = test_sets.test_set_source(name, pair)
    path = os.path.join(processes.temporary_directory("test-set"), "source")
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in source)
    return path


def _worker_argv(words, flags, models):
    """The command line for a process on another device: this one, with everything decided."""
    names = ["decode_to_file"] if flags.test_set else ["decode_from_file", "decode_to_file"]
    if words:
        names += ["model", "problem", "hparams_set", "hparams", "data_dir", "output_dir",
                  "decode_hparams", "language_pair"]
    decided = [f"--{name}={flags[name].value}" for name in names if flags[name].value]
    decided.append("--decode_shards=1")               # the files are those of the shard
    if not flags.ensemble:
        decided.append(f"--checkpoint_path={models[0].checkpoint}")
    given = [flags[name].serialize() for name in flags
             if flags[name].present and name not in ("input", "output")]
    return [*given, *decided]


def _decode(argv: Sequence[str], flags: Any, models: Sequence[trained_model.TrainedModel],
            decode_hparams: Any) -> dict[str, float] | None:
    """Decodes in batches that can be resumed where input and output are text files, else by T2T.

    Returns:
      the `decode` event of metrics.jsonl, if there is one.
    """
    hparams = models[0].hparams
    in_batches = (flags.decode_from_file and flags.decode_to_file
                  and "inputs" in hparams.problem_hparams.vocabulary)
    if not in_batches and flags.worker_gpu > 1:
        raise UserError(f"--worker_gpu={flags.worker_gpu}: several devices decode --input to "
                        "--output, or a --test_set")
    if not in_batches and flags.ensemble:
        raise UserError("--ensemble: it decodes --input, or a --test_set, to --output")
    if flags.ensemble:
        estimator = ensemble.build_estimator(models, decode_hparams)
    else:
        estimator = file_decoder.build_estimator(flags, models[0], decode_hparams)
    if in_batches:
        return file_decoder.decode_file(argv, flags, models, estimator, decode_hparams)
    if flags.decode_interactive:
        logging.getLogger("tensorflow").addHandler(_HypothesisPrinter())
        try:
            t2t_decoder.decode(estimator, hparams, decode_hparams)
        except tf.errors.UnknownError as error:
            if "EOFError" not in str(error):          # the end of the input, Ctrl-D
                raise
        return None
    counted = ProgressEstimator(estimator, None)
    t2t_decoder.decode(counted, hparams, decode_hparams)
    return counted.event()


class _HypothesisPrinter(logging.Handler):
    """Prints the hypotheses of T2T's interactive decoding, which it writes to its log."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName == "decode_interactively":
            print(record.getMessage(), flush=True)
