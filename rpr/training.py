"""A training: T2T's experiment, watched (`rpr.watch`)."""
import os

import tensorflow.compat.v1 as tf
from tensor2tensor.bin import t2t_trainer

from rpr import preflight, throughput, watch
from rpr.errors import UserError


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
    output_dir = os.path.expanduser(flags.output_dir)
    tf.logging.set_verbosity(tf.logging.INFO)
    config = t2t_trainer.create_run_config(hparams)
    # TensorFlow rewrites a graph twice, for seconds: the second time it finds nothing.
    config.session_config.graph_options.rewrite_options.meta_optimizer_iterations = 1
    experiment = t2t_trainer.create_experiment_fn()(config, hparams)
    if not hasattr(experiment, flags.schedule):
        raise UserError(f"--schedule={flags.schedule}: T2T's experiment has no such method")
    if t2t_trainer.is_chief():
        t2t_trainer.save_metadata(hparams)
        preflight.remember_training(output_dir, **asked)
    train_spec, eval_spec = experiment._train_spec, experiment._eval_spec
    hook = watch.TrainingHook(metrics_path, flags.train_steps, experiment.estimator.model_dir,
                              flags.max_loss_rise)
    experiment._train_spec = train_spec = train_spec._replace(
        input_fn=throughput.counted(train_spec.input_fn),
        hooks=(*train_spec.hooks, hook), saving_listeners=(watch.SavingListener(hook),))
    exporters = (*(eval_spec.exporters or ()), watch.EvaluationRecord(metrics_path))
    experiment._eval_spec = eval_spec = eval_spec._replace(exporters=exporters)
    try:
        if flags.schedule == "continuous_train_and_eval":
            # T2T evaluates the last checkpoint once more after this: the same numbers again.
            tf.estimator.train_and_evaluate(experiment.estimator, train_spec, eval_spec)
        elif flags.schedule == "train":
            experiment.estimator.train(train_spec.input_fn, list(train_spec.hooks),
                                       max_steps=train_spec.max_steps,
                                       saving_listeners=train_spec.saving_listeners)
        else:
            t2t_trainer.execute_schedule(experiment)
    except (tf.estimator.NanLossDuringTrainingError, watch.Diverged) as error:
        raise UserError(watch.explain(error, hook, output_dir)) from None
    except tf.errors.DataLossError as error:
        raise UserError(f"--data_dir={flags.data_dir}: damaged data ({error.message})") from None
    finally:
        hook.close()
