import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import label

from rpr.nn import ops
from rpr.positions import layout, pairs, relative, relative_band
from rpr.positions.layout import Layout

# (queries, keys, offset): square, one query, cached steps, a cache longer than what was decoded.
SHAPES = [(4, 4, 0), (1, 1, 0), (1, 5, 4), (1, 9, 3), (2, 7, 3), (3, 8, 0)]


def run(shape, known, function, **arrays):
    """Runs a function of a layout and arrays, with static or dynamic lengths.

    Arrays are [batch, heads, ...]; only the number of heads is static if the lengths are dynamic.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        sizes, feed = shape, {}
        if not known:
            sizes = tf.unstack(tf.placeholder(tf.int32, [3], "sizes"))
            feed = {"sizes:0": shape}
        at = {name: tf.placeholder(tf.float64, x.shape if known else [None, 2, None, None])
              for name, x in arrays.items()}
        feed.update({at[name]: x for name, x in arrays.items()})
        return session.run(function(Layout(*sizes), **at), feed)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("bfloat16", 0.02)])
def test_gathered_rows_have_a_dense_and_accurate_gradient(dtype, tolerance):
    """In half precision the sum is not: 1000 additions of 1 / 8 would end at 32 in bfloat16."""
    indices = np.array([[2, 0], [2, 2]] + [[3, 3]] * 500)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(np.arange(10.0).reshape(5, 2), dtype)
        y = ops.gather_rows(x, tf.constant(indices))
        dx, = tf.gradients(y, x, tf.fill(y.shape, tf.constant(0.125, dtype)))
        assert y.dtype == dx.dtype == dtype and dx.shape == [5, 2]
        y, dx = session.run([tf.cast(y, tf.float64), tf.cast(dx, tf.float64)])
    np.testing.assert_array_equal(y, np.arange(10.0).reshape(5, 2)[indices])
    np.testing.assert_allclose(dx[:, 0], [0.125, 0, 0.375, 125, 0], rtol=tolerance)


@pytest.fixture(params=[True, False], ids=["static", "dynamic"])
def known(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_are_key_minus_query(shape, known):
    n, m, offset = shape
    expected = [[j - (i + offset) for j in range(m)] for i in range(n)]
    assert run(shape, known, Layout.relative_positions).tolist() == [[expected]]


def bands(shape):
    """Bands (lowest, highest) that contain the diagonal of the queries' own positions."""
    n, m, offset = shape
    return [(low, high) for low in range(1 - n, offset + 1) for high in range(offset, m)]


def on_diagonals(x, lowest, highest):
    """[batch, heads, highest - lowest + 1, queries]: x[i, i + d], 0 where there is no such key."""
    n, m = x.shape[2:]
    band = np.zeros([*x.shape[:2], highest - lowest + 1, n])
    for c, d in enumerate(range(highest, lowest - 1, -1)):
        for i in range(n):
            if 0 <= i + d < m:
                band[:, :, c, i] = x[:, :, i, i + d]
    return band


@pytest.mark.parametrize("shape", SHAPES)
def test_bands_are_read_and_added_diagonal_by_diagonal(shape, known):
    n, m, offset = shape
    random = np.random.RandomState(0)
    x = random.randn(3, 2, n, m)
    for low, high in bands(shape):
        band = random.randn(3, 2, high - low + 1, n)

        def function(layout, x, band, low=low, high=high):
            moved = layout.offset - offset                 # 0; a tensor where it is not known
            y = relative_band.add_band(x, band, low + moved, high + moved, layout.queries)
            taken = relative_band.take_band(x, low + moved, high + moved, layout.queries)
            assert y.shape.rank == taken.shape.rank == 4 and y.shape[1] == taken.shape[1] == 2
            if known:
                y.shape.assert_is_fully_defined()
                taken.shape.assert_is_fully_defined()
            return y, taken

        y, taken = run(shape, known, function, x=x, band=band)
        np.testing.assert_array_equal(taken, on_diagonals(x, low, high))
        np.testing.assert_allclose(on_diagonals(y - x, low, high),
                                   on_diagonals(np.ones_like(x), low, high) * band, atol=1e-12)
        np.testing.assert_allclose(np.abs(y - x).sum(),
                                   np.abs(on_diagonals(y - x, low, high)).sum())


