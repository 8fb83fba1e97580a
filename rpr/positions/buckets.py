"""rpr.positions.buckets"""
import math

import tensorflow.compat.v1 as tf


def _octaves(distances, exact, most, steps):
    """How many of the `steps` equal ratios from `exact` to `most` each distance has reached.

    Thresholds are computed once, in Python: a float32 logarithm is off by one at the borders.
    """
    reached = [exact * (most / exact) ** (step / steps) for step in range(steps + 1)]
    return lambda border: tf.reduce_sum(tf.cast(
        distances[..., None] >= tf.constant([border(x) for x in reached]), tf.int32), axis=-1)


def t5_buckets(distances, buckets, max_distance, causal):
    """Buckets of distance, ever wider (Raffel et al. 2020, section 2.1).

    Half of a direction's buckets are single distances, the other half split the rest up to
    max_distance in equal ratios; the last takes all beyond. Where both directions count, keys to
    the right have the second half of the buckets.

    Args:
      distances: int32, key's position less query's, any shape.
      buckets: how many, 4 or more.
      max_distance: the distance at which the last bucket ends, beyond the single ones.
      causal: whether keys to the right of a query do not count: they are in bucket 0.

    Returns:
      int32 of the same shape, in 0..buckets - 1.
    """
    side = buckets if causal else buckets // 2
    exact, away = side // 2, tf.maximum(-distances, 0) if causal else tf.abs(distances)
    wide = exact - 1 + _octaves(away, exact, max_distance, side - exact)(
        lambda x: math.ceil(x - 1e-9))
    bucket = tf.where(away < exact, away, tf.minimum(wide, side - 1))
    return bucket if causal else bucket + side * tf.cast(distances > 0, tf.int32)


def log_buckets(distances, span, max_distance):
    """Signed buckets of distance, single ones up to span / 2, then ever wider (DeBERTa's code, from
    version 2 on; He et al. 2021 has only single ones, clipped).

    Args:
      distances: int32, any shape.
      span: buckets a side, an even number, 4 or more.
      max_distance: the distance beyond which all are in the last bucket, above span / 2.

    Returns:
      int32 of the same shape, in -span..span - 1.
    """
    exact, away = span // 2, tf.abs(distances)
    wide = exact + _octaves(away, exact, max_distance - 1, exact - 1)(
        lambda x: math.floor(x + 1e-9) + 1)
    bucket = tf.sign(distances) * tf.where(away <= exact, away, wide)
    return tf.clip_by_value(bucket, -span, span - 1)
