"""Hooks of a training: metrics.jsonl, progress, profile, checksums, kept weights, evaluation."""
import collections
import functools
import hashlib
import math
import os
import resource
import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from rpr.t2t import checkpoints
from rpr.training import averaging, model_flops
from rpr.training.seeding import BATCHES, COUNTS
from rpr.utils import metrics_log
from rpr.utils.console import Task


class Diverged(Exception):
    """The training diverged. The message has the loss and the step."""


class DivergenceDetector:
    """Notices a diverging loss within 150 steps, by the last 15 records.

    A record has the loss of one step, and batches of long sentences may have a much larger one than
    others. So the smallest of the last 15 losses counts, and the best 15 in a row by their largest.
    The first 15 have none before them: the smallest of the last 14 is compared with the first.
    `max_rise` is how far the loss may rise above its best, in nats per token; 0: no limit.
    """

    WINDOW = 15

    def __init__(self, max_rise: float) -> None:
        self._max_rise = max_rise or math.inf
        self._recent: collections.deque = collections.deque(maxlen=self.WINDOW)
        self._best, self._best_step = math.inf, 0
        self.good_step = 0                            # the last step without any sign of divergence

    def add(self, step: int, loss: float) -> None:
        """Takes one record; raises `Diverged` if the training should end."""
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {step}")
        self._recent.append(loss)
        if len(self._recent) == self.WINDOW and max(self._recent) < self._best:
            first, *later = self._recent
            if self._best == math.inf and min(later) > first + self._max_rise:
                self.good_step = 0
                raise Diverged(f"the loss diverges: it was at least {min(later):.2f} in the 140 "
                               f"steps to {step}, and {first:.2f} before them "
                               f"(max_loss_rise={self._max_rise:g})")
            self._best, self._best_step = max(self._recent), step
        if loss <= self._best + self._max_rise / 2:
            self.good_step = step
        elif min(self._recent) > self._best + self._max_rise:
            raise Diverged(f"the loss diverges: it was at least {min(self._recent):.2f} in the 150 "
                           f"steps to {step}, and at most {self._best:.2f} in those to "
                           f"{self._best_step} (max_loss_rise={self._max_rise:g})")


