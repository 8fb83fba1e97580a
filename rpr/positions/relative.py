"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

    e_ij = q_i . (k_j + a^K_ij) / sqrt(depth)                (equation 4)
    z_i  = sum_j alpha_ij (v_j + a^V_ij)                     (equation 3)

a_ij is the row of a learned table for the clipped distance j - i; a table has 2k + 1 rows. T2T
materialises a_ij for every pair. Here one of two algorithms avoids that, depending on k:

- Banded (`rpr.positions.relative_band`), for small k: rows are added to a band of diagonals, and
  the row of the clipped pairs is added to all keys or values.
- Skewed (`rpr.positions.skew`), for large k and for a single query: each query is multiplied by the
  row of every distance, and the products are moved to their pairs.
"""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, matmul_shared
from rpr.positions.layout import Layout, clipped_labels
from rpr.positions.registry import register
from rpr.positions.relative_band import Band
from rpr.positions.scheme import Scheme, check_length, get_table
from rpr.positions.skew import scores_by_distance, unskew
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

MAX_CLIP = 100_000                       # a larger clipping distance only costs memory
# The banded algorithm is used up to this clipping distance, see docs/performance.md.
MAX_BAND_CLIP = 64

# T2T's variable scope of the tables of dot_product_attention_relative.
_SCOPE = "dot_product_attention_relative/relative_positions"


def scores(q: tf.Tensor, k: tf.Tensor, table: tf.Tensor, layout: Layout,
           left: int | None = None) -> tf.Tensor:
    """q_i . (k_j + a^K_ij), up to a constant per query, which cancels in the softmax.

    Args:
      q: [batch, heads, queries, depth], scaled by the caller.
      k: [batch, heads, keys, depth].
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: where queries and keys stand.
      left: number of rows for keys to the left of the query, if it is not k.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    product = tf.matmul(q, k, transpose_b=True)
    if _is_banded(table, layout, left):
        band = Band(table, layout, *clip_distances(table, left))
        return band.add(product, tf.matmul(band.rows, q, transpose_b=True))
    return product + scores_by_distance(q, rows_by_distance(table, layout, left), layout)


def weighted_values(weights: tf.Tensor, v: tf.Tensor, table: tf.Tensor, layout: Layout,
                    left: int | None = None) -> tf.Tensor:
    """Equation (3): sum_j alpha_ij (v_j + a^V_ij).

    Args:
      weights: alpha, [batch, heads, queries, keys].
      v: [batch, heads, keys, depth].
      table: a^V, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: where queries and keys stand.
      left: as for `scores`.

    Returns:
      [batch, heads, queries, depth] of the dtype of the weights.
    """
    if _is_banded(table, layout, left):
        return Band(table, layout, *clip_distances(table, left)).weighted_values(weights, v)
    rows = rows_by_distance(table, layout, left)
    return tf.matmul(weights, v) + matmul_shared(unskew(weights, layout), rows)


def rows_by_distance(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The row of each of `layout.distances()`: [(heads,) distances, depth]. Args as `scores`."""
    labels = clipped_labels(layout.distances(), *clip_distances(table, left))
    return gather_rows(table, labels)


def rows_by_pair(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The row of each pair: [(heads,) queries, keys, depth]. Args as `scores`."""
    labels = clipped_labels(layout.relative_positions(), *clip_distances(table, left))
    return gather_rows(table, labels)


def clip_distances(table: tf.Tensor, left: int | None) -> tuple[int, int]:
    """The clipping distances to the left and right of a query; left is None: half of the rows."""
    rows = table.shape.as_list()[-2]
    left = rows // 2 if left is None else left
    return left, rows - 1 - left


def clip_of(hparams: HParams, direction: str) -> int:
    """The clipping distance of one direction.

    Args:
      hparams: of a model, of T2T's too.
      direction: `left` or `right` of the query.
    """
    clip = hparams.get(f"max_relative_position_{direction}", -1)
    return hparams.max_relative_position if clip == -1 else clip


def _is_banded(table: tf.Tensor, layout: Layout, left: int | None) -> bool:
    left, right = clip_distances(table, left)
    clip = left if layout.causal else max(left, right)
    return clip <= MAX_BAND_CLIP and not layout.is_single_query


@register("relative")
class Relative(Scheme):
    """Learned vectors per clipped distance, added to keys and values (Shaw et al. 2018)."""
    supports_additive = True
    settings: tuple[Setting, ...] = (
        Setting("relative_keys", True, "relative position vectors added to the keys (a^K)"),
        Setting("relative_values", True, "relative position vectors added to the values (a^V)"),
        Setting("max_relative_position_left", -1, "clipping distance to the left of the query; "
                "-1: max_relative_position", minimum=-1, maximum=MAX_CLIP),
        Setting("max_relative_position_right", -1, "clipping distance to the right of the query; "
                "-1: max_relative_position", minimum=-1, maximum=MAX_CLIP),
    )
    t2t_settings = ("max_relative_position", "heads_share_relative_embedding")

    def __init__(self, hparams: HParams, side: str) -> None:
        k = hparams.max_relative_position                    # one of T2T's hparams
        if not 0 <= k <= MAX_CLIP:
            raise ValueError(f"max_relative_position={k}: must be an integer at least 0 and at "
                             f"most {MAX_CLIP:,} (0: one label for every distance)")
        self._left, right = (clip_of(hparams, each) for each in ("left", "right"))
        heads, rows = hparams.num_heads, self._left + right + 1
        key_channels = hparams.attention_key_channels or hparams.hidden_size
        value_channels = hparams.attention_value_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [heads]
        # Shapes of the two tables; None for a table that is switched off.
        self._keys: Sequence[int] | None = None
        self._values: Sequence[int] | None = None
        if hparams.relative_keys:
            self._keys = [*outer, rows, key_channels // heads]
        if hparams.relative_values:
            self._values = [*outer, rows, value_channels // heads]
        self.query_key_method = "scores" if self._keys else None

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        if not self._keys:
            return None
        return scores(q, k, get_table(f"{_SCOPE}_keys", self._keys, q.dtype), layout, self._left)

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor,
                        layout: Layout) -> tf.Tensor | None:
        if not self._values:
            return None
        table = get_table(f"{_SCOPE}_values", self._values, weights.dtype)
        return weighted_values(weights, v, table, layout, self._left)

    @property
    def replaces_weighted_sum(self) -> bool:
        return bool(self._values)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        if not self._keys:
            return None
        return rows_by_pair(get_table(f"{_SCOPE}_keys", self._keys, dtype), layout, self._left)


@register("relative_unclipped")
class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    t2t_settings = ("heads_share_relative_embedding",)
    query_key_method = "score_term"

    def __init__(self, hparams: HParams, side: str) -> None:
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
