"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

A table has one row a_c for each label c of a clipped distance, 2k + 1 in all. Two identities spare
most of the work, one for keys and one for values:

    q_i . (k_j + a_c)           =  q_i . (k_j + a_0)          +  q_i . (a_c - a_0)
    sum_j alpha_ij (v_j + a_c)  =  sum_j alpha_ij (v_j + a_0) +  sum_j alpha_ij (a_c - a_0)

Whatever lies k or more to the left (c = 0) is folded into keys and values (into keys only where the
numbers themselves are asked for: a softmax does not see what all keys of a query get), and k
diagonals are left of a causal layout. Of a bidirectional one the right tail (c = 2k) is folded,
and what is left is one number a query for all other pairs and a band of 2k - 1 diagonals. Only
numbers go from rows of the table to pairs and back, and nothing of the size of the weights is kept
for the gradient. Where the band is as wide as the sentence, one vector for every pair and a product
for each query, as T2T has them, cost less, or, in a decoder and where each head has a table, one
product with the rows of all distances, skewed; `THRESHOLDS` says where.

Tried, and lost on CPU: expanding numbers from labels to pairs by a gather (laid out as `deberta`
and `graph` do it, 1.9 in an encoder at n = 256, k = 16, where the band took 1.7) or a one-hot
product; all 2n - 1 diagonals as one band (2.5 to 5.9 times absolute attention), or skewed in an
encoder whose heads share a table (2.1 to 3.3); the right tail as blocks of keys, which are columns
beside the keys in the main product (1.8 at n = 256, k = 16, where masked numbers take 1.6); Einsum
for products with the rows (twice the time of batched products); slices without a gradient of their
own (a tenth of the whole step); `tf.cond` for lengths that only the run knows (a tenth of the
attention); masks by MatrixBandPart where it cannot work in place.
"""
import functools

import numpy as np

from rpr.nn import ops
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.relative_kernels import (
    _left,
    _outputs_banded,
    _outputs_folded,
    _outputs_one,
    _outputs_per_pair,
    _outputs_skewed,
    _right,
    _scores_banded,
    _scores_folded,
    _scores_one,
    _scores_per_pair,
    _scores_skewed,
    _vectors,
)
from rpr.positions.scheme import Scheme, get_table

# Up to which length a vector for every pair (T2T's way), and beyond it up to which length every
# distance, cost less than the band: rows of (k, length, length) for a direction and for tables that
# the heads share, or do not; between rows in proportion. Measured on two CPU cores with the
# functions of scripts/bench_attention, one way and another forced, at all these k and at lengths
# on either side of these.
THRESHOLDS = {
    ("causal", True): ((2, 0, 0), (16, 0, 36), (64, 0, 120), (128, 0, 240), (256, 0, 512)),
    ("causal", False): ((2, 0, 0), (16, 0, 24), (64, 0, 96), (128, 0, 224), (256, 0, 512)),
    ("bidirectional", True): ((2, 0, 0), (16, 44, 0), (64, 180, 0), (128, 304, 0), (256, 512, 0)),
    ("bidirectional", False): (
        (2, 0, 0), (16, 32, 0), (64, 76, 0), (128, 72, 192), (256, 72, 464)),
}


def scores(q, k, table, layout, left=None, exact=True):
    """The numerator of equation (4): q_i . (k_j + a^K_ij).

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: a `rpr.positions.layout.Layout`.
      left: how many rows of the table are for keys to the left of the query, where they are not as
        many as for those to its right.
      exact: False where a softmax over the keys follows, which does not see what is added to all
        scores of a query: it may be left out then.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    left = _left(table) if left is None else left
    return _choose(table, layout, left, one=_scores_one, folded=_scores_folded,
                   banded=functools.partial(_scores_banded, exact=exact),
                   per_pair=_scores_per_pair, skewed=_scores_skewed)(q, k, table, layout, left)


