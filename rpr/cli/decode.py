"""`rpr decode`: translates a file or a test set with a run, with T2T's flags, or an ensemble."""
import dataclasses
import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags as absl_flags
from absl.flags import FlagValues
from tensor2tensor.bin import t2t_decoder
from tensor2tensor.utils import decoding, registry, trainer_lib

from rpr.cli import arguments, launcher
from rpr.evaluation import scoring, test_sets
from rpr.experiments.config import Run
from rpr.export import check_installed, to_ctranslate2
from rpr.inference import ensemble, file_checks, file_decoder
from rpr.inference.file_decoder import DecodeRequest, ProgressEstimator
from rpr.problems import checks
from rpr.t2t import compat, preflight, registration, trained_model
from rpr.t2t.trained_model import TrainedModel
from rpr.utils import files, metrics_log, processes
from rpr.utils.console import keep_log
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import DecodeHParams, HParams, ModelRequest

PROGRAM = """rpr decode RUN --input=FILE|--test_set=NAME [--output=FILE]
  decodes with the checkpoint and the beam search of a run directory; without --output it prints
rpr decode --output_dir=DIR --model=... --problem=... --hparams_set=... --data_dir=... (t2t-decoder)
  decodes with the model that T2T's flags name"""
# {way to decode: flags that it does not read}
_UNREAD = {
    "decode_from_file": ("decode_in_memory", "eval_use_test_set"),
    "test_set": ("decode_in_memory", "eval_use_test_set"),
    "decode_interactive": ("decode_in_memory", "decode_shards", "decode_to_file",
                           "eval_use_test_set", "metrics_file"),
    "score_file": ("decode_hparams", "decode_in_memory", "decode_shards", "eval_use_test_set",
                   "metrics_file"),
    "ensemble": ("decode_reference", "keep_timestamp")}
# T2T's decode hparams: those that the decoding of a file or a test set reads, here or in T2T,
_READ = {*DecodeHParams.__annotations__, "shard_google_format", "shards_start_offset",
         "summaries_log_dir"}
# those that the searches of T2T's models read as well,
_READ_BY_MODELS_OF_T2T = {"block_size", "force_decode_length", "guess_and_check_epsilon",
                          "guess_and_check_top_k"}
# those that nothing reads,
_READ_NOWHERE = {"eos_penalty", "insertion_parallel", "min_length_ratio", "mlperf_success",
                 "multiproblem_task_id", "vgg_ckpt_path"}
# and those that flags replace.
_FLAGS = {"decode_reference": "decode_reference", "decode_to_file": "decode_to_file",
          "shard_id": "worker_id", "shards": "decode_shards"}


def main(argv: list[str]) -> None:
    """`rpr decode`, with the flags of t2t-decoder and those defined here."""
    _define_flags()
    flags, words = launcher.parse(argv, PROGRAM, f"{launcher.TRAINING}|eval_(?!use_test_set)")
    if file_decoder.PART in os.environ:
        request = file_decoder.receive_request()
        registration.register(request.t2t_flags["t2t_usr_dir"])
        models = list(map(trained_model.find_trained_model, request.models))
    else:
        request, models = _request(flags, words)
    hparams = models[0].hparams
    scored = flags.score_file and file_checks.read_scored(
        flags.score_file, "inputs" in hparams.problem_hparams.vocabulary)
    launcher.set_t2t_flags(request.t2t_flags)
    model_dir = hparams.model_dir
    if not request.is_ensemble and os.access(model_dir, os.W_OK):
        keep_log(os.path.join(model_dir, "decode.log"))
    tf.logging.set_verbosity(tf.logging.INFO)
    trainer_lib.set_random_seed(flags.random_seed)
    if scored:
        scores = file_decoder.score_lines(models[0], scored)
        files.write_atomically(request.output, "".join(f"{score:.6f}\n" for score in scores))
        return
    event = _decode(request, models)                  # none of a part for another process
    if event and request.metrics_file:
        metrics_log.append(request.metrics_file, "decode", **event)
    if event and request.to_terminal:
        with open(request.output, "rb") as text:
            shutil.copyfileobj(text, sys.stdout.buffer)
        sys.stdout.flush()


