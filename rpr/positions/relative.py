"""Relative position representations (Shaw, Uszkoreit and Vaswani 2018, section 3).

    e_ij = q_i . (k_j + a^K_ij) / sqrt(depth)                (equation 4)
    z_i  = sum_j alpha_ij (v_j + a^V_ij)                     (equation 3)

a_ij is the row of a learned table for the clipped distance j - i; a table has 2k + 1 rows. T2T
materialises a_ij for every pair. Two algorithms avoid that; which one is used depends on k:

- Banded (`rpr.positions.relative_band`), for small k: rows are added to a band of diagonals, and
  the row of the clipped pairs is added to all keys or values.
- Skewed (`rpr.positions.pairs`), for large k and for a single query: each query is multiplied by
  the row of every distance, and the products are moved to their pairs.

Both need consecutive positions. Other positions, and the labels of edges, need a third algorithm:

- Labelled (also in `rpr.positions.pairs`): each query is multiplied by each row of the table, and
  each pair picks the product of its label.
"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import gather_rows, matmul_shared
from rpr.positions import pairs
from rpr.positions.layout import Layout, clipped_labels, whole
from rpr.positions.registry import register
from rpr.positions.relative_band import Band
from rpr.positions.scheme import Product, Scheme, check_length, get_table, head_depth
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

MAX_CLIP = 100_000                       # a larger clipping distance only costs memory
# The banded algorithm is used up to this clipping distance, see docs/performance.md.
MAX_BAND_CLIP = 64

# T2T's variable scope of the tables of dot_product_attention_relative.
_SCOPE = "dot_product_attention_relative/relative_positions"


def add_scores(logits: tf.Tensor, q: tf.Tensor, table: tf.Tensor, layout: Layout,
               left: int | None = None, exact: bool = False) -> tf.Tensor:
    """Adds q_i . a^K_ij to the logits, up to a constant per query, which cancels in the softmax.

    Args:
      logits: q_i . k_j, [batch, heads, queries, keys].
      q: [batch, heads, queries, depth], scaled by the caller.
      table: a^K, [2k + 1, depth] shared by the heads, or [heads, 2k + 1, depth].
      left: number of rows for keys to the left of the query, if it is not k.
      exact: whether to add that constant, too, for weights that are not a softmax.
    """
    if not layout.unit_steps:
        return logits + pairs.score_term(q, table, clipped_pairs(table, layout, left))
    if _is_banded(table, layout, left):
        band = Band(table, layout, *clip_distances(table, left))
        logits = band.add(logits, tf.matmul(band.rows, q, transpose_b=True))
        return logits + matmul_shared(q, band.common_row, transpose_b=True) if exact else logits
    return logits + pairs.scores_by_distance(q, rows_by_distance(table, layout, left), layout)


def weighted_values(weights: tf.Tensor, v: tf.Tensor, table: tf.Tensor, layout: Layout,
                    left: int | None = None) -> tf.Tensor:
    """Equation (3): sum_j alpha_ij (v_j + a^V_ij), [batch, heads, queries, depth].

    The weights alpha are [batch, heads, queries, keys], v is [batch, heads, keys, depth]; table
    (a^V), layout and left are as for `add_scores`.
    """
    if not layout.unit_steps:
        term = pairs.value_term(weights, table, clipped_pairs(table, layout, left))
        return tf.matmul(weights, v) + term
    if _is_banded(table, layout, left):
        return Band(table, layout, *clip_distances(table, left)).weighted_values(weights, v)
    rows = rows_by_distance(table, layout, left)
    return tf.matmul(weights, v) + matmul_shared(pairs.unskew(weights, layout), rows)


def rows_by_distance(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The row of each of `layout.distances()`: [(heads,) distances, depth]."""
    return gather_rows(table, clipped_labels(layout.distances(), *clip_distances(table, left)))


def clipped_pairs(table: tf.Tensor, layout: Layout, left: int | None = None) -> tf.Tensor:
    """The label of each pair: int64 [batch|1, queries, keys]."""
    distances = whole(layout.relative_positions())[:, 0]
    return clipped_labels(distances, *clip_distances(table, left))


