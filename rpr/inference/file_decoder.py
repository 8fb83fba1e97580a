"""`rpr decode`: T2T's decoder, over several devices, and from where a crash left it.

A file is decoded in the batches that T2T makes of it: sorted by words, longest first, `batch_size`
at a time. A batch is decoded as a whole by one process, since its padding decides how long its
hypotheses may get, and is kept in a file of its own in OUT.parts until all are there: what comes
out is the same on any number of devices, and after any number of crashes.
"""
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from rpr.t2t import launcher
from rpr.utils import metrics_log, processes
from rpr.utils.console import Task
from rpr.utils.errors import UserError


class Batches:
    """The batches of one decoding, and those that are done.

    Args:
      target: what is made of them in the end.
      sentences: sorted, as they are cut into batches.
      size: sentences in a batch.
      made_from: whatever decides what comes out, for JSON; batches of another make are dropped.
    """

    def __init__(self, target, sentences, size, made_from):
        self._target, self._folder = target, target + ".parts"
        self._batches = [sentences[first:first + size] for first in range(0, len(sentences), size)]
        self._key = hashlib.sha256(json.dumps([sentences, size, made_from]).encode()).hexdigest()

    def begin(self):
        """Makes room for batches, or finds those of an earlier call."""
        key = os.path.join(self._folder, "key")
        try:
            with open(key, encoding="utf-8") as text:
                if text.read() == self._key:
                    return
        except FileNotFoundError:
            pass
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)
        metrics_log.write_atomically(key, self._key)

    def _file(self, number):
        return os.path.join(self._folder, f"{number}.json")

    def missing(self, part=0, parts=1):
        """The numbers of the batches that are not done, of every `parts`-th from `part` on."""
        return [number for number in range(part, len(self._batches), parts)
                if not os.path.exists(self._file(number))]

    def sentences(self, numbers):
        """The sentences of some batches, in order."""
        return [sentence for number in numbers for sentence in self._batches[number]]

    def decode(self, numbers, results, as_text):
        """Keeps each batch as soon as it is done.

        Args:
          numbers: of the batches.
          results: an iterator over the predictions for `sentences(numbers)`.
          as_text: a function that gives the line for a prediction.
        """
        for number in numbers:
            found = list(itertools.islice(results, len(self._batches[number])))
            tokens = sum(np.count_nonzero(np.atleast_2d(one["outputs"])[0]) for one in found)
            metrics_log.write_atomically(self._file(number), json.dumps(
                {"lines": [as_text(one) for one in found], "tokens": int(tokens)}))

    def tokens(self, numbers):
        """How many tokens the best hypotheses of finished batches have."""
        return sum(self._read(number)["tokens"] for number in numbers)

    def _read(self, number):
        with open(self._file(number), encoding="utf-8") as text:
            return json.load(text)

    def end(self, place, delimiter):
        """Writes the whole text and removes the parts.

        Args:
          place: {line of the text: place among the sorted sentences}.
          delimiter: what ends each line.
        """
        lines = [line for number in range(len(self._batches))
                 for line in self._read(number)["lines"]]
        metrics_log.write_atomically(self._target, "".join(
            lines[place[number]] + delimiter for number in range(len(lines))))
        shutil.rmtree(self._folder)


