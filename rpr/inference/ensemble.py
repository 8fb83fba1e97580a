"""Ensembles: several trained models that choose each next token together.

The probability of a token is the arithmetic mean of the models' probabilities for it. The models
may differ in everything except their vocabulary.
"""
import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr.models import beam_search, incremental
from rpr.t2t import checkpoints, preflight, trained_model
from rpr.utils import processes
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import DecodeHParams, ModelRequest


def find_members(directories: Sequence[str], data_dir: str) -> list[trained_model.TrainedModel]:
    """Finds the models of an ensemble; refuses those that cannot take part.

    They are in run directories, whose averaged checkpoint is used if there is one, or output
    directories of rpr train, whose last checkpoint is used. `data_dir` has the vocabulary.
    """
    members: list[trained_model.TrainedModel] = []
    first_vocabulary = None
    for directory in map(os.path.expanduser, directories):
        model_dir = os.path.join(directory, "model")
        if not os.path.isdir(model_dir):
            model_dir = directory
        training = preflight.trained_with(model_dir)
        if not training:
            raise InvalidValue("ensemble", directory, "neither a run directory nor an output "
                               f"directory of rpr train (no {preflight.TRAINED_WITH})")
        # A generated problem has its vocabulary in the code.
        vocabulary = training["vocabulary"] or {f"that of {training['problem']}": ""}
        first_vocabulary = first_vocabulary or vocabulary
        if vocabulary != first_vocabulary:
            raise InvalidValue("ensemble", directory, "it was trained with another vocabulary "
                               f"({', '.join(vocabulary)}) than {directories[0]} "
                               f"({', '.join(first_vocabulary)})")
        members.append(trained_model.find_trained_model(ModelRequest(
            model=training["model"], problem=training["problem"],
            hparams_set=training["hparams_set"], data_dir=data_dir, output_dir=model_dir,
            checkpoint_path=checkpoints.newest(os.path.join(directory, "average")) or "")))
        preflight.check_reads_source(members[-1].hparams)
        if not issubclass(registry.model(training["model"]), incremental.IncrementalDecoder):
            raise InvalidValue("ensemble", directory, f"holds a model {training['model']}, which "
                               "cannot take part in an ensemble")
        if members[-1].hparams.get("decoder_only"):
            raise InvalidValue("ensemble", directory, "holds a model without an encoder "
                               "(decoder_only), which cannot take part in an ensemble")
    return members


def build_estimator(members: Sequence[trained_model.TrainedModel], decode_hparams: DecodeHParams
                    ) -> tf.estimator.Estimator:
    """A `tf.estimator.Estimator` that decodes with an ensemble, as T2T's does with one model."""
    def model_fn(features: dict[str, tf.Tensor], labels: None, mode: str
                 ) -> tf.estimator.EstimatorSpec:
        del labels
        models = []
        for number, member in enumerate(members):
            model = registry.model(member.name)(member.hparams, mode,
                                                member.hparams.problem_hparams)
            with tf.variable_scope(f"member_{number}") as scope:
                models.append((model, scope))
        predictions = decode({"inputs": features["inputs"]}, models, decode_hparams)
        savers = [checkpoints.saver(member.checkpoint, f"{scope.name}/")
                  for member, (_, scope) in zip(members, models, strict=True)]

        def restore(scaffold: tf.train.Scaffold, session: tf.Session) -> None:
            del scaffold
            for saver, member in zip(savers, members, strict=True):
                saver.restore(session, member.checkpoint)

        return tf.estimator.EstimatorSpec(
            mode, predictions={**predictions, "inputs": features["inputs"]},
            scaffold=tf.train.Scaffold(init_fn=restore))

    config = tf.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    return tf.estimator.Estimator(model_fn, processes.temporary_directory("ensemble"),
                                  tf.estimator.RunConfig(session_config=config))


def decode(features: dict[str, tf.Tensor], models: Sequence[tuple[Any, Any]],
           decode_hparams: DecodeHParams) -> dict[str, tf.Tensor]:
    """The best hypotheses of an ensemble, in the form of `rpr.models.beam_search.search`.

    `features` has `inputs`, int32 [batch, length, 1, 1]. `models` are each member's model, an
    `IncrementalDecoder`, and the variable scope around its own.
    """
    sizes = [model.target_vocab_size() for model, _ in models]
    if len(set(sizes)) > 1:
        raise UserError(f"the models of an ensemble have {', '.join(map(str, sizes))} target "
                        "symbols; the numbers must be equal (vocab_divisor)")
    beams = decode_hparams.beam_size
    parts, limits = [], []
    for model, scope in models:
        with tf.variable_scope(scope, auxiliary_name_scope=False), tf.variable_scope(model.name):
            prepared = model.prepare_features(features)
            parts.append(model.init_step(prepared, beams))
            limits.append(model.search_lengths(prepared, decode_hparams.extra_length))
    model_steps, initial_caches, initial_sources = map(list, zip(*parts, strict=True))

    def ensemble_step(ids: tf.Tensor, caches: list[Any], sources: list[Any]
                      ) -> tuple[tf.Tensor, list[Any]]:
        logits, next_caches = [], []
        for (model, scope), step, cache, source in zip(
                models, model_steps, caches, sources, strict=True):
            with tf.variable_scope(scope, auxiliary_name_scope=False), \
                    tf.variable_scope(model.name):
                model_logits, cache = step(ids, cache, source)
            logits.append(model_logits)
            next_caches.append(cache)
        return mean_log_probabilities(logits), next_caches

    lengths = functools.reduce(tf.minimum, limits)
    return beam_search.search(
        ensemble_step, initial_caches, initial_sources, lengths, beams,
        beams if decode_hparams.return_beams else 1, decode_hparams.alpha)


def mean_log_probabilities(logits: Sequence[tf.Tensor]) -> tf.Tensor:
    """The logarithm of the mean of several models' probabilities, float32 [rows, symbols].

    `logits` are those of each model, [rows, symbols].
    """
    log_probabilities = tf.stack(
        [tf.nn.log_softmax(tf.cast(model_logits, tf.float32)) for model_logits in logits])
    return tf.reduce_logsumexp(log_probabilities, axis=0) - tf.log(float(len(logits)))
