"""Logits that depend on the words: forgetting attention, PaTH, contextual positions, DAPE."""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.ops import accumulator_dtype, matmul_shared, shape_list
from rpr.nn.projections import dense, mlp, project, split_heads
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Product, Scheme, get_table
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


def forgetting_bias(forward: tf.Tensor, backward: tf.Tensor | None, layout: Layout) -> tf.Tensor:
    """The sum of the log gates of the words after key j, up to query i (Lin et al. 2025, sec. 3).

    `forward` and `backward` are log gates, float [batch, heads, keys]; the result is [batch, heads,
    queries, keys], 0 for j = i. For a key to the right, the gates of `backward` are summed from
    word i up to the word before j; `backward` is None if the attention is causal.
    """
    def differences(sums: tf.Tensor) -> tf.Tensor:
        # Not tf.slice, which loses the number of heads: of one head, broadcasting would, too.
        own = sums[:, :, layout.offset:layout.offset + layout.queries]
        return own[:, :, :, None] - sums[:, :, None, :]

    bias = differences(tf.cumsum(forward, axis=2))
    if backward is None:
        return bias
    return tf.where_v2(words_to_the_right(layout),
                       -differences(tf.cumsum(backward, axis=2, exclusive=True)), bias)


def words_to_the_right(layout: Layout) -> tf.Tensor:
    """bool [queries, keys]: whether the key's word comes after the query's, at any positions."""
    keys, queries = (tf.cast(x, tf.int64) for x in (        # int32 would be kept on the host
        tf.range(layout.keys), tf.range(layout.queries) + layout.offset))
    return keys > queries[:, None]


@register("forgetting")
class Forgetting(Scheme):
    """Gates of the words between query and key, one per head (Lin et al. 2025).

    An encoder has a second gate per word and head, for the keys to the right of a query.
    """
    sides = ("inputs", "targets")

    def states(self) -> dict[str, Sequence[int]]:
        return {"log_gates": [self.hparams.num_heads, 0, 1]}

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        def log_gates(name: str) -> tf.Tensor:
            """[batch, heads, queries, 1], in float32 at least: there is one for each word."""
            y = dense(layout.x, self.hparams.num_heads, name)
            y = tf.math.log_sigmoid(tf.cast(y, accumulator_dtype(y.dtype)))
            return tf.transpose(y, [0, 2, 1])[..., None]

        with tf.variable_scope("forgetting"):
            forward = self.extend(layout, "log_gates", log_gates("forward"), 2)
            backward = None if layout.causal else log_gates("backward")[..., 0]
        return tf.cast(forgetting_bias(forward[..., 0], backward, layout), dtype)