def main(argv, logs):
    """`rpr decode`, with the flags of t2t-decoder and those defined here."""
    import tensorflow.compat.v1 as tf
    from absl import flags as absl_flags
    from tensor2tensor.bin import t2t_decoder
    from tensor2tensor.utils import trainer_lib

    from rpr.inference import ensemble
    from rpr.training import hooks
    absl_flags.DEFINE_string("test_set", None, "Decode the source of a test set that `sacrebleu "
                             "--list` knows, such as wmt14/full; with --language_pair.")
    absl_flags.DEFINE_string("language_pair", None, "Of --test_set, such as en-de.")
    absl_flags.DEFINE_string("metrics_file", None, "Where sentences/s and tokens/s are written, a "
                             "JSON object a line (default: metrics.jsonl in --output_dir).")
    absl_flags.DEFINE_list("ensemble", None, "Directories of runs (the averaged checkpoint counts) "
                           "or of models, separated by commas: the mean of their probabilities "
                           "decides, at each step. They need one vocabulary, no more.")
    absl_flags.DEFINE_string("decode_part", None, "K/N, given by rpr decode --worker_gpu=N to the "
                             "processes that it starts.")
    flags, rest = launcher.parse(argv, "t2t-decoder")
    if rest:
        raise UserError(f"{rest[0]}: no such flag (--help lists them)")
    models = _members(flags) if flags.ensemble else [launcher.trained_model(flags)]
    hparams, output_dir = models[0].hparams, models[0].hparams.model_dir
    try:
        decode_hparams = t2t_decoder.create_decode_hparams()
    except (ValueError, KeyError) as error:
        raise UserError(f"--decode_hparams={flags.decode_hparams}: {error}") from None
    _check_devices(flags.worker_gpu)
    _take_shard(flags, decode_hparams)
    if flags.test_set:
        for name in ("language_pair", "decode_to_file"):
            if not flags[name].value:
                raise UserError(f"--{name} is missing")
        flags.decode_from_file = _test_set_file(flags.test_set, flags.language_pair)
    elif flags.decode_from_file:
        if not os.path.exists(flags.decode_from_file):
            raise UserError(f"--decode_from_file={flags.decode_from_file}: there is no such file")
        if not os.path.getsize(flags.decode_from_file):
            raise UserError(f"--decode_from_file={flags.decode_from_file}: it is empty")
    if logs and not flags.ensemble:
        logs.keep(os.path.join(output_dir, "decode.log"))
    tf.logging.set_verbosity(tf.logging.INFO)
    trainer_lib.set_random_seed(flags.random_seed)
    if flags.score_file and not flags.ensemble:
        t2t_decoder.main(None)
        return
    in_batches = (flags.decode_from_file and flags.decode_to_file
                  and "inputs" in hparams.problem_hparams.vocabulary)
    if flags.worker_gpu > 1 and not in_batches:
        raise UserError(f"--worker_gpu={flags.worker_gpu}: several devices decode "
                        "--decode_from_file to --decode_to_file, or a --test_set")
    if flags.ensemble:
        if not in_batches:
            raise UserError("--ensemble: it decodes --decode_from_file, or a --test_set, to "
                            "--decode_to_file")
        estimator = ensemble.estimator(models, decode_hparams)
    else:
        estimator = _estimator(flags, models[0], decode_hparams)
    if in_batches:
        record = _decode_file(argv, flags, models, estimator, decode_hparams)
    else:
        watched = hooks.WatchedEstimator(estimator, None)
        t2t_decoder.decode(watched, hparams, decode_hparams)
        record = watched.record()
    if record and (flags.metrics_file or not flags.ensemble):
        metrics_log.append(flags.metrics_file or os.path.join(output_dir, launcher.METRICS_FILE), "decode",
                       **record)


def _members(flags):
    """The models of --ensemble, which says all that other flags say of one model."""
    for name in ("output_dir", "checkpoint_path", "model", "hparams_set", "hparams", "problem"):
        if flags[name].value:
            raise UserError(f"--{name}={flags[name].value}: not with --ensemble, whose directories "
                            "say it")
    from rpr.inference import ensemble
    return ensemble.members(flags.ensemble, flags.data_dir)


def _estimator(flags, model, decode_hparams):
    """T2T's Estimator of one model."""
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib
    run_config = t2t_trainer.create_run_config(model.hparams)
    if flags.disable_grappler_optimizations:
        run_config.session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    return trainer_lib.create_estimator(flags.model, model.hparams, run_config,
                                        decode_hparams=decode_hparams)


def _check_devices(count):
    import tensorflow.compat.v1 as tf
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus and count > gpus:                         # without any, processes share the CPU
        raise UserError(f"--worker_gpu={count}: {gpus} GPUs are visible")


def _take_shard(flags, decode_hparams):
    """Names the files of the shard that --decode_shards asks for: T2T's in000, in001, ..."""
    from tensor2tensor.utils import decoding
    if decode_hparams.shards == 1:
        return
    if flags.test_set:
        raise UserError(f"--decode_shards={flags.decode_shards}: shards are of --decode_from_file, "
                        "not of a --test_set")
    if flags.decode_from_file:
        for name in ("decode_from_file", "decode_to_file"):
            if flags[name].value:
                flags[name].value = decoding._add_shard_to_filename(
                    flags[name].value, decode_hparams)
        decode_hparams.shards = 1


