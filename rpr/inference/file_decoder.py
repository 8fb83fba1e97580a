"""Decodes a text file as T2T's decoder does, on several devices, and continues after a crash.

The file is decoded in T2T's batches: sorted by words, longest first, `batch_size` sentences each.
One process decodes a batch as a whole, so the output does not depend on devices or crashes.
"""
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer
from tensor2tensor.utils import decoding, registry, trainer_lib

from rpr.inference.batches import Batches, one_line, until_end
from rpr.inference.model_session import encode
from rpr.models import incremental
from rpr.models.beam_search import EOS_ID
from rpr.t2t import checkpoints
from rpr.t2t.trained_model import TrainedModel
from rpr.utils import processes
from rpr.utils.console import Task
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import DecodeHParams, HParams, ModelRequest

# Decodes sentences, in order; see `rpr.export.to_ctranslate2.decoder`.
Decode = Callable[[Sequence[str]], Iterator[Mapping[str, np.ndarray]]]
_POLL_SECONDS = 0.2
# Environment variable of the processes that decode for another one: the part "K/N" of its batches.
PART = "RPR_DECODE_PART"


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
    """What `rpr decode` is asked for, with everything decided.

    Without a `source` T2T decodes what is typed, or the problem's own data; without an `output` it
    names the file.
    """
    models: tuple[ModelRequest, ...]                  # one, or the members of an ensemble
    is_ensemble: bool
    engine: str                                       # "tensorflow" or "ctranslate2"
    search: str                                       # T2T's decode hparams, "name=value,..."
    source: str
    output: str
    to_terminal: bool                                 # the output is a temporary file, to print
    devices: int                                      # processes, each with its own GPU or cores
    metrics_file: str | None                          # gets the `decode` event
    keeps_timestamp: bool                             # the output gets that of the checkpoint
    t2t_flags: Mapping[str, Any]


def part() -> tuple[int, int]:
    """Number of the part of the batches that this process decodes, and of all parts."""
    number, count = os.environ.get(PART, "0/1").split("/")
    return int(number), int(count)


def receive_request() -> DecodeRequest:
    """The request of the process that started this one to decode a part, from its pipe."""
    values = json.load(sys.stdin)
    return DecodeRequest(**{**values, "models": tuple(
        ModelRequest(**model) for model in values["models"])})


def build_estimator(request: DecodeRequest, model: TrainedModel, decode_hparams: DecodeHParams
                    ) -> tf.estimator.Estimator:
    """T2T's Estimator of one model; T2T's flags must be set to those of the request."""
    run_config = t2t_trainer.create_run_config(model.hparams, processes.directory_to_write(
        model.hparams.model_dir, "decode"))
    if request.t2t_flags["disable_grappler_optimizations"]:
        run_config.session_config.graph_options.rewrite_options.disable_meta_optimizer = True
    return trainer_lib.create_estimator(model.name, model.hparams, run_config,
                                        decode_hparams=decode_hparams)


def decode_file(request: DecodeRequest, models: Sequence[TrainedModel],
                search: Decode, decode_hparams: DecodeHParams) -> dict[str, Any] | None:
    """Decodes the source of a request to its output with the search of its models.

    Returns the `decode` event of metrics.jsonl; None in a process that decodes a part for another.
    """
    sentences, positions = sorted_lines(request.source, decode_hparams.delimiter)
    model = models[0]
    batches = Batches(request.output, sentences, decode_hparams.batch_size,
                      [request.engine, request.search, *map(_identity, models)])
    make_line = line_maker(model.hparams, decode_hparams)

    def decode(numbers: Sequence[int]) -> None:
        if not numbers:
            return
        todo = batches.sentences(numbers)
        batches.save(numbers, _with_progress(search(todo), len(todo)), make_line)

    if PART in os.environ:
        decode(batches.missing(*part()))
        return None
    with batches.prepared():
        missing = batches.missing()
        start = time.time()
        if request.devices > 1:
            _decode_on_devices(request, batches, missing)
        else:
            decode(missing)
        event = decode_event(len(batches.sentences(missing)), batches.tokens(missing),
                             time.time() - start)
        event |= {"cut": batches.count_cut(), "engine": request.engine}
        batches.assemble(positions, decode_hparams.delimiter)
    if request.keeps_timestamp:
        written = os.stat(model.checkpoint + ".index").st_mtime
        os.utime(request.output, (written, written))
    return event


