"""Rotary positions: scaled frequencies, a decay per pair, and rates on two axes, by the papers."""
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensorflow.python.compiler.xla import xla

from rpr import positions
from rpr.positions import rotary
from rpr.positions.layout import Layout


def scaled_rate(kind, pair, channels, base, factor, length):
    """The angle per position of one pair, from the papers' formulas, which give wavelengths."""
    rate = base ** (-2 * pair / channels)
    turns = length * rate / (2 * math.pi)
    if kind == "linear":                                     # Chen et al. 2023, equation 4
        return rate / factor
    if kind == "ntk":                                        # another base
        return (base * factor ** (channels / (channels - 2))) ** (-2 * pair / channels)
    if kind == "llama3":                                     # between 1 and 4 turns
        if turns < 1:
            return rate / factor
        smooth = (turns - 1) / 3
        return rate if turns > 4 else (1 - smooth) * rate / factor + smooth * rate
    low, high = (channels * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))
                 for times in (32, 1))                       # Peng et al. 2024, section 3.2
    low, high = max(math.floor(low), 0), min(math.ceil(high), channels - 1)
    ramp = min(max((pair - low) / (high - low), 0), 1)
    return rate * (1 - ramp) + rate / factor * ramp


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
@pytest.mark.parametrize("channels, base, factor, length", [
    (64, 10000.0, 4.0, 2048), (128, 500000.0, 8.0, 8192), (32, 10000.0, 2.0, 512)])
