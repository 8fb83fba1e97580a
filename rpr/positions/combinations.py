"""Several position schemes in one stack: sums, groups of heads, and groups of layers."""
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from rpr.positions.layout import Layout
from rpr.positions.scheme import Product, Scheme


class SumOfSchemes(Scheme):
    """Several schemes together: all signals, terms and biases are added."""

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        self._schemes = schemes
        self.longest = shortest_limit(schemes)
        for scheme in schemes:
            self.depth_factor *= scheme.depth_factor

    def uses(self, hook: str) -> bool:
        return bool(self._users(hook))

    def _users(self, hook: str) -> list[Scheme]:
        return [scheme for scheme in self._schemes if scheme.uses(hook)]

    def states(self) -> dict[str, Sequence[int]]:
        return {scheme.state_name(name): shape for scheme in self._schemes
                for name, shape in scheme.states().items()}

    def place(self, layout: Layout) -> tf.Tensor | None:
        users = self._users("place")                         # at most one
        if not users:
            return None
        at = users[0].place(layout)
        return _checked(at, users[0], "place", [None, _static(layout.queries)],
                        getattr(at, "dtype", tf.int32))      # integers or floats

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        for scheme in self._users("embed"):
            x = _checked(scheme.embed(x, positions), scheme, "embed", x.shape, x.dtype)
        return x

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        for scheme in self._users("rotate"):
            *outer, depth = x.shape.as_list()
            x = _checked(scheme.rotate(x, positions, layout, role), scheme, "rotate",
                         [*outer, depth * scheme.depth_factor], x.dtype)
        return x

    def logits(self, q: tf.Tensor, k: tf.Tensor, layout: Layout, product: Product) -> tf.Tensor:
        return self._chained("logits", layout, product)(q, k)

    def bias(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        shape = [None, None, _static(layout.queries), _static(layout.keys)]
        return _total(_checked(scheme.bias(layout, dtype), scheme, "bias", shape, dtype)
                      for scheme in self._users("bias"))

    def adjust(self, logits: tf.Tensor, bias: tf.Tensor | None, layout: Layout) -> tf.Tensor:
        users = self._users("adjust")                        # at most one
        if not users:
            return super().adjust(logits, bias, layout)
        return _checked(users[0].adjust(logits, bias, layout), users[0], "adjust", logits.shape,
                        logits.dtype)

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        users = self._users("normalize")                     # at most one
        if not users:
            return super().normalize(logits, layout)
        return _checked(users[0].normalize(logits, layout), users[0], "normalize", logits.shape,
                        logits.dtype)

    def values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout,
               product: Product) -> tf.Tensor:
        return self._chained("values", layout, product)(weights, v)

    def pair_vectors(self, layout: Layout, dtype: tf.DType) -> tf.Tensor | None:
        shape = [None, None, _static(layout.queries), _static(layout.keys), None]
        return _total(_checked(scheme.pair_vectors(layout, dtype), scheme, "pair_vectors", shape,
                               dtype) for scheme in self._users("pair_vectors"))

    def _chained(self, hook: str, layout: Layout, product: Product) -> Product:
        """The product with the terms of all schemes; the one that replaces it comes first."""
        for scheme in sorted(self._users(hook), key=lambda scheme: (
                not scheme.replaces(hook), scheme.turn(hook))):
            product = _with_scheme(scheme, hook, layout, product)
        return product