def _define_flags() -> None:
    absl_flags.DEFINE_alias("input", "decode_from_file")
    absl_flags.DEFINE_alias("output", "decode_to_file")
    absl_flags.DEFINE_string("test_set", None, "Decode the source of a test set that `sacrebleu "
                             "--list` knows, such as wmt14/full, or a registered one.")
    absl_flags.DEFINE_string("language_pair", None, "Language pair of --test_set, such as en-de.")
    absl_flags.DEFINE_string("metrics_file", None, "JSON lines file to which sentences/s and "
                             "tokens/s are appended (default with T2T's flags: metrics.jsonl in "
                             "--output_dir, if it can be written).")
    absl_flags.DEFINE_enum("engine", "tensorflow", ["tensorflow", "ctranslate2"], "What searches: "
                           "tensorflow gives T2T's hypotheses; ctranslate2 is more than twice as "
                           "fast, for the models that rpr export --format=ctranslate2 takes, and "
                           "runs no decode hooks of the problem.")
    absl_flags.DEFINE_list("ensemble", None, "Run directories (their averaged checkpoint is used) "
                           "or model directories, separated by commas: decode with the mean of "
                           "the models' probabilities. The models must share a vocabulary.")


def _request(flags: FlagValues, words: Sequence[str]) -> tuple[DecodeRequest, list[TrainedModel]]:
    """What the command line asks for, checked, and its models."""
    if words and flags.ensemble:
        raise UserError(f"{words[0]!r}: not with --ensemble, which names all run directories")
    run, model = arguments.find_model(flags, words)
    models = _find_members(flags.ensemble, model) if flags.ensemble else [
        trained_model.find_trained_model(model)]
    has_source = "inputs" in models[0].hparams.problem_hparams.vocabulary
    if not has_source and not flags.decode_interactive and not flags.score_file:
        raise UserError(f"{models[0].hparams.problem.name}: the problem has no source text to "
                        "decode; --decode_interactive continues what is typed")
    given = preflight.parse_hparams(decoding.decode_hparams(), flags.decode_hparams,
                                    "decode_hparams")
    search = _search(flags.decode_hparams, run)
    decode_hparams = decoding.decode_hparams(search)
    file_checks.check_search(decode_hparams)
    for trained in models:
        preflight.say_if_nothing_is_sampled(trained.hparams, decode_hparams.beam_size,
                                            bool(flags.ensemble))
    if flags.engine == "ctranslate2":
        _check_ctranslate2(flags, models)
    has_gpu = _check_devices(flags.worker_gpu)
    decode_hparams.shards, decode_hparams.shard_id = flags.decode_shards, flags.worker_id
    source, output = _files(flags, run, decode_hparams)
    to_terminal = bool(source and not output and (run or flags.test_set))
    if to_terminal:
        output = os.path.join(processes.temporary_directory("decode"), "output")
    if not (source and output):
        for name, is_used in (("worker_gpu", flags.worker_gpu > 1), ("ensemble", flags.ensemble),
                              ("engine", flags.engine != "tensorflow")):
            if is_used:
                raise InvalidValue(name, flags[name].serialize().partition("=")[2],
                                   "only to decode --input, or a --test_set, to --output")
    if not (source or flags.decode_interactive or flags.score_file):
        problem = models[0].hparams.problem
        if getattr(problem, "packed_length", None):
            raise UserError(f"{problem.name}: its examples are packed, several in a row; decode "
                            "--input or a --test_set")
        checks.check_data(problem, models[0].hparams.data_dir,
                          ("test" if flags.eval_use_test_set else "dev",))
    if flags.engine == "tensorflow":                  # CTranslate2 refuses
        preflight.say_what_has_no_effect(
            given, _without_effect(given, models[0].name, bool(source and output), (
                not flags.ensemble and _is_by_t2t(models[0].hparams, decode_hparams.beam_size))))
    metrics_file = flags.metrics_file
    model_dir = models[0].hparams.model_dir
    if flags.decode_reference and not os.access(model_dir, os.W_OK):
        raise InvalidValue("decode_reference", flags.decode_reference, f"its BLEU is written to "
                           f"{model_dir}, which cannot be written; use rpr score")
    if not metrics_file and not flags.ensemble and not run and os.access(model_dir, os.W_OK):
        metrics_file = os.path.join(model_dir, launcher.METRICS_FILE)
    t2t_flags = {
        **launcher.t2t_flags(), **({} if flags.ensemble else dataclasses.asdict(models[0].request)),
        "decode_hparams": search,
        "decode_from_file": source or None, "decode_to_file": output or None,
        "decode_shards": 1 if source else flags.decode_shards,
        "worker_gpu": min(flags.worker_gpu, int(has_gpu))}
    return DecodeRequest(
        models=tuple(model.request for model in models), is_ensemble=bool(flags.ensemble),
        engine=flags.engine, search=search, source=source, output=output, to_terminal=to_terminal,
        devices=flags.worker_gpu, metrics_file=metrics_file,
        keeps_timestamp=flags.keep_timestamp, t2t_flags=t2t_flags), models


