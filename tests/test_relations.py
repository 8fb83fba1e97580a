import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from reference import label

from rpr import relations

# (queries, keys, offset): square, one query, cached steps, a cache longer than what was decoded.
SHAPES = [(4, 4, 0), (1, 1, 0), (1, 5, 4), (1, 9, 3), (2, 7, 3), (3, 8, 0)]
CLIPS = [0, 1, 3, 20]


def run(shape, k, known, labels=None, pairs=None):
    """A function on given arrays; lengths known when the graph is built, or when it runs."""
    with tf.Graph().as_default(), tf.Session() as session:
        sizes, feed = shape, {}
        if not known:
            sizes = tf.unstack(tf.placeholder(tf.int32, [3], "sizes"))
            feed = {"sizes:0": shape}
        relation = relations.Distances(*sizes)
        if labels is None and pairs is None:
            return session.run(relations.pairs(relation), feed)
        x = labels if pairs is None else pairs
        at = tf.placeholder(tf.float64, x.shape if known else [None, 2, None, None])
        if labels is not None and not known:
            at.set_shape([None, 2, 2 * k + 1, None])
        y = (relations.to_labels if labels is None else relations.to_pairs)(at, relation, k)
        if known:
            y.shape.assert_is_fully_defined()
        assert y.shape.rank == 4 and y.shape[1] == 2
        return session.run(y, {at: x, **feed})


@pytest.fixture(params=[True, False], ids=["static", "dynamic"])
def known(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_are_key_minus_query(shape, known):
    n, m, offset = shape
    expected = [[j - (i + offset) for j in range(m)] for i in range(n)]
    assert run(shape, None, known).tolist() == expected


@pytest.mark.parametrize("k", CLIPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_pair_gets_the_value_of_its_label(shape, k, known):
    n, m, offset = shape
    by_label = np.random.RandomState(0).randn(3, 2, 2 * k + 1, n)
    got = run(shape, k, known, labels=by_label)
    for i in range(n):
        for j in range(m):
            np.testing.assert_array_equal(
                got[:, :, i, j], by_label[:, :, label(i + offset, j, k), i])


@pytest.mark.parametrize("k", CLIPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_label_gets_the_sum_of_its_pairs(shape, k, known):
    n, m, offset = shape
    by_pair = np.random.RandomState(0).randn(3, 2, n, m)
    expected = np.zeros([3, 2, 2 * k + 1, n])
    for i in range(n):
        for j in range(m):
            expected[:, :, label(i + offset, j, k), i] += by_pair[:, :, i, j]
    np.testing.assert_allclose(run(shape, k, known, pairs=by_pair), expected, atol=1e-12)


def test_gradients_of_any_order_are_those_of_linear_maps():
    """Second derivatives of a square: the map and its transpose again."""
    with tf.Graph().as_default(), tf.Session() as session:
        n = tf.placeholder(tf.int32, [])
        relation = relations.Distances(n, n)
        x = tf.placeholder(tf.float64, [1, 1, 5, None])
        first, = tf.gradients(tf.reduce_sum(relations.to_pairs(x, relation, 2) ** 2) / 2, x)
        second, = tf.gradients(tf.reduce_sum(first), x)
        feed = {n: 4, x: np.arange(20.0).reshape(1, 1, 5, 4)}
        first, second = session.run([first, second], feed)
    count = np.zeros([5, 4])
    for i in range(4):
        for j in range(4):
            count[label(i, j, 2), i] += 1
    np.testing.assert_allclose(second[0, 0], count)
    np.testing.assert_allclose(first[0, 0], count * np.arange(20.0).reshape(5, 4))


@pytest.mark.parametrize("keys, k, expected", [
    (9, 4, 4), (5, 4, 4), (4, 4, 3), (1, 4, 1), (9, 0, 0), (2, 1, 1)])
def test_no_label_beyond_the_reach_occurs(keys, k, expected, known):
    with tf.Graph().as_default(), tf.Session() as session:
        size = keys if known else tf.constant(keys)
        got = relations.reach(relations.Distances(size, size), k)
        assert (got if isinstance(got, int) else session.run(got)) == expected


@pytest.mark.parametrize("k", [0, 1, 3, 50])
def test_labels_are_clipped_distances(k):
    shape = (5, 6, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        labels = session.run(relations.clip(relations.pairs(relations.Distances(*shape)), k))
    assert labels.tolist() == [[label(i + 2, j, k) for j in range(6)] for i in range(5)]
    assert labels.min() >= 0 and labels.max() <= 2 * k
