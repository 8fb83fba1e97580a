"""What the position schemes of a trained model add, as arrays by distance.

A scheme is not asked for its name. Most schemes add linear functions of queries, keys and weights:
they are evaluated on unit vectors, and compared with the scheme itself on random input. A scheme
that adds something else, for instance gates that depend on the words, is refused.
"""
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from rpr import positions
from rpr.positions.layout import Layout
from rpr.positions.scheme import Scheme, head_depth
from rpr.t2t import checkpoints
from rpr.t2t.trained_model import TrainedModel

LONGEST = 1024                                        # sub-words of a sentence
_CHECKED = 24                                         # random queries, in the middle of all keys
_TOLERANCE = 1e-4                                     # of the largest value
_MASKED = 1e6                                         # a bias beyond it hides a word


class Terms(NamedTuple):
    """The terms of one self-attention layer, float64; row r is for the distance r - k.

    Distances beyond k count as k. The logit of key j is q . (k_j + keys[r]) + bias[r]
    + query_bias . k_j for the scaled query q. The output is the sum of weight * (v_j + values[r]).
    """
    keys: np.ndarray                                  # [heads, 2k + 1, depth of keys]
    bias: np.ndarray                                  # [heads, 2k + 1]
    query_bias: np.ndarray                            # [heads, depth of keys]
    values: np.ndarray                                # [heads, 2k + 1, depth of values]


class Stack(NamedTuple):
    """What the schemes add in the encoder or the decoder."""
    # float32 [positions, hidden], added to the embedded words; None: nothing.
    embedded: np.ndarray | None
    layers: list[Terms]
    # For each layer, how many channels of a head's queries and keys rotate, as in position=rotary.
    rotated: list[int]
    longest: int                                      # the most positions of a sentence


def read_terms(trained: TrainedModel, side: str) -> Stack:
    """The terms of a model `rpr_transformer` on the side `inputs` (encoder) or `targets` (decoder).

    Raises ValueError if a scheme adds something else.
    """
    hparams, causal = trained.hparams, side == "targets"
    stack = "decoder" if causal else "encoder"
    scheme = positions.build(hparams, side)
    longest = min(LONGEST, scheme.longest or LONGEST)
    one_query = [Layout(1, longest, longest - 1, causal)]    # it sees the distances to the left
    if not causal:
        one_query.append(Layout(1, longest))                 # to the right
    checked = min(_CHECKED, longest)
    several = Layout(checked, longest, (longest - checked) // 2, causal)
    embedded, found, checks, rotated = None, [], [], []
    with tf.Graph().as_default(), tf.variable_scope("transformer/body", reuse=tf.AUTO_REUSE):
        if scheme.uses("embed"):
            embedded = scheme.embed(
                tf.zeros([1, longest, hparams.hidden_size]), tf.range(longest)[None])[0]
        for layer in range(hparams.get(f"num_{stack}_layers") or hparams.num_hidden_layers):
            each = scheme.at(layer)
            with tf.variable_scope(f"{stack}/layer_{layer}/self_attention/multihead_attention"):
                if each.states() or any(map(each.uses, ("place", "adjust", "normalize"))):
                    raise ValueError
                rotated.append(_rotary_channels(trained) if each.uses("rotate") else 0)
                try:
                    found.append([_unit_terms(each, layout.replace(layer=layer), trained)
                                  for layout in one_query])
                    checks.append(_random_terms(each, several.replace(layer=layer), trained))
                except (AttributeError, TypeError):   # it reads the words, which are not there
                    raise ValueError from None
        with tf.Session() as session:
            if tf.global_variables():
                checkpoints.saver(trained.checkpoint).restore(session, trained.checkpoint)
            embedded, found, checks = session.run(
                [[] if embedded is None else embedded, found, checks])
    layers = [_by_distance(arrays, longest, causal) for arrays in found]
    if any(np.abs(terms.bias).max() > _MASKED for terms in layers):
        raise ValueError                              # what stands beside it would be lost
    for terms, channels, (queries, keys, *check) in zip(layers, rotated, checks, strict=True):
        for given, x, first in ((queries, check[0], several.offset), (keys, check[1], 0)):
            expected = _rotary(x, first, channels, hparams.get("rotary_base"))
            if not np.allclose(given, expected, atol=1e-3):
                raise ValueError
        _compare(terms, several, *check)
    return Stack(embedded if scheme.uses("embed") else None, layers, rotated, longest)


def _depths(trained: TrainedModel) -> tuple[int, int, int]:
    """The number of heads, and the depths of their keys and values."""
    hparams = trained.hparams
    return hparams.num_heads, head_depth(hparams), head_depth(hparams, "attention_value_channels")


def _rotary_channels(trained: TrainedModel) -> int:
    """The channels of a head that position=rotary rotates."""
    return int(_depths(trained)[1] * trained.hparams.rotary_fraction + 1e-6) // 2 * 2


def _rotary(x: np.ndarray, start: int, channels: int, base: float) -> np.ndarray:
    """Rotary positions (Su et al. 2021) as CTranslate2 has them, from x [1, heads, length, depth].
    """
    pairs = channels // 2
    angles = (start + np.arange(x.shape[2]))[:, None] * base ** (-np.arange(pairs) / max(pairs, 1))
    first, second, rest = np.split(x, [pairs, channels], axis=3)
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           second * np.cos(angles) + first * np.sin(angles), rest], axis=3)


