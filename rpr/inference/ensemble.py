"""Ensembles: several trained models that choose each next word together.

The probability of a word is the arithmetic mean of what the models give it, after the words chosen
so far. Models may differ in everything but their vocabulary.
"""
import os
import types

import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr.models import beam_search, incremental
from rpr.nn.ops import shape_list
from rpr.t2t import preflight, trained_model
from rpr.utils import processes
from rpr.utils.errors import UserError


def members(directories, data_dir):
    """Finds and checks the models of an ensemble.

    Args:
      directories: of runs, whose averaged checkpoint counts where there is one, or T2T's output
        directories, whose last checkpoint counts.
      data_dir: holds the vocabulary.

    Returns:
      a list of `t2t.TrainedModel`, which all decode from the text of the first one's problem.

    Raises:
      UserError: one cannot take part.
    """
    found, vocabularies = [], []
    for directory in map(os.path.expanduser, directories):
        said = f"--ensemble: {directory or 'an empty name'}"
        model_dir = os.path.join(directory, "model")
        if not os.path.isdir(model_dir):
            model_dir = directory
        asked = preflight.trained_with(model_dir)
        if not asked:
            raise UserError(f"{said} is neither a run's directory nor the output directory of rpr "
                            f"train (no {preflight.TRAINED_WITH})")
        vocabularies.append(asked["vocabulary"])
        if vocabularies[-1] != vocabularies[0]:
            raise UserError(f"{said} was trained with another vocabulary "
                            f"({', '.join(vocabularies[-1])}) than {directories[0]} "
                            f"({', '.join(vocabularies[0])})")
        average = tf.train.latest_checkpoint(os.path.join(directory, "average"))
        found.append(trained_model.find_trained_model(types.SimpleNamespace(
            model=asked["model"], problem=asked["problem"], hparams_set=asked["hparams_set"],
            hparams="", data_dir=data_dir, output_dir=model_dir, checkpoint_path=average)))
        if not issubclass(registry.model(asked["model"]), incremental.IncrementalDecoder):
            raise UserError(f"{said} holds a model {asked['model']}: it cannot take part")
    return found


def estimator(models, decode_hparams):
    """A `tf.estimator.Estimator` that decodes with an ensemble, as T2T's do with one model.

    Args:
      models: `t2t.TrainedModel`s.
      decode_hparams: T2T's.
    """
    def model_fn(features, labels, mode):
        del labels
        built = []
        for number, trained in enumerate(models):
            model = registry.model(trained.name)(trained.hparams, mode,
                                                 trained.hparams.problem_hparams)
            with tf.variable_scope(f"member_{number}") as scope:
                built.append((model, scope))
        found = decode({"inputs": features["inputs"]}, built, decode_hparams)
        savers = [tf.train.Saver({variable.op.name[len(scope.name) + 1:]: variable
                                  for variable in tf.global_variables(scope.name + "/")})
                  for _, scope in built]

        def restore(scaffold, session):
            del scaffold
            for saver, trained in zip(savers, models, strict=True):
                saver.restore(session, trained.checkpoint)

        return tf.estimator.EstimatorSpec(
            mode, predictions={**found, "inputs": features["inputs"]},
            scaffold=tf.train.Scaffold(init_fn=restore))

    config = tf.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    return tf.estimator.Estimator(
        model_fn, processes.temporary_directory("ensemble"),
        tf.estimator.RunConfig(session_config=config))


def decode(features, models, decode_hparams):
    """The best sentences of an ensemble.

    Args:
      features: `inputs` int32 [batch, length, 1, 1].
      models: (`IncrementalDecoder` model, variable scope that its own is in) of each.
      decode_hparams: T2T's.

    Returns:
      as `search.find`.

    Raises:
      UserError: they do not choose from as many symbols.
    """
    counts = [model.target_vocab_size() for model, _ in models]
    if len(set(counts)) > 1:
        raise UserError(f"--ensemble: the models choose from {', '.join(map(str, counts))} symbols "
                        "(vocab_divisor): they cannot choose together")
    beams = decode_hparams.beam_size
    functions, caches = [], []
    for model, scope in models:
        with tf.variable_scope(scope, auxiliary_name_scope=False), tf.variable_scope(model.name):
            step, cache = model.init_step(model.prepare_features(features), beams)
        functions.append(step)
        caches.append(cache)

    def together(ids, caches):
        logits, after = [], []
        for (model, scope), step, cache in zip(models, functions, caches, strict=True):
            with tf.variable_scope(scope, auxiliary_name_scope=False), \
                    tf.variable_scope(model.name):
                found, cache = step(ids, cache)
            logits.append(found)
            after.append(cache)
        return mean(logits), after

    batch, length = shape_list(features["inputs"])[:2]
    return beam_search.search(
        together, caches, batch, length + decode_hparams.extra_length, beams,
        beams if decode_hparams.return_beams else 1, decode_hparams.alpha)


def mean(logits):
    """The logarithm of the mean of the probabilities that several models give.

    Args:
      logits: a list of [rows, symbols].

    Returns:
      float32 [rows, symbols].
    """
    chances = tf.stack([tf.nn.log_softmax(tf.cast(one, tf.float32)) for one in logits])
    return tf.reduce_logsumexp(chances, axis=0) - tf.log(float(len(logits)))
