"""Dropout: its rate and mean, independence, and masks that come back."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rpr.nn.dropout import dropout, reproducible_masks


@pytest.mark.parametrize("rate", (0.1, 0.3, 0.5, 2 ** -17))
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64])
def test_drops_its_rate_and_keeps_the_mean(rate, dtype):
    count = 1_000_003                                    # no multiple of four decisions
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        y = dropout(tf.ones([1, count], dtype), rate)
        assert y.dtype == dtype and y.shape == (1, count)
        y = session.run(tf.cast(y, tf.float64))[0]
    deviation = np.sqrt(rate * (1 - rate) / count)
    assert abs(np.mean(y == 0) - rate) < 5 * deviation + 2 ** -17
    kept = y[y != 0]
    np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=2 ** -8 if dtype == tf.bfloat16
                               else 1e-4)


def test_decisions_are_independent_of_their_neighbours_and_of_earlier_steps():
    """Four decisions share a number of the generator: none may tell of another."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(2)
        x = tf.ones([400_000])
        both = [dropout(x, 0.5), dropout(x, 0.5)]
        draws = [draw != 0 for _ in range(2) for draw in session.run(both)]
    pairs = [(draws[0], other) for other in draws[1:]]
    pairs += [(draws[0][:-distance], draws[0][distance:]) for distance in (1, 2, 3, 4, 8, 16)]
    for one, other in pairs:
        assert abs(np.mean(one == other) - 0.5) < 5 * 0.5 / np.sqrt(len(one))


def test_the_gradient_passes_what_the_output_kept():
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.ones([50, 20])
        y = dropout(x, 0.3)
        y, dx = session.run([y, tf.gradients(y, x)[0]])
    np.testing.assert_array_equal(y, dx)


def test_the_graph_s_seed_fixes_every_decision():
    def draw(seed):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(seed)
            y = dropout(tf.ones([100]), 0.5)
            return np.stack([session.run(y), session.run(y)])

    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).any() and (draw(1)[0] != draw(1)[1]).any()


def masks(batch, seed=1, scopes=("a", "b")):
    """The masks of a training step; each scope has two."""
    with tf.Graph().as_default(), tf.Session() as session:
        number = tf.placeholder(tf.int64, [])
        drawn = []
        with reproducible_masks(seed, number):
            for scope in scopes:
                with tf.variable_scope(scope):
                    drawn += [dropout(tf.ones([200]), 0.5) for _ in range(2)]
        assert not [op for op in tf.get_default_graph().get_operations()
                    if op.type.startswith("Random")]
        return session.run(drawn, {number: batch})


def test_a_mask_is_a_function_of_seed_batch_and_place():
    first = masks(7)
    np.testing.assert_array_equal(first, masks(7))
    # Another model, with a scope more before, has the same masks in the scopes they share.
    np.testing.assert_array_equal(first[2:], masks(7, scopes=("c", "b"))[2:])
    different = [*first, *masks(8), *masks(7, seed=2), *masks(2 ** 40)]
    for index, mask in enumerate(different):
        for other in different[:index]:
            assert 50 < np.sum(mask == other) < 150


def test_outside_the_context_masks_follow_tensorflows_seeds():
    masks(1)
    with tf.Graph().as_default(), tf.Session() as session:
        y = dropout(tf.ones([100]), 0.5)
        assert (session.run(y) != session.run(y)).any()