def peak_memory() -> int | None:
    """Peak memory so far, in bytes: of the fullest GPU, or of the process if there is no GPU.

    None if TensorFlow has no statistics of the GPU.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        return max(tf.config.experimental.get_memory_info(f"GPU:{gpu}")["peak"]
                   for gpu in range(gpus))
    except (ValueError, tf.errors.OpError):           # an allocator without statistics
        return None


class Throughput:
    """Sums the COUNTS of batches between reports. Create it when the graph is complete.

    The reports also go to TensorBoard, to the event files in `model_dir`. `flops` gives the model
    FLOPs of a batch (`model_flops.of_batches`), `peak` is that of all devices in FLOP/s; None: not
    known.
    """

    def __init__(self, model_dir: str, flops: model_flops.Flops | None = None,
                 peak: float | None = None) -> None:
        self._writer = tf.summary.FileWriterCache.get(model_dir)
        self.fetches = tf.get_collection(COUNTS)
        self._flops_of, self._peak = flops, peak
        self._sums, self._flops = np.zeros(5, np.int64), 0

    def add(self, counts: Sequence[np.ndarray]) -> None:
        """Takes the values of `fetches` of one batch per device."""
        self._sums += np.sum(counts, axis=0, dtype=np.int64)
        for *_, source, target, sentences in (map(int, count) for count in counts):
            if self._flops_of and sentences:
                self._flops += self._flops_of(sentences, source // sentences, target // sentences)

    def report(self, step: int, seconds: float) -> dict[str, float]:
        """Fields of a `train` event: peak memory; since the last report, tokens, padding, FLOPs."""
        source, target, *places, _ = self._sums
        positions, rate = sum(places), self._flops / seconds
        self._sums, self._flops = np.zeros(5, np.int64), 0
        fields: dict[str, float] = {}
        peak = peak_memory()
        if peak:
            fields["peak_memory"] = peak
        if positions:
            fields |= {"source_tokens_per_second": round(float(source / seconds), 1),
                       "target_tokens_per_second": round(float(target / seconds), 1),
                       "padding": round(float(1 - (source + target) / positions), 4)}
        if rate:
            fields["model_tflops"] = round(rate / 1e12, 6)
        if rate and self._peak:
            fields["mfu"] = round(rate / self._peak, 4)
        self._writer.add_summary(tf.Summary(value=[
            tf.Summary.Value(tag=f"throughput/{name}", simple_value=value)
            for name, value in fields.items()]), step)
        return fields


class TrainingHook(tf.train.SessionRunHook):
    """Writes loss and speed of a training to metrics.jsonl and shows its progress.

    It must be called before the hook that writes checkpoints. Then no record is lost if the process
    is killed after a checkpoint, and the time of a step excludes saving and evaluating.

    Args:
      path: the metrics file; events of steps that a crash lost are removed at the start.
      total_steps: the step at which the training ends.
      model_dir: the directory of checkpoints and of TensorBoard's events.
      max_loss_rise: see `DivergenceDetector`.
      batches_per_step: runs of the graph per step.
      log_batches: also write a `batch` event for each batch, with a hash of its ids.
      flops, peak: see `Throughput`.
      loss_multiplier: by which T2T multiplies the loss of the problem, such as 2 for characters;
        records have the loss without it.
    """

    EVERY = 10                                        # steps
    MOST_RECORDS = 10_000                             # earlier losses, evenly spaced if more

    def __init__(self, path: str, total_steps: int, model_dir: str, max_loss_rise: float,
                 batches_per_step: int = 1, log_batches: bool = False,
                 flops: model_flops.Flops | None = None, peak: float | None = None,
                 loss_multiplier: float = 1.0) -> None:
        self._flops, self._peak, self._loss_multiplier = flops, peak, loss_multiplier
        self._path, self._total = path, total_steps
        self._model_dir = model_dir
        self.detector = DivergenceDetector(max_loss_rise)
        self._batches_per_step, self._log_batches = batches_per_step, log_batches
        self._recent: collections.deque = collections.deque(maxlen=batches_per_step)
        self._task: Task | None = None

    def begin(self) -> None:
        self._step_tensor = tf.train.get_global_step()
        self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]
        self._throughput = Throughput(self._model_dir, self._flops, self._peak)
        self._batches = tf.get_collection(BATCHES) if self._log_batches else []
        self._parameters = sum(int(np.prod(v.shape.as_list())) for v in tf.trainable_variables())

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.step = self._known = self._recorded = int(session.run(self._step_tensor))
        self._since, self._busy = 0, 0.0
        metrics_log.forget_after(self._path, self.step)
        for event in metrics_log.read(self._path, self.MOST_RECORDS):
            if event["event"] == "train":
                self.detector.add(event["step"], event["loss"])
        metrics_log.append(self._path, "start", step=self.step, parameters=self._parameters,
                           time=time.time())
        self._task = Task("training", self._total, "steps", begun=self.step).__enter__()

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        self._began = time.time()
        return tf.train.SessionRunArgs([self._loss, self._throughput.fetches, self._batches])

    def after_run(self, run_context: tf.train.SessionRunContext,
                  run_values: tf.train.SessionRunValues) -> None:
        self._busy += time.time() - self._began
        loss, counts, batches = run_values.results
        self._throughput.add(counts)
        self._recent.append((loss / self._loss_multiplier,
                             np.sum([count[1] for count in counts]) or 1))
        self._since += 1
        self.step = self._known + self._since // self._batches_per_step
        ending = self._known - -self._since // self._batches_per_step    # this batch's step
        for first in range(0, len(batches), 3):
            number, *ids = batches[first:first + 3]
            metrics_log.append(self._path, "batch", step=ending, number=int(number),
                               sha256=_hash(ids))
        if math.isnan(loss):                          # before a checkpoint is written
            self.detector.good_step = ending - 1
            raise Diverged(f"the loss is NaN at step {ending}")
        if self.step % self.EVERY or self._since % self._batches_per_step:
            return
        # Asked only now: in mirrored replicas a run returns its step before or after the update,
        # and half precision skips a step whose gradients are not finite.
        self.step = self._known = int(run_context.session.run(self._step_tensor))
        self._since = 0
        if self.step != self._recorded and self.step % self.EVERY == 0:
            self._record()

    def _record(self) -> None:
        losses, tokens = zip(*self._recent, strict=True)
        loss = float(np.average(losses, weights=tokens))
        speed = (self.step - self._recorded) / self._busy
        self._recorded = self.step
        # The loss is not rounded: `rpr verify` compares it.
        metrics_log.append(self._path, "train", step=self.step, loss=loss,
                           steps_per_second=round(speed, 4), time=time.time(),
                           **self._throughput.report(self.step, self._busy))
        if self._task:
            self._task.update(self.step, f"loss {loss:.3f}  {speed:.2f} steps/s",
                              seconds_left=(self._total - self.step) / speed)
        self._busy = 0.0
        self.detector.add(self.step, loss)

    def explain(self, error: Diverged) -> str:
        """One line on a training that diverged, with the last good checkpoint."""
        cause, last_good = str(error), self.detector.good_step
        for path in reversed(checkpoints.by_step(self._model_dir)):
            if checkpoints.step_of(path) <= last_good and not checkpoints.damage(path):
                reader = tf.train.load_checkpoint(path)
                if all(np.isfinite(reader.get_tensor(name)).all() for name, dtype
                       in reader.get_variable_to_dtype_map().items() if dtype.is_floating):
                    return f"{cause}; the last good checkpoint is {path}"
        return f"{cause}; no earlier checkpoint is left"

    def end(self, session: tf.Session | None) -> None:
        """Removes the progress bar. TensorFlow does not call this after a training that failed."""
        if self._task:
            self._task.__exit__()
            self._task = None


def _hash(ids: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in ids:
        digest.update(repr(array.shape).encode() + array.astype("<i8").tobytes())
    return digest.hexdigest()


class ProfileHook(tf.train.SessionRunHook):
    """Writes a TensorBoard profile of a few steps to `plugins/profile` in a directory."""

    FIRST, STEPS = 10, 5                              # counted from the start of this process

    def __init__(self, directory: str) -> None:
        self._directory, self._runs = directory, 0

    def before_run(self, run_context: tf.train.SessionRunContext) -> None:
        if self._runs == self.FIRST:
            tf2.profiler.experimental.start(self._directory)
        self._runs += 1

    def after_run(self, run_context: tf.train.SessionRunContext,
                  run_values: tf.train.SessionRunValues) -> None:
        if self._runs == self.FIRST + self.STEPS:
            tf2.profiler.experimental.stop()

    def end(self, session: tf.Session) -> None:
        if self.FIRST < self._runs < self.FIRST + self.STEPS:
            tf2.profiler.experimental.stop()


class GraphBuiltHook(tf.train.SessionRunHook):
    """Calls a function once, when the training graph is built and nothing is written yet."""

    def __init__(self, on_graph_built: Callable[[], None]) -> None:
        self._on_graph_built = functools.cache(on_graph_built)

    def begin(self) -> None:
        self._on_graph_built()


class ChecksumListener(tf.train.CheckpointSaverListener):
    """Records a CRC-32 of each tensor of each checkpoint in `model_dir`."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir

    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        self._record(int(global_step_value))

    def record_missing(self, step: int) -> None:
        """Records the checkpoint at `step` if the training was killed before it did."""
        if step not in metrics_log.read_checksums(self._model_dir):
            self._record(step)

    def _record(self, step: int) -> None:
        reader = tf.train.load_checkpoint(os.path.join(self._model_dir, f"model.ckpt-{step}"))
        metrics_log.append_checksums(self._model_dir, step, {
            name: f"{zlib.crc32(reader.get_tensor(name).tobytes()):08x}"
            for name in sorted(reader.get_variable_to_shape_map())})


