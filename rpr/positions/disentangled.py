"""Attention with separate terms of content and position: Transformer-XL and DeBERTa.

Disentangled attention (DeBERTa; He et al. 2021, section 3.1) is

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j. The buckets are the logarithmic ones of DeBERTa's
later code, see `rpr.positions.layout.log_buckets`. The product of each word with the row of each
bucket is computed once. The products are then copied to the pairs, with sentences and heads as the
last axis, so that each copy is a stretch of memory.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, shape_list
from rpr.nn.projections import project, split_heads
from rpr.positions.absolute import sinusoid
from rpr.positions.layout import Layout, log_buckets, whole
from rpr.positions.pairs import score_term, scores_by_distance
from rpr.positions.registry import register
from rpr.positions.scheme import Product, Scheme
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


@register("transformer_xl")
class TransformerXL(Scheme):
    """Sinusoids of the distance as keys, with two learned biases (Dai et al. 2019).

    (q_i + u) . k_j + (q_i + v) . W r_{i - j} (section 3.3), with a content bias u and a position
    bias v of each head.
    """

    def replaces(self, hook: str) -> bool:
        return hook == "logits"

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        heads, depth, hidden = shape_list(q)[1], q.shape.as_list()[3], self.hparams.hidden_size
        distances = layout.distances() if layout.unit_steps else layout.relative_positions()[:, 0]
        with tf.variable_scope("transformer_xl"):
            u, v, signal = self.shared_by_layers("signal", layout, lambda: (
                tf.get_variable("u", [heads, depth], dtype=q.dtype),
                tf.get_variable("v", [heads, depth], dtype=q.dtype),
                tf.cast(sinusoid(-distances, hidden), q.dtype)))
            flat = tf.reshape(signal, [1, -1, hidden])
            rows = split_heads(project(flat, heads * depth, "r"), heads)[0]
        u, v = ((x * depth ** -0.5)[:, None] for x in (u, v))            # q is already scaled
        content = tf.matmul(q + u, k, transpose_b=True)
        if layout.unit_steps:
            return content + scores_by_distance(q + v, rows, layout)
        rows = tf.reshape(rows, [heads, *shape_list(distances), depth])      # one for each pair
        return content + tf.matmul(tf.transpose(rows, [1, 0, 2, 3, 4]), (q + v)[..., None])[..., 0]


def _distance_limits(layout: Layout) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """The smallest and the largest distance i - j of a query i and an unmasked key j."""
    first = 0 if layout.causal else layout.offset - layout.keys + 1
    return first, layout.offset + layout.queries - 1


def _bucket(distance: int | tf.Tensor, buckets_per_side: int, max_distance: int) -> tf.Tensor:
    return log_buckets(tf.convert_to_tensor(distance), buckets_per_side, max_distance)


def reachable_rows(embeddings: tf.Tensor, layout: Layout,
                   max_distance: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of the buckets that occur in a layout; no others need to be projected.

    From the rows of all buckets, [2 * buckets_per_side, ...], those for k^r, of the distances
    i - j, and those for q^r, of the distances j - i.
    """
    if not layout.unit_steps:
        return embeddings, embeddings
    side, (smallest, largest) = shape_list(embeddings)[0] // 2, _distance_limits(layout)

    def rows(first_distance: tf.Tensor, last_distance: tf.Tensor) -> tf.Tensor:
        first, last = (_bucket(distance, side, max_distance) + side
                       for distance in (first_distance, last_distance))
        inner = shape_list(embeddings)[1:]
        # tf.slice, because the gradient of strided slices takes longer.
        return tf.slice(embeddings, [first, *[0] * len(inner)], [last + 1 - first, *inner])

    return rows(smallest, largest), rows(-largest, -smallest)


