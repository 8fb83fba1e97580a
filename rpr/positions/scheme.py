"""What every position scheme is: an object that the stacks and the attention layer are handed."""

import tensorflow.compat.v1 as tf


class Scheme:
    """A position scheme that does nothing; the others override what they do.

    A scheme is made from the model's hparams for one side, `inputs` or `targets`, and serves one
    pass through its stack. What it learns it keeps in variables of the scope in which it is called,
    which is each layer's own; what all layers share it makes `once`.

    Attributes:
      product: what it does with the product of query and key: `turns` them beforehand, adds a
        `term` that is computed from them, computes the `whole`, or None: leaves it alone.
      additive: whether it serves the additive compatibility, see `rpr.nn.attention.additive`.
    """
    product = None
    additive = False
    _kept = None

    def __init__(self, hparams, side):
        """Reads what the scheme needs.

        Args:
          hparams: the model's hyperparameters.
          side: `inputs` (the encoder) or `targets` (the decoder).

        Raises:
          ValueError: a hparam has a value that this scheme cannot serve.
        """

    def embed(self, x, positions):
        """Adds an absolute signal to embedded words.

        Args:
          x: [batch, length, hidden].
          positions: int32 [length] or [batch, length].

        Returns:
          [batch, length, hidden] of the same dtype.
        """
        return x

    def once(self, relation, make):
        """What the first layer made for a relation, given to the other layers too.

        Args:
          relation: the one object that all layers of a pass are handed.
          make: a function without arguments; a variable that it makes is in the first layer's
            scope.

        Returns:
          what `make` returned for this relation.
        """
        if self._kept is None or self._kept[0] is not relation:
            self._kept = relation, make()
        return self._kept[1]

    def rotate(self, q, k, relation):
        """Turns queries and keys by their positions.

        Args:
          q: [batch, heads, len_q, depth].
          k: [batch, heads, len_q, depth], keys of the same positions: those in a cache were turned
            when they came.
          relation: which query meets which key; see `rpr.positions.distances.positions`.

        Returns:
          q and k, of the same shapes and dtypes.
        """
        return q, k

    def bias(self, relation, dtype):
        """What is added to the compatibility of query and key whatever they are.

        Args:
          relation: which query meets which key, see `rpr.positions.distances`.
          dtype: of the logits.

        Returns:
          [1, heads|1, len_q, len_k], or None.
        """
        return None

    def vectors(self, relation, dtype):
        """What is added to query and key inside the additive compatibility.

        Args:
          relation: which query meets which key.
          dtype: of the queries.

        Returns:
          [len_q, len_k, depth], with [heads] or [batch, heads|1] before them, or None.
        """
        return None

    def score_term(self, q, k, relation):
        """What is added to the product of query and key.

        Args:
          q: [batch, heads, len_q, depth], scaled.
          k: [batch, heads, len_k, depth].
          relation: which query meets which key, see `rpr.positions.distances`. Of padding and of what a mask
            forbids it knows nothing: what is said of such a pair never matters.

        Returns:
          [batch|1, heads|1, len_q, len_k], or None.
        """
        return None

    def scores(self, q, k, relation):
        """The product q_i . k_j and this scheme's term, where both together cost less than each.

        A scheme gives a term alone or this.

        Args:
          q, k, relation: as for `score_term`.

        Returns:
          [batch, heads, len_q, len_k], or None.
        """
        return None

    def value_term(self, weights, relation):
        """What is added to the weighted sum of values.

        Args:
          weights: [batch, heads, len_q, len_k].
          relation: which query meets which key.

        Returns:
          [batch, heads, len_q, depth], or None.
        """
        return None

    def outputs(self, weights, v, relation):
        """The weighted sum of values and this scheme's term, as `scores` is of products.

        Args:
          weights, relation: as for `value_term`.
          v: [batch, heads, len_k, depth].

        Returns:
          [batch, heads, len_q, depth], or None.
        """
        return None


class Sum(Scheme):
    """Several schemes at once: each signal and each term is added."""

    def __init__(self, schemes):
        self._schemes = schemes

    def embed(self, x, positions):
        for scheme in self._schemes:
            x = scheme.embed(x, positions)
        return x

    def rotate(self, q, k, relation):
        for scheme in self._schemes:
            q, k = scheme.rotate(q, k, relation)
        return q, k

    def scores(self, q, k, relation):
        """The logits: never None."""
        whole = _only(scheme.scores(q, k, relation) for scheme in self._schemes)
        product = tf.matmul(q, k, transpose_b=True) if whole is None else whole
        terms = [scheme.score_term(q, k, relation) for scheme in self._schemes]
        logits, bias = sum(_given(terms), product), self.bias(relation, q.dtype)
        if bias is None or relation.causal:
            return logits if bias is None else logits + bias
        # Grappler would add bias and padding's mask first, which is one more tensor of the size of
        # the logits. Beyond what is no sum it does not look.
        return tf.ensure_shape(logits + bias, logits.shape)

    def bias(self, relation, dtype):
        return _total(scheme.bias(relation, dtype) for scheme in self._schemes)

    def vectors(self, relation, dtype):
        return _total(scheme.vectors(relation, dtype) for scheme in self._schemes)

    def outputs(self, weights, v, relation):
        """The weighted sum: never None."""
        whole = _only(scheme.outputs(weights, v, relation) for scheme in self._schemes)
        product = tf.matmul(weights, v) if whole is None else whole
        return sum(_given(scheme.value_term(weights, relation) for scheme in self._schemes),
                   product)


def _total(terms):
    terms = _given(terms)
    return sum(terms[1:], terms[0]) if terms else None


def _given(terms):
    return [term for term in terms if term is not None]


def _only(wholes):
    wholes = _given(wholes)
    if len(wholes) > 1:
        raise ValueError("two schemes of one sum want to compute the product themselves")
    return wholes[0] if wholes else None


def within(length, rows, scheme):
    """A context whose operations run where a sequence is not longer than a table.

    Args:
      length: of the sequence, an int or an integer scalar.
      rows: how many positions or distances the table has.
      scheme: the value of the hparam `position`, for the message.

    Raises:
      tf.errors.InvalidArgumentError: when it runs, the sequence is longer.
    """
    check = tf.debugging.assert_less_equal(
        length, rows,
        message=f"position={scheme} has rows for max_length={rows} positions, and this sequence is "
                "longer: raise max_length before training, or take position=sinusoid or relative")
    return tf.control_dependencies([check] if check is not None else [])


def table(name, shape, dtype):
    """A variable `name/embeddings` of vectors by label, [labels, depth] or [heads, labels, depth],
    initialised as T2T does it for `dot_product_relative`."""
    with tf.variable_scope(name) as scope:
        one = scope.initializer or tf.glorot_uniform_initializer()

        def initializer(shape, dtype, partition_info=None):
            """Each head's table as a shared one: of three axes it would take heads for fan-in."""
            return tf.stack([one(shape[1:], dtype) for _ in range(shape[0])])

        return tf.get_variable("embeddings", shape, dtype=dtype,
                               initializer=one if len(shape) == 2 else initializer)
