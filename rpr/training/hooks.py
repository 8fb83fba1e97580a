"""Watching a training and a decoding: metrics.jsonl, progress, throughput."""
import collections
import math
import statistics
import time

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from rpr.training.throughput import Throughput
from rpr.utils import metrics_log
from rpr.utils.console import Task


class Diverged(Exception):
    """A training that will come to nothing. The message says what its loss did, and when."""


class LossWatch:
    """Notices within 100 steps that a loss is infinite, or lost what training had gained.

    A loss is noisy: the median of 5 records stands for it.

    Args:
      max_rise: how far above its best a loss may stay, in nats a token; 0: as far as it likes.
    """

    WINDOW = 5

    def __init__(self, max_rise):
        self._max_rise = max_rise
        self._recent = []
        self._best, self._best_step = math.inf, 0
        self.good_step = 0                            # the last one with nothing wrong yet

    def add(self, step, loss):
        """Takes one record.

        Raises:
          Diverged: the training should end.
        """
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {step}")
        self._recent = [*self._recent[1 - self.WINDOW:], loss]
        if len(self._recent) < self.WINDOW:
            return
        median = statistics.median(self._recent)
        if median < self._best:
            self._best, self._best_step = median, step
        if not self._max_rise or median <= self._best + self._max_rise / 2:
            self.good_step = step
        elif median > self._best + self._max_rise:
            raise Diverged(f"the loss diverges: {median:.2f} at step {step}, after "
                           f"{self._best:.2f} at step {self._best_step} (--max_loss_rise="
                           f"{self._max_rise:g})")


def explain(error, hook, output_dir):
    """One line on a training that came to nothing, naming the last checkpoint from before.

    Args:
      error: a `Diverged`, or TensorFlow's error for a NaN.
      hook: the training's `TrainingHook`.
      output_dir: where the checkpoints are.
    """
    what, until = str(error), hook.losses.good_step
    if not isinstance(error, Diverged):               # TensorFlow looks before the hook counts
        what, until = f"the loss is NaN at step {hook.step + 1}", hook.step
    state = tf.train.get_checkpoint_state(output_dir)
    for path in reversed(state.all_model_checkpoint_paths if state else ()):
        if int(path.rsplit("-", 1)[1]) <= until and _is_finite(path):
            return f"{what}; the last good checkpoint is {path}"
    return f"{what}; no checkpoint from before is left"


def _is_finite(checkpoint):
    reader = tf.train.load_checkpoint(checkpoint)
    return all(np.isfinite(reader.get_tensor(name)).all()
               for name, kind in reader.get_variable_to_dtype_map().items() if kind.is_floating)


class TrainingHook(tf.train.SessionRunHook):
    """Writes loss and speed of a training to metrics.jsonl and shows its progress.

    Args:
      path: the metrics file; events of steps that a crash lost are dropped from it at the start.
      total_steps: the step at which the training ends.
      model_dir: TensorBoard's events go there.
      max_loss_rise: as `LossWatch` takes it.
      batches: how many make a step.
    """

    EVERY = 10                                        # steps

    def __init__(self, path, total_steps, model_dir, max_loss_rise, batches=1):
        self._path, self._total = path, total_steps
        self._model_dir = model_dir
        self.losses = LossWatch(max_loss_rise)
        self._batches = batches
        self._recent = collections.deque(maxlen=batches)      # (loss, target tokens) of a batch
        self.saving_began = self._task = None

    def begin(self):
        self._step_tensor = tf.train.get_global_step()
        self._loss = tf.get_collection(tf.GraphKeys.LOSSES)[-1]
        self._throughput = Throughput(self._model_dir)
        self._parameters = sum(int(np.prod(v.shape.as_list())) for v in tf.trainable_variables())

    def after_create_session(self, session, coord):
        self.step = self._known = self._recorded = int(session.run(self._step_tensor))
        self._since = self._busy = 0
        metrics_log.forget_after(self._path, self.step)
        for event in metrics_log.read(self._path):
            if event["event"] == "train":
                self.losses.add(event["step"], event["loss"])
        metrics_log.append(self._path, "start", step=self.step, parameters=self._parameters,
                       time=time.time())
        self._task = Task("training", self._total, "steps", begun=self.step).__enter__()

    def before_run(self, run_context):
        self._began = time.time()
        return tf.train.SessionRunArgs([self._loss, self._throughput.fetches])

    def after_run(self, run_context, run_values):
        # Checkpoints and evaluations come before this in the same step, and are not its speed.
        self._busy += max(0.0, (self.saving_began or time.time()) - self._began)
        self.saving_began = None
        loss, counts = run_values.results
        self._throughput.add(counts)
        self._recent.append((loss, np.sum([count[1] for count in counts]) or 1))
        self._since += 1
        self.step = self._known + self._since // self._batches
        if self.step % self.EVERY or self._since % self._batches:
            return
        # Asked only now: in mirrored replicas a run gives its step before or after it has grown,
        # and half precision leaves a step out whose gradients are not finite.
        self.step = self._known = int(run_context.session.run(self._step_tensor))
        self._since = 0
        if self.step == self._recorded or self.step % self.EVERY:
            return
        losses, tokens = zip(*self._recent, strict=True)
        loss = float(np.average(losses, weights=tokens))
        speed = (self.step - self._recorded) / self._busy
        self._recorded = self.step
        metrics_log.append(self._path, "train", step=self.step, loss=round(loss, 5),
                       steps_per_second=round(speed, 4), time=time.time(),
                       **self._throughput.report(self.step, self._busy))
        self._task.update(self.step, f"loss {loss:.3f}  {speed:.2f} steps/s",
                          seconds_left=(self._total - self.step) / speed)
        self._busy = 0
        self.losses.add(self.step, loss)

    def end(self, session):
        self.close()

    def close(self):
        """Takes the progress off the terminal, also after a training that broke off."""
        if self._task:
            self._task.__exit__()
            self._task = None