def _find_members(directories: Sequence[str], model: ModelRequest) -> list[TrainedModel]:
    """The models of an ensemble; its directories decide what other flags say of a single model."""
    for name in ("output_dir", "checkpoint_path", "model", "hparams_set", "hparams", "problem"):
        if getattr(model, name):
            raise InvalidValue(name, getattr(model, name),
                               "not with --ensemble, whose directories decide it")
    if not model.data_dir:
        raise InvalidValue("data_dir", None)
    return ensemble.find_members(directories, model.data_dir)


def _check_ctranslate2(flags: FlagValues, models: Sequence[TrainedModel]) -> None:
    """Refuses what CTranslate2 cannot decode."""
    check_installed("engine", flags.engine)
    for name in ("ensemble", "decode_reference"):
        if getattr(flags, name):
            raise InvalidValue("engine", flags.engine, f"not with --{name}")
    to_ctranslate2.check(models[0])


def _search(given: str, run: Run | None) -> str:
    """T2T's decode hparams as text: the run's search, changed by --decode_hparams."""
    values = {"beam_size": run.beam_size, "alpha": run.alpha,
              "batch_size": run.decode_batch_size} if run else {}
    parts = [f"{name}={value}" for name, value in values.items()
             if not re.search(rf"(^|,)\s*{name}\s*=", given)]
    return ",".join([*parts, given] if given else parts)


def _is_by_t2t(hparams: HParams, beam_size: int) -> bool:
    """Whether rpr_transformer decodes greedily with T2T's loop, as far as data and hparams decide.
    """
    return beam_size == 1 and ("inputs" not in hparams.problem_hparams.vocabulary
                               or hparams.get("sampling_method", "argmax") != "argmax"
                               or hparams.get("prepend_mode", "none") != "none")


def _without_effect(given: dict[str, Any], model: str, is_file: bool, is_by_t2t: bool
                    ) -> dict[str, str]:
    """The decode hparams that a decoding does not read, as `preflight.say_what_has_no_effect` takes
    them; with a file or a test set, those `given`."""
    dead = {name: f"here; use --{flag}" for name, flag in _FLAGS.items()}
    dead |= dict.fromkeys(_READ_NOWHERE, "in any decoding")
    if hasattr(registry.model(model), "check_hparams"):
        read = {"force_decode_length"} if is_by_t2t else set()
        dead |= dict.fromkeys(_READ_BY_MODELS_OF_T2T - read, f"with {model}")
    if is_file:
        others = given.keys() - _READ - _READ_BY_MODELS_OF_T2T - dead.keys()
        dead |= dict.fromkeys(sorted(others), "on a file or a test set")
        if not given.get("return_beams"):
            dead["write_beam_scores"] = "with return_beams=False"
    return dead


