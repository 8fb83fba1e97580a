"""Watching a training and a decoding: metrics.jsonl, progress, throughput."""
import collections
import time

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from rpr.training.divergence import DivergenceDetector
from rpr.training.throughput import Throughput
from rpr.utils import metrics_log
from rpr.utils.console import Task


class TrainingHook(tf.train.SessionRunHook):
    """Writes loss and speed of a training to metrics.jsonl and shows its progress.

    Args:
      path: the metrics file; events of steps that a crash lost are dropped from it at the start.
      total_steps: the step at which the training ends.
      model_dir: TensorBoard's events go there.
      max_loss_rise: as `DivergenceDetector` takes it.
      batches: how many make a step.
    """

    EVERY = 10                                        # steps

    def __init__(self, path, total_steps, model_dir, max_loss_rise, batches=1):
        self._path, self._total = path, total_steps
        self._model_dir = model_dir
        self.losses = DivergenceDetector(max_loss_rise)
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
