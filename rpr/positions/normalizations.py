"""Attention weights other than the softmax of the logits: sinks, sticks, differences."""
import math

import tensorflow.compat.v1 as tf

from rpr.nn.ops import accumulator_dtype, shape_list
from rpr.positions.layout import Layout
from rpr.positions.registry import register
from rpr.positions.scheme import Product, Scheme, head_depth
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


@register("sink")
class Sink(Scheme):
    """A learned logit per head that takes a share of the weights and has no value (gpt-oss 2025).

    It has no positions: use it in a sum, such as sink+rotary.
    """

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        sink = tf.get_variable("sink", [self.hparams.num_heads], logits.dtype,
                               tf.zeros_initializer())
        sink = tf.cast(sink, logits.dtype)                   # of the activations' type
        sink = tf.broadcast_to(sink[:, None, None], tf.shape(logits[..., :1]))
        return tf.nn.softmax(tf.concat([logits, sink], axis=3))[..., :-1]


@register("stick_breaking")
class StickBreaking(Scheme):
    """Each key, from the last on, takes a share of the weight that is left (Tan et al. 2025).

    The weights are sigmoid(z_ij) prod_{j < l <= i} (1 - sigmoid(z_il)): at most 1 in total. As in
    the authors' code, a word does not attend to itself, so the first word gets no value.
    """
    sides = ("targets",)
    settings = (
        Setting("stick_breaking_own_word", False, "whether a word attends to itself"),
        Setting("stick_breaking_remainder", False, "the weight that is left goes to the own word"),
    )

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        own = tf.one_hot(tf.range(layout.queries) + layout.offset, layout.keys, dtype=logits.dtype)
        if not self.hparams.get("stick_breaking_own_word"):
            logits -= 1e9 * own
        left = tf.cumsum(tf.math.log_sigmoid(-logits), axis=3, exclusive=True, reverse=True)
        weights = tf.exp(tf.math.log_sigmoid(logits) + left)
        if self.hparams.get("stick_breaking_remainder"):
            weights += own * (1 - tf.reduce_sum(weights, axis=3, keepdims=True))
        return weights


@register("differential")
class Differential(Scheme):
    """The difference of two softmaxes for each pair of heads (Ye et al. 2025).

    Heads 1 and 2, 3 and 4, ... are a pair: two queries and keys, and one value of twice the depth.
    Both heads have the weights softmax(z_1) - lambda softmax(z_2), and the output of a pair is
    multiplied by (1 - lambda_init) after an RMS normalization (section 2.1). lambda is
    exp(l_q1 . l_k1) - exp(l_q2 . l_k2) + lambda_init, with lambda_init = 0.8 - 0.6 exp(-0.3 l) for
    layer l from 0. It has no positions: use it in a sum, such as differential+rotary.
    """
    ignores_constants = True

    def __init__(self, hparams: HParams, side: str) -> None:
        super().__init__(hparams, side)
        self._depth = head_depth(hparams)
        if hparams.num_heads % 2:
            raise ValueError("position=differential divides the heads into pairs: "
                             f"{hparams.num_heads} must be an even number")

    def turn(self, hook: str) -> int:
        return 1

    @staticmethod
    def _initial(layout: Layout) -> float:
        return 0.8 - 0.6 * math.exp(-0.3 * layout.layer)

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        with tf.variable_scope("differential"):
            q1, k1, q2, k2 = (tf.cast(tf.get_variable(
                name, [self._depth], logits.dtype, tf.random_normal_initializer(stddev=0.1)),
                logits.dtype) for name in ("query_1", "key_1", "query_2", "key_2"))
        factor = (tf.exp(tf.reduce_sum(q1 * k1)) - tf.exp(tf.reduce_sum(q2 * k2))
                  + self._initial(layout))
        weights = tf.nn.softmax(logits)
        difference = weights[:, ::2] - factor * weights[:, 1::2]
        return tf.repeat(difference, 2, axis=1)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        z = product(weights, v)
        batch, heads, queries, depth = shape_list(z)
        pairs = tf.reshape(tf.cast(z, accumulator_dtype(z.dtype)),
                           [batch, heads // 2, 2, queries, depth])
        mean = tf.reduce_mean(tf.square(pairs), axis=[2, 4], keepdims=True)
        pairs = tf.reshape(pairs * tf.math.rsqrt(mean + 1e-5), [batch, heads, queries, depth])
        with tf.variable_scope("differential"):
            scale = tf.get_variable("scale", [2, 1, depth], z.dtype, tf.ones_initializer())
        scale = tf.tile((1 - self._initial(layout)) * scale, [heads // 2, 1, 1])
        return tf.cast(pairs, z.dtype) * scale
