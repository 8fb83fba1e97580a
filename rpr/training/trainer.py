"""Trains a model with T2T's experiment, reproducibly, on the requested devices.

The batches come from `input_pipeline`, initial values and dropout masks from `seeding`. All depend
on the seed only; docs/reproducibility.md has the details.
"""
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from absl import flags
from tensor2tensor.bin import t2t_trainer
from tensor2tensor.utils import hparams_lib
from tensor2tensor.utils.trainer_lib import T2TExperiment

from rpr.t2t import checkpoints, preflight
from rpr.training import devices, hooks, input_pipeline, model_flops, seeding
from rpr.training.devices import DeviceRequest
from rpr.training.worker_group import WorkerGroup
from rpr.utils import files, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.interfaces import HParams, Problem

# When another machine is lost, TensorFlow's error may come before the worker group notices.
_LOSS_NOTICED_WITHIN = 15.0                           # seconds


@dataclasses.dataclass(frozen=True)
class TrainingRequest:
    """A training with all defaults resolved."""
    output_dir: str
    data_dir: str
    metrics_file: str                                 # see `rpr.utils.metrics_log`
    made_with: Mapping[str, Any]                      # see `preflight.remember_training`
    devices: DeviceRequest
    seed: int                                         # of initial values, batches and dropout masks
    evaluates: bool
    train_steps: int                                  # in all; learning rates may depend on it
    stop_at_step: int                                 # an earlier last step; 0: none
    eval_frequency: int | None                        # in steps; None: T2T decides, by time
    keep_frequency: int                               # in steps, see `KeepingListener`
    max_loss_rise: float                              # see `DivergenceDetector`
    log_batches: bool
    profile: bool


def run(request: TrainingRequest, hparams: HParams, prepare_output: Callable[[], None]) -> None:
    """Trains, and evaluates if requested; one line explains a failure, if it can.

    `request` is checked; `prepare_output` creates the output directory when the graph is built.
    """
    machines = request.devices.machines
    if not machines:
        _train(request, hparams, prepare_output)
        return
    checkpoint = tf.train.latest_checkpoint(request.output_dir)
    common = [request.made_with, hparams.values(), request.train_steps, request.evaluates,
              request.devices.per_machine, checkpoint and os.path.basename(checkpoint)]
    text = json.dumps(common, default=str, sort_keys=True)
    group = WorkerGroup(machines.addresses, machines.index,
                        hashlib.sha256(text.encode()).hexdigest(),
                        os.path.join(request.output_dir, ".worker_group"))
    group.join()
    try:
        _train(request, hparams, prepare_output)
    except BaseException as error:
        if isinstance(error, tf.errors.OpError):
            time.sleep(_LOSS_NOTICED_WITHIN)
        group.fail((str(error).strip() or type(error).__name__).splitlines()[0])
        raise
    group.leave()


