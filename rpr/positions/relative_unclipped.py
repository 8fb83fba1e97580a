"""One learned vector per distance, without clipping (Huang et al. 2018, Music Transformer)."""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows
from rpr.positions.buckets import clipped_labels
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme, check_length, get_table
from rpr.positions.skew import scores_by_distance


@register("relative_unclipped")
class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    t2t_settings = ("heads_share_relative_embedding",)
    query_key_method = "score_term"

    def __init__(self, hparams: Any, side: str) -> None:
        self._length = self.longest = hparams.max_length
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=relative_unclipped needs a "
                             "maximum length, an integer of 1 or more")
        self._right = 0 if side == "targets" else self._length - 1   # a decoder has no keys there
        channels = hparams.attention_key_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [hparams.num_heads]
        self._shape = [*outer, self._length + self._right, channels // hparams.num_heads]

    def score_term(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor:
        table = get_table("relative_unclipped", self._shape, q.dtype)
        with check_length(layout.keys, self._length, "relative_unclipped"):
            labels = clipped_labels(layout.distances(), self._length - 1, self._right)
        return scores_by_distance(q, gather_rows(table, labels), layout)