def _decode_file(argv, flags, models, estimator, decode_hparams):
    """Decodes --decode_from_file to --decode_to_file; returns what metrics.jsonl gets."""
    from tensor2tensor.utils import decoding

    from rpr.training import hooks
    decode_hparams.batch_size = decode_hparams.batch_size or 32
    sentences, place = decoding._get_sorted_inputs(flags.decode_from_file, decode_hparams.delimiter)
    made_from = [flags.hparams, flags.decode_hparams]
    for model in models:
        read = os.stat(model.checkpoint + ".index")
        made_from += [model.name, model.hparams.problem.name, model.checkpoint, read.st_size,
                      read.st_mtime_ns]
    model = models[0]
    # The Estimator of an ensemble finds its checkpoints itself, and so do other devices.
    checkpoint = None if flags.ensemble else model.checkpoint
    batches = Batches(flags.decode_to_file, sentences, decode_hparams.batch_size, made_from)
    part, parts = map(int, flags.decode_part.split("/")) if flags.decode_part else (0, 1)
    if not flags.decode_part:
        batches.begin()
    todo = batches.missing(part, parts)
    began = time.time()
    if flags.worker_gpu > 1:
        _decode_on(flags.worker_gpu,
                   [*argv, *([f"--checkpoint_path={checkpoint}"] if checkpoint else [])], batches)
    elif todo:
        watched = hooks.WatchedEstimator(estimator, len(batches.sentences(todo)))
        results = watched.predict(
            _input_fn(batches.sentences(todo), model.hparams, decode_hparams),
            checkpoint_path=checkpoint)
        batches.decode(todo, results,
                       lambda result: _as_text(result, model.hparams, decode_hparams))
    if flags.decode_part:
        return None
    record = hooks.decoded(len(batches.sentences(todo)), batches.tokens(todo), time.time() - began)
    batches.end(place, decode_hparams.delimiter)
    if flags.checkpoint_path and flags.keep_timestamp:
        os.utime(flags.decode_to_file, (read.st_mtime, read.st_mtime))
    if flags.ensemble:
        return record
    directory = os.path.join(model.hparams.model_dir, "decode")
    os.makedirs(directory, exist_ok=True)
    decoding.run_postdecode_hooks(decoding.DecodeHookArgs(
        estimator=estimator, problem=model.hparams.problem, output_dirs=[directory],
        hparams=model.hparams, decode_hparams=decode_hparams, predictions=[]), None)
    return record


def _input_fn(sentences, hparams, decode_hparams):
    """T2T's batches of these sentences, for an Estimator."""
    from tensor2tensor.utils import decoding
    size = decode_hparams.batch_size

    def input_fn():
        batches = decoding._decode_batch_input_fn(
            -(-len(sentences) // size), sentences, hparams.problem_hparams.vocabulary["inputs"],
            size, decode_hparams.max_input_size, task_id=decode_hparams.multiproblem_task_id)
        return decoding._decode_input_tensor_to_features_dict(
            decoding.make_input_fn_from_generator(batches)(), hparams, decode_hparams)
    return input_fn


def _as_text(result, hparams, decode_hparams):
    """The line of a prediction: its text, or with return_beams all of them, separated by tabs."""
    from tensor2tensor.utils import decoding
    vocabulary = hparams.problem_hparams.vocabulary

    def text(ids):
        return decoding.log_decode_results(
            result["inputs"], ids, hparams.problem.name, None, vocabulary["inputs"],
            vocabulary["targets"], log_results=decode_hparams.log_results,
            skip_eos_postprocess=decode_hparams.skip_eos_postprocess)[1]

    if not decode_hparams.return_beams:
        return text(result["outputs"])
    fields = [text(ids) for ids in np.split(result["outputs"], decode_hparams.beam_size)]
    if decode_hparams.write_beam_scores:
        fields = [f"{field}\t{score:.2f}" for field, score in
                  zip(fields, np.atleast_1d(result["scores"]), strict=True)]
    return "\t".join(fields)


def _decode_on(count, argv, batches):
    """Starts a decoder on each device, each with its share of the batches.

    Raises:
      UserError: one of them failed; the others are ended.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = visible.split(",") if visible else [str(number) for number in range(count)]
    todo = len(batches.sentences(batches.missing()))
    began, workers = time.time(), []
    try:
        for number in range(count):
            said = tempfile.TemporaryFile()
            workers.append((number, said, subprocess.Popen(
                [sys.executable, "-P", "-m", "rpr.cli", "decode", *argv, "--worker_gpu=1",
                 f"--decode_part={number}/{count}"], stdout=said, stderr=said,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": visible[number % len(visible)]},
                preexec_fn=processes.with_parent())))
        with Task(f"decoding on {count} devices", todo, "sentences") as task:
            while any([_still_runs(*worker) for worker in workers]):
                time.sleep(0.2)
                done = todo - len(batches.sentences(batches.missing()))
                speed = done / (time.time() - began)
                task.update(done, f"{speed:.1f}/s", (todo - done) / speed if done else None)
    finally:
        for _, said, worker in workers:
            worker.kill()
            worker.wait()
            said.close()


def _still_runs(number, said, worker):
    """Whether a decoder still runs; one that failed becomes a `UserError` with its last line."""
    code = worker.poll()
    if code:
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        raise UserError(f"the decoder on device {number} ended with exit code {code}"
                        f"{': ' + lines[-1] if lines else ''}; the same command goes on from what "
                        "was decoded")
    return code is None


def _test_set_file(name, pair):
    """The source of a sacreBLEU test set as a file for T2T's decoder."""
    from rpr.evaluation import scoring
    source = scoring.test_set_source(name, pair)
    path = os.path.join(processes.folder("test-set"), "source")
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in source)
    return path
