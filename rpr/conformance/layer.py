"""An attention layer, and a small model, with a position scheme and random weights, on arrays."""
import functools
import itertools
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.utils import registry

from rpr import positions
from rpr.models import transformer_stacks
from rpr.nn import attention
from rpr.positions.layout import Layout
from rpr.utils.errors import InvalidValue
from rpr.utils.interfaces import HParams

HPARAMS_SET = "rpr_tiny"
MASKED = -1e9
VOCABULARY = 11
_COST_SHAPE = (8, 128)
ALPHA = 2.0                                           # so that long hypotheses are found, too


class AttentionLayer:
    """Self-attention over whole sentences, and step by step with a cache.

    Attributes:
      variables: names of its weights, without the scope, those that are not trained included.
      trained: those that are trained.
    """

    def __init__(self, hparams: HParams, side: str, dtype: tf.DType = tf.float64, seed: int = 0,
                 training: bool = False) -> None:
        """Builds the layer: words of `inputs` see all others, those of `targets` earlier ones.

        dtype is that of inputs and weights; half precision is returned as float32. `training`:
        whether the scheme is told that the graph trains.
        """
        self._hparams, self._side, self._dtype = hparams, side, dtype
        with tf.Graph().as_default() as graph, tf.variable_scope(
                "layer", initializer=tf.random_normal_initializer(stddev=0.4)):
            tf.set_random_seed(seed)
            self._x, self._dy = (tf.placeholder(tf.float32 if dtype.size == 2 else dtype,
                                                [None, None, hparams.hidden_size]) for _ in "xd")
            self._mask = tf.placeholder(tf.float32, [None, 1, None, None])
            self._places = tf.placeholder_with_default(
                tf.range(tf.shape(self._x)[1])[None], [None, None])
            length = tf.shape(self._x)[1]
            layout = Layout(length, length, causal=side == "targets", query_at=self._places,
                            key_at=self._places, training=training)
            y = self._layer(tf.cast(self._x, dtype), self._mask, layout, None)
            self._y = tf.cast(y, self._x.dtype)
            self._weights = weights = tf.global_variables()
            self.variables, self.trained = (
                [variable.op.name.split("/", 1)[1] for variable in some]
                for some in (weights, tf.trainable_variables()))
            self._initial = [variable.initializer.inputs[1] for variable in weights]
            self._initializers = [variable.initializer for variable in weights]
        self.session = tf.Session(graph=graph)
        self.session.run(self._initializers)

    def _layer(self, x: tf.Tensor, mask: tf.Tensor | None, layout: Layout, cache: dict | None
               ) -> tf.Tensor:
        """`layout` has the places of the words; 0 begins a sentence."""
        hparams, places = self._hparams, layout.query_positions()
        scheme = positions.build(hparams, self._side)
        # A symbol that depends on the word; 0 begins a sentence, as in a decoder, and is padding.
        ids = tf.cast(tf.abs(tf.cast(x[:, :, 0], tf.float32)) * 8, tf.int32) % VOCABULARY
        ids *= tf.cast(places > 0, tf.int32)
        segments = tf.cumsum(tf.cast(tf.equal(places, 0), tf.int32), axis=1) + 0 * ids
        if mask is not None:
            ids *= tf.cast(tf.linalg.diag_part(mask[:, 0]) > MASKED / 2, tf.int32)
        layout = transformer_stacks.placed(scheme, layout.replace(
            x=x, ids=ids, segments=segments, mask=mask, cache=cache))
        x = scheme.embed(x, layout.query_positions())
        return attention.multihead_attention(
            x, None, mask, *transformer_stacks.channels_of(hparams), hparams.hidden_size,
            hparams.num_heads, scheme.at(0), layout, hparams.compatibility, cache=cache)

    def mask(self, shape: tuple[int, int], padding: np.ndarray | None = None,
             segments: np.ndarray | None = None) -> np.ndarray:
        """The bias of masked pairs: of later words, of padding (bool [batch, length]), of other
        segments (int [batch, length]). float32 [batch, 1, length, length]."""
        batch, length = shape
        visible = np.ones([batch, 1, length, length], bool)
        if self._side == "targets":
            visible &= np.tri(length, dtype=bool)
        if padding is not None:
            visible &= ~padding[:, None, None]
        if segments is not None:
            visible &= segments[:, None, :, None] == segments[:, None, None]
        return np.where(visible, 0, MASKED).astype(np.float32)

    def __call__(self, x: np.ndarray, mask: np.ndarray | None = None,
                 places: np.ndarray | None = None) -> np.ndarray:
        """The output [batch, length, hidden] for an input of this shape."""
        return self.session.run(self._y, self._feed(x, mask, places))

    def gradients(self, x: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
        """The gradients of sum(dy * y) by x and by each variable; 0 where none reaches it."""
        reached = [dx for dx in self._gradients if dx is not None]
        values = iter(self.session.run(reached, {**self._feed(x, None, None), self._dy: dy}))
        return [np.zeros([]) if dx is None else next(values) for dx in self._gradients]

    def out_of_reach(self) -> list[str]:
        """Names of trained variables that no gradient of the output reaches."""
        return [name for name, dx in zip(self.variables, self._gradients[1:], strict=True)
                if dx is None and name in self.trained]

    @functools.cached_property
    def _gradients(self) -> list[tf.Tensor | None]:
        """Built when asked for: many layers only compute an output."""
        with self.session.graph.as_default():
            return [dx if dx is None else tf.convert_to_tensor(dx)
                    for dx in tf.gradients(self._y, [self._x, *self._weights], self._dy)]

    def _feed(self, x: np.ndarray, mask: np.ndarray | None, places: np.ndarray | None) -> dict:
        mask = self.mask(x.shape[:2]) if mask is None else mask
        return {self._x: x, self._mask: mask} | ({} if places is None else {self._places: places})

    def weights(self) -> list[np.ndarray]:
        """The values of the variables."""
        return self.session.run(self._weights)

    def allocated_bytes(self, x: np.ndarray) -> int:
        """What TensorFlow allocates for the output and its gradients."""
        metadata = tf.RunMetadata()
        reached = [dx for dx in self._gradients if dx is not None]
        self.session.run(reached, {**self._feed(x, None, None), self._dy: x},
                         tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
        return sum(memory.total_bytes for device in metadata.step_stats.dev_stats
                   for node in device.node_stats for memory in node.memory)

    def set_weights(self, values: list[np.ndarray]) -> None:
        """Replaces the values of the variables."""
        self.session.run(self._initializers, dict(zip(self._initial, values, strict=True)))

    def cached(self, x: np.ndarray) -> np.ndarray:
        """The output word by word, as decoding computes it."""
        word, cache, step = self._step
        caches = {name: np.zeros([len(x), *(size or 0 for size in placeholder.shape.as_list()[1:])],
                                 placeholder.dtype.as_numpy_dtype)
                  for name, placeholder in cache.items()}
        outputs = []
        for number in range(x.shape[1]):
            y, caches = self.session.run(step, {
                word: x[:, number:number + 1],
                **{cache[name]: value for name, value in caches.items()}})
            outputs.append(y)
        return np.concatenate(outputs, axis=1)

    @functools.cached_property
    def _step(self) -> tuple[tf.Tensor, dict[str, tf.Tensor], tuple[tf.Tensor, dict]]:
        """Placeholders of a word and of the cache, and the output and the cache after the word."""
        hparams, heads = self._hparams, self._hparams.num_heads
        depth, of_values = (size // heads for size in transformer_stacks.channels_of(hparams))
        with self.session.graph.as_default(), tf.variable_scope("layer", reuse=True):
            scheme = positions.build(hparams, self._side).at(0)
            shapes = {"k": [heads, 0, depth * scheme.depth_factor], "v": [heads, 0, of_values],
                      **scheme.states()}
            if scheme.uses("place"):
                shapes["positions"] = [0, 1]
            word = tf.placeholder(self._dtype, [None, 1, hparams.hidden_size])
            cache = {name: tf.placeholder(
                self._dtype if name in ("k", "v") else tf.float32,
                [None, *(size or None for size in shape)]) for name, shape in shapes.items()}
            offset, after = tf.shape(cache["k"])[2], dict(cache)
            y = self._layer(word, None, Layout(1, offset + 1, offset, causal=True), after)
        return word, cache, (y, after)


class Subject:
    """A scheme on one side, with its layer in float64."""

    def __init__(self, hparams: HParams, side: str) -> None:
        self.hparams, self.side = hparams, side
        self.layer = AttentionLayer(hparams, side)
        self.random = np.random.RandomState(0)
        self.layer.set_weights([                             # biases that are not all 0
            value + 0.1 * self.random.randn(*value.shape) if name in self.layer.trained else value
            for name, value in self.weights().items()])

    def weights(self) -> dict[str, np.ndarray]:
        """The values of the layer's variables by name."""
        return dict(zip(self.layer.variables, self.layer.weights(), strict=True))

    def longest(self, length: int) -> int:
        """The length, or the number of positions of the scheme if that is smaller."""
        return min(length, positions.build(self.hparams, self.side).longest or length)

    def words(self, batch: int, length: int) -> np.ndarray:
        """Random inputs, float64 [batch, length, hidden]."""
        return self.random.randn(batch, length, self.hparams.hidden_size)


def changed(hparams: HParams, position: str) -> HParams:
    """A copy of the hparams with another value of `position`."""
    values = registry.hparams(HPARAMS_SET)
    values.override_from_dict({name: value for name, value in hparams.values().items()
                               if name in values})
    values.position = position
    return values


def override(values: HParams, hparams: str, fixed: Mapping[str, Any]) -> None:
    """Applies overrides, "name=value,...", in place; InvalidValue if `fixed` values are changed."""
    try:
        values.parse(hparams)
    except ValueError as error:
        raise InvalidValue("hparams", hparams, str(error)) from None
    for name, value in fixed.items():
        if values.get(name) != value:
            raise InvalidValue("hparams", hparams, f"{name} must be {value!r} here")


def cost(subject: Subject) -> str:
    """Parameters, and time and memory of a layer forward and backward, against no positions."""
    plain = AttentionLayer(changed(subject.hparams, "none"), subject.side, tf.float32)
    own = AttentionLayer(subject.hparams, subject.side, tf.float32)
    batch, longest = _COST_SHAPE
    x = np.random.RandomState(0).randn(
        batch, subject.longest(longest), subject.hparams.hidden_size).astype(np.float32)
    times: dict[AttentionLayer, list[float]] = {plain: [], own: []}
    for layer in itertools.islice(itertools.cycle((plain, own)), 16):
        start = time.perf_counter()
        layer.gradients(x, x)
        times[layer].append(time.perf_counter() - start)
    first, second = (statistics.median(times[layer][2:]) for layer in (plain, own))
    more = (sum(value.size for value in own.weights())
            - sum(value.size for value in plain.weights()))
    allocated = [layer.allocated_bytes(x) for layer in (plain, own)]
    return (f"{more:+,} parameters, {second / first:.2f} times the time, "
            f"{allocated[1] / allocated[0]:.2f} times the memory")


def _model(hparams: HParams, mode: str) -> Any:
    problem = problem_hparams.test_problem_hparams(VOCABULARY, VOCABULARY, hparams)
    return registry.model("rpr_transformer")(hparams, mode, problem)


def searched(hparams: HParams, inputs: np.ndarray, beams: int
             ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """What the search of a model with random weights finds, and these weights by name.

    It finds hypotheses, int [sentences * beams, steps], and their scores.
    """
    random = np.random.RandomState(1)
    with tf.Graph().as_default(), tf.Session() as session:
        found = _model(hparams, tf.estimator.ModeKeys.PREDICT).infer(
            {"inputs": tf.constant(inputs), "target_space_id": tf.constant(1)},
            beam_size=beams, top_beams=beams, alpha=ALPHA, decode_length=4)
        variables, values = tf.global_variables(), {}
        for variable in tf.trainable_variables():
            # Large enough for words to matter; smaller symbols, else each one repeats itself.
            shape = variable.shape.as_list()
            scale = 0.1 if "symbol_modality" in variable.name else 2 * (shape or [1])[0] ** -0.5
            values[variable.initializer.inputs[1]] = scale * random.randn(*shape) + (
                "layer_norm_scale" in variable.name)
        session.run([variable.initializer for variable in variables], values)
        ids, scores, weights = session.run([
            found["outputs"], found["scores"], {v.op.name: v for v in variables}])
    return ids.reshape(len(inputs) * beams, -1), scores.ravel(), weights


def teacher_forced(hparams: HParams, inputs: np.ndarray, targets: np.ndarray,
                   weights: dict[str, np.ndarray]) -> np.ndarray:
    """The log probabilities of all symbols at each place, [sentences, length, VOCABULARY]."""
    with tf.Graph().as_default(), tf.Session() as session:
        logits, _ = _model(hparams, tf.estimator.ModeKeys.EVAL)({
            "inputs": tf.constant(inputs), "targets": tf.constant(targets[:, :, None, None]),
            "target_space_id": tf.constant(1)})
        variables = tf.global_variables()
        session.run([v.initializer for v in variables],
                    {v.initializer.inputs[1]: weights[v.op.name] for v in variables})
        return session.run(tf.nn.log_softmax(logits))[:, :, 0, 0]


def compare_search(hparams: HParams) -> str:
    """The first hypothesis whose probability in a search is not that of the whole model, in words.

    The model has random weights.
    """
    inputs = np.random.RandomState(0).randint(2, VOCABULARY, [8, 5, 1, 1]).astype(np.int32)
    for beams in (1, 3):
        hypotheses, scores, weights = searched(hparams, inputs, beams)
        log_probs = teacher_forced(hparams, inputs.repeat(beams, axis=0), hypotheses, weights)
        for row, ids, score in zip(log_probs, hypotheses, scores, strict=True):
            if score < -1e6:                                 # fewer were found
                continue
            # All sentences have one length: a hypothesis that does not end has the most words.
            length = list(ids).index(1) + 1 if 1 in ids else len(ids)
            if 1 in ids and beams > 1:
                score *= ((5 + length) / 6) ** ALPHA
            total = float(sum(row[t, ids[t]] for t in range(length)))
            if abs(total - score) > 1e-3 * max(1.0, abs(total)):
                return (f"beam {beams}: a hypothesis of {length} words has the log probability "
                        f"{score:.4f} in the search and {total:.4f} in the whole model")
    return ""
