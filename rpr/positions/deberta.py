"""Disentangled attention of DeBERTa (He et al. 2021, section 3.1).

    (q_i . k_j + q_i . k^r_delta(i, j) + k_j . q^r_delta(j, i)) / sqrt(3 depth)

delta(i, j) is the bucket of the distance i - j. The buckets are the logarithmic ones of DeBERTa's
later code, see `rpr.positions.buckets.log_buckets`.

The product of each word with the row of each bucket is computed once. The products are then copied
to the pairs, with sentences (and heads) as the last axis, so that each copy is a stretch of memory.
"""
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn import ops
from rpr.nn.ops import shape_list, transpose
from rpr.nn.projections import project, split_heads
from rpr.positions.buckets import log_buckets
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Scheme
from rpr.positions.skew import scores_by_distance

# Batches of at least this many sentences are copied with the sentences as the last axis, head by
# head; smaller ones with sentences and heads together. See docs/performance.md.
MIN_BATCH_PER_HEAD = 16


def _distance_limits(layout: Layout) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """The smallest and the largest distance i - j of a query i and an unmasked key j."""
    first = 0 if layout.causal else layout.offset - layout.keys + 1
    return first, layout.offset + layout.queries - 1


def _bucket(distance: int | tf.Tensor, buckets_per_side: int, max_distance: int) -> tf.Tensor:
    return log_buckets(tf.convert_to_tensor(distance), buckets_per_side, max_distance)


def reachable_rows(embeddings: tf.Tensor, layout: Layout,
                   max_distance: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of the buckets that occur in a layout; no others need to be projected.

    Args:
      embeddings: [2 * buckets_per_side, ...], one row per bucket.
      layout: where queries and keys stand.
      max_distance: see `log_buckets`.

    Returns:
      the rows for k^r, of the distances i - j, and the rows for q^r, of the distances j - i.
    """
    side, (smallest, largest) = shape_list(embeddings)[0] // 2, _distance_limits(layout)

    def rows(first_distance, last_distance):
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
      layout: where queries and keys stand.
      buckets_per_side: see `log_buckets`.
      max_distance: see `log_buckets`.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    def labels(table, distances, smallest):
        """Indices into the reachable rows; any index for masked pairs."""
        first = _bucket(smallest, buckets_per_side, max_distance)
        return tf.clip_by_value(_bucket(distances, buckets_per_side, max_distance) - first,
                                0, shape_list(table)[1] - 1)

    if layout.is_single_query:
        smallest, largest = _distance_limits(layout)
        k_by_key = tf.gather(k_rows, labels(k_rows, -layout.distances(), smallest), axis=1)
        q_by_key = tf.gather(
            q_rows, labels(q_rows, layout.relative_positions()[0], -largest), axis=1)
        return (scores_by_distance(q, k_by_key, layout)
                + tf.reduce_sum(k * q_by_key, axis=3)[:, :, None])

    def with_products(products):
        def function(q, k, k_rows, q_rows, *sizes):
            layout = Layout(*sizes)
            n, m, distances = layout.queries, layout.keys, layout.relative_positions()
            smallest, largest = _distance_limits(layout)
            y = _expand_to_pairs(
                products(q, k_rows),
                labels(k_rows, -distances, smallest) * n + tf.range(n)[:, None],
                products(k, q_rows), labels(q_rows, distances, -largest) * m + tf.range(m))
            return tf.reshape(y, [*shape_list(q)[:2], n, m])

        return function

    batch, inputs = shape_list(q)[0], (q, k, k_rows, q_rows, *layout)
    per_head, together = with_products(_products_per_head), with_products(_products)
    if isinstance(batch, int):
        return (per_head if batch >= MIN_BATCH_PER_HEAD else together)(*inputs)
    if not ops.can_use_raw_cond():
        return together(*inputs)
    return ops.raw_cond(batch >= MIN_BATCH_PER_HEAD, per_head, together, *inputs)


def _products_per_head(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Products of all words with all rows: [heads, labels * words, batch].

    Args:
      x: [batch, heads, words, depth].
      table: [heads, labels, depth].
    """
    batch, heads, words, depth = shape_list(x)
    x = tf.reshape(transpose(x, [1, 2, 0, 3]), [heads, words * batch, depth])
    return tf.reshape(tf.matmul(table, x, transpose_b=True), [heads, -1, batch])


def _products(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """The same products as [1, labels * words, batch * heads]."""
    batch, heads = shape_list(x)[:2]
    y = tf.matmul(table[None], x, transpose_b=True)          # [batch, heads, labels, words]
    return tf.transpose(tf.reshape(y, [batch * heads, -1]))[None]


def _expand_to_pairs(by_query: tf.Tensor, query_indices: tf.Tensor, by_key: tf.Tensor,
                     key_indices: tf.Tensor) -> tf.Tensor:
    """For each pair the sum of a product of its query and one of its key.

    Args:
      by_query: [groups, rows, width]; groups * width = batch * heads.
      query_indices: int32 [queries, keys], the row of each pair.
      by_key: [groups, rows, width].
      key_indices: int32 [queries, keys].

    Returns:
      [width, groups, queries, keys].
    """
    @tf.custom_gradient
    def forward(by_query, by_key):
        y = tf.gather(by_query, query_indices, axis=1) + tf.gather(by_key, key_indices, axis=1)
        groups, n, m, width = shape_list(y)

        def gradient(dy):
            dy = tf.transpose(tf.reshape(dy, [width, groups * n * m]))

            def sums(x, indices):
                count = shape_list(x)[1]
                indices = (tf.range(groups) * count)[:, None] + tf.reshape(indices, [-1])
                dx = ops.sum_rows(dy, tf.reshape(indices, [-1]), groups * count)
                return tf.reshape(dx, [groups, count, width])

            return sums(by_query, query_indices), sums(by_key, key_indices)

        y = tf.transpose(tf.reshape(y, [groups * n * m, width]))
        return tf.reshape(y, [width, groups, n, m]), gradient

    return forward(by_query, by_key)


@register("deberta")
class Deberta(Scheme):
    """Content to position and position to content, in log buckets of distance (He et al. 2021)."""
    query_key_method = "scores"

    def __init__(self, hparams: Any, side: str) -> None:
        self._hidden, self._side = hparams.hidden_size, hparams.deberta_num_buckets
        self._max_distance = hparams.deberta_max_distance
        if self._side < 4 or self._side % 2:
            raise ValueError(f"deberta_num_buckets={self._side}: position=deberta needs an even "
                             "number per side, 4 or more")
        if self._max_distance <= self._side // 2 + 1:
            raise ValueError(
                f"deberta_max_distance={self._max_distance}: must be larger than "
                f"deberta_num_buckets / 2 + 1 = {self._side // 2 + 1}")

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor:
        heads, depth = shape_list(q)[1], q.shape.as_list()[3]
        with tf.variable_scope("deberta"):
            rows = self.shared_by_layers(layout, lambda: reachable_rows(
                tf.get_variable("embeddings", [2 * self._side, self._hidden], dtype=q.dtype),
                layout, self._max_distance))
            k_rows, q_rows = (                               # [heads, labels, depth]
                split_heads(project(table[None], heads * depth, name), heads)[0]
                for name, table in zip("kq", rows, strict=True))
        q *= 3 ** -0.5
        return tf.matmul(q, k, transpose_b=True) + score_terms(
            q, k, k_rows, q_rows * (3 * depth) ** -0.5, layout, self._side, self._max_distance)
