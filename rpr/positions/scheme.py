"""What every position scheme is: an object that the stacks and the attention layer are handed."""


class Scheme:
    """A position scheme that does nothing; the others override what they do.

    A scheme is made from the model's hparams for one side, `inputs` or `targets`; what it learns it
    keeps in variables of the scope in which it is called.
    """

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

    def rotate(self, q, k, q_positions, k_positions):
        """Turns queries and keys by their positions.

        Args:
          q: [batch, heads, len_q, depth].
          k: [batch, heads, len_k, depth].
          q_positions: int32 [len_q].
          k_positions: int32 [len_k].

        Returns:
          q and k, of the same shapes and dtypes.
        """
        return q, k

    def score_term(self, q, relation):
        """What is added to the compatibility of query and key.

        Args:
          q: [batch, heads, len_q, depth], scaled.
          relation: which query meets which key, see `rpr.relations`.

        Returns:
          [batch|1, heads|1, len_q, len_k], or None.
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


class Sum(Scheme):
    """Several schemes at once: each signal and each term is added."""

    def __init__(self, schemes):
        self._schemes = schemes

    def embed(self, x, positions):
        for scheme in self._schemes:
            x = scheme.embed(x, positions)
        return x

    def rotate(self, q, k, q_positions, k_positions):
        for scheme in self._schemes:
            q, k = scheme.rotate(q, k, q_positions, k_positions)
        return q, k

    def score_term(self, q, relation):
        return _sum(scheme.score_term(q, relation) for scheme in self._schemes)

    def value_term(self, weights, relation):
        return _sum(scheme.value_term(weights, relation) for scheme in self._schemes)


def _sum(terms):
    terms = [term for term in terms if term is not None]
    return sum(terms[1:], terms[0]) if terms else None