def score_terms(q: tf.Tensor, k: tf.Tensor, k_rows: tf.Tensor, q_rows: tf.Tensor, layout: Layout,
                buckets_per_side: int, max_distance: int) -> tf.Tensor:
    """q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i).

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      k: [batch, heads, keys, depth].
      k_rows: k^r, [heads, labels, depth]: projections of the first result of `reachable_rows`.
      q_rows: q^r, [heads, labels, depth]: projections of the second one, scaled like q.
      buckets_per_side, max_distance: see `log_buckets`.
    """
    def labels(table: tf.Tensor, distances: tf.Tensor, smallest: tf.Tensor) -> tf.Tensor:
        """Indices into the reachable rows; any index for masked pairs."""
        first = _bucket(tf.cast(smallest, distances.dtype), buckets_per_side, max_distance)
        return tf.clip_by_value(_bucket(distances, buckets_per_side, max_distance) - first,
                                0, tf.cast(shape_list(table)[1] - 1, distances.dtype))

    if not layout.unit_steps:
        distances = whole(layout.relative_positions())[:, 0]
        by_query, by_key = (buckets_per_side + _bucket(x, buckets_per_side, max_distance)
                            for x in (-distances, tf.transpose(distances, [0, 2, 1])))
        return (score_term(q, k_rows, by_query) + tf.transpose(
            score_term(k, q_rows, by_key), [0, 1, 3, 2]))
    if layout.is_single_query:
        smallest, largest = _distance_limits(layout)
        k_by_key = gather_rows(k_rows, labels(k_rows, -layout.distances(), smallest))
        q_by_key = gather_rows(
            q_rows, labels(q_rows, layout.relative_positions()[0, 0, 0], -largest))
        return (scores_by_distance(q, k_by_key, layout)
                + tf.reduce_sum(k * q_by_key, axis=3)[:, :, None])

    n, m, distances = layout.queries, layout.keys, layout.relative_positions()[0, 0]
    smallest, largest = _distance_limits(layout)
    queries, keys = (tf.range(tf.cast(count, tf.int64)) for count in (n, m))
    query_indices = labels(k_rows, -distances, smallest) * tf.cast(n, tf.int64) + queries[:, None]
    key_indices = labels(q_rows, distances, -largest) * tf.cast(m, tf.int64) + keys
    y = (gather_rows(_products(q, k_rows), query_indices)     # [queries, keys, batch * heads]
         + gather_rows(_products(k, q_rows), key_indices))
    batch, heads = shape_list(q)[:2]
    y = tf.transpose(tf.reshape(y, [n * m, batch * heads]))
    return tf.reshape(y, [batch, heads, n, m])


def _products(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Products of words [batch, heads, words, depth] with rows: [labels * words, batch * heads]."""
    batch, heads = shape_list(x)[:2]
    y = tf.matmul(table[None], x, transpose_b=True)          # [batch, heads, labels, words]
    return tf.transpose(tf.reshape(y, [batch * heads, -1]))


@register("deberta")
class Deberta(Scheme):
    """Content to position and position to content, in log buckets of distance (He et al. 2021)."""
    settings = (
        Setting("deberta_num_buckets", 32, "buckets of DeBERTa on each side, an even number",
                minimum=4),
        Setting("deberta_max_distance", 128, "distance from which DeBERTa uses one bucket",
                minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._hidden, self._side = hparams.hidden_size, hparams.deberta_num_buckets
        self._max_distance = hparams.deberta_max_distance
        if self._side % 2:
            raise ValueError(f"deberta_num_buckets={self._side}: must be an even number")
        if self._max_distance <= self._side // 2 + 1:
            raise ValueError(
                f"deberta_max_distance={self._max_distance}: must be larger than "
                f"deberta_num_buckets / 2 + 1 = {self._side // 2 + 1}")

    def replaces(self, hook: str) -> bool:
        return hook == "logits"

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        heads, depth = shape_list(q)[1], q.shape.as_list()[3]
        with tf.variable_scope("deberta"):
            rows = self.shared_by_layers("rows", layout, lambda: reachable_rows(
                tf.get_variable("embeddings", [2 * self._side, self._hidden], dtype=q.dtype),
                layout, self._max_distance))
            k_rows, q_rows = (                               # [heads, labels, depth]
                split_heads(project(table[None], heads * depth, name), heads)[0]
                for name, table in zip("kq", rows, strict=True))
        q *= 3 ** -0.5
        return tf.matmul(q, k, transpose_b=True) + score_terms(
            q, k, k_rows, q_rows * (3 * depth) ** -0.5, layout, self._side, self._max_distance)
