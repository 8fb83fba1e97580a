"""An audit of attention that was written elsewhere, in any library, against a scheme of ours."""
import inspect
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr import positions
from rpr.conformance.checks import Result, difference
from rpr.conformance.layer import HPARAMS_SET, MASKED, override
from rpr.models import declarations
from rpr.positions.layout import Layout
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

# q, k, v, and of the keyword arguments of `check_attention` those that it takes -> the output.
Attention = Callable[..., np.ndarray]
_OPTIONS = ("offset", "padding", "heads", "variables")


class _Reference:
    """Causal attention with a scheme of this project, over positions that are given as data."""

    def __init__(self, hparams: HParams) -> None:
        heads = hparams.num_heads
        depth = hparams.hidden_size // heads
        with tf.Graph().as_default() as graph:
            self._q, self._k, self._v = (tf.placeholder(tf.float64, [None, heads, None, depth])
                                         for _ in "qkv")
            self._places = tf.placeholder(tf.int32, [None, None])
            self._mask = tf.placeholder(tf.float64, [None, 1, None, None])
            queries, keys = tf.shape(self._q)[2], tf.shape(self._k)[2]
            own = self._places[:, keys - queries:]
            words = tf.placeholder(tf.float64, [None, None, hparams.hidden_size])
            layout = Layout(queries, keys, keys - queries, True, query_at=own, key_at=self._places,
                            unit_steps=False, mask=self._mask, x=words)
            stack = positions.build(hparams, "targets")
            scheme = stack.at(0)
            with tf.variable_scope("layer", initializer=tf.random_normal_initializer()):
                q = scheme.rotate(self._q, own, layout, "query") * depth ** -0.5
                k = scheme.rotate(self._k, self._places, layout, "key")
                weights = scheme.normalize(scheme.scores(q, k, layout) + self._mask, layout)
                self._z = scheme.weighted_values(weights, self._v, layout)
            if stack.uses("place") or stack.uses("embed") or words.consumers():
                raise ValueError(f"position={hparams.position}: reads the words; only what depends "
                                 "on queries, keys and places can be checked")
            variables = tf.trainable_variables()
            initializer = tf.global_variables_initializer()
        self._session = tf.Session(graph=graph)
        self._session.run(initializer)
        self.variables = {variable.op.name.split("/", 1)[1]: value for variable, value in zip(
            variables, self._session.run(variables), strict=True)}

    def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, padding: np.ndarray
                 ) -> np.ndarray:
        """The output; words are counted without padding, and padding is not seen."""
        queries, keys = q.shape[2], k.shape[2]
        visible = np.tri(queries, keys, keys - queries, dtype=bool) & ~padding[:, None, None]
        return self._session.run(self._z, {
            self._q: q, self._k: k, self._v: v,
            self._places: np.maximum(np.cumsum(~padding, axis=1) - 1, 0),
            self._mask: np.where(visible, 0.0, MASKED)})


def check_attention(function: Attention, position: str, hparams: str = "", heads: int = 4,
                    depth: int = 8) -> list[Result]:
    """Audits causal attention of any library, NumPy in and NumPy out.

    Args:
      function: called with q [batch, heads, queries, depth], k and v [batch, heads, keys, depth],
        float32, neither scaled nor rotated. The queries are the last of the keys' words; the keys
        before them are those of a cache. It may take these keyword arguments; what depends on one
        that it does not take is not checked:
        `offset`, the number of keys in the cache;
        `padding`, bool [batch, keys], before or after the words;
        `heads`, (first, count, total): which heads of the layer are given, as on several devices;
        `variables`, {name: array}, the weights of a scheme that has some.
      position: the scheme that the function should compute, a value of the hparam `position`.
      hparams: overrides, "name=value,...".
      heads: heads of a layer.
      depth: channels of a head.

    Returns:
      one result for each kind of input, with the smallest counter-example.

    Raises:
      UserError: the position names an unknown scheme, or it cannot be used in a decoder or reads
        the words, or another argument is not allowed.
    """
    for setting, value in ((Setting("position", ""), position), (Setting("hparams", ""), hparams),
                           (Setting("heads", 4, minimum=1), heads),
                           (Setting("depth", 8, minimum=1), depth)):
        setting.check(value)
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):                   # a number, or a function of an extension
        raise InvalidValue("function", function, "must be a function with a signature") from None
    values = registry.hparams(HPARAMS_SET)
    values.parse(f"num_heads={heads},hidden_size={heads * depth},num_hidden_layers=1"
                 ",max_length=512")
    values.position = position
    override(values, hparams, {
        "position": position, "num_heads": heads, "decoder_position": "",
        "hidden_size": heads * depth, "compatibility": "dot_product",
        "attention_key_channels": 0, "attention_value_channels": 0, "num_hidden_layers": 1,
        "num_encoder_layers": 0, "num_decoder_layers": 0})
    try:
        declarations.check_ranges(values)
        reference, random = _Reference(values), np.random.RandomState(0)
    except ValueError as error:
        raise UserError(str(error)) from None
    options = {name for name in _OPTIONS if name in taken or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())}

    def compare(what: str, length: int, queries: int, padding: np.ndarray | None = None,
                first: int = 0, count: int = heads) -> str:
        q, k, v = (random.randn(2, heads, length, depth).astype(np.float32) for _ in "qkv")
        hidden = np.zeros([2, length], bool) if padding is None else padding
        expected = reference(q[:, :, length - queries:], k, v, hidden)
        given = {"offset": length - queries, "padding": hidden, "variables": reference.variables,
                 "heads": (first, count, heads)}
        part = slice(first, first + count)
        got = np.asarray(function(q[:, part, length - queries:], k[:, part], v[:, part],
                                  **{name: given[name] for name in options}), np.float64)
        expected = expected[:, part]
        if got.shape != expected.shape:
            return f"{what}: the shape is {got.shape} and not {expected.shape}"
        seen = ~hidden[:, None, length - queries:, None]     # outputs of padding are free
        return difference(np.where(seen, got, 0).swapaxes(1, 2),
                          np.where(seen, expected, 0).swapaxes(1, 2), what, 1e-3)

    def padded(words: int, left: bool) -> np.ndarray:
        hidden = np.arange(words + 2) < 2
        return np.stack([hidden if left else hidden[::-1], np.zeros(words + 2, bool)])

    # {kind of input: arguments of `compare`, the smallest first}
    cases: dict[str, list[tuple]] = {
        "whole sentences": [(f"{n} words", n, n) for n in (1, 2, 3, 8, 40, 300)]}
    if "offset" in options:
        cases["one word after a cache"] = [(f"one word after {n}", n + 1, 1) for n in (1, 2, 7, 40)]
        cases["several words after a cache"] = [
            (f"{m} words after {n}", n + m, m) for n, m in ((1, 2), (5, 3), (40, 9))]
    if "padding" in options:
        for side in ("after", "before"):
            cases[f"padding {side} the words"] = [
                (f"{n} words, padding of 2 {side} them", n + 2, n + 2,
                 padded(n, side == "before")) for n in (2, 6)]
        if "offset" in options:
            cases["one word after a cache with padding"] = [
                (f"one word after {n} and padding of 2", n + 3, 1, padded(n + 1, True))
                for n in (1, 6)]
    if "heads" in options and heads > 1:
        half = heads // 2
        cases["heads on several devices"] = [
            (f"heads {first + 1} to {first + half} of {heads}", 5, 5, None, first, half)
            for first in (0, half)]
    return [Result(name, "decoder", next(filter(None, (compare(*test) for test in tests)), ""))
            for name, tests in cases.items()]
