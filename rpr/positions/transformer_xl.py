"""Sinusoids of the distance as keys, with a content and a position bias (Dai et al. 2019)."""

import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list
from rpr.nn.projections import project, split_heads
from rpr.positions.absolute import sinusoid
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Product, Scheme
from rpr.positions.skew import scores_by_distance
from rpr.utils.interfaces import HParams


def scores(q: tf.Tensor, k: tf.Tensor, rows: tf.Tensor, u: tf.Tensor, v: tf.Tensor,
           layout: Layout) -> tf.Tensor:
    """The four terms of Dai et al. 2019, section 3.3: (q_i + u) . k_j + (q_i + v) . r_{i-j}.

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      k: [batch, heads, keys, depth].
      rows: the projected sinusoids W r, [heads, distances, depth], for `layout.distances()`.
      u: the content bias [heads, depth], scaled like q.
      v: the position bias [heads, depth], scaled like q.
      layout: positions of queries and keys.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    return (tf.matmul(q + u[:, None], k, transpose_b=True)
            + scores_by_distance(q + v[:, None], rows, layout))


@register("transformer_xl")
class TransformerXL(Scheme):
    """Sinusoids of the distance as keys, with two learned biases (Dai et al. 2019)."""

    def __init__(self, hparams: HParams, side: str) -> None:
        self._hidden = hparams.hidden_size

    def replaces(self, hook: str) -> bool:
        return hook == "logits"

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        heads, depth = shape_list(q)[1], q.shape.as_list()[3]
        distances = layout.distances() if layout.unit_steps else layout.relative_positions()[:, 0]
        with tf.variable_scope("transformer_xl"):
            u, v, signal = self.shared_by_layers("signal", layout, lambda: (
                tf.get_variable("u", [heads, depth], dtype=q.dtype),
                tf.get_variable("v", [heads, depth], dtype=q.dtype),
                tf.cast(sinusoid(-distances, self._hidden), q.dtype)))
            flat = tf.reshape(signal, [1, -1, self._hidden])
            rows = split_heads(project(flat, heads * depth, "r"), heads)[0]
        u, v = (x * depth ** -0.5 for x in (u, v))           # q is already scaled
        if layout.unit_steps:
            return scores(q, k, rows, u, v, layout)
        rows = tf.reshape(rows, [heads, *shape_list(distances), depth])      # one for each pair
        rows = tf.transpose(rows, [1, 0, 2, 3, 4])
        return (tf.matmul(q + u[:, None], k, transpose_b=True)
                + tf.matmul(rows, (q + v[:, None])[..., None])[..., 0])