@pytest.mark.parametrize("low, high", [(-2, 1), (-1, 0), (0, 0)])
def test_gradients_of_any_order_are_those_of_linear_maps(low, high, known):
    random = np.random.RandomState(0)
    x, band, dy = random.randn(1, 2, 4, 4), random.randn(1, 2, high - low + 1, 4), 2.0

    def function(layout, x, band):
        moved = layout.offset
        y = relative_band.add_band(x, band, low + moved, high + moved, layout.queries)
        first = tf.gradients(tf.reduce_sum(y ** 2) / 2, [x, band])     # y, and y's band
        second = tf.gradients(tf.reduce_sum(first[1] ** 2) / 2, [x, band])
        third, = tf.gradients(tf.reduce_sum(second[0] ** dy), x)
        return y, *first, *second, third

    y, dx, dband, ddx, ddband, dddx = run((4, 4, 0), known, function, x=x, band=band)
    there = on_diagonals(np.ones_like(x), low, high)
    np.testing.assert_allclose(dx, y)
    np.testing.assert_allclose(dband, on_diagonals(y, low, high))
    np.testing.assert_allclose(ddband, dband * there)
    np.testing.assert_allclose(on_diagonals(ddx, low, high), dband)
    np.testing.assert_allclose(on_diagonals(dddx, low, high), 2 * dband)


@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=20)
@given(n=st.integers(1, 7), more=st.integers(0, 5), alike=st.booleans(), known=st.booleans())
def test_skewing_moves_scores_by_distance_to_their_pairs(causal, n, more, alike, known):
    m, offset, random = n + more, more, np.random.RandomState(n)
    x = random.randn(3, 2, 1 if alike else n, m + 1 if causal else n + m)
    distance = np.arange(m) - np.arange(n)[:, None] - offset
    seen = distance <= 0 if causal else np.ones([n, m], bool)
    row = np.zeros([n, 1], int) if alike else np.arange(n)[:, None]
    at = np.where(seen, distance + n - 1 + offset, 0)
    weights = np.where(seen, random.randn(3, 2, n, m), 0)

    def both(layout, x, weights):
        rows = x[:, :, 0][:, :, None] if alike else x        # one row, and known to be one
        y = pairs.skew(rows, layout.replace(causal=causal))
        return y, *tf.gradients(y, x, weights)

    y, dx = run((n, m, offset), known, both, x=x, weights=weights)
    np.testing.assert_array_equal(np.where(seen, y, 0), np.where(seen, x[:, :, row, at], 0))
    expected = np.zeros_like(x)
    np.add.at(expected, (slice(None), slice(None), row, at), weights)
    np.testing.assert_allclose(dx, expected, atol=1e-12)


def test_static_min_and_max_are_ints_if_all_sizes_are():
    assert (ops.static_min(3, 2), ops.static_max(3, 5)) == (2, 5)
    with tf.Graph().as_default(), tf.Session() as session:
        seven, four = tf.constant(7), tf.constant(4)
        got = session.run([ops.static_min(seven, four), ops.static_min(5, seven),
                           ops.static_max(seven, four), ops.static_max(8, seven)])
    assert got == [4, 5, 7, 8]


@pytest.mark.parametrize("k", [0, 1, 3, 50])
def test_labels_are_clipped_distances(k):
    shape = (5, 6, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        labels = session.run(layout.clipped_labels(Layout(*shape).relative_positions(), k, k))[0, 0]
    assert labels.tolist() == [[label(i + 2, j, k) for j in range(6)] for i in range(5)]
    assert labels.min() >= 0 and labels.max() <= 2 * k


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_by_the_weights_is_not_a_sum_of_tensors_of_their_size(causal):
    n = 9
    with tf.Graph().as_default():
        weights, v = tf.zeros([1, 2, n, n]), tf.zeros([1, 2, n, 4])
        z = relative.weighted_values(weights, v, tf.zeros([7, 4]), Layout(n, n, 0, causal))
        gradient, = tf.gradients(z, [weights])
        sums = [op for op in gradient.graph.get_operations()
                if op.type == "AddN" and op.outputs[0].shape == weights.shape]
    assert gradient.shape == weights.shape and not sums
