"""The interface of a position scheme, and the sum of several schemes."""
import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.nn.dropout import stable_hash
from rpr.positions.layout import Layout
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting


class Scheme:
    """A position scheme that does nothing; subclasses override the methods they need.

    The model builds one object per stack (encoder: side `inputs`, decoder: side `targets`) and per
    pass through the stack. Trainable parameters are variables of the scope in which a method is
    called; this is the scope of the layer.

    In the comments below, [batch, heads, queries, depth] are the queries of one attention layer and
    [batch, heads, keys, depth] its keys and values.

    Attributes:
      settings: the scheme's own hparams, with defaults and allowed values. They exist in every
        hparams set of `rpr_transformer` and are checked before the scheme is built.
      t2t_settings: names of T2T's own hparams that this scheme reads and most others do not.
      query_key_method: the method with which the scheme uses the content of queries and keys:
        `rotate`, `score_term`, `scores`, or None. Only some of them can be summed; see
        `rpr.positions.registry.build`.
      longest: the most positions that the scheme has; None if there is no limit.
      supports_additive: whether the scheme can be used with additive compatibility, see
        `rpr.nn.additive`.
    """
    settings: tuple[Setting, ...] = ()
    t2t_settings: tuple[str, ...] = ()
    query_key_method: str | None = None
    longest: int | None = None
    supports_additive = False

    def __init__(self, hparams: HParams, side: str) -> None:
        """Reads the hparams that the scheme needs.

        Args:
          hparams: the model's hyperparameters.
          side: `inputs` (the encoder) or `targets` (the decoder).

        Raises:
          ValueError: the hparams do not fit together.
        """

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Adds an absolute position signal to the embedded words.

        Args:
          x: [batch, length, hidden].
          positions: int32 [length] or [batch, length].

        Returns:
          [batch, length, hidden] of the dtype of x.
        """
        return x

    def rotate(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        """Transforms queries and keys by their own positions, before their product.

        Args:
          q: [batch, heads, queries, depth].
          k: [batch, heads, queries, depth], the keys at the same positions. Keys in a decoding
            cache were transformed when they were computed and are not passed again.
          layout: where queries and keys stand.

        Returns:
          q and k, of the same shapes and dtypes.
        """
        return q, k

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        """A bias of the logits that does not depend on the content of queries and keys.

        Args:
          layout: where queries and keys stand.
          dtype: dtype of the logits.

        Returns:
          [1, heads|1, queries, keys], or None.
        """
        return None

    def score_term(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        """A term of the logits that depends on the content of queries and keys.

        Args:
          q: [batch, heads, queries, depth], already divided by sqrt(depth).
          k: [batch, heads, keys, depth].
          layout: where queries and keys stand. Padding and masks are not known here: the scores of
            masked pairs are ignored, whatever they are.

        Returns:
          [batch|1, heads|1, queries, keys], or None.
        """
        return None

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        """The logits q_i . k_j and the term of this scheme in one, where that is faster.

        A scheme overrides either this method or `score_term`. Args are those of `score_term`.

        Returns:
          [batch, heads, queries, keys], or None if the plain product is to be used.
        """
        return None

    def value_term(self, weights: tf.Tensor, layout: Layout) -> tf.Tensor | None:
        """A term that is added to the weighted sum of the values.

        Args:
          weights: attention weights, [batch, heads, queries, keys].
          layout: where queries and keys stand.

        Returns:
          [batch, heads, queries, depth], or None.
        """
        return None

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor,
                        layout: Layout) -> tf.Tensor | None:
        """The weighted sum of the values and the term of this scheme in one, where that is faster.

        A scheme overrides either this method or `value_term`.

        Args:
          weights: attention weights, [batch, heads, queries, keys].
          v: [batch, heads, keys, depth].
          layout: where queries and keys stand.

        Returns:
          [batch, heads, queries, depth], or None if the plain product is to be used.
        """
        return None

    @property
    def replaces_weighted_sum(self) -> bool:
        """Whether `weighted_values` may return a tensor; at most one scheme of a sum may."""
        return type(self).weighted_values is not Scheme.weighted_values

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        """Vectors of pairs, added to query and key inside the tanh of additive compatibility.

        Args:
          layout: where queries and keys stand.
          dtype: dtype of the queries.

        Returns:
          [queries, keys, depth], or that with [heads] or [batch, heads|1] in front, or None.
        """
        return None

    def shared_by_layers(self, name: str, layout: Layout, make: Callable[[], Any]) -> Any:
        """Calls `make` in the first layer only, and returns its result in all layers.

        Args:
          name: of the result. A scheme that shares several results names each of them.
          layout: the layout of this pass. All layers of a stack get the same object.
          make: a function without arguments. Variables are made in the scope of the first layer.

        Returns:
          what `make` returned for this name and layout.
        """
        shared = self.__dict__.setdefault("_shared", {})    # subclasses need not call __init__
        if name not in shared or shared[name][0] is not layout:
            shared[name] = layout, make()
        return shared[name][1]


class SumOfSchemes(Scheme):
    """Several schemes together: all signals, terms and biases are added."""

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        self._schemes = schemes
        self.longest = min((scheme.longest for scheme in schemes if scheme.longest is not None),
                           default=None)

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        for scheme in self._schemes:
            x = scheme.embed(x, positions)
        return x

    def rotate(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tuple[tf.Tensor, tf.Tensor]:
        for scheme in self._schemes:
            q, k = scheme.rotate(q, k, layout)
        return q, k

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor:
        """The logits; never None."""
        logits = _only(scheme.scores(q, k, layout) for scheme in self._schemes)
        if logits is None:
            logits = tf.matmul(q, k, transpose_b=True)
        terms = [scheme.score_term(q, k, layout) for scheme in self._schemes]
        logits, bias = sum(_not_none(terms), logits), self.bias(layout, q.dtype)
        if bias is None or layout.causal:
            return logits if bias is None else logits + bias
        # Without ensure_shape Grappler reorders the sum and adds bias and padding mask first, which
        # needs one more tensor of the size of the logits.
        return tf.ensure_shape(logits + bias, logits.shape)

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        return _total(scheme.bias(layout, dtype) for scheme in self._schemes)

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout) -> tf.Tensor:
        """The weighted sum; never None."""
        z = _only(scheme.weighted_values(weights, v, layout) for scheme in self._schemes)
        if z is None:
            z = tf.matmul(weights, v)
        return sum(_not_none(scheme.value_term(weights, layout) for scheme in self._schemes), z)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        return _total(scheme.pair_vectors(layout, dtype) for scheme in self._schemes)


def _not_none(terms: Iterable[tf.Tensor | None]) -> list[tf.Tensor]:
    return [term for term in terms if term is not None]


def _total(terms: Iterable[tf.Tensor | None]) -> tf.Tensor | None:
    terms = _not_none(terms)
    return sum(terms[1:], terms[0]) if terms else None


def _only(products: Iterable[tf.Tensor | None]) -> tf.Tensor | None:
    products = _not_none(products)
    if len(products) > 1:
        raise ValueError("two schemes of a sum replace the same product")
    return products[0] if products else None


def check_length(length: int | tf.Tensor, rows: int,
                 scheme: str) -> contextlib.AbstractContextManager[None]:
    """A context whose operations fail if a sequence is longer than a table.

    Args:
      length: length of the sequence, an int or an integer scalar.
      rows: number of positions or distances that the table has.
      scheme: the value of the hparam `position`, for the message.

    Raises:
      tf.errors.InvalidArgumentError: at run time, the sequence is longer.
    """
    check = tf.debugging.assert_less_equal(
        length, rows,
        message=f"position={scheme} has rows for max_length={rows} positions, and this sequence is "
                "longer: raise max_length before training, or use position=sinusoid or relative")
    return tf.control_dependencies([check] if check is not None else [])


def get_table(name: str, shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """The variable `name/embeddings`: one vector per label, initialised as T2T's relative tables.

    Args:
      name: variable scope.
      shape: [labels, depth] shared by the heads, or [heads, labels, depth]. The table of each head
        is initialised like a shared one.
      dtype: dtype of the variable.
    """
    with tf.variable_scope(name) as scope:
        initializer = scope.initializer or tf.glorot_uniform_initializer()
        return tf.get_variable("embeddings", shape, dtype=dtype, initializer=(
            initializer if len(shape) == 2 else _HeadsInitializer(initializer)))


class _HeadsInitializer:
    """Initialises the table of each head on its own.

    With three axes the initializer itself would count the heads as fan-in.

    Attributes:
      seed: of the values; None until `rpr.training.seeding` sets it.
    """

    def __init__(self, initializer: Any) -> None:
        self._initializer = initializer
        self.seed: int | None = None

    def __call__(self, shape: Sequence[int], dtype: tf.DType | None = None,
                 partition_info: Any = None) -> tf.Tensor:
        return tf.stack([self._of_head(head)(shape[1:], dtype) for head in range(shape[0])])

    def _of_head(self, head: int) -> Any:
        initializer = copy.copy(self._initializer)
        if self.seed is not None:
            initializer.seed = stable_hash(self.seed, head) >> 1     # int64, not negative
        return initializer