def sorted_lines(path: str, delimiter: str) -> tuple[list[str], dict[int, int]]:
    """The lines of a file, most words first, and {number of a line: index into them}.

    T2T's function takes a last line of white space for no line, and a byte order mark for text.
    """
    with open(path, encoding="utf-8-sig", newline="") as text:
        *lines, rest = text.read().split(delimiter)
    lines = [line.strip() for line in (lines + [rest] if rest else lines)]
    order = sorted(range(len(lines)), key=lambda number: -len(lines[number].split()))
    return [lines[number] for number in order], {number: i for i, number in enumerate(order)}


def _identity(model: TrainedModel) -> list[Any]:
    """What identifies a model and its checkpoint."""
    index = os.stat(model.checkpoint + ".index")
    return [model.name, model.request.hparams, model.hparams.problem.name, model.checkpoint,
            index.st_size, index.st_mtime_ns]


def estimator_search(estimator: tf.estimator.Estimator, hparams: HParams,
                     decode_hparams: DecodeHParams, checkpoint: str | None) -> Decode:
    """The search of an Estimator, in T2T's batches; None: it finds its checkpoint itself."""
    size = decode_hparams.batch_size

    def input_fn(sentences: Sequence[str]) -> dict[str, tf.Tensor]:
        # All at once: a line that cannot be encoded is refused before the first is decoded.
        batches = list(decoding._decode_batch_input_fn(
            -(-len(sentences) // size), sentences, hparams.problem_hparams.vocabulary["inputs"],
            size, decode_hparams.max_input_size))
        return decoding._decode_input_tensor_to_features_dict(
            decoding.make_input_fn_from_generator(iter(batches))(), hparams, decode_hparams)

    return lambda sentences: (
        {**prediction, "outputs": _rows(prediction, decode_hparams)} for prediction in
        estimator.predict(lambda: input_fn(sentences), checkpoint_path=checkpoint))


def _rows(prediction: Mapping[str, np.ndarray], decode_hparams: DecodeHParams) -> np.ndarray:
    """The hypotheses of a prediction, int [beams, length], one beam unless return_beams.

    T2T's greedy loops give [length] and [length, 1, 1], the latter without the scores.
    """
    if not decode_hparams.return_beams:
        return np.reshape(prediction["outputs"], [1, -1])
    if decode_hparams.write_beam_scores and "scores" not in prediction:
        raise InvalidValue("decode_hparams", "write_beam_scores=True", "T2T's greedy search gives "
                           "this model's hypotheses no scores; take beam_size=2 or more")
    return np.reshape(prediction["outputs"], [decode_hparams.beam_size, -1])


def line_maker(hparams: HParams, decode_hparams: DecodeHParams
               ) -> Callable[[Mapping[str, np.ndarray]], str]:
    """A function that gives the output line of a prediction.

    The line is the text of the best hypothesis, or with return_beams of all, separated by tabs.
    These are fewer than beam_size where the search reached its limit: the other beams are padding.
    """
    vocabulary = hparams.problem_hparams.vocabulary

    def text(prediction: Mapping[str, np.ndarray], ids: np.ndarray) -> str:
        return one_line(decoding.log_decode_results(
            prediction["inputs"], np.trim_zeros(ids.ravel(), "b"), hparams.problem.name, None,
            vocabulary["inputs"], vocabulary["targets"], log_results=decode_hparams.log_results,
            skip_eos_postprocess=decode_hparams.skip_eos_postprocess)[1])

    def line(prediction: Mapping[str, np.ndarray]) -> str:
        if not decode_hparams.return_beams:
            return text(prediction, prediction["outputs"])
        beams = np.split(prediction["outputs"], decode_hparams.beam_size)
        fields = []
        for number in [number for number, ids in enumerate(beams) if np.any(ids)] or [0]:
            fields.append(text(prediction, beams[number]).replace("\t", " "))
            if decode_hparams.write_beam_scores:
                fields.append(f"{np.atleast_1d(prediction['scores'])[number]:.2f}")
        return "\t".join(fields)

    return line


def score_lines(model: TrainedModel, lines: Sequence[str]) -> list[float]:
    """The loss per token, in nats, of the target of each line of `file_checks.read_scored`.

    As T2T's `score_file`, which takes the model from T2T's flags, encodes with the vocabularies of
    the plain problem where the model is of its reverse (_rev), and doubles the loss of characters.
    """
    problem = model.hparams.problem_hparams
    sides = [side for side in ("inputs", "targets") if side in problem.vocabulary]
    ids = {side: tf.placeholder(tf.int32, [None], side) for side in sides}
    network = registry.model(model.name)(model.hparams, tf.estimator.ModeKeys.EVAL, problem)
    features: dict[str, tf.Tensor] = {side: ids[side][None, :, None, None] for side in sides}
    if isinstance(network, incremental.IncrementalDecoder):      # splits words and edges
        features = network.prepare_features(features)
    loss = network(features)[1]["training"] / problem.loss_multiplier
    with tf.Session() as session:
        checkpoints.saver(model.checkpoint).restore(session, model.checkpoint)
        return [float(session.run(loss, {
            ids[side]: [*encode(problem.vocabulary[side], text.strip()), EOS_ID]
            for side, text in zip(sides, line.split("\t"), strict=True)})) for line in lines]


def _decode_on_devices(request: DecodeRequest, batches: Batches, missing: Sequence[int]) -> None:
    """Starts a decoder on each device, each with its share of the batches, and waits for them.

    If one of them fails, the others are stopped.
    """
    count = request.devices
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")         # empty: all are hidden
    devices = visible.split(",") if visible is not None else [*map(str, range(count))]
    # A worker decodes its batches in this order: only the first unfinished one is looked for.
    shares = [[batch for batch in missing if batch % count == part] for part in range(count)]
    total, done = len(batches.sentences(missing)), 0
    sent = json.dumps(dataclasses.asdict(dataclasses.replace(request, devices=1)))
    start = time.time()
    workers: list[tuple[int, IO[bytes], subprocess.Popen]] = []
    try:
        for number in range(count):
            output: IO[bytes] = tempfile.TemporaryFile()
            workers.append((number, output, processes.spawn(
                ["decode"], stdin=subprocess.PIPE, stdout=output, stderr=output,
                env={**os.environ, PART: f"{number}/{count}",
                     "CUDA_VISIBLE_DEVICES": devices[number % len(devices)]})))
        for pipe in filter(None, (worker.stdin for _, _, worker in workers)):
            with contextlib.suppress(BrokenPipeError), pipe:       # it failed: found below
                pipe.write(sent.encode())
        with Task(f"decoding on {count} devices", total, "sentences") as task:
            while any([_is_running(*worker) for worker in workers]):
                time.sleep(_POLL_SECONDS)
                for share in shares:
                    while share and os.path.exists(batches.path(share[0])):
                        done += len(batches.sentences([share.pop(0)]))
                speed = done / (time.time() - start)
                task.update(done, f"{speed:.1f}/s", (total - done) / speed if done else None)
    finally:
        for _, output, process in workers:
            process.kill()
            process.wait()
            output.close()


def _is_running(number: int, output: IO[bytes], worker: subprocess.Popen) -> bool:
    """Whether a decoder still runs; raises `UserError` with the last line of one that failed."""
    code = worker.poll()
    if code:
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        raise UserError(f"the decoder on device {number} ended with exit code {code}"
                        f"{': ' + lines[-1] if lines else ''}; the same command continues after "
                        "the finished batches")
    return code is None


class ProgressEstimator:
    """An Estimator, for T2T's functions, whose `predict` shows progress and counts."""

    def __init__(self, estimator: tf.estimator.Estimator, decode_hparams: DecodeHParams) -> None:
        self._estimator, self._decode_hparams = estimator, decode_hparams
        self.config, self.model_dir = estimator.config, estimator.model_dir
        self.sentences = self.tokens = 0
        self.seconds = 0.0

    def predict(self, *args: Any, **kwargs: Any) -> Iterator[Mapping[str, np.ndarray]]:
        """As `Estimator.predict`."""
        start = time.time()
        for prediction in _with_progress(self._estimator.predict(*args, **kwargs)):
            self.sentences += 1
            best = _rows(prediction, self._decode_hparams)[0]
            self.tokens += int(np.count_nonzero(until_end(best)))
            self.seconds = time.time() - start
            yield prediction

    def event(self) -> dict[str, Any]:
        """The `decode` event of what was predicted so far."""
        return decode_event(self.sentences, self.tokens, self.seconds)


def _with_progress(predictions: Iterable[Mapping[str, np.ndarray]], total: int | None = None
                   ) -> Iterator[Mapping[str, np.ndarray]]:
    """The same predictions; shows how many there are of `total` sentences, if that is known."""
    start = time.time()
    with Task("decoding", total, "sentences") as task:
        for number, prediction in enumerate(predictions, 1):
            speed = number / (time.time() - start)
            task.update(number, f"{speed:.1f}/s", (total - number) / speed if total else None)
            yield prediction


def decode_event(sentences: int, tokens: int, seconds: float) -> dict[str, Any]:
    """The `decode` event of metrics.jsonl: sentences, tokens of their best hypotheses, rates."""
    seconds = max(seconds, 1e-9)
    return {"sentences": sentences, "tokens": tokens, "seconds": round(seconds, 3),
            "sentences_per_second": round(sentences / seconds, 3),
            "tokens_per_second": round(tokens / seconds, 3)}
