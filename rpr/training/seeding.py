"""A model function for training, whose random numbers depend on seed, batch number and names only.

Two models that are trained with the same seed start from equal values in variables of equal names,
and draw equal dropout masks in variable scopes of equal names.
"""
import copy
import functools
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import reproducible_masks, stable_hash
from rpr.training.input_pipeline import BATCH_NUMBER

# Graph collections, see `seeded`.
BATCHES, COUNTS = "rpr/batches", "rpr/counts"


def seeded(model_fn: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """Makes initial values and dropout masks of an Estimator's model function reproducible.

    In training, the returned function takes BATCH_NUMBER out of the features. It adds to the graph
    collection BATCHES three tensors per batch: its number, inputs (or targets), targets; and to
    COUNTS, int64 [5], the numbers of source tokens, target tokens, source positions and target
    positions (padding included), and sentences, if source and target are ids, int [batch, length,
    1, 1] with 0 for padding. XLA compiles trainings only, since the batches of evaluations have
    many shapes.
    """
    def with_seed(features: dict, labels: Any, mode: str, params: Any, config: Any) -> Any:
        build = functools.partial(model_fn, labels=labels, mode=mode, params=params, config=config)
        if mode != tf.estimator.ModeKeys.TRAIN:
            with tf.xla.experimental.jit_scope(compile_ops=False):
                return build(features)
        features = dict(features)
        number = features.pop(BATCH_NUMBER)
        source, target = features.get("inputs"), features["targets"]
        for tensor in (number, target if source is None else source, target):
            tf.add_to_collection(BATCHES, tensor)
        texts = [ids for ids in (source, target) if ids is not None]
        if all(ids.dtype.is_integer for ids in texts):
            none = tf.constant(0, tf.int64)
            tf.add_to_collection(COUNTS, tf.stack([
                *(none if ids is None else tf.math.count_nonzero(ids) for ids in (source, target)),
                *(none if ids is None else tf.size(ids, out_type=tf.int64)
                  for ids in (source, target)), tf.shape(target, out_type=tf.int64)[0]]))
        getter = functools.partial(_seeded_variable, seed)
        with reproducible_masks(seed, number), tf.variable_scope(
                tf.get_variable_scope(), custom_getter=getter, auxiliary_name_scope=False):
            return build(features)

    return with_seed


def _seeded_variable(seed: int, getter: Callable[..., Any], name: str, *args: Any,
                     initializer: Any = None, **kwargs: Any) -> Any:
    """Creates a variable whose random initial value depends on the seed and its name only."""
    if initializer is None and tf.as_dtype(kwargs.get("dtype") or tf.float32).is_floating:
        initializer = tf.glorot_uniform_initializer()  # TensorFlow's default
    if isinstance(initializer, type):
        initializer = initializer()
    if getattr(initializer, "seed", 0) is None:
        initializer = copy.copy(initializer)
        initializer.seed = stable_hash(seed, name) >> 1      # int64, not negative
    return getter(name, *args, initializer=initializer, **kwargs)