def _train(request: TrainingRequest, hparams: HParams, prepare_output: Callable[[], None]) -> None:
    output_dir = request.output_dir
    tf.logging.set_verbosity(tf.logging.INFO)
    is_chief = request.devices.is_chief
    threads = thread_count(request.devices, output_dir)
    experiment = t2t_trainer.create_experiment_fn()(
        devices.run_config(request.devices, hparams, threads), hparams)
    data = _training_files(hparams.problem, request.data_dir)
    if is_chief:
        report_changes(output_dir, request.devices, hparams)
        if preflight.trained_with(output_dir).get("training_files", data) != data:
            say(f"rpr train: the training files in {request.data_dir} have changed; the "
                "batches from here on are not those of an uninterrupted training")

    def describe() -> None:
        """Writes a description of the training, once its graph could be built."""
        prepare_output()
        if is_chief:
            _save_metadata(hparams, output_dir)
            preflight.remember_training(
                output_dir, **request.made_with, devices=request.devices.count,
                mirrored=request.devices.is_mirrored, threads=threads, training_files=data)

    estimator = experiment.estimator
    if request.devices.compiled:
        tf.enable_resource_variables()                # XLA does not update others
    # With a strategy, AutoGraph would rewrite T2T and all that it calls, which takes minutes.
    model_fn = tf.autograph.experimental.do_not_convert(estimator._model_fn)
    estimator._model_fn = seeding.seeded(model_fn, request.seed)
    train_spec = experiment._train_spec
    max_steps = min(train_spec.max_steps, request.stop_at_step or train_spec.max_steps)
    hook = hooks.TrainingHook(
        request.metrics_file, max_steps, output_dir, request.max_loss_rise,
        hparams.optimizer_multistep_accumulate_steps or 1, request.log_batches,
        model_flops.of_batches(request.made_with["model"], hparams),
        model_flops.peak_of(hparams, request.devices.per_machine),
        hparams.problem_hparams.loss_multiplier)
    keeping = hooks.KeepingListener(output_dir, request.keep_frequency)
    evaluate = _recorded_evaluation(experiment, request.metrics_file)
    experiment._train_spec = train_spec._replace(
        input_fn=input_pipeline.reproducible_input(
            hparams.problem, hparams, request.data_dir, lambda: _stream(request, hparams),
            request.devices.compiled),
        max_steps=max_steps,
        hooks=(hooks.GraphBuiltHook(describe), *train_spec.hooks,
               *(_chief_hooks(request, hook, keeping, estimator.config, max_steps, evaluate)
                 if is_chief else ())))
    with _explained(request, hook):
        _execute(experiment, request, evaluate)
        if is_chief:
            keeping.keep()                            # an earlier process may have been killed


def _save_metadata(hparams: HParams, output_dir: str) -> None:
    """T2T's function of this name, but each file is written whole or not at all."""
    saved = hparams_lib.copy_hparams(hparams)
    saved.del_hparam("modality")                      # a class
    t2t_flags = flags.FLAGS.flags_by_module_dict()["tensor2tensor.utils.flags"]
    for name, text in (
            ("flags.txt", flags.FLAGS.flags_into_string()),
            ("flags_t2t.txt", "\n".join(f"--{flag.name}={flag.value}" for flag in t2t_flags)),
            ("hparams.json", saved.to_json(indent=0, sort_keys=True))):
        files.write_atomically(os.path.join(output_dir, name), text)


def _recorded_evaluation(experiment: T2TExperiment, metrics_file: str) -> Callable[[], Any]:
    """Makes an experiment record its evaluations; returns what evaluates the newest checkpoint."""
    estimator, spec = experiment.estimator, experiment._eval_spec
    evaluate = estimator.evaluate

    def recorded(*args: Any, **options: Any) -> dict[str, Any]:
        result = evaluate(*args, **options)
        values = {name.rsplit("/", 1)[-1]: float(value) if math.isfinite(value) else None
                  for name, value in result.items() if name != "global_step"}
        metrics_log.append(metrics_file, "eval", step=int(result["global_step"]), **values)
        return result

    estimator.evaluate = recorded
    return functools.partial(recorded, spec.input_fn, spec.steps, spec.hooks)


@contextlib.contextmanager
def _explained(request: TrainingRequest, hook: hooks.TrainingHook) -> Iterator[None]:
    """Explains in one line why a training failed; ends its hook."""
    try:
        yield
    except hooks.Diverged as error:
        raise UserError(hook.explain(error)) from None
    except tf.estimator.NanLossDuringTrainingError:   # where `hook` does not run
        raise UserError("the loss is NaN; the first machine names the last good checkpoint"
                        ) from None
    except tf.errors.DataLossError as error:
        line = checkpoints.explain(error)
        if line:
            raise InvalidPath(request.output_dir, line) from None
        raise InvalidPath(request.data_dir, f"damaged data ({error.message})") from None
    finally:
        hook.end(None)