def reflected_products(q: tf.Tensor, k: tf.Tensor, w: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    """q_i . (H_i H_(i-1) ... H_(j+1) k_j) - q_i . k_j, where H_l = I - beta_l w_l w_l^T.

    As in Yang et al. 2025, this is -tril(Q W^T) (I + L)^-1 M, where L and M are the strictly lower
    triangles of beta W W^T and beta W K^T. q, k and w are float32 or float64 [batch, heads, length,
    depth], beta is [batch, heads, length, 1]; the result, [batch, heads, length, length], is 0 for
    j >= i.
    """
    def lower(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.band_part(x, -1, 0)

    def strictly_lower(x: tf.Tensor) -> tf.Tensor:
        return lower(x) - tf.linalg.band_part(x, 0, 0)

    among_words = strictly_lower(beta * tf.matmul(w, w, transpose_b=True))
    among_words += tf.eye(shape_list(w)[2], dtype=w.dtype)
    with_keys = strictly_lower(beta * tf.matmul(w, k, transpose_b=True))
    return -tf.matmul(lower(tf.matmul(q, w, transpose_b=True)),
                      tf.linalg.triangular_solve(among_words, with_keys))


@register("path")
class Path(Scheme):
    """Each word reflects the keys of the words before it in a learned direction (Yang et al. 2025).

    The logit of key j is q_i . (H_i ... H_(j+1) k_j) with H_l = I - beta_l w_l w_l^T. beta_l, from
    0 to 2, and the direction w_l of length 1 come from word l; w_l also from the words before it,
    by a convolution. Time and memory grow with the square of the length, and the time of a
    triangular solve with its cube; the authors' kernel works in chunks.
    """
    sides = ("targets",)
    settings = (
        Setting("path_rank", 32, "rank of the projection of PaTH's directions", minimum=1),
        Setting("path_window", 3, "words whose convolution gives a direction; 1: none", minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._heads = hparams.num_heads
        self._channels = hparams.attention_key_channels or hparams.hidden_size
        self._rank, self._window = hparams.get("path_rank"), hparams.get("path_window")

    def states(self) -> dict[str, Sequence[int]]:
        states: dict[str, Sequence[int]] = {
            "keys": [self._heads, 0, self._channels // self._heads]}
        if self._window > 1:
            states["before"] = [self._window - 1, self._channels]
        return states

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        logits, dtype = product(q, k), accumulator_dtype(q.dtype)
        with tf.variable_scope("path"):
            beta = tf.cast(dense(layout.x, self._heads, "beta"), dtype)
            beta = 2 * tf.sigmoid(tf.transpose(beta, [0, 2, 1]))[..., None]
            w = project(project(layout.x, self._rank, "low_rank"), self._channels, "direction")
            w = split_heads(self._convolved(tf.cast(w, dtype), layout, w.dtype), self._heads)
        w *= tf.math.rsqrt(tf.reduce_sum(tf.square(w), axis=3, keepdims=True) + 1e-6)
        q, k = tf.cast(q, dtype), tf.cast(k, dtype)
        if layout.cache is None:
            return logits + tf.cast(reflected_products(q, k, w, beta), logits.dtype)
        keys = tf.cast(layout.cache[self.state_name("keys")], dtype)
        layout.cache[self.state_name("keys")] = tf.cast(
            keys - beta * tf.matmul(keys, w, transpose_b=True) * w, tf.float32)
        keys = self.extend(layout, "keys", k[:, :, -1:], 2)
        return logits + tf.cast(tf.matmul(q, keys - k, transpose_b=True), logits.dtype)

    def _convolved(self, x: tf.Tensor, layout: Layout, dtype: tf.DType) -> tf.Tensor:
        """A convolution of each channel over a word and those before it, then SiLU."""
        more = self._window - 1
        if not more:
            return x
        kernel = tf.get_variable("kernel", [self._window, self._channels], dtype)
        kernel = tf.cast(kernel, x.dtype)
        if layout.cache is None:
            words = tf.pad(x, [[0, 0], [more, 0], [0, 0]])
        else:
            name = self.state_name("before")
            words = tf.concat([tf.cast(layout.cache[name], x.dtype), x], axis=1)
            layout.cache[name] = tf.cast(words[:, 1:], tf.float32)
        length, y = shape_list(x)[1], x * kernel[0]
        for back in range(1, self._window):
            earlier = words[:, more - back:more - back + length] * kernel[back]
            if layout.cache is None and layout.mask is not None:
                # Not words of another sentence of the row.
                mask = tf.pad(layout.mask[:, 0], [[0, 0], [0, 0], [back, 0]])
                earlier *= tf.cast(tf.linalg.diag_part(mask) > -1e8, x.dtype)[..., None]
            y += earlier
        return tf.nn.silu(y)


@register("cope")
class ContextualPositions(Scheme):
    """Positions that count the words that a query selects by a gate (Golovneva et al. 2024).

    The position of key j is the sum of the gates sigmoid(q_i . k_l) from it to the query (equations
    3 and 4), without the terms of other schemes. Its value is interpolated between those of the
    nearest whole positions (equation 5).
    """
    sides = ("targets",)
    settings = (
        Setting("cope_positions", 64, "positions of position=cope, the last one unbounded",
                minimum=2),
    )

    def turn(self, hook: str) -> int:
        return -1

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        logits, depth = product(q, k), shape_list(q)[3]
        masked = tf.cast(logits, accumulator_dtype(q.dtype))
        if layout.mask is not None:
            masked += tf.cast(layout.mask, masked.dtype)
        count = self.hparams.get("cope_positions")
        table = get_table("cope", [count, depth], q.dtype)
        by_position = matmul_shared(q * depth ** 0.5, table, transpose_b=True)
        positions = tf.minimum(
            tf.cumsum(tf.sigmoid(masked), axis=3, reverse=True), float(count - 1))
        below = tf.floor(positions)
        share = tf.cast(positions - below, q.dtype)
        low, high = (tf.gather(by_position, tf.cast(whole, tf.int64), batch_dims=3)
                     for whole in (below, tf.math.ceil(positions)))
        return logits + (high * share + low * (1 - share))


@register("dape")
class Dape(Scheme):
    """A network over the heads, on top of the other schemes of its sum (Zheng et al. 2024).

    It adds f(logits, bias) to the logits of each pair of query and key. The bias is that of the
    other schemes, as in position=dape+alibi.
    """
    settings: tuple[Setting, ...] = (
        Setting("dape_width", 32, "width of the hidden layer of DAPE's network", minimum=1),
    )

    def adjust(self, logits: tf.Tensor, bias: tf.Tensor | None, layout: Layout) -> tf.Tensor:
        total, parts = logits, [logits]
        if bias is not None:
            total += bias
            parts.append(tf.broadcast_to(bias, tf.shape(logits)))
        x = tf.transpose(tf.concat(parts, axis=1), [0, 2, 3, 1])
        y = self._network(x, logits.shape.as_list()[1], layout)
        return total + tf.transpose(y, [0, 3, 1, 2])

    def _network(self, x: tf.Tensor, heads: int, layout: Layout) -> tf.Tensor:
        """f, from [batch, queries, keys, channels] to [batch, queries, keys, heads]."""
        with tf.variable_scope("dape"):
            return mlp(x, self.hparams.get("dape_width"), heads, _leaky_relu)


def _leaky_relu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.leaky_relu(x, 0.01)


@register("dape_v2")
class DapeV2(Dape):
    """As dape, with a network that also sees the pairs with neighbouring keys (Zheng et al. 2025).

    Its two layers are convolutions over the keys, after masked pairs are set to 0. As in the
    authors' code, the first layer is also computed to the right of a decoder's query; here that is
    so for the last words of a sentence, too, so that a cached step is the same as a whole sentence.
    """
    settings = (
        Setting("dape_v2_width", 32, "channels between the two convolutions of DAPE V2", minimum=1),
        Setting("dape_v2_kernel", 3, "keys that a convolution of DAPE V2 sees, an odd number",
                minimum=1),
    )

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._width, self._kernel = hparams.get("dape_v2_width"), hparams.get("dape_v2_kernel")
        if self._kernel % 2 == 0:
            raise ValueError(f"dape_v2_kernel={self._kernel}: must be an odd number")

    def _network(self, x: tf.Tensor, heads: int, layout: Layout) -> tf.Tensor:
        around = self._kernel // 2

        def neighbours(x: tf.Tensor) -> tf.Tensor:
            count = shape_list(x)[2]
            x = tf.pad(x, [[0, 0], [0, 0], [around, around], [0, 0]])
            return tf.concat([x[:, :, start:start + count] for start in range(self._kernel)], 3)

        used = None
        if layout.mask is not None:
            visible = tf.transpose(layout.mask > -1e8, [0, 2, 3, 1])
            x *= tf.cast(visible, x.dtype)
            used = visible
            if layout.causal:
                used |= words_to_the_right(layout)[None, :, :, None]
            used = tf.cast(used, x.dtype)
        if layout.causal:                                    # keys after the last one, too
            x = tf.pad(x, [[0, 0], [0, 0], [0, around], [0, 0]])
            if used is not None:
                used = tf.pad(used, [[0, 0], [0, 0], [0, around], [0, 0]], constant_values=1)
        with tf.variable_scope("dape_v2"):
            y = _leaky_relu(dense(neighbours(x), self._width, "hidden"))
            if used is not None:
                y *= used
            return dense(neighbours(y), heads, "output")[:, :, :layout.keys]
