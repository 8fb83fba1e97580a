import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from reference import label

from rpr import relations

# (queries, keys, offset): square, one query, a cached step, a cache longer than what was decoded,
# more queries than keys, queries after every key.
SHAPES = [(4, 4, 0), (1, 1, 0), (1, 5, 4), (1, 9, 3), (2, 7, 3), (6, 2, 0), (2, 3, 7)]


@pytest.fixture(scope="module")
def dynamic():
    """Every function on lengths that only the session knows."""
    with tf.Graph().as_default():
        sizes = tf.placeholder(tf.int32, [3])
        relation = relations.Distances(*tf.unstack(sizes))
        x = tf.placeholder(tf.float64, [None, 2, None, None])
        out = {"pairs": relations.pairs(relation), "diagonals": relations.diagonals(relation),
               "from": relations.from_diagonals(x, relation),
               "to": relations.to_diagonals(x, relation)}
        with tf.Session() as session:
            yield lambda name, shape, value=None: session.run(
                out[name], {sizes: shape, **({} if value is None else {x: value})})


def static(name, shape, value=None):
    with tf.Graph().as_default(), tf.Session() as session:
        relation = relations.Distances(*shape)
        function = {"pairs": relations.pairs, "diagonals": relations.diagonals,
                    "from": relations.from_diagonals, "to": relations.to_diagonals}[name]
        result = function(relation) if value is None else function(tf.constant(value), relation)
        result.shape.assert_is_fully_defined()
        return session.run(result)


@pytest.fixture(params=["static", "dynamic"])
def run(request, dynamic):
    return static if request.param == "static" else dynamic


@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_are_key_minus_query(run, shape):
    n, m, offset = shape
    assert run("pairs", shape).tolist() == [[j - (i + offset) for j in range(m)] for i in range(n)]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_pair_lies_on_the_diagonal_of_its_distance(run, shape):
    n, m, _ = shape
    diagonals = np.broadcast_to(run("diagonals", shape).astype(float), (3, 2, n, n + m))
    expected = np.broadcast_to(run("pairs", shape), (3, 2, n, m))
    np.testing.assert_array_equal(run("from", shape, diagonals), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_to_diagonals_is_the_transpose_of_from_diagonals(run, shape):
    n, m, _ = shape
    random = np.random.RandomState(0)
    x, y = random.randn(3, 2, n, m), random.randn(3, 2, n, n + m)
    spread = run("to", shape, x)
    np.testing.assert_array_equal(run("from", shape, spread), x)       # nothing is lost
    np.testing.assert_allclose((spread * y).sum(), (x * run("from", shape, y)).sum(), rtol=1e-12)


@pytest.mark.parametrize("k", [0, 1, 3, 50])
def test_labels_are_clipped_distances(k):
    shape = (5, 6, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        labels = session.run(relations.clip(relations.pairs(relations.Distances(*shape)), k))
    assert labels.tolist() == [[label(i + 2, j, k) for j in range(6)] for i in range(5)]
    assert labels.min() >= 0 and labels.max() <= 2 * k
