"""Logits that depend on the words: forgetting attention, contextual positions, DAPE."""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.ops import accumulator_dtype, matmul_shared, shape_list
from rpr.nn.projections import mlp, project
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Product, Scheme, get_table
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def forgetting_bias(forward: tf.Tensor, backward: tf.Tensor | None, layout: Layout) -> tf.Tensor:
    """The sum of the log gates between key j and query i (Lin et al. 2025, section 3).

    Args:
      forward: log f, float [batch, heads, keys]. For j < i the gates of the words after j are
        summed, up to i.
      backward: the same for keys to the right: for j > i the gates from i on are summed, up to the
        word before j. None if the attention is causal.
      layout: see `Layout`.

    Returns:
      [batch, heads, queries, keys] of the dtype of the gates; 0 for j = i.
    """
    def differences(sums: tf.Tensor) -> tf.Tensor:
        own = tf.slice(sums, [0, 0, layout.offset], [-1, -1, layout.queries])
        return own[:, :, :, None] - sums[:, :, None, :]

    bias = differences(tf.cumsum(forward, axis=2))
    if backward is None:
        return bias
    # By the order of words, not positions; int32 would be kept on the host.
    keys, queries = (tf.cast(x, tf.int64) for x in (
        tf.range(layout.keys), tf.range(layout.queries) + layout.offset))
    is_right = keys > queries[:, None]
    return tf.where_v2(is_right, -differences(tf.cumsum(backward, axis=2, exclusive=True)), bias)


def contextual_positions(logits: tf.Tensor, most: int) -> tf.Tensor:
    """The sum of the gates sigmoid(logits) from key j to query i (Golovneva et al. 2024, (3), (4)).

    Args:
      logits: [batch, heads, queries, keys], about -1e9 for masked pairs.
      most: the largest position.

    Returns:
      [batch, heads, queries, keys], from 0 to `most`.
    """
    return tf.minimum(tf.cumsum(tf.sigmoid(logits), axis=3, reverse=True), float(most))


def interpolated(by_position: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Values between those of the two nearest whole positions (Golovneva et al. 2024, equation 5).

    Args:
      by_position: [batch, heads, queries, whole positions].
      positions: [batch, heads, queries, keys], within the whole positions.

    Returns:
      [batch, heads, queries, keys] of the dtype of `by_position`.
    """
    below = tf.floor(positions)
    share = tf.cast(positions - below, by_position.dtype)
    low, high = (tf.gather(by_position, tf.cast(whole, tf.int64), batch_dims=3)
                 for whole in (below, tf.math.ceil(positions)))
    return high * share + low * (1 - share)


@register("forgetting")
class Forgetting(Scheme):
    """Gates of the words between query and key, one per head (Lin et al. 2025).

    An encoder has a second gate per word and head, for the keys to the right of a query.
    """
    sides = ("inputs", "targets")

    def __init__(self, hparams: HParams, side: str) -> None:
        self._heads = hparams.num_heads

    def states(self) -> dict[str, Sequence[int]]:
        return {"log_gates": [self._heads, 0, 1]}

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        with tf.variable_scope("forgetting"):
            forward = self.extend(layout, "log_gates", self._log_gates(layout, "forward"), 2)
            backward = None if layout.causal else self._log_gates(layout, "backward")[..., 0]
        return tf.cast(forgetting_bias(forward[..., 0], backward, layout), dtype)

    def _log_gates(self, layout: Layout, name: str) -> tf.Tensor:
        """[batch, heads, queries, 1], in float32 at least: there is one for each word."""
        y = project(layout.x, self._heads, name)
        y += tf.get_variable(f"{name}/bias", [self._heads], y.dtype, tf.zeros_initializer())
        y = tf.math.log_sigmoid(tf.cast(y, accumulator_dtype(y.dtype)))
        return tf.transpose(y, [0, 2, 1])[..., None]


@register("cope")
class ContextualPositions(Scheme):
    """Positions that count the words that a query selects by a gate (Golovneva et al. 2024)."""
    sides = ("targets",)
    settings = (
        Setting("cope_positions", 64, "positions of position=cope, the last one unbounded",
                minimum=2),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        self._positions = hparams.get("cope_positions")

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        logits, depth = product(q, k), shape_list(q)[3]
        masked = tf.cast(logits, accumulator_dtype(q.dtype))
        if layout.mask is not None:
            masked += tf.cast(layout.mask, masked.dtype)
        table = get_table("cope", [self._positions, depth], q.dtype)
        by_position = matmul_shared(q * depth ** 0.5, table, transpose_b=True)
        positions = contextual_positions(masked, self._positions - 1)
        return logits + interpolated(by_position, positions)


@register("dape")
class Dape(Scheme):
    """A network over the heads, on top of the other schemes of its sum (Zheng et al. 2024).

    It adds f(logits, bias) to the logits of each pair of query and key. The bias is that of the
    other schemes, as in position=dape+alibi.
    """
    settings = (
        Setting("dape_width", 32, "width of the hidden layer of DAPE's network", minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        self._width = hparams.get("dape_width")

    def adjust(self, logits: tf.Tensor, bias: tf.Tensor | None, layout: Layout) -> tf.Tensor:
        total, parts = logits, [logits]
        if bias is not None:
            total += bias
            parts.append(tf.broadcast_to(bias, tf.shape(logits)))
        x = tf.transpose(tf.concat(parts, axis=1), [0, 2, 3, 1])
        heads = logits.shape.as_list()[1]
        with tf.variable_scope("dape"):
            y = mlp(x, self._width, heads, lambda x: tf.nn.leaky_relu(x, 0.01))
        return total + tf.transpose(y, [0, 3, 1, 2])
