"""Trains a model with T2T's experiment, reproducibly, on the requested devices.

docs/reproducibility.md says what is promised. The batches come from `input_pipeline`, initial
values and dropout masks from `seeding`; all depend on --random_seed only.
"""
import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer

from rpr.t2t import checkpoints, preflight
from rpr.training import devices, divergence, hooks, input_pipeline, seeding, throughput
from rpr.training.worker_group import WorkerGroup
from rpr.utils import metrics_log
from rpr.utils.console import say
from rpr.utils.errors import UserError

# When another machine is lost, TensorFlow's error may come before the worker group notices.
_LOSS_NOTICED_WITHIN = 15.0                           # seconds


def run(flags: Any, hparams: Any, requested: dict, metrics_path: str,
        prepare_output: Callable[[], None]) -> None:
    """Trains, and evaluates if the schedule says so.

    Args:
      flags: T2T's trainer flags, checked.
      hparams: see `build_hparams`.
      requested: what `preflight.remember_training` writes next to the model.
      metrics_path: the metrics file.
      prepare_output: called when the graph is built; creates the output directory.

    Raises:
      UserError: the training failed for a reason that one line can explain.
    """
    machines = devices.training_cluster()
    if not machines:
        _train(flags, hparams, requested, metrics_path, prepare_output, None)
        return
    checkpoint = tf.train.latest_checkpoint(os.path.expanduser(flags.output_dir))
    common = [requested, hparams.values(), flags.train_steps, flags.schedule, flags.worker_gpu,
              checkpoint and os.path.basename(checkpoint)]
    fingerprint = hashlib.sha256(json.dumps(
        common, default=str, sort_keys=True).encode()).hexdigest()
    group = WorkerGroup(machines, fingerprint, os.path.join(
        os.path.expanduser(flags.output_dir), ".worker_group"))
    group.join()
    try:
        _train(flags, hparams, requested, metrics_path, prepare_output, machines)
    except BaseException as error:
        if isinstance(error, tf.errors.OpError):
            time.sleep(_LOSS_NOTICED_WITHIN)
        group.fail((str(error).strip() or type(error).__name__).splitlines()[0])
        raise
    group.leave()


def _train(flags: Any, hparams: Any, requested: dict, metrics_path: str,
           prepare_output: Callable[[], None], machines: devices.TrainingCluster | None) -> None:
    output_dir = os.path.expanduser(flags.output_dir)
    tf.logging.set_verbosity(tf.logging.INFO)
    is_chief = not machines or machines.index == 0
    threads = thread_count(flags, output_dir)
    experiment = t2t_trainer.create_experiment_fn()(
        devices.run_config(flags, hparams, threads), hparams)
    if is_chief:
        report_changes(output_dir, flags, hparams.batch_size)
    data = _training_files(flags, hparams.problem)
    if is_chief and preflight.trained_with(output_dir).get("training_files", data) != data:
        say(f"rpr train: the training files in --data_dir={flags.data_dir} have changed; the "
            "batches from here on are not those of an uninterrupted training")

    def describe() -> None:
        """Writes what describes the training: a graph that cannot be built leaves no trace."""
        prepare_output()
        if is_chief:
            t2t_trainer.save_metadata(hparams)
            preflight.remember_training(
                output_dir, **requested, devices=devices.device_count(flags),
                mirrored=devices.is_mirrored(flags), threads=threads, training_files=data)

    estimator = experiment.estimator
    # With a strategy AutoGraph would rewrite the source of T2T and of all it calls, for minutes.
    model_fn = tf.autograph.experimental.do_not_convert(estimator._model_fn)
    estimator._model_fn = seeding.seeded(throughput.count_tokens(model_fn), flags.random_seed)
    hook = hooks.TrainingHook(
        metrics_path, flags.train_steps, estimator.model_dir, flags.max_loss_rise,
        hparams.optimizer_multistep_accumulate_steps or 1, flags.log_batches)
    record = hooks.EvaluationRecord(metrics_path)
    train_spec, eval_spec = experiment._train_spec, experiment._eval_spec
    max_steps = min(train_spec.max_steps, flags.stop_at_step or train_spec.max_steps)
    keeping = hooks.KeepingListener(estimator.model_dir, flags.keep_checkpoint_every_n_steps)
    listeners = [hooks.ChecksumListener(estimator.model_dir), keeping]
    if flags.eval_frequency and flags.schedule == "continuous_train_and_eval" and not machines:
        listeners.append(hooks.EvaluationListener(
            metrics_path, flags.eval_frequency, max_steps,
            lambda: _evaluate(estimator, eval_spec, record)))
    experiment._train_spec = train_spec._replace(
        input_fn=input_pipeline.reproducible_input(
            hparams.problem, hparams, os.path.expanduser(flags.data_dir),
            lambda: _stream(flags, hparams, output_dir, machines)),
        max_steps=max_steps,
        hooks=(hooks.GraphBuiltHook(describe), *train_spec.hooks,
               *(_chief_hooks(hook, flags, estimator, listeners) if is_chief else [])))
    experiment._eval_spec = eval_spec._replace(exporters=(*(eval_spec.exporters or ()), record))
    try:
        _execute(experiment, flags, bool(machines), is_chief, metrics_path, record)
        if is_chief:
            keeping.keep()                            # the last one, if a kill came before it
    except (tf.estimator.NanLossDuringTrainingError, divergence.Diverged) as error:
        raise UserError(divergence.explain(error, hook, output_dir)) from None
    except tf.errors.DataLossError as error:
        line = checkpoints.explain(error)
        if line:
            raise UserError(f"--output_dir={output_dir}: {line}") from None
        raise UserError(f"--data_dir={flags.data_dir}: damaged data ({error.message})") from None
    finally:
        hook.close()


