import functools
import itertools
import re

import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.layers import common_attention

from rpr import positions
from rpr.cli import launcher as t2t
from rpr.nn import attention, projections
from rpr.positions import absolute
from rpr.positions.combinations import SumOfSchemes
from rpr.positions.layout import Layout
from rpr.positions.scheme import check_length
from rpr.t2t import trained_model
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest

SIDES = ("inputs", "targets")


@pytest.mark.parametrize("channels", [2, 3, 7, 8])
def test_sinusoid_is_the_formula_and_t2ts_signal(channels):
    places = [[0, 1, 2, 3, 4, 250]]
    with tf.Graph().as_default(), tf.Session() as session:
        got, t2t = session.run([absolute.sinusoid(tf.constant(places), channels),
                                common_attention.get_timing_signal_1d(5, channels)])
    expected = np.array([[reference.sinusoid(place, channels) for place in places[0]]])
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(got[:, :5], t2t, atol=2e-6)


@pytest.mark.parametrize("side", SIDES)
def test_scaled_sinusoid_is_the_formula_forward_and_gradient(side):
    random = np.random.RandomState(0)
    x, dy = random.randn(2, 5, 8), random.randn(2, 5, 8)
    signal = np.array([reference.sinusoid(place + 3, 8) for place in range(5)])
    with tf.Graph().as_default(), tf.Session() as session:
        at = tf.constant(x)
        y = positions.build(tiny_models.hparams(position="scaled_sinusoid"), side).embed(
            at, tf.range(3, 8))
        scale, = tf.trainable_variables()
        assert scale.op.name == f"{side}_sinusoid_scale"
        session.run(tf.global_variables_initializer())
        assert session.run(scale) == 1
        scale.load(-1.7, session)
        got, (dx, dscale) = session.run([y, tf.gradients(y, [at, scale], dy)])
    np.testing.assert_allclose(got, x - 1.7 * signal, atol=1e-5)
    np.testing.assert_array_equal(dx, dy)
    np.testing.assert_allclose(dscale, (dy * signal).sum(), rtol=1e-5)


def turn(scheme, q, k, layout):
    at = layout.query_positions()
    return scheme.rotate(q, at, layout, "query"), scheme.rotate(k, at, layout, "key")


ABSOLUTE = {"sinusoid", "scaled_sinusoid", "learned"}


@functools.cache
def alone_and_after_others(position, side):
    """Scores and outputs of a layer for some words alone, and for the same words after others that
    have no attention weight."""
    causal = side == "targets"
    values = tiny_models.hparams(position=position, hidden_size=8, max_length=20,
                                 max_relative_position=3, t5_num_buckets=4, t5_max_distance=5,
                                 deberta_num_buckets=4, deberta_max_distance=5)
    with tf.Graph().as_default():
        before, words = (tf.placeholder(tf.float64, [1, None, 8]) for _ in range(2))
        weights = tf.placeholder(tf.float64, [1, 2, None, None])
        given, ends = tf.shape(before)[1], []
        for skip in (0, given):
            x = tf.concat([before[:, :skip], words], axis=1)
            length = tf.shape(x)[1]
            layout = Layout(length, length, causal=causal, x=x, mask=tf.cast(
                tf.linalg.band_part(tf.ones([length, length]), -1, 0) - 1, x.dtype) * 1e9)
            scheme = positions.build(values, side)
            with tf.variable_scope("layer", reuse=tf.AUTO_REUSE,
                                   initializer=tf.random_normal_initializer(seed=1)):
                q = v = projections.split_heads(scheme.embed(x, tf.range(length)), 2)
                q, k = turn(scheme, q, q[..., ::-1], layout)
                logits = scheme.scores(q, k, layout)[:, :, skip:, skip:]
                padded = tf.pad(weights, [[0, 0]] * 2 + [[skip, 0]] * 2)
                z = scheme.weighted_values(padded, v, layout)
            logits -= logits[..., :1]                        # only up to a constant per query
            logits = tf.linalg.band_part(logits, -1, 0) if causal else logits
            ends.append((logits, z[:, :, skip:]))
        session = tf.Session()
        session.run(tf.global_variables_initializer())
    return lambda *arrays: session.run(
        ends, dict(zip((before, words, weights), arrays, strict=True)))


@pytest.mark.parametrize("position, side", [
    (name, side) for name, scheme in positions.SCHEMES.items() for side in SIDES
    if side in scheme.sides and name not in ("path", "dape_v2")])      # see neighbouring words