def _check_devices(count: int) -> bool:
    """Refuses more devices than there are; returns whether they are GPUs."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    cores = len(os.sched_getaffinity(0))
    if gpus and count > gpus:
        raise UserError(f"--worker_gpu={count}: {gpus} GPUs are visible")
    if not gpus and count > cores:                    # the processes share the CPU
        raise UserError(f"--worker_gpu={count}: no GPU is visible; without one it is at most "
                        f"{cores}, the number of cores")
    return bool(gpus)


def _files(flags: FlagValues, run: Run | None, decode_hparams: DecodeHParams) -> tuple[str, str]:
    """The file to decode, of --input or --test_set, and --output, checked; empty: there is none.

    With --decode_shards they are the files of the shard: T2T's in000, in001, ...
    """
    source, output = flags.decode_from_file or "", flags.decode_to_file or ""
    _check_combinations(flags)
    for name in ("test_set", "decode_reference"):
        if flags[name].value and decode_hparams.delimiter != "\n":
            raise InvalidValue("decode_hparams", f"delimiter={decode_hparams.delimiter}",
                               f"not with --{name}, whose sentences are lines")
    if source:
        source, output = (path and decoding._add_shard_to_filename(path, decode_hparams)
                          for path in (source, output))
    if flags.test_set:
        if decode_hparams.shards > 1:
            raise InvalidValue("decode_shards", flags.decode_shards, "a file can be decoded in "
                               "shards, not a --test_set")
        language_pair = flags.language_pair or (run.language_pair if run else None)
        if not language_pair:
            raise InvalidValue("language_pair", None)
        lines = test_sets.test_set_source(flags.test_set, language_pair)
        source = os.path.join(processes.temporary_directory("test-set"), "source")
        with open(source, "w", encoding="utf-8") as out:
            out.writelines(line + "\n" for line in lines)
    elif source:
        file_checks.check_input(source)
    elif run and not flags.decode_interactive and not flags.score_file:
        raise UserError("--input or --test_set is missing: the text to decode")
    if flags.score_file:
        file_checks.check_input(flags.score_file)
        launcher.need(flags, "decode_to_file")
    if flags.decode_reference:
        file_checks.check_input(flags.decode_reference)
        scoring.check_lengths({flags.decode_reference: test_sets.read_lines(
            flags.decode_reference)}, {source: test_sets.read_lines(source)})
        compat.read_bleu_texts_with(test_sets.read_lines)
    if flags.metrics_file:
        file_checks.check_output(flags.metrics_file, of_json=True)
    if output:
        file_checks.check_output(output, [source, flags.score_file, flags.decode_reference])
    return source, output


def _check_combinations(flags: FlagValues) -> None:
    """Refuses flags that would have no effect beside others."""
    texts = {"input": flags.decode_from_file, "test_set": flags.test_set,
             "score_file": flags.score_file, "decode_interactive": flags.decode_interactive}
    given = [f"--{name}={value}" for name, value in texts.items() if value]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)}: only one of them can be given")
    if flags.language_pair and not flags.test_set:
        raise InvalidValue("language_pair", flags.language_pair, "only with --test_set")
    if flags.worker_id and flags.decode_shards == 1:
        raise InvalidValue("worker_id", flags.worker_id, "only with --decode_shards")
    for way, unread in _UNREAD.items():
        for name in unread if flags[way].value else ():
            if flags[name].value != flags[name].default:
                raise InvalidValue(name, flags[name].value, f"not with --{way}")
    is_file = flags.decode_from_file or flags.test_set
    if flags.decode_reference and not is_file:
        raise InvalidValue("decode_reference", flags.decode_reference,
                           "only with --input or --test_set")
    if flags.keep_timestamp and not (is_file and flags.decode_to_file):
        raise InvalidValue("keep_timestamp", True, "only to decode --input, or a --test_set, to "
                           "--output")


def _decode(request: DecodeRequest, models: Sequence[TrainedModel]) -> dict[str, Any] | None:
    """Decodes text files in batches that can be resumed, all else by T2T; returns the event."""
    hparams = models[0].hparams
    in_batches = request.source and request.output
    decode_hparams = t2t_decoder.create_decode_hparams()
    if in_batches:
        decode_hparams.batch_size = decode_hparams.batch_size or 32
    if request.engine == "ctranslate2":
        return file_decoder.decode_file(request, models, to_ctranslate2.decoder(
            models[0], decode_hparams, file_decoder.part()[1]), decode_hparams)
    estimator = (ensemble.build_estimator(models, decode_hparams) if request.is_ensemble
                 else file_decoder.build_estimator(request, models[0], decode_hparams))
    if in_batches:
        search = file_decoder.estimator_search(
            estimator, hparams, decode_hparams,
            None if request.is_ensemble else models[0].checkpoint)
        event = file_decoder.decode_file(request, models, search, decode_hparams)
        if event and hparams.problem.decode_hooks and not request.is_ensemble:
            directory = os.path.join(estimator.model_dir, "decode")
            os.makedirs(directory, exist_ok=True)
            decoding.run_postdecode_hooks(decoding.DecodeHookArgs(
                estimator=estimator, problem=hparams.problem, output_dirs=[directory],
                hparams=hparams, decode_hparams=decode_hparams, predictions=[]), None)
        return event
    if request.t2t_flags["decode_interactive"]:
        logging.getLogger("tensorflow").addHandler(_HypothesisPrinter())
        try:
            t2t_decoder.decode(estimator, hparams, decode_hparams)
        except (EOFError, tf.errors.UnknownError) as error:
            if "EOFError" not in f"{error!r}: {error}":       # the end of the input, Ctrl-D
                raise
        return None
    counted = ProgressEstimator(estimator, decode_hparams)
    t2t_decoder.decode(counted, hparams, decode_hparams)
    return counted.event()


class _HypothesisPrinter(logging.Handler):
    """Prints the hypotheses of T2T's interactive decoding, which it writes to its log."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName == "decode_interactively":
            print(record.getMessage(), flush=True)
