"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

    e_ij = q_i . (k_j + a^K_ij) / sqrt(depth)                (equation 4)
    z_i  = sum_j alpha_ij (v_j + a^V_ij)                     (equation 3)

a_ij is the row of a learned table for the clipped distance j - i; a table has 2k + 1 rows. T2T
materialises a_ij for every pair. Two algorithms avoid that; which one is used depends on k:

- Banded (`rpr.positions.relative_band`), for small k: rows are added to a band of diagonals, and
  the row of the clipped pairs is added to all keys or values.
- Skewed (`rpr.positions.skew`), for large k and for a single query: each query is multiplied by the
  row of every distance, and the products are moved to their pairs.

Both need consecutive positions. For others, and for the labels of edges, there is a third:

- Labelled (`rpr.positions.labels`): each query is multiplied by each row of the table.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, matmul_shared
from rpr.positions import labels
from rpr.positions.layout import Layout, clipped_labels, whole
from rpr.positions.registry import register
from rpr.positions.relative_band import Band
from rpr.positions.scheme import Product, Scheme, check_length, get_table
from rpr.positions.skew import scores_by_distance, unskew
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

MAX_CLIP = 100_000                       # a larger clipping distance only costs memory
# The banded algorithm is used up to this clipping distance, see docs/performance.md.
MAX_BAND_CLIP = 64

# T2T's variable scope of the tables of dot_product_attention_relative.
_SCOPE = "dot_product_attention_relative/relative_positions"


def add_scores(logits: tf.Tensor, q: tf.Tensor, table: tf.Tensor, layout: Layout,
               left: int | None = None) -> tf.Tensor:
    """Adds q_i . a^K_ij to the logits, up to a constant per query, which cancels in the softmax.

    Args:
      logits: q_i . k_j, [batch, heads, queries, keys].
      q: [batch, heads, queries, depth], scaled by the caller.
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: see `Layout`.
      left: number of rows for keys to the left of the query, if it is not k.

    Returns:
      [batch, heads, queries, keys] of the dtype of q.
    """
    if not layout.unit_steps:
        return logits + labels.score_term(q, table, clipped_pairs(table, layout, left))
    if _is_banded(table, layout, left):
        band = Band(table, layout, *clip_distances(table, left))
        return band.add(logits, tf.matmul(band.rows, q, transpose_b=True))
    return logits + scores_by_distance(q, rows_by_distance(table, layout, left), layout)


def weighted_values(weights: tf.Tensor, v: tf.Tensor, table: tf.Tensor, layout: Layout,
                    left: int | None = None) -> tf.Tensor:
    """Equation (3): sum_j alpha_ij (v_j + a^V_ij).

    Args:
      weights: alpha, [batch, heads, queries, keys].
      v: [batch, heads, keys, depth].
      table: a^V, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      layout: positions of queries and keys.
      left: as for `add_scores`.

    Returns:
      [batch, heads, queries, depth] of the dtype of the weights.
    """
    if not layout.unit_steps:
        term = labels.value_term(weights, table, clipped_pairs(table, layout, left))
        return tf.matmul(weights, v) + term
    if _is_banded(table, layout, left):
        return Band(table, layout, *clip_distances(table, left)).weighted_values(weights, v)
    rows = rows_by_distance(table, layout, left)
    return tf.matmul(weights, v) + matmul_shared(unskew(weights, layout), rows)


