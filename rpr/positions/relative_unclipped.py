"""One row for every distance: products by distance, brought to the pairs by moving rows.

Huang et al. 2018, Music Transformer, section 3.4.1. A query meets each distance once, so that its
products with the rows of all distances are the terms of its pairs, out of their places. As a table
of `relative` that nothing is clipped to it would cost up to 1.3 times as much, and a tenth less
only in an encoder of 64 to 256 words whose heads share the table.
"""
import tensorflow.compat.v1 as tf

from rpr.positions import distances, scheme
from rpr.positions.scheme import Scheme
from rpr.positions.skew import score_term


class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    product = "term"

    def __init__(self, hparams, side):
        self._length = hparams.max_length
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=relative_unclipped needs a "
                             "largest length, an integer of 1 or more")
        self._right = 0 if side == "targets" else self._length - 1   # a decoder never looks ahead
        channels = hparams.attention_key_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [hparams.num_heads]
        self._shape = [*outer, self._length + self._right, channels // hparams.num_heads]

    def score_term(self, q, k, relation):
        table = scheme.table("relative_unclipped", self._shape, q.dtype)
        with scheme.within(relation.keys, self._length, "relative_unclipped"):
            labels = distances.clip(distances.span(relation), self._length - 1, self._right)
        return score_term(q, tf.gather(table, labels, axis=-2), relation)