def _chief_hooks(request: TrainingRequest, hook: hooks.TrainingHook,
                 keeping: hooks.KeepingListener, config: tf.estimator.RunConfig, max_steps: int,
                 evaluate: Callable[[], None]) -> list[tf.train.SessionRunHook]:
    """The hooks of the process that writes, in the order of their calls."""
    output_dir = request.output_dir
    checksums = hooks.ChecksumListener(output_dir)
    checkpoint = tf.train.latest_checkpoint(output_dir)
    if checkpoint:
        checksums.record_missing(int(checkpoint.rsplit("-", 1)[1]))
    listeners = [checksums, keeping]
    if request.eval_frequency and request.evaluates and not request.devices.machines:
        listeners.append(hooks.EvaluationListener(
            request.metrics_file, request.eval_frequency, max_steps, evaluate))
    return [hook, *([hooks.ProfileHook(output_dir)] if request.profile else []),
            tf.train.CheckpointSaverHook(output_dir, config.save_checkpoints_secs,
                                         config.save_checkpoints_steps, listeners=listeners,
                                         save_graph_def=config.checkpoint_save_graph_def)]


def _execute(experiment: T2TExperiment, request: TrainingRequest, evaluate: Callable[[], None]
             ) -> None:
    estimator = experiment.estimator
    train_spec, eval_spec = experiment._train_spec, experiment._eval_spec
    if request.devices.machines or (request.evaluates and not request.eval_frequency):
        # T2T would evaluate the last checkpoint twice. With several machines, TensorFlow evaluates
        # on none of them, but only this function starts a server on each.
        tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    else:
        estimator.train(train_spec.input_fn, list(train_spec.hooks), max_steps=train_spec.max_steps)
    if request.devices.is_chief and request.evaluates:
        # It is missing after a training on several machines, or a kill during the evaluation.
        last = metrics_log.last(request.metrics_file).get("eval", {})
        if last.get("step") != int(estimator.get_variable_value("global_step")):
            evaluate()


def _stream(request: TrainingRequest, hparams: HParams) -> input_pipeline.Stream:
    """The batches that this process reads, beginning after those of the last checkpoint."""
    checkpoint = tf.train.latest_checkpoint(request.output_dir)
    step = int(tf.train.load_variable(checkpoint, "global_step")) if checkpoint else 0
    machines = request.devices.machines
    processes, index = (len(machines.addresses), machines.index) if machines else (1, 0)
    done = step * request.devices.batches_per_step(hparams)
    return input_pipeline.Stream(request.seed, done * processes + index, processes)


def _training_files(problem: Problem, data_dir: str) -> dict[str, int]:
    paths = tf.gfile.Glob(problem.filepattern(data_dir, tf.estimator.ModeKeys.TRAIN))
    return {"files": len(paths), "bytes": sum(tf.gfile.Stat(path).length for path in paths)}


def thread_count(request: DeviceRequest, output_dir: str) -> int:
    """Threads of an operation: as requested, else as in the training so far, else all cores."""
    earlier = preflight.trained_with(output_dir).get("threads")
    return request.intra_op_threads or earlier or len(os.sched_getaffinity(0))


def report_changes(output_dir: str, request: DeviceRequest, hparams: HParams) -> None:
    """Warns if a training resumes with another number of devices or threads.

    Refuses to resume a mirrored training without mirroring, and the reverse.
    """
    record, count = preflight.trained_with(output_dir), request.count
    if not tf.train.latest_checkpoint(output_dir):
        return
    if record.get("mirrored", False) != request.is_mirrored:
        # TensorFlow names Adam's counters differently when it mirrors.
        modes = ["on one device or in towers", "mirrored (optionally_use_dist_strat, TF_CONFIG)"]
        before, now = (modes[mode] for mode in (record.get("mirrored", False), request.is_mirrored))
        raise InvalidPath(output_dir, f"was trained {before} and cannot resume {now}; "
                          "warm_start_from takes its weights to another directory")
    threads, earlier = thread_count(request, output_dir), record.get("threads")
    if earlier and threads != earlier:
        say(f"rpr train: resuming with {threads} threads; the steps so far had {earlier}. Sums are "
            "rounded in another way from here on, so an uninterrupted training gives other bits")
    earlier = record.get("devices", count)
    if earlier != count:
        unit = "sentences" if hparams.use_fixed_batch_size else "sub-words"
        say(f"rpr train: resuming with {count} devices; the steps so far had {earlier}. A batch "
            f"now has {count} x {hparams.batch_size} {unit}, and the learning rate still follows "
            "the step")
