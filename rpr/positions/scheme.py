"""The interface of a position scheme."""
import contextlib
import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import stable_hash
from rpr.positions.layout import Layout
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

Product = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# The methods by which a scheme does something, in the order of their calls.
HOOKS = ("place", "embed", "rotate", "logits", "bias", "adjust", "normalize", "values",
         "pair_vectors")


class Scheme:
    """A position scheme that does nothing; subclasses override the hooks that they need.

    The model builds one object per stack (encoder: side `inputs`, decoder: `targets`, the decoder's
    attention to the encoder: `cross`) and per pass through the stack, and calls the hooks in the
    order in which they are listed here. Trainable parameters are variables of the scope in which a
    hook is called: `place` and `embed` are called once, before the first layer, all others in the
    scope of each layer. `Layout` holds what a hook may need besides its arguments.

    In the comments below, [batch, heads, queries, depth] are the queries of one attention layer and
    [batch, heads, keys, depth] its keys and values. Where `batch|1` is allowed, a tensor may be the
    same for all examples.

    Attributes:
      settings: the scheme's own hparams, with defaults and allowed values. They exist in every
        hparams set of `rpr_transformer` and are checked before the scheme is built.
      t2t_settings: names of T2T's own hparams that this scheme reads and most others do not.
      sides: where the scheme can be used: `inputs`, `targets`, `cross`.
      longest: the most positions that the scheme has; None if there is no limit.
      draws_among: the setting with the number of positions that `place` draws from; empty: it does
        not draw.
      depth_factor: depth of the keys after `rotate`, as a multiple of their depth before.
      ignores_constants: whether `normalize` and `adjust` lead to the same weights where each query
        has another constant in all its logits, as a softmax does. Read if the scheme has them.
      masks: whether its bias is about -1e9 for some pairs.
      hparams, side: as given to the constructor.
      label: what tells the scheme apart from others of the stack; set by `rpr.positions.build`.
      partners: the other schemes of its sum; set by `rpr.positions.build`.
    """
    settings: tuple[Setting, ...] = ()
    t2t_settings: tuple[str, ...] = ()
    sides: tuple[str, ...] = ("inputs", "targets", "cross")
    longest: int | None = None
    draws_among = ""
    depth_factor = 1
    ignores_constants = False
    masks = False
    label = ""
    partners: Sequence["Scheme"] = ()

    def __init__(self, hparams: HParams, side: str) -> None:
        """Keeps the model's hparams and the side; a subclass raises ValueError for bad ones."""
        self.hparams, self.side = hparams, side

    def uses(self, hook: str) -> bool:
        """Whether the scheme does anything in a hook; by default, whether it overrides it.

        Sums call only these hooks, and `rpr.positions.build` refuses sums by them.
        """
        return getattr(type(self), hook) is not getattr(Scheme, hook)

    def replaces(self, hook: str) -> bool:
        """Whether the scheme computes the product of a hook (`logits`, `values`) itself.

        It then need not call `product`. One scheme of a sum may replace a product.
        """
        return False

    def turn(self, hook: str) -> int:
        """When a hook with a product (`logits`, `values`) gets it: -1, 0 or 1.

        -1: before the other schemes of a sum add their terms, for a hook that reads the product. 1:
        after that, for one that changes the total. 0 is for those that only add a term.
        """
        return 0

    def constants_cancel(self) -> bool:
        """Whether a constant per query in all its logits changes no weight of the sum."""
        return all(scheme.ignores_constants for scheme in (self, *self.partners)
                   if scheme.uses("normalize") or scheme.uses("adjust"))

    def at(self, layer: int) -> "Scheme":
        """The scheme of a layer, counted from 0."""
        return self

    def states(self) -> dict[str, Sequence[int]]:
        """The shapes of the scheme's own states in the decoding cache, before the first step.

        Beam search reorders them with the hypotheses. Names are those of `extend`; shapes are
        those of one layer without the batch, float32: at least two axes, of which one is 0 if it
        grows with each step. The last axis cannot grow.
        """
        return {}

    def place(self, layout: Layout) -> tf.Tensor | None:
        """The positions of the queries, if they are not 0, 1, 2, ...

        Called before the first layer. All other schemes of a sum read the positions, integers or
        floats [batch|1, queries].
        """
        return None

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Adds an absolute position signal to the embedded words x, [batch, length, hidden].

        Positions are [batch|1, length]; the result is of the shape and dtype of x.
        """
        return x

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        """Transforms queries or keys (the role is `query` or `key`) before their product.

        x is [batch, heads, length, depth], its positions are [batch|1, length]. Keys in a decoding
        cache were transformed when they were computed and are not passed again. The result is
        [batch, heads, length, depth_factor * depth] of the dtype of x.
        """
        return x

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        """The logits, as far as they depend on queries and keys.

        Args:
          q: [batch, heads, queries, depth], already divided by sqrt(depth).
          k: [batch, heads, keys, depth].
          layout: see `Layout`. The scores of masked pairs are ignored, whatever they are.
          product: called with q and k, returns the logits without this scheme.

        Returns:
          [batch, heads, queries, keys]. A constant per query may be left out where
          `constants_cancel`, which is not so with a sink, for example.
        """
        return product(q, k)

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        """A bias of the logits that does not depend on queries and keys.

        It is [batch|1, heads|1, queries, keys] of this dtype, or None.
        """
        return None

    def adjust(self, logits: tf.Tensor, bias: tf.Tensor | None, layout: Layout) -> tf.Tensor:
        """Joins the logits and the total bias of a sum, over all heads, before the mask is added.

        The logits, [batch, heads, queries, keys] as the result, have the terms of all schemes. The
        bias, [batch|1, heads|1, queries, keys] or None, is the sum of all schemes' biases.
        """
        if bias is None or layout.causal:
            return logits if bias is None else logits + bias
        # Without ensure_shape Grappler reorders the sum and adds bias and padding mask first, which
        # needs one more tensor of the size of the logits.
        return tf.ensure_shape(logits + bias, logits.shape)

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        """The attention weights, 0 for masked pairs; by default `layout.softmax`.

        The logits, float32 or float64 [batch, heads, queries, keys], are with the mask.
        """
        return layout.softmax(logits)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        """The weighted sum of the values, [batch, heads, queries, depth], and the scheme's terms.

        The weights are [batch, heads, queries, keys], v is [batch, heads, keys, depth]. `product`
        is called with them and returns the weighted sum without this scheme.
        """
        return product(weights, v)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        """Vectors of pairs, added to query and key inside the tanh of additive compatibility.

        They take the place of `logits`, see `rpr.nn.attention.additive_logits`:
        [batch|1, heads|1, queries, keys, depth] of this dtype, or None.
        """
        return None

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor:
        """The complete logits without the mask, for the attention layer. Args as `logits`."""
        logits = self.logits(q, k, layout, lambda q, k: tf.matmul(q, k, transpose_b=True))
        return self.adjust(logits, self.bias(layout, q.dtype), layout)

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout) -> tf.Tensor:
        """The complete weighted sum, for the attention layer. Args as `values`."""
        return self.values(weights, v, layout, tf.matmul)

    def extend(self, layout: Layout, name: str, value: tf.Tensor, axis: int) -> tf.Tensor:
        """A value of the queries after those of all earlier decoding steps: a value of all keys.

        `name` is one of `states`. The value is [batch, ...], with one entry per query on the axis.
        Without a cache it is returned as it is.
        """
        if layout.cache is None:
            return value
        state = layout.cache[self.state_name(name)]
        value = tf.concat([tf.cast(state, value.dtype), value], axis=axis)
        layout.cache[self.state_name(name)] = tf.cast(value, state.dtype)
        return value

    def state_name(self, name: str) -> str:
        """The key in `Layout.cache` of one of the scheme's own states."""
        return f"{self.label}/{name}"

    def shared_by_layers(self, name: Hashable, layout: Layout, make: Callable[[], Any]) -> Any:
        """Calls `make` in the first layer only, and returns its result in all layers of a pass.

        The name tells the result apart from others that the scheme shares. Variables are made in
        the scope of the first layer.
        """
        key = self, name
        if key not in layout.shared:
            layout.shared[key] = make()
        return layout.shared[key]