def rows_by_distance(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The row of each of `layout.distances()`: [(heads,) distances, depth]. Args as `add_scores`.
    """
    return gather_rows(table, clipped_labels(layout.distances(), *clip_distances(table, left)))


def clipped_pairs(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The label of each pair: int64 [batch|1, queries, keys]. Args as `add_scores`."""
    distances = whole(layout.relative_positions())[:, 0]
    return clipped_labels(distances, *clip_distances(table, left))


def clip_distances(table: tf.Tensor, left: int | None) -> tuple[int, int]:
    """The clipping distances to the left and right of a query; left is None: half of the rows."""
    rows = table.shape.as_list()[-2]
    left = rows // 2 if left is None else left
    return left, rows - 1 - left


def clip_of(hparams: HParams, direction: str) -> int:
    """The clipping distance of one direction.

    Args:
      hparams: hparams of a model, also of T2T's.
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
        self._shapes = {"keys": [*outer, rows, key_channels // heads],
                        "values": [*outer, rows, value_channels // heads]}
        keys, values = hparams.relative_keys, hparams.relative_values
        self._on = {"logits": keys, "pair_vectors": keys, "values": values}

    def uses(self, hook: str) -> bool:
        return super().uses(hook) and self._on.get(hook, True)

    def replaces(self, hook: str) -> bool:
        return hook == "values"

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        table = self._table("keys", q.dtype)
        return add_scores(product(q, k), q, table, layout, self._left)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        table = self._table("values", weights.dtype)
        return weighted_values(weights, v, table, layout, self._left)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        table = self._table("keys", dtype)
        return labels.pair_vectors(table, clipped_pairs(table, layout, self._left))

    def _table(self, name: str, dtype: tf.DType) -> tf.Tensor:
        return get_table(f"{_SCOPE}_{name}", self._shapes[name], dtype)


@register("graph")
class Graph(Relative):
    """Learned vectors per edge label; without edges, per clipped distance (Shaw et al. 2018)."""
    settings = (
        *Relative.settings,
        Setting("num_edge_labels", 1, "edge labels of position=graph, label 0 (no edge) included",
                minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._labels = hparams.num_edge_labels

    def replaces(self, hook: str) -> bool:
        return hook == "values" and self._is_relative()

    def _is_relative(self) -> bool:
        """Whether it acts as the scheme relative where there are no edges: if that is not there."""
        return not any(type(scheme) is Relative for scheme in self.partners)

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        if layout.edges is None:
            return super().logits(q, k, layout, product) if self._is_relative() else product(q, k)
        table = self._table("keys", q.dtype, True)
        return product(q, k) + labels.score_term(q, table, layout.edges)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        if layout.edges is None:
            return (super().values(weights, v, layout, product) if self._is_relative()
                    else product(weights, v))
        table = self._table("values", weights.dtype, True)
        return product(weights, v) + labels.value_term(weights, table, layout.edges)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        if layout.edges is None:
            return super().pair_vectors(layout, dtype) if self._is_relative() else None
        return labels.pair_vectors(self._table("keys", dtype, True), layout.edges)

    def _table(self, name: str, dtype: tf.DType, by_edge: bool = False) -> tf.Tensor:
        if not by_edge:
            return super()._table(name, dtype)
        *outer, _, depth = self._shapes[name]
        return get_table(f"graph/edge_{name}", [*outer, self._labels, depth], dtype)


@register("relative_unclipped")
class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    t2t_settings = ("heads_share_relative_embedding",)

    def __init__(self, hparams: HParams, side: str) -> None:
        self._length = self.longest = hparams.max_length
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=relative_unclipped needs a "
                             "maximum length, an integer of 1 or more")
        right = 0 if side == "targets" else self._length - 1         # a decoder has no keys there
        channels = hparams.attention_key_channels or hparams.hidden_size
        outer = [] if hparams.heads_share_relative_embedding else [hparams.num_heads]
        self._shape = [*outer, self._length + right, channels // hparams.num_heads]

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        table = get_table("relative_unclipped", self._shape, q.dtype)
        if not layout.unit_steps:
            farthest = tf.reduce_max(tf.abs(whole(layout.relative_positions())))
            with check_length(farthest + 1, self._length, "relative_unclipped"):
                pairs = clipped_pairs(table, layout, self._length - 1)
            return product(q, k) + labels.score_term(q, table, pairs)
        with check_length(layout.keys, self._length, "relative_unclipped"):
            rows = rows_by_distance(table, layout, self._length - 1)
        return product(q, k) + scores_by_distance(q, rows, layout)
