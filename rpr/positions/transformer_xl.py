"""Sinusoids of the distance as keys, with a content and a position bias (Dai et al. 2019).

Section 3.3: q_i . k_j + q_i . W r_{i-j} + u . k_j + v . W r_{i-j}. It costs about as much as T2T's
relative attention in an encoder of 64 words, 1.0 to 1.2 times as much at 16, and else less.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list
from rpr.nn.projections import project, split_heads
from rpr.positions import absolute, distances, skew
from rpr.positions.scheme import Scheme


def scores(q, k, rows, u, v, relation):
    """The four terms of section 3.3: (q_i + u) . k_j + (q_i + v) . r_{i-j}.

    Args:
      q: [batch, heads, len_q, depth], scaled by the caller.
      k: [batch, heads, len_k, depth].
      rows: the projected sinusoids, [heads, distances, depth], for each distance of
        `rpr.positions.distances.span`.
      u: [heads, depth], scaled as q is.
      v: likewise.
      relation: a `rpr.positions.distances.Distances`.

    Returns:
      [batch, heads, len_q, len_k] of the dtype of q.
    """
    to_content, to_position = _add_biases(q, u, v)
    return (tf.matmul(to_content, k, transpose_b=True)
            + skew.score_term(to_position, rows, relation))


@tf.custom_gradient
def _add_biases(q, u, v):
    """q + u and q + v. The sums of their gradients over both axes at once would take longer."""
    def over_words(x):
        return tf.reduce_sum(tf.reduce_sum(x, axis=2), axis=0)       # [heads, depth]

    return ((q + u[:, None], q + v[:, None]),
            lambda du, dv: (du + dv, over_words(du), over_words(dv)))


class TransformerXL(Scheme):
    """Sinusoids of the distance as keys, two biases in place of queries (Dai et al. 2019)."""
    product = "whole"

    def __init__(self, hparams, side):
        self._hidden = hparams.hidden_size

    def scores(self, q, k, relation):
        heads, depth = shape_list(q)[1], q.shape.as_list()[3]
        with tf.variable_scope("transformer_xl"):
            u, v, signal = self.once(relation, lambda: (
                tf.get_variable("u", [heads, depth], dtype=q.dtype),
                tf.get_variable("v", [heads, depth], dtype=q.dtype),
                tf.cast(absolute.sinusoid(-distances.span(relation), self._hidden), q.dtype)))
            rows = split_heads(project(signal[None], heads * depth, "r"), heads)[0]
        scale = depth ** -0.5                                # q comes scaled
        return scores(q, k, rows, u * scale, v * scale, relation)