def _chief_hooks(hook: hooks.TrainingHook, flags: Any, estimator: Any, listeners: list) -> list:
    """The hooks of the process that writes, in the order in which they are called."""
    config, output_dir = estimator.config, estimator.model_dir
    checkpoint = tf.train.latest_checkpoint(output_dir)
    if checkpoint:
        listeners[0].record_missing(int(checkpoint.rsplit("-", 1)[1]))
    return [hook, *([hooks.ProfileHook(output_dir)] if flags.profile else []),
            tf.train.CheckpointSaverHook(output_dir, config.save_checkpoints_secs,
                                         config.save_checkpoints_steps,
                                         listeners=listeners)]


def _execute(experiment: Any, flags: Any, several_machines: bool, is_chief: bool,
             metrics_path: str, record: hooks.EvaluationRecord) -> None:
    """Runs the schedule."""
    estimator = experiment.estimator
    train_spec, eval_spec = experiment._train_spec, experiment._eval_spec
    evaluates = flags.schedule == "continuous_train_and_eval"
    if several_machines or (evaluates and not flags.eval_frequency):
        # T2T would evaluate the last checkpoint twice. TensorFlow evaluates on no machine while
        # several train; only this function starts a server on each of them.
        tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    elif evaluates or flags.schedule == "train":
        estimator.train(train_spec.input_fn, list(train_spec.hooks),
                        max_steps=train_spec.max_steps)
    else:
        t2t_trainer.execute_schedule(experiment)
        return
    if is_chief and flags.schedule != "train" and not _is_evaluated(estimator, metrics_path):
        _evaluate(estimator, eval_spec, record)


def _evaluate(estimator: Any, eval_spec: Any, record: hooks.EvaluationRecord) -> None:
    """Evaluates the newest checkpoint and records the result."""
    result = estimator.evaluate(eval_spec.input_fn, eval_spec.steps, eval_spec.hooks)
    record.export(None, None, None, result, True)


def _is_evaluated(estimator: Any, metrics_path: str) -> bool:
    """Whether metrics.jsonl has the evaluation of the last checkpoint. It has not if several
    machines trained, or if the evaluation after the last step was killed."""
    last = metrics_log.last(metrics_path).get("eval", {})
    return last.get("step") == int(estimator.get_variable_value("global_step"))


def _stream(flags: Any, hparams: Any, output_dir: str,
            machines: devices.TrainingCluster | None) -> input_pipeline.Stream:
    """The batches that this process reads, beginning after those of the last checkpoint."""
    checkpoint = tf.train.latest_checkpoint(output_dir)
    step = int(tf.train.load_variable(checkpoint, "global_step")) if checkpoint else 0
    processes, index = (len(machines.addresses), machines.index) if machines else (1, 0)
    done = step * devices.batches_per_step(flags, hparams)
    return input_pipeline.Stream(flags.random_seed, done * processes + index, processes)


def _training_files(flags: Any, problem: Any) -> dict[str, int]:
    """The number of training files and their bytes together."""
    paths = tf.gfile.Glob(problem.filepattern(os.path.expanduser(flags.data_dir),
                                              tf.estimator.ModeKeys.TRAIN))
    return {"files": len(paths), "bytes": sum(tf.gfile.Stat(path).length for path in paths)}


def thread_count(flags: Any, output_dir: str) -> int:
    """The threads of an operation: of the flag, else of the training so far, else all cores."""
    earlier = preflight.trained_with(output_dir).get("threads")
    return flags.intra_op_parallelism_threads or earlier or len(os.sched_getaffinity(0))


def report_changes(output_dir: str, flags: Any, batch_size: int) -> None:
    """Says if a training resumes with another number of devices, which changes its steps.

    Raises:
      UserError: it was mirrored and no longer is, or the other way round.
    """
    record, count = preflight.trained_with(output_dir), devices.device_count(flags)
    if not tf.train.latest_checkpoint(output_dir):
        return
    if record.get("mirrored", False) != devices.is_mirrored(flags):
        # TensorFlow names Adam's counters differently when it mirrors.
        modes = ["on one device or in towers", "mirrored (--optionally_use_dist_strat, TF_CONFIG)"]
        before, now = (modes[mode] for mode in (record.get("mirrored", False),
                                                devices.is_mirrored(flags)))
        raise UserError(f"--output_dir={output_dir} was trained {before} and cannot resume {now}; "
                        "--warm_start_from takes its weights to another directory")
    threads, earlier = thread_count(flags, output_dir), record.get("threads")
    if earlier and threads != earlier:
        say(f"rpr train: resuming with {threads} threads; the steps so far had {earlier}. Sums are "
            "rounded in another way from here on, so an uninterrupted training gives other bits")
    earlier = record.get("devices", count)
    if earlier != count:
        say(f"rpr train: resuming with {count} devices; the steps so far had {earlier}. A step now "
            f"takes {count} x {batch_size} sub-words, and the learning rate still follows the step")