def _unit_terms(scheme: Scheme, layout: Layout, trained: TrainedModel) -> list[tf.Tensor]:
    """Keys [depth, heads, 1, keys], bias [1, heads, 1, keys], query bias and values as keys."""
    heads, depth, value_depth = _depths(trained)
    n = layout.keys

    def units(size: int, length: int) -> tf.Tensor:
        return tf.tile(tf.eye(size)[:, None, None], [1, heads, length, 1])

    no_query, no_key = tf.zeros([depth, heads, 1, depth]), tf.zeros([depth, heads, n, depth])
    bias = scheme.scores(no_query[:1], no_key[:1], layout)
    keys = scheme.scores(units(depth, 1), no_key, layout) - bias
    query_bias = scheme.scores(no_query, units(depth, n), layout) - bias
    weights = tf.zeros([value_depth, heads, 1, n])
    no_values = tf.zeros([value_depth, heads, n, value_depth])
    values = scheme.weighted_values(weights, no_values, layout)
    return [keys, bias, query_bias, tf.gradients(values * units(value_depth, 1), weights)[0]]


def _random_terms(scheme: Scheme, layout: Layout, trained: TrainedModel) -> list[tf.Tensor]:
    """Random q, k, weights and v, and the scheme's scores and weighted values of them.

    The rotated q and k come before these.
    """
    heads, depth, value_depth = _depths(trained)
    random, n = np.random.RandomState(0), layout.queries
    q, k, weights, v = (random.randn(1, heads, rows, size).astype(np.float32)
                        for rows, size in ((n, depth), (layout.keys, depth), (n, layout.keys),
                                           (layout.keys, value_depth)))
    weights = np.exp(weights) * (np.tri(n, layout.keys, layout.offset) if layout.causal else 1)
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    q, k, weights, v = map(tf.constant, (q, k, weights, v))
    rotated = [scheme.rotate(x, at, layout, role) for x, at, role in (
        (q, layout.query_positions(), "query"), (k, layout.key_positions(), "key"))
    ] if scheme.uses("rotate") else [q, k]
    return [*rotated, q, k, weights, v, scheme.scores(q, k, layout),
            scheme.weighted_values(weights, v, layout)]


def _by_distance(parts: list[list[np.ndarray]], longest: int, causal: bool) -> Terms:
    """The terms by distance, clipped where they no longer change."""
    keys, bias, query_bias, values = (
        np.concatenate([each[:, :, 0, 1 if number else 0:] for number, each in enumerate(arrays)],
                       axis=2).astype(np.float64) for arrays in zip(*parts, strict=True))
    rows = [keys.transpose(1, 2, 0), bias.transpose(1, 2, 0), values.transpose(1, 2, 0)]
    if causal:                                        # no query sees a key to its right
        rows = [np.concatenate([row, np.repeat(row[:, -1:], longest - 1, axis=1)], axis=1)
                for row in rows]
    together = np.concatenate(rows, axis=2)
    clip = next(k for k in range(longest) if all(
        (part == edge).all() for part, edge in (
            (together[:, :longest - k], together[:, longest - 1 - k, None]),
            (together[:, longest - 1 + k:], together[:, longest - 1 + k, None]))))
    keys, bias, values = (row[:, longest - 1 - clip:longest + clip] for row in rows)
    return Terms(keys, bias[..., 0], query_bias[:, :, 0].T, values)


def _compare(terms: Terms, layout: Layout, q: np.ndarray, k: np.ndarray, weights: np.ndarray,
             v: np.ndarray, scores: np.ndarray, outputs: np.ndarray) -> None:
    """Refuses terms that do not give the scheme's scores (up to a constant per query) and sums."""
    clip = terms.keys.shape[1] // 2
    at = layout.offset + np.arange(layout.queries)[:, None]
    rows = np.clip(np.arange(layout.keys) - at, -clip, clip) + clip
    expected = (q + terms.query_bias[:, None]) @ k.swapaxes(2, 3) + terms.bias[:, rows] + np.einsum(
        "bhid,hijd->bhij", q, terms.keys[:, rows])
    mask = np.tri(layout.queries, layout.keys, layout.offset) if layout.causal else 1
    summed = weights @ v + np.einsum("bhij,hijd->bhid", weights, terms.values[:, rows])
    for given, computed in ((mask * (scores - scores[..., :1]),
                             mask * (expected - expected[..., :1])), (outputs, summed)):
        if np.abs(given - computed).max() > _TOLERANCE * max(1, np.abs(given).max()):
            raise ValueError
