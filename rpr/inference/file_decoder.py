"""`rpr decode`: T2T's decoder, over several devices, and from where a crash left it.

A file is decoded in the batches that T2T makes of it: sorted by words, longest first, `batch_size`
at a time. A batch is decoded as a whole by one process, since its padding decides how long its
hypotheses may get, and is kept in a file of its own in OUT.parts until all are there: what comes
out is the same on any number of devices, and after any number of crashes.
"""
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

from rpr.inference.batches import Batches
from rpr.utils import processes
from rpr.utils.console import Task
from rpr.utils.errors import UserError


def _estimator(flags, model, decode_hparams):
    """T2T's Estimator of one model."""
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib
    run_config = t2t_trainer.create_run_config(model.hparams)
    if flags.disable_grappler_optimizations:
        run_config.session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    return trainer_lib.create_estimator(flags.model, model.hparams, run_config,
                                        decode_hparams=decode_hparams)


def _decode_file(argv, flags, models, estimator, decode_hparams):
    """Decodes --decode_from_file to --decode_to_file; returns what metrics.jsonl gets."""
    from tensor2tensor.utils import decoding

    from rpr.inference import progress
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
        watched = progress.WatchedEstimator(estimator, len(batches.sentences(todo)))
        results = watched.predict(
            _input_fn(batches.sentences(todo), model.hparams, decode_hparams),
            checkpoint_path=checkpoint)
        batches.decode(todo, results,
                       lambda result: _as_text(result, model.hparams, decode_hparams))
    if flags.decode_part:
        return None
    record = progress.decoded(len(batches.sentences(todo)), batches.tokens(todo), time.time() - began)
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