@settings(max_examples=15)
@given(n=st.integers(2, 7), shift=st.integers(1, 9), seed=st.integers(0, 2**16))
def test_only_absolute_schemes_depend_on_a_shift_of_all_positions(position, side, n, shift, seed):
    random = np.random.RandomState(seed)
    weights = random.rand(1, 2, n, n)
    alone, behind = alone_and_after_others(position, side)(
        random.randn(1, shift, 8), random.randn(1, n, 8),
        np.tril(weights) if side == "targets" else weights)
    if position in ABSOLUTE:
        assert np.abs(alone[0] - behind[0]).max() > 1e-4
    else:
        for x, y in zip(alone, behind, strict=True):
            np.testing.assert_allclose(np.broadcast_to(x, np.shape(y)), y, atol=2e-5)


def test_learned_takes_the_row_of_each_position():
    table = np.arange(10.0).reshape(5, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(absolute.learned(tf.constant([[0, 4], [2, 2]]), tf.constant(table)))
    np.testing.assert_array_equal(got, table[[[0, 4], [2, 2]]])


def test_learned_refuses_a_sequence_that_is_too_long():
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.zeros([5, 2])
        length = tf.placeholder(tf.int32, [])
        rows = absolute.learned(tf.range(length), table)
        assert session.run(rows, {length: 5}).shape == (5, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=5 positions"):
            session.run(rows, {length: 6})


@pytest.mark.parametrize("scheme, what, line", [
    ("learned", "", "position=learned has rows for max_length=5 positions, .* or relative"),
    ("learned+alibi", "", r"position=learned\+alibi has rows for max_length=5 .* or relative"),
    ("abacus", "a number", "position=abacus: max_length=5 is too small for a number; raise it")])
def test_a_command_reports_a_sequence_that_is_too_long(scheme, what, line, monkeypatch):
    def verb(argv):
        with tf.Graph().as_default(), tf.Session() as session:
            length = tf.placeholder(tf.int32, [])
            with check_length(length, 5, scheme, what=what):
                x = tf.ones([length])
            session.run(x, {length: 6})

    monkeypatch.setattr(t2t.compat, "install", lambda: None)
    with pytest.raises(UserError, match=f"^{line}$"):
        t2t.launch(verb, ["--verbose"])


def test_a_command_reports_a_line_that_the_graph_cannot_read(monkeypatch):
    def verb(argv):
        raise tf.errors.UnknownError(None, None, "Graph execution error:\n\n"
                                     "UserError: 'x' is not a token\nTraceback (most recent):")

    monkeypatch.setattr(t2t.compat, "install", lambda: None)
    with pytest.raises(UserError, match="^'x' is not a token$"):
        t2t.launch(verb, ["--verbose"])


@pytest.mark.parametrize("overrides, message", [
    ({"position": "sinusiod"}, r"position=sinusiod: no scheme is called 'sinusiod'; nearest: sinu"),
    ({"position": ""}, r"position=: no scheme is called ''; allowed are none, sinusoid, scaled_"),
    ({"position": "relative+"}, r"position=relative\+: no scheme is called ''"),
    ({"position": "relative+relative"}, r"position=relative\+relative names a scheme twice"),
    ({"position": "none+relative"}, r"position=none\+relative: none cannot be part"),
    ({"encoder_position": "a", "decoder_position": "a"}, r"coder_position=a: no scheme is called"),
    ({"position": "learned", "max_length": 0}, r"max_length=0: position=learned needs"),
])
def test_invalid_hparams_are_refused(overrides, message):
    values = tiny_models.hparams(**overrides)
    for side in SIDES:
        with pytest.raises(ValueError, match=message):
            positions.build(values, side)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tiny_models.make(values)


@pytest.mark.parametrize("side", SIDES)
def test_any_two_schemes_are_summed_or_refused(side):
    """Every twelfth sum is built: each scheme meets some others."""
    sums = set()
    for (i, one), (j, other) in itertools.combinations(enumerate(sorted(positions.SCHEMES)), 2):
        pair = f"{one}+{other}"
        with tf.Graph().as_default():
            try:
                scheme = positions.build(tiny_models.hparams(
                    position=pair, max_length=9, randomized_length=9), side)
            except ValueError as error:
                assert str(error).startswith(f"position={pair}: ")
                continue
            sums.add(pair)
            if (i + j) % 12:
                continue
            edges = tf.zeros([1, 5, 5], tf.int32) if side == "inputs" else None
            words = tf.zeros([1, 5, 32])
            layout = Layout(5, 5, causal=side == "targets", edges=edges, x=words)
            x = projections.split_heads(scheme.embed(words, tf.range(5)), 2)
            q, k = turn(scheme, x, x, layout)
            logits = scheme.scores(q, k, layout)
            assert scheme.weighted_values(logits, x, layout).shape.as_list() == [1, 2, 5, 16]
    assert {"relative+sinusoid", "sinusoid+t5_bias", "relative+t5_bias", "rotary+t5_bias"} <= sums
    assert {"graph+relative", "deberta+relative"} <= sums


@pytest.mark.parametrize("position", ["deberta+transformer_xl", "sinusiod"])
def test_a_command_refuses_an_invalid_position_before_it_starts(position):
    request = ModelRequest("rpr_transformer", hparams_set="rpr_tiny",
                           hparams=f"position={position}")
    with pytest.raises(UserError, match=rf"^position={re.escape(position)}: "):
        trained_model.build_hparams(request)


def test_encoder_and_decoder_can_have_different_schemes():
    values = tiny_models.hparams(position="learned", decoder_position="none", max_length=9)
    with tf.Graph().as_default():
        x = tf.zeros([2, 3, 8])
        embedded = [positions.build(values, side).embed(x, tf.range(3)) for side in SIDES]
        assert embedded[1] is x and embedded[0] is not x
        assert [v.op.name for v in tf.global_variables()] == ["inputs_positional_embedding"]


def test_shared_tensors_are_made_once_per_layout():
    scheme = positions.Scheme(None, "inputs")
    first, second = Layout(3, 3), Layout(3, 3)
    made = iter("abcd")
    got = [scheme.shared_by_layers(name, layout, lambda: next(made))
           for layout in (first, first, second, second) for name in ("one", "other")]
    assert got == list("ababcdcd")


def test_two_schemes_that_replace_the_weighted_sum_are_refused(monkeypatch):
    class Replacing(positions.Scheme):
        def values(self, weights, v, layout, product):
            return tf.matmul(weights, v)

        def replaces(self, hook):
            return hook == "values"

    monkeypatch.setitem(positions.SCHEMES, "replacing", Replacing)
    values = tiny_models.hparams(position="replacing+relative")
    with pytest.raises(ValueError, match="replacing and relative each replace the weighted sum"):
        positions.build(values, "inputs")
    values.relative_values = False
    positions.build(values, "inputs")


def test_every_scheme_has_a_line_of_description():
    assert set(positions.SCHEMES) >= {"none", "sinusoid", "learned", "relative"}
    for scheme in positions.SCHEMES.values():
        first, *rest = scheme.__doc__.splitlines()
        assert 20 < len(first) < 100 and (not rest or not rest[0])


def terms(q, weights, **overrides):
    """Scores and outputs over one layer's tensors, and the variables made for them; keys and values
    are zero, so that nothing is left but what the scheme adds."""
    scheme = positions.build(tiny_models.hparams(**overrides), "inputs")
    with tf.variable_scope("layer", initializer=tf.random_normal_initializer()):
        layout = Layout(5, 5)
        k, v = 0 * q, 0 * q
        score, value = scheme.scores(q, k, layout), scheme.weighted_values(weights, v, layout)
    return score, value, {v.op.name: v for v in tf.global_variables()}


PREFIX = "layer/dot_product_attention_relative/relative_positions_"


@pytest.mark.parametrize("position", ["relative", "relative+sinusoid", "learned+relative"])
@pytest.mark.parametrize("shared, shape", [(True, [9, 16]), (False, [2, 9, 16])])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("values", [True, False])
def test_tables_exist_only_if_keys_or_values_are_relative(position, shared, shape, keys, values):
    with tf.Graph().as_default():
        score, value, variables = terms(
            tf.zeros([3, 2, 5, 16]), tf.zeros([3, 2, 5, 5]), position=position, relative_keys=keys,
            relative_values=values, heads_share_relative_embedding=shared)
    expected = {f"{PREFIX}{which}/embeddings": shape
                for which, exists in (("keys", keys), ("values", values)) if exists}
    assert {name: v.shape.as_list() for name, v in variables.items()} == expected
    assert score.shape.as_list() == [3, 2, 5, 5]
    assert value.shape.as_list() == [3, 2, 5, 16]


def test_each_head_starts_as_a_shared_table_does():
    spread = []
    for shared in (True, False):
        with tf.Graph().as_default(), tf.Session() as session:
            scheme = positions.build(tiny_models.hparams(
                num_heads=8, hidden_size=1024, max_relative_position=64,
                heads_share_relative_embedding=shared), "inputs")
            with tf.variable_scope("layer", initializer=tf.variance_scaling_initializer(
                    1.0, mode="fan_avg", distribution="uniform")):
                x = tf.zeros([1, 8, 5, 128])
                scheme.scores(x, x, Layout(5, 5))
            session.run(tf.global_variables_initializer())
            table = session.run(tf.global_variables()[0])
            spread.append(table.std())
    assert spread[0] == pytest.approx(spread[1], rel=0.03)
    assert np.abs(table[0] - table[1]).max() > spread[1]               # and no two are the same


def test_a_sum_adds_signals_and_terms_to_the_products():
    class One(positions.Scheme):
        def embed(self, x, positions):
            return x + 1

        def rotate(self, x, positions, layout, role):
            return x * (2 if role == "query" else 3)

        def logits(self, q, k, layout, product):
            return product(q, k) + tf.reduce_sum(q) + 10 * tf.reduce_sum(k)

    class Whole(positions.Scheme):
        def replaces(self, hook):
            return True

        def logits(self, q, k, layout, product):
            return tf.reduce_sum(q + k, axis=3, keepdims=True)

        def values(self, weights, v, layout, product):
            return weights - v

    one, nothing, whole = (scheme(None, "inputs") for scheme in (One, positions.Scheme, Whole))
    several, layout = SumOfSchemes([one, nothing, one]), Layout(1, 1)
    with tf.Graph().as_default(), tf.Session() as session:
        q, k = tf.constant([[[[2.0, 3.0]]]]), tf.constant([[[[5.0, 7.0]]]])

        def value(x):
            return session.run(x).ravel().tolist()

        assert value(several.embed(q, None)) == [4, 5]
        turned = turn(several, q, k, layout)
        assert list(map(value, turned)) == [[8, 12], [45, 63]]
        assert value(several.scores(q, k, layout)) == [31 + 2 * (5 + 120)]
        assert value(several.weighted_values(q, tf.transpose(k, [0, 1, 3, 2]), layout)) == [31]
        for order in ([one, whole], [whole, one]):
            both = SumOfSchemes(order)
            assert value(both.scores(q, k, layout)) == [17 + 125]
            assert value(both.weighted_values(q, k, layout)) == [-3, -4]


def test_a_scheme_that_loses_the_terms_of_others_is_refused():
    class Forgetful(positions.Scheme):
        label = "forgetful"

        def logits(self, q, k, layout, product):
            return tf.matmul(q, k, transpose_b=True)

    with tf.Graph().as_default(), pytest.raises(
            ValueError, match=r"position=forgetful: logits\(\) does not call product"):
        SumOfSchemes([Forgetful(None, "inputs")]).scores(
            tf.zeros([1, 1, 2, 2]), tf.zeros([1, 1, 2, 2]), Layout(2, 2))


def test_a_scheme_joins_additive_logits_and_biases_in_its_own_way():
    class Flat(positions.Scheme):
        def adjust(self, logits, bias, layout):
            return 0 * logits

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.random.stateless_normal([1, 5, 8], [0, 0])
        y = attention.multihead_attention(x, None, None, 8, 8, 8, 2, Flat(None, "inputs"),
                                          Layout(5, 5), "additive")
        session.run(tf.global_variables_initializer())
        y = session.run(y)
    np.testing.assert_allclose(y, np.repeat(y[:, :1], 5, axis=1), atol=1e-6)   # all weights alike


def test_the_number_of_rotated_channels_is_not_rounded_down_by_binary_fractions():
    values = tiny_models.hparams(hidden_size=200, num_heads=2, rotary_fraction=0.58)
    assert positions.rotary.Rotary(values, "inputs")._channels == 58


def test_kerple_learns_from_values_below_its_least_one():
    """A step may raise such a value, as where the stored value is clipped, and not lower it."""
    values, dtype = [0.005, 0.009, 0.5, 1.5], tf.float64
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = positions.build(tiny_models.hparams(
            position="kerple", hidden_size=16, num_heads=4), "inputs")
        bias = scheme.bias(Layout(3, 3), dtype)
        variables = tf.trainable_variables()
        signs = tf.constant([1.0, -1, 1, -1], dtype)[:, None, None]
        gradients = tf.gradients(tf.reduce_sum(bias * signs), variables)
        session.run([v.initializer for v in variables], {
            v.initializer.inputs[1]: values for v in variables})
        bias, gradients = session.run([bias, gradients])
    used = np.maximum(values, 0.01)
    distance = np.abs(np.arange(3)[:, None] - np.arange(3))
    np.testing.assert_allclose(
        bias[0], -used[:, None, None] * np.log1p(used[:, None, None] * distance), atol=1e-12)
    for gradient in gradients:                               # of a loss that falls with the bias
        assert gradient[0] < 0 and gradient[1] == 0 and gradient[2] < 0 < gradient[3]
