"""Numbers by distance and head, added to the logits: T5's and ALiBi's.

What T5's cost beside the sum is to bring numbers to the pairs, and their gradients back: layers
that share them do it once.
"""
import math

import numpy as np
import tensorflow.compat.v1 as tf

from rpr.positions import buckets, distances, skew
from rpr.positions.scheme import Scheme


def t5_bias(table, relation, max_distance):
    """A number for each bucket of distance and head (Raffel et al. 2020, section 2.1).

    Args:
      table: [buckets, heads].
      relation: a `rpr.positions.distances.Distances`; where it is causal the buckets are all for keys to the
        left, else half of them for either side.
      max_distance: see `rpr.positions.distances.t5_buckets`.

    Returns:
      [1, heads, len_q, len_k] of the dtype of the table.
    """
    labels = buckets.t5_buckets(
        distances.span(relation), table.shape.as_list()[0], max_distance, relation.causal)
    rows = tf.one_hot(labels, table.shape.as_list()[0], dtype=table.dtype.base_dtype)
    by_distance = tf.matmul(table, rows, transpose_a=True, transpose_b=True)    # [heads, distances]
    return skew.by_pair(by_distance[None, :, None], relation)


def alibi_slopes(heads):
    """The slopes of Press et al. 2022, section 3, and of their code where heads are no power of 2.

    Args:
      heads: their number, an int.

    Returns:
      a list of `heads` floats: 2 ** (-8 / heads), its square, ...; where heads are no power of 2,
      those of the next lower power, then every other of the next higher.
    """
    lower = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    return slopes + [2 ** (-4 * i / lower) for i in range(1, 2 * lower + 1, 2)][:heads - lower]


def alibi(heads, relation, dtype=tf.float32):
    """-slope * |i - j|: linear biases (Press et al. 2022), the same on both sides of the query.

    Args:
      heads: their number, an int.
      relation: a `rpr.positions.distances.Distances`.
      dtype: of the result.

    Returns:
      [1, heads, len_q, len_k].
    """
    away = tf.cast(tf.abs(distances.span(relation)), dtype)
    slopes = np.array(alibi_slopes(heads), dtype=tf.as_dtype(dtype).as_numpy_dtype)
    return skew.by_pair(-away * slopes[None, :, None, None], relation)


class T5Bias(Scheme):
    """A learned number per head and bucket of distance, added to logits (Raffel et al. 2020)."""
    additive = True

    def __init__(self, hparams, side):
        self._heads, self._buckets = hparams.num_heads, hparams.t5_buckets
        self._max_distance, self._share = hparams.t5_max_distance, hparams.t5_share_layers
        if self._buckets < 4 or self._buckets % 2:
            raise ValueError(f"t5_buckets={self._buckets}: position=t5_bias needs an even number, "
                             "4 or more")
        if self._max_distance <= self._buckets // 2:
            raise ValueError(f"t5_max_distance={self._max_distance}: the widest bucket ends beyond "
                             f"the single ones, above t5_buckets / 2 = {self._buckets // 2}")

    def bias(self, relation, dtype):
        def make():
            with tf.variable_scope("t5_bias"):
                table = tf.get_variable("embeddings", [self._buckets, self._heads], dtype=dtype)
            return t5_bias(table, relation, self._max_distance)
        return self.once(relation, make) if self._share else make()


class Alibi(Scheme):
    """Fixed penalties in proportion to the distance, steeper by head (Press et al. 2022)."""
    additive = True

    def __init__(self, hparams, side):
        self._heads = hparams.num_heads

    def bias(self, relation, dtype):
        return self.once(relation, lambda: alibi(self._heads, relation, dtype))