def head_depth(hparams: HParams, channels: str = "attention_key_channels") -> int:
    """The depth of a head's queries and keys, or with `attention_value_channels` of its values."""
    return (hparams.get(channels) or hparams.hidden_size) // hparams.num_heads


def check_length(length: int | tf.Tensor, rows: int, scheme: str, setting: str = "max_length",
                 what: str = "") -> contextlib.AbstractContextManager[None]:
    """A context whose operations fail if a length is larger than a setting of a scheme.

    That is a sequence that is longer than the rows of a table, or `what` the setting is too small
    for. `setting` is the hparam that gives the number of rows. At run time, a larger length raises
    tf.errors.InvalidArgumentError, whose line `rpr.cli.launcher` looks for.
    """
    message = (f"position={scheme}: {setting}={rows} is too small for {what}; raise it" if what else
               f"position={scheme} has rows for {setting}={rows} positions, and more are needed: "
               f"raise {setting} before training, or use position=sinusoid or relative")
    check = tf.debugging.assert_less_equal(tf.cast(length, tf.int32), rows, message=message)
    return tf.control_dependencies([check] if check is not None else [])


def get_table(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """The variable `name/embeddings`: one vector per label, initialised as T2T's relative tables.

    The shape is [labels, depth] shared by the heads, or [heads, labels, depth]. The table of each
    head is initialised like a shared one.
    """
    with tf.variable_scope(name) as scope:
        initializer = scope.initializer or tf.glorot_uniform_initializer()
        return tf.get_variable("embeddings", shape, dtype=dtype, initializer=(
            initializer if len(shape) == 2 else _HeadsInitializer(initializer)))


class _HeadsInitializer:
    """Initialises the table of each head on its own; else the heads would count as fan-in."""

    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer
        self.seed: int | None = None                         # set by rpr.training.seeding

    def __call__(self, shape: Sequence[int], dtype: tf.DType | None = None,
                 partition_info: Any = None) -> tf.Tensor:
        values = []
        for head in range(shape[0]):
            initializer = copy.copy(self._initializer)
            if self.seed is not None:
                initializer.seed = stable_hash(self.seed, head) >> 1     # int64, not negative
            values.append(initializer(shape[1:], dtype))
        return tf.stack(values)