class ProfileHook(tf.train.SessionRunHook):
    """Writes a TensorBoard profile of a few steps, when the first ones have settled.

    Args:
      directory: of TensorBoard; the profile is in `plugins/profile` there.
    """

    FIRST, STEPS = 10, 5                              # counted from where this process begins

    def __init__(self, directory):
        self._directory, self._runs, self._open = directory, 0, False

    def before_run(self, run_context):
        if self._runs == self.FIRST:
            tf2.profiler.experimental.start(self._directory)
            self._open = True

    def after_run(self, run_context, run_values):
        self._runs += 1
        if self._runs == self.FIRST + self.STEPS:
            self.end(None)

    def end(self, session):
        if self._open:
            tf2.profiler.experimental.stop()
            self._open = False


class SavingListener(tf.train.CheckpointSaverListener):
    """Tells a `TrainingHook` when a checkpoint, and an evaluation with it, interrupts a step."""

    def __init__(self, hook):
        self._hook = hook

    def before_save(self, session, global_step_value):
        self._hook.saving_began = time.time()


class EvaluationRecord(tf.estimator.Exporter):
    """Exports nothing: writes the result of each evaluation to metrics.jsonl."""

    name = "metrics"

    def __init__(self, path):
        self._path = path

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        del estimator, export_path, checkpoint_path, is_the_final_export
        values = {name.rsplit("/", 1)[-1]: round(float(value), 5)
                  for name, value in eval_result.items() if name != "global_step"}
        metrics_log.append(self._path, "eval", step=int(eval_result["global_step"]), **values)


class ExampleLog(tf.train.SessionRunHook):
    """Logs the first example of an evaluation: input, expected, and predicted.

    What is predicted is the likeliest word at each place, after the expected words before it.

    Args:
      features: ids `inputs` and `targets`, [batch, length, 1, 1].
      logits: [batch, length, 1, 1, vocabulary].
      encoders: {"inputs": text encoder, "targets": text encoder}.
    """

    def __init__(self, features, logits, encoders):
        self._fetches = [features["inputs"][0], features["targets"][0],
                         tf.argmax(logits[0], axis=-1)]
        self._encoders, self._done = encoders, False

    def before_run(self, run_context):
        return None if self._done else tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        if self._done:
            return
        self._done = True
        words = [ids.flatten() for ids in run_values.results]
        words[2] = words[2][:np.count_nonzero(words[1])]     # padding is predicted as words too
        for name, side, ids in zip(("input", "expected", "predicted"),
                                   ("inputs", "targets", "targets"), words, strict=True):
            ids = [int(id_) for id_ in ids if id_ > 1]       # without padding and end
            tf.logging.info("%-10s %s", name, self._encoders[side].decode(ids))


class WatchedEstimator:
    """An Estimator whose `predict` shows progress and counts what it yields.

    Args:
      estimator: the Estimator to decode with.
      total: sentences to decode; None where that is not known.
    """

    def __init__(self, estimator, total):
        self._estimator, self._total = estimator, total
        self.config, self.model_dir = estimator.config, estimator.model_dir
        self.sentences = self.tokens = 0
        self.seconds = 0.0

    def predict(self, *args, **kwargs):
        began = time.time()
        with Task("decoding", self._total, "sentences") as task:
            for result in self._estimator.predict(*args, **kwargs):
                self.sentences += 1
                best = np.atleast_2d(result["outputs"])[0]
                self.tokens += int(np.count_nonzero(best))
                self.seconds = time.time() - began
                task.update(self.sentences, f"{self.sentences / self.seconds:.1f}/s",
                            seconds_left=self._seconds_left())
                yield result

    def _seconds_left(self):
        if self._total:
            return (self._total - self.sentences) * self.seconds / self.sentences

    def record(self):
        """The `decode` event of what was yielded so far."""
        return decoded(self.sentences, self.tokens, self.seconds)


def decoded(sentences, tokens, seconds):
    """The `decode` event: sentences, tokens (of the best hypotheses), seconds, rates."""
    seconds = max(seconds, 1e-9)
    return {"sentences": sentences, "tokens": tokens, "seconds": round(seconds, 3),
            "sentences_per_second": round(sentences / seconds, 3),
            "tokens_per_second": round(tokens / seconds, 3)}
