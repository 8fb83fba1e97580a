"""A training: T2T's experiment on the devices asked for (`rpr.training.devices`), watched (`rpr.training.hooks`)."""
import hashlib
import json
import os
import time

import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer

from rpr.t2t import preflight
from rpr.training import devices, divergence, hooks, throughput, worker_group
from rpr.utils import metrics_log
from rpr.utils.console import terminal
from rpr.utils.errors import UserError

# An error of TensorFlow's may only say that another machine is gone, which `partners` knows better,
# a moment later.
_SECOND_OPINION = 15.0                                # seconds


def run(flags, hparams, asked, metrics_path):
    """Trains, and evaluates where the schedule says so.

    Args:
      flags: T2T's trainer flags, checked.
      hparams: as `t2t.build_hparams` made them.
      asked: what `preflight.remember_training` writes beside the model.
      metrics_path: the metrics file.

    Raises:
      UserError: the training came to nothing, for a reason that a line can say.
    """
    machines = devices.training_cluster()
    if not machines:
        _run(flags, hparams, asked, metrics_path, None)
        return
    checkpoint = tf.train.latest_checkpoint(os.path.expanduser(flags.output_dir))
    same = [asked, hparams.values(), flags.train_steps, flags.schedule, flags.worker_gpu,
            checkpoint and os.path.basename(checkpoint)]
    group = worker_group.WorkerGroup(machines, hashlib.sha256(json.dumps(
        same, default=str, sort_keys=True).encode()).hexdigest())
    group.join()
    try:
        _run(flags, hparams, asked, metrics_path, machines)
    except BaseException as error:
        if isinstance(error, tf.errors.OpError):
            time.sleep(_SECOND_OPINION)
        group.fail((str(error).strip() or type(error).__name__).splitlines()[0])
        raise
    group.leave()


def _run(flags, hparams, asked, metrics_path, machines):
    output_dir = os.path.expanduser(flags.output_dir)
    tf.logging.set_verbosity(tf.logging.INFO)
    is_chief = not machines or machines.index == 0
    experiment = t2t_trainer.create_experiment_fn()(devices.run_config(flags, hparams), hparams)
    if not hasattr(experiment, flags.schedule):
        raise UserError(f"--schedule={flags.schedule}: T2T's experiment has no such method")
    if is_chief:
        report_changes(output_dir, flags, hparams.batch_size)
        t2t_trainer.save_metadata(hparams)
        preflight.remember_training(output_dir, **asked, devices=devices.device_count(flags),
                                    mirrored=devices.is_mirrored(flags))
    # A strategy would rewrite the source of T2T and all it calls with AutoGraph, for minutes.
    model_fn = tf.autograph.experimental.do_not_convert(experiment.estimator._model_fn)
    experiment.estimator._model_fn = throughput.count_tokens(model_fn)
    train_spec, eval_spec = experiment._train_spec, experiment._eval_spec
    hook = hooks.TrainingHook(metrics_path, flags.train_steps, experiment.estimator.model_dir,
                              flags.max_loss_rise,
                              hparams.optimizer_multistep_accumulate_steps or 1)
    record = hooks.EvaluationRecord(metrics_path)
    if machines:
        devices.share_data(hparams.problem, machines)
    experiment._train_spec = train_spec = train_spec._replace(
        input_fn=_read_ahead(train_spec.input_fn),
        hooks=(*train_spec.hooks, *([hook] if is_chief else []),
               *([hooks.ProfileHook(output_dir)] if flags.profile and is_chief else [])),
        saving_listeners=(hooks.SavingListener(hook),))
    exporters = (*(eval_spec.exporters or ()), record)
    experiment._eval_spec = eval_spec = eval_spec._replace(exporters=exporters)
    try:
        if machines or flags.schedule == "continuous_train_and_eval":
            # No machine evaluates while several train. T2T evaluates the last checkpoint twice.
            tf.estimator.train_and_evaluate(experiment.estimator, train_spec, eval_spec)
            if is_chief and flags.schedule != "train" and not _evaluated(experiment.estimator,
                                                                         metrics_path):
                result = experiment.estimator.evaluate(eval_spec.input_fn, eval_spec.steps,
                                                       eval_spec.hooks)
                record.export(None, None, None, result, True)
        elif flags.schedule == "train":
            experiment.estimator.train(train_spec.input_fn, list(train_spec.hooks),
                                       max_steps=train_spec.max_steps,
                                       saving_listeners=train_spec.saving_listeners)
        else:
            t2t_trainer.execute_schedule(experiment)
    except (tf.estimator.NanLossDuringTrainingError, divergence.Diverged) as error:
        raise UserError(divergence.explain(error, hook, output_dir)) from None
    except tf.errors.DataLossError as error:
        raise UserError(f"--data_dir={flags.data_dir}: damaged data ({error.message})") from None
    finally:
        hook.close()


def _evaluated(estimator, metrics_path):
    """Whether metrics.jsonl knows what the last checkpoint gives: none where several machines
    trained, or where the evaluation after the last step was killed."""
    last = metrics_log.last(metrics_path).get("eval", {})
    return last.get("step") == int(estimator.get_variable_value("global_step"))


def _read_ahead(input_fn):
    """Has an Estimator's input function read from the start: T2T shuffles 512 batches, which takes
    seconds to fill. A strategy sees to its data itself."""
    def read_ahead(params, config):
        dataset = input_fn(params, config)
        if config.train_distribute:
            return dataset
        options = tf.data.Options()
        options.experimental_warm_start = True
        options.autotune.enabled = False              # T2T says how many threads; tuning takes one
        return dataset.with_options(options)
    return read_ahead


def report_changes(output_dir, flags, batch_size):
    """A training may go on with another number of devices: its steps are then larger or smaller.

    Raises:
      UserError: it was mirrored and shall not be, or the other way round.
    """
    before, now = preflight.trained_with(output_dir), devices.device_count(flags)
    if not tf.train.latest_checkpoint(output_dir):
        return
    if before.get("mirrored", False) != devices.is_mirrored(flags):
        # TensorFlow names Adam's counters otherwise where it mirrors.
        kinds = ["on one device or in towers", "mirrored (--optionally_use_dist_strat, TF_CONFIG)"]
        was, asked = (kinds[kind] for kind in (before.get("mirrored", False),
                                               devices.is_mirrored(flags)))
        raise UserError(f"--output_dir={output_dir} was trained {was} and cannot go on {asked}; "
                        "--warm_start_from takes its weights to another directory")
    then = before.get("devices", now)
    if then != now:
        terminal.print(f"rpr train: going on with {now} devices; the steps until here had {then}."
                       f" A step takes {now} x {batch_size} sub-words from now on, and the learning"
                       " rate still follows the step", highlight=False, soft_wrap=True)
