"""One row for every distance (Huang et al. 2018, Music Transformer).

A learned table of them is one of `relative` that nothing is clipped to, and is computed as such.
Rows that are computed anew serve `score_term`, by section 3.4.1: a query meets each distance once,
so that its products with the rows of all distances are the terms of its pairs, out of their places.
"""
import tensorflow.compat.v1 as tf

from rpr import relations
from rpr.positions import absolute, relative
from rpr.positions.scheme import Scheme
from rpr.relations import shape_list


def score_term(q, rows, relation):
    """q_i . r_{j - i}, for every query i and key j.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      rows: r, one for each distance of `rpr.relations.span`, [distances, depth] shared by the
        heads, or [heads, distances, depth].
      relation: a `rpr.relations.Distances`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    if rows.shape.rank == 3:
        return relations.by_pair(tf.matmul(q, rows, transpose_b=True), relation)
    batch, heads, n, depth = shape_list(q)
    products = tf.matmul(tf.reshape(q, [-1, depth]), rows, transpose_b=True)
    return relations.by_pair(
        tf.reshape(products, [batch, heads, n, shape_list(rows)[0]]), relation)


class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    product = "whole"

    def __init__(self, hparams, side):
        self._length = hparams.max_length
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=relative_unclipped needs a "
                             "largest length, an integer of 1 or more")
        sides = 1 if side == "targets" else 2                # a decoder never looks ahead
        channels = hparams.attention_key_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [hparams.num_heads]
        self._shape = [*outer, sides * (self._length - 1) + 1, channels // hparams.num_heads]

    def scores(self, q, k, relation):
        table = relative.table("relative_unclipped", self._shape, q.dtype)
        with absolute.within(relation.keys, self._length, "relative_unclipped"):
            q = tf.identity(q)
        return relative.scores(q, k, table, relation, self._length - 1)