class KeepingListener(tf.train.CheckpointSaverListener):
    """Keeps the weights of checkpoints at multiples of `frequency` (0: of none) in MODEL_DIR/kept.

    Writing them needs a session. The first session of a process sets the number of threads, on
    which losses depend, so nothing may be kept before the session of the training exists.
    """

    def __init__(self, model_dir: str, frequency: int) -> None:
        self._model_dir, self._frequency = model_dir, frequency

    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        self.keep()

    def keep(self) -> None:
        """Keeps the newest checkpoint, and earlier ones if a kill prevented that."""
        for path in checkpoints.by_step(self._model_dir) if self._frequency else ():
            step = checkpoints.step_of(path)
            kept = os.path.join(self._model_dir, "kept", os.path.basename(path))
            if step > 0 and step % self._frequency == 0 and not (
                    os.path.exists(kept + ".index") or checkpoints.damage(path)):
                os.makedirs(os.path.dirname(kept), exist_ok=True)
                # The mean of one checkpoint: its weights, unchanged, written whole or not at all.
                averaging.write_mean(kept, [path], step)


class EvaluationListener(tf.train.CheckpointSaverListener):
    """Evaluates the first checkpoint at or after each multiple of `frequency` steps.

    So the choice depends on steps alone, not on time or interruptions. The metrics file has the
    evaluations so far. The trainer evaluates the checkpoint of the last step.
    """

    def __init__(self, metrics_path: str, frequency: int, last_step: int,
                 evaluate: Callable[[], None]) -> None:
        self._metrics_path, self._frequency = metrics_path, frequency
        self._last_step, self._evaluate = last_step, evaluate
        self._evaluated: int | None = None            # the step of the last evaluation

    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        if self._evaluated is None:                   # TrainingHook has removed later steps
            self._evaluated = max((event.get("step", 0)
                                   for event in metrics_log.events(self._metrics_path)
                                   if event["event"] == "eval"), default=0)
        if (self._evaluated // self._frequency < global_step_value // self._frequency
                and global_step_value < self._last_step):
            self._evaluate()
            self._evaluated = global_step_value