def test_scaled_frequencies_are_those_of_the_papers(kind, channels, base, factor, length):
    got = rotary.frequency_factors(channels, base, kind, factor, length)
    got = got * base ** (-2 * np.arange(channels // 2) / channels)
    np.testing.assert_allclose(got, [scaled_rate(kind, pair, channels, base, factor, length)
                                     for pair in range(channels // 2)], rtol=1e-12)


def test_yarn_scales_the_logits_and_p_rope_stops_the_slowest_pairs():
    settings = dict(hidden_size=16, num_heads=2, position="rotary")
    x = np.random.RandomState(0).randn(1, 2, 3, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        layout, turned = Layout(3, 3), {}
        for name, more in (("plain", {}), ("kept", dict(rotary_frequencies=0.5)),
                           ("yarn", dict(rotary_scaling="yarn", rotary_scaling_factor=math.e))):
            scheme = positions.build(tiny_models.hparams(**settings, **more), "targets")
            turned[name] = scheme.rotate(tf.constant(x), layout.query_positions(), layout, "query")
        turned = session.run(turned)
    np.testing.assert_allclose(turned["yarn"][:, :, 0], 1.1 * x[:, :, 0], rtol=1e-6)
    slow = [2, 3, 6, 7]                                      # of the pairs (i, i + 4)
    np.testing.assert_allclose(turned["kept"][..., slow], x[..., slow])
    np.testing.assert_allclose(np.delete(turned["kept"], slow, axis=3),
                               np.delete(turned["plain"], slow, axis=3))


@pytest.mark.parametrize("depth, fraction, turning", [
    (50, 0.28, 7), (100, 0.14, 7), (64, 0.75, 24), (64, 0.3, 10), (64, 0.0, 0), (64, 1.0, 32)])
def test_p_rope_turns_the_share_of_the_pairs_rounded_up(depth, fraction, turning):
    """Not one more where the product is a whole number, as 0.28 * 25 = 7.000000000000001 is."""
    scheme = rotary.Rotary(tiny_models.hparams(
        hidden_size=2 * depth, num_heads=2, rotary_frequencies=fraction), "inputs")
    factors = np.ones(depth // 2) if scheme._factors is None else scheme._factors
    assert factors.sum() == turning


def test_longrope_divides_each_frequency_and_scales_the_logits():
    x = np.random.RandomState(0).randn(1, 2, 3, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = positions.build(tiny_models.hparams(
            hidden_size=16, num_heads=2, position="rotary", rotary_scaling="longrope",
            rotary_scaling_factor=4.0, rotary_trained_length=256,
            rotary_long_factors="1;1.5;2;8"), "targets")
        layout = Layout(3, 3)
        got = session.run(scheme.rotate(tf.constant(x), layout.query_positions(), layout, "query"))
    scale = math.sqrt(1 + math.log(4) / math.log(256))
    for i, pair in np.ndindex(3, 4):
        turn = np.exp(1j * i * 10000 ** (-2 * pair / 8) / (1, 1.5, 2, 8)[pair])
        expected = scale * turn * (x[..., i, pair] + 1j * x[..., i, pair + 4])
        np.testing.assert_allclose(got[..., i, pair] + 1j * got[..., i, pair + 4], expected,
                                   rtol=1e-5)
    for factors in ("", "1;2", "1;2;x;4", "1;1;1;0.5"):
        with pytest.raises(ValueError, match=f"rotary_long_factors={factors}: .* needs 4 numbers"):
            positions.build(tiny_models.hparams(
                hidden_size=16, num_heads=2, position="rotary", rotary_scaling="longrope",
                rotary_long_factors=factors), "targets")


def test_xpos_is_rotary_with_a_decay_per_pair():
    q, k = np.random.RandomState(0).randn(2, 1, 2, 6, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        layout, logits = Layout(6, 6, causal=True), []
        for position in ("rotary", "xpos"):
            scheme = positions.build(tiny_models.hparams(
                position=position, hidden_size=16, num_heads=2), "targets")
            at = layout.query_positions()
            turned = [scheme.rotate(tf.constant(x), at, layout, role)
                      for x, role in ((q, "query"), (k, "key"))]
            logits.append(turned)
        (plain_q, plain_k), (got_q, got_k) = session.run(logits)
    for i, j in ((0, 0), (3, 1), (5, 0)):
        expected = 0
        for pair in range(4):
            decay = ((pair / 4 + 0.4) / 1.4) ** ((i - j) / 512)
            expected += decay * sum(plain_q[0, 0, i, c] * plain_k[0, 0, j, c]
                                    for c in (pair, pair + 4))
        assert got_q[0, 0, i] @ got_k[0, 0, j] == pytest.approx(expected, rel=1e-5)


def test_mixed_rotary_is_a_complex_product_with_given_rates():
    """Heo et al. 2024, RoPE-Mixed: e^(i (x_c column + y_c row)) times the pair as a number.

    Their code pairs the channels 2 c and 2 c + 1; here they are c and c + pairs.
    """
    width, n, pairs = 3, 8, 4
    random = np.random.RandomState(0)
    x, rates = random.randn(2, 2, n, 2 * pairs), random.randn(2, 2, 1, pairs)
    column_of, row_of = np.arange(n) % width, np.arange(n) // width
    turns = np.exp(1j * (column_of[:, None] * rates[0] + row_of[:, None] * rates[1]))
    expected = turns * (x[..., 0::2] + 1j * x[..., 1::2])
    with tf.Graph().as_default(), tf.Session() as session:
        layout = Layout(n, n)
        scheme = positions.build(tiny_models.hparams(
            position="mixed_rotary", hidden_size=16, num_heads=2, axial_width=width), "inputs")
        here = tf.constant(np.concatenate([x[..., 0::2], x[..., 1::2]], axis=3))
        turned = [scheme.rotate(here, at, layout, role) for at, role in (
            (layout.query_positions(), "query"), (layout.key_positions(), "key"),
            (tf.reverse(tf.range(n)[None], [1]), "key"))]    # from the last to the first
        variable, = tf.trainable_variables()                 # one for queries and keys
        variable.load(rates, session)
        *both, backwards = session.run(turned)
    for got in both:
        np.testing.assert_allclose(got[..., :pairs] + 1j * got[..., pairs:], expected, atol=1e-5)
    np.testing.assert_allclose(
        backwards[..., :pairs] + 1j * backwards[..., pairs:],
        turns[:, ::-1] * (x[..., 0::2] + 1j * x[..., 1::2]), atol=1e-5)


def test_phases_of_pope_beyond_their_borders_learn_their_way_back():
    """A step may lead such a phase back, and not further away; it starts at the upper border."""
    values = np.tile([0.0, 0.1, -1.0, -7.0], 4).reshape(2, 1, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = positions.build(tiny_models.hparams(
            position="pope", hidden_size=16, num_heads=2), "inputs")
        layout, x = Layout(3, 3), tf.constant(np.random.RandomState(0).randn(1, 2, 3, 8))
        y = scheme.rotate(tf.cast(x, tf.float32), layout.key_positions(), layout, "key")
        phase, = tf.trainable_variables()
        gradients = [tf.gradients(sign * tf.reduce_sum(y), phase)[0] for sign in (1, -1)]
        session.run(phase.initializer)
        assert not session.run(phase).any()
        phase.load(values, session)
        one, other = session.run(gradients)
    is_inside = (values <= 0) & (values >= -2 * math.pi)
    assert (one[is_inside] == -other[is_inside]).all() and one[is_inside].all()
    learned = one + other                                    # outside, one of the two is 0
    assert ((one == 0) ^ (other == 0) == ~is_inside).all()
    assert (learned[values > 0] > 0).all() and (learned[values < -2 * math.pi] < 0).all()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_initial_rates_of_mixed_rotary_have_a_random_direction_per_head(dtype):
    heads, pairs, base = 500, 6, 10.0
    with tf.Graph().as_default(), tf.Session() as session:
        initializer = rotary.RandomDirections(base)
        initializer.seed = 1
        column, row = session.run(tf.cast(initializer([2, heads, 1, pairs], dtype), tf.float64))
    rates = (column + 1j * row)[:, 0]
    tolerance = 1e-6 if dtype == tf.float32 else 0.01
    np.testing.assert_allclose(np.abs(rates), np.broadcast_to(
        [base ** (-4 * (c % 3) / (2 * pairs)) for c in range(pairs)], rates.shape), rtol=tolerance)
    directions = rates / np.abs(rates)
    for c in range(pairs):
        np.testing.assert_allclose(directions[:, c], directions[:, 0] * (1 if c < 3 else 1j),
                                   atol=tolerance)
    assert np.abs(np.mean(directions[:, 0] ** [[1], [2]], axis=1)).max() < 0.15   # uniform
    assert len(np.unique(column[:, 0, 0])) > 100


def test_two_axes_need_heads_whose_depth_is_a_multiple_of_4():
    for position in ("axial_rotary", "mixed_rotary"):
        with pytest.raises(ValueError, match=f"position={position} needs heads .* here it is 6"):
            positions.build(tiny_models.hparams(
                position=position, hidden_size=12, num_heads=2), "inputs")


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_and_columns_are_those_of_integers_where_graphs_are_rewritten(compiled):
    """Rewritten as in a training: in float32, 41 times the reciprocal of 41 is below 1."""
    n, widths = 600, [1, 16, 41, 47, 55, 61, 82, 83, 94, 97, 128, 129]

    def places(positions):
        return [each for width in widths for each in rotary.row_and_column(positions, width)]

    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto()) as session:   # with Grappler
        positions = tf.placeholder(tf.int32, [n])
        found = xla.compile(places, [positions]) if compiled else places(positions)
        found = session.run(found, {positions: np.arange(n)})
    for width, rows, columns in zip(widths, found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(rows, np.arange(n) // width, f"width {width}")
        np.testing.assert_array_equal(columns, np.arange(n) % width, f"width {width}")