def outputs(weights, v, table, layout, left=None):
    """Equation (3): sum_j alpha_ij (v_j + a^V_ij).

    Args:
      weights: alpha, [batch, heads, len_q, len_k].
      v: [batch, heads, len_k, depth].
      table: a^V, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: a `rpr.positions.layout.Layout`.
      left: as for `scores`.

    Returns:
      [batch, heads, len_q, depth] of the dtype of the weights.
    """
    left = _left(table) if left is None else left
    return _choose(table, layout, left, one=_outputs_one, folded=_outputs_folded,
                   banded=_outputs_banded, per_pair=_outputs_per_pair, skewed=_outputs_skewed)(
                       weights, v, table, layout, left)


def _choose(table, layout, left, one, folded, banded, per_pair, skewed):
    """The function for this table and this layout; the only place where that is decided."""
    k = left if layout.causal else max(left, _right(table, left))
    length = layout.keys
    if isinstance(layout.queries, int) and layout.queries == 1:
        return one
    if k == 0:
        return folded
    clips, *limits = zip(*THRESHOLDS[
        "causal" if layout.causal else "bidirectional", table.shape.rank == 2], strict=True)
    ways, reached = [], 0
    for way, longest in zip((per_pair, skewed), limits, strict=True):
        longest = round(np.interp(k, clips, longest))
        if longest > reached:
            ways.append((longest, way))
            reached = longest
    if isinstance(length, int):
        return next((way for longest, way in ways if length <= longest), banded)
    chosen = banded
    if ops.can_use_raw_cond():
        for longest, way in reversed(ways):
            chosen = _up_to(longest, length, way, chosen)
    return chosen


def _up_to(longest, length, short, long):
    """One way for sentences of up to so many keys, and another for longer ones."""
    def choose(x, y, table, layout, left):
        def way(one):
            return lambda x, y, table, *sizes: one(
                x, y, table, Layout(*sizes), left)

        return ops.raw_cond(
            length <= longest, way(short), way(long), x, y, table, *layout)

    return choose


# One label for all pairs (k = 0): nothing but the fold. Rows that a mask hides may come after it.


# A band of diagonals.


# A vector for every pair, and one product a query.


# A number for every distance, moved to the pairs (Huang et al. 2018).


# One query, as in a cached step of decoding.


# Where T2T's `dot_product_relative` has its tables.
_SCOPE = "dot_product_attention_relative/relative_positions"


@register("relative")
class Relative(Scheme):
    """Learned vectors per clipped distance, added to keys and values (Shaw et al. 2018)."""
    supports_additive = True

    def __init__(self, hparams, side):
        k = hparams.max_relative_position
        if k < 0:
            raise ValueError(f"max_relative_position={k}: the clipping distance is an integer of 0 "
                             "or more (0: one label for every distance)")
        clips = []
        for name in ("max_relative_position_left", "max_relative_position_right"):
            clips.append(hparams.get(name))
            if clips[-1] < -1:
                raise ValueError(f"{name}={clips[-1]}: the clipping distance on that side is an "
                                 "integer of 0 or more, or -1 for max_relative_position")
        self._left, right = (k if clip == -1 else clip for clip in clips)
        heads, rows = hparams.num_heads, self._left + right + 1
        key_channels = hparams.attention_key_channels or hparams.hidden_size
        value_channels = hparams.attention_value_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [heads]
        self._keys = hparams.relative_keys and outer + [rows, key_channels // heads]
        self._values = hparams.relative_values and outer + [rows, value_channels // heads]
        self.query_key_method = "scores" if self._keys else None

    def scores(self, q, k, layout):
        if self._keys:
            rows = get_table(f"{_SCOPE}_keys", self._keys, q.dtype)
            return scores(q, k, rows, layout, self._left, exact=False)

    def pair_vectors(self, layout, dtype):
        if self._keys:
            rows = get_table(f"{_SCOPE}_keys", self._keys, dtype)
            return _vectors(rows, layout, self._left)

    def weighted_values(self, weights, v, layout):
        if self._values:
            rows = get_table(f"{_SCOPE}_values", self._values, weights.dtype)
            return outputs(weights, v, rows, layout, self._left)
