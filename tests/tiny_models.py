"""Tiny models over random sentences, for the tests of the model."""
import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.models import transformer as t2t_transformer
from tensor2tensor.utils import registry

import rpr.hparams as _sets  # noqa: F401
from rpr.models import transformer as _model  # noqa: F401

VOCABULARY = 11


def hparams(name="rpr_tiny", **overrides):
    """A registered set with some of its values changed."""
    values = registry.hparams(name)
    for key, value in overrides.items():
        values.set_hparam(key, value)
    return values


def make(values, mode="eval", model="rpr_transformer", vocabulary=VOCABULARY):
    """A model object over a problem of symbols."""
    problem = problem_hparams.test_problem_hparams(vocabulary, vocabulary, values)
    # The stock model by its class: its module is registered by importing it.
    cls = t2t_transformer.Transformer if model == "transformer" else registry.model(model)
    return cls(values, mode, problem)


def sentences(lengths, seed=0, padding=0):
    """Random ids of these lengths, zeros after: int32 [sentences, longest + padding, 1, 1]."""
    random = np.random.RandomState(seed)
    ids = np.zeros([len(lengths), max(lengths) + padding, 1, 1], np.int32)
    for row, length in zip(ids, lengths, strict=True):
        row[:length, 0, 0] = random.randint(2, VOCABULARY, length)
    return ids


def features(inputs, targets, **more):
    """A feature dict of constants."""
    return {name: tf.constant(value) for name, value in
            dict(inputs=inputs, targets=targets, target_space_id=1, **more).items()}


def lively(session, seed=1):
    """Random weights that are large enough for different sentences to give different answers."""
    random = np.random.RandomState(seed)
    variables, values = tf.trainable_variables(), {}
    for variable in variables:
        scale = 2 * (variable.shape.as_list() or [1])[0] ** -0.5
        if "relative_positions" in variable.name or "positional_embedding" in variable.name:
            scale = 1.0
        if "symbol_modality" in variable.name:               # else each symbol repeats itself
            scale = 0.1
        value = scale * random.randn(*variable.shape.as_list())
        values[variable.initializer.inputs[1]] = value + ("layer_norm_scale" in variable.name)
    # At once: each `variable.load` would prepare the graph to be run anew.
    session.run([variable.initializer for variable in variables], values)