def clip_distances(table: tf.Tensor, left: int | None) -> tuple[int, int]:
    """The clipping distances to the left and right of a query; left is None: half of the rows."""
    rows = table.shape.as_list()[-2]
    left = rows // 2 if left is None else left
    return left, rows - 1 - left


def clip_of(hparams: HParams, direction: str) -> int:
    """The clipping distance `left` or `right` of the query, also for a model of T2T's."""
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
        super().__init__(hparams, side)
        self._left = clip_of(hparams, "left")
        self._labels = self._left + clip_of(hparams, "right") + 1

    def uses(self, hook: str) -> bool:
        keys, values = self.hparams.relative_keys, self.hparams.relative_values
        return super().uses(hook) and {"logits": keys, "pair_vectors": keys, "values": values
                                       }.get(hook, True)

    def replaces(self, hook: str) -> bool:
        return hook == "values"

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        table = self._table("keys", q.dtype)
        return add_scores(product(q, k), q, table, layout, self._left,
                          exact=not self.constants_cancel())

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        table = self._table("values", weights.dtype)
        return weighted_values(weights, v, table, layout, self._left)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        table = self._table("keys", dtype)
        return pairs.pair_vectors(table, clipped_pairs(table, layout, self._left))

    def _table(self, kind: str, dtype: tf.DType, scope: str = _SCOPE, rows: int = 0) -> tf.Tensor:
        """The table of `keys` or `values`, one row per label or `rows`."""
        shape = [rows or self._labels, head_depth(self.hparams, f"attention_{kind[:-1]}_channels")]
        if not self.hparams.heads_share_relative_embedding:
            shape.insert(0, self.hparams.num_heads)
        return get_table(f"{scope}_{kind}", shape, dtype)


@register("graph")
class Graph(Relative):
    """Learned vectors per edge label; without edges, per clipped distance (Shaw et al. 2018)."""
    settings = (
        *Relative.settings,
        Setting("num_edge_labels", 1, "edge labels of position=graph, label 0 (no edge) included",
                minimum=1),
    )

    def replaces(self, hook: str) -> bool:
        return hook == "values" and self._is_relative()

    def _is_relative(self) -> bool:
        """Whether it acts as the scheme relative where there are no edges: if that is not there."""
        return not any(type(scheme) is Relative for scheme in self.partners)

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        if layout.edges is None:
            return super().logits(q, k, layout, product) if self._is_relative() else product(q, k)
        table = self._edge_table("keys", q.dtype)
        return product(q, k) + pairs.score_term(q, table, layout.edges)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        if layout.edges is None:
            return (super().values(weights, v, layout, product) if self._is_relative()
                    else product(weights, v))
        table = self._edge_table("values", weights.dtype)
        return product(weights, v) + pairs.value_term(weights, table, layout.edges)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        if layout.edges is None:
            return super().pair_vectors(layout, dtype) if self._is_relative() else None
        return pairs.pair_vectors(self._edge_table("keys", dtype), layout.edges)

    def _edge_table(self, kind: str, dtype: tf.DType) -> tf.Tensor:
        return self._table(kind, dtype, "graph/edge", self.hparams.num_edge_labels)


@register("relative_unclipped")
class RelativeUnclipped(Scheme):
    """One learned vector per distance up to max_length, added to keys (Huang et al. 2018)."""
    t2t_settings = ("heads_share_relative_embedding",)

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._length = self.longest = hparams.max_length
        if self._length < 1:
            raise ValueError(f"max_length={self._length}: position=relative_unclipped needs a "
                             "maximum length, an integer of 1 or more")
        right = 0 if side == "targets" else self._length - 1         # a decoder has no keys there
        outer = [] if hparams.heads_share_relative_embedding else [hparams.num_heads]
        self._shape = [*outer, self._length + right, head_depth(hparams)]

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        table = get_table("relative_unclipped", self._shape, q.dtype)
        if not layout.unit_steps:
            farthest = tf.reduce_max(tf.abs(whole(layout.relative_positions())))
            with check_length(farthest + 1, self._length, "relative_unclipped"):
                labels = clipped_pairs(table, layout, self._length - 1)
            return product(q, k) + pairs.score_term(q, table, labels)
        with check_length(layout.keys, self._length, "relative_unclipped"):
            rows = rows_by_distance(table, layout, self._length - 1)
        return product(q, k) + pairs.scores_by_distance(q, rows, layout)