def _with_scheme(scheme: Scheme, hook: str, layout: Layout, product: Product) -> Product:
    """The product with the terms of one scheme more."""
    def with_scheme(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        calls = []

        def counted(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
            calls.append(product)
            return product(a, b)

        result = getattr(scheme, hook)(a, b, layout, counted)
        columns = b.shape[2 if hook == "logits" else 3]
        _checked(result, scheme, hook, [*a.shape[:3], columns], a.dtype)
        if not calls and not scheme.replaces(hook):
            raise ValueError(f"position={scheme.label}: {hook}() does not call product, so the "
                             "terms of other schemes would be lost; call it, or let "
                             f"replaces({hook!r}) return True")
        return result

    return with_scheme


def _static(size: int | tf.Tensor) -> int | None:
    """A size as the static shape of a tensor has it."""
    return size if isinstance(size, int) else None


def _checked(x: Any, scheme: Scheme, hook: str, shape: Any, dtype: tf.DType) -> Any:
    """What a hook returned; raises ValueError, with its line, if type or shape differ."""
    if x is None and hook in ("place", "bias", "pair_vectors"):
        return x
    if (tf.is_tensor(x) and x.dtype.base_dtype == tf.as_dtype(dtype).base_dtype
            and x.shape.is_compatible_with(shape)):
        return x
    found = f"{x.dtype.name} {x.shape}" if tf.is_tensor(x) else f"{type(x).__name__} {x!r}"
    code = getattr(type(scheme), hook).__code__
    raise ValueError(f"position={scheme.label}: {hook}() returned {found[:80]}, not "
                     f"{tf.as_dtype(dtype).base_dtype.name} {tf.TensorShape(shape)} "
                     f"({code.co_filename}:{code.co_firstlineno})")


class _Groups(Scheme):
    """Schemes for parts of a stack. Those that act before the first layer are in every part."""

    def __init__(self, members: Sequence[Scheme]) -> None:
        self._members = members
        self.longest = shortest_limit(members)

    def uses(self, hook: str) -> bool:
        return any(scheme.uses(hook) for scheme in self._members)

    def place(self, layout: Layout) -> tf.Tensor | None:
        return self._members[0].place(layout)

    def embed(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        return self._members[0].embed(x, positions)


class HeadGroups(_Groups):
    """Schemes for groups of heads. Their variables are in scopes such as `heads_1_4`."""

    def __init__(self, groups: dict[tuple[int, int], SumOfSchemes]) -> None:
        """Takes {(first head, last head + 1): scheme}, ascending, for all heads together."""
        super().__init__(list(groups.values()))
        self._groups = groups
        self.depth_factor = self._members[0].depth_factor

    def states(self) -> dict[str, Sequence[int]]:
        return {name: shape for scheme in self._members for name, shape in scheme.states().items()}

    def rotate(self, x: tf.Tensor, positions: tf.Tensor, layout: Layout, role: str) -> tf.Tensor:
        return self._join(lambda scheme, x: scheme.rotate(x, positions, layout, role), x)

    def scores(self, q: tf.Tensor, k: tf.Tensor, layout: Layout) -> tf.Tensor:
        return self._join(lambda scheme, q, k: scheme.scores(q, k, layout), q, k)

    def normalize(self, logits: tf.Tensor, layout: Layout) -> tf.Tensor:
        if not self.uses("normalize"):
            return super().normalize(logits, layout)
        return self._join(lambda scheme, logits: scheme.normalize(logits, layout), logits)

    def weighted_values(self, weights: tf.Tensor, v: tf.Tensor, layout: Layout) -> tf.Tensor:
        if not self.uses("values"):
            return super().weighted_values(weights, v, layout)
        return self._join(lambda scheme, weights, v: scheme.weighted_values(weights, v, layout),
                          weights, v)

    def _join(self, function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
        """Applies a function to each group's scheme and heads, and joins the results."""
        parts = []
        for (first, end), scheme in self._groups.items():
            with tf.variable_scope(f"heads_{first + 1}_{end}"):
                parts.append(function(scheme, *(x[:, first:end] for x in tensors)))
        return tf.concat(parts, axis=1)


class LayerGroups(_Groups):
    """A scheme for each layer; `at` returns it."""

    def at(self, layer: int) -> Scheme:
        return self._members[layer]


def shortest_limit(schemes: Iterable[Scheme]) -> int | None:
    """The most positions that all schemes have; None if none of them has a limit."""
    return min((scheme.longest for scheme in schemes if scheme.longest is not None), default=None)


def _total(terms: Iterable[tf.Tensor | None]) -> tf.Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None
