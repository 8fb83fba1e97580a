import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from rpr.nn import projections


def test_projection_is_initialised_as_t2t_initialises_it():
    from tensor2tensor.layers import common_layers
    spread = []
    for ours in (True, False):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.zeros([2, 5, 300])
            with tf.variable_scope("a", initializer=tf.variance_scaling_initializer(
                    1.0, mode="fan_avg", distribution="uniform")):
                y = (projections.project(x, 200, "q") if ours
                     else common_layers.dense(x, 200, use_bias=False, name="q"))
            assert y.shape.as_list() == [2, 5, 200]
            (kernel,) = tf.global_variables()
            assert kernel.name == "a/q/kernel:0"
            session.run(tf.global_variables_initializer())
            spread.append(session.run(kernel).std())
    assert spread[0] == pytest.approx(spread[1], rel=0.02)


@pytest.mark.parametrize("depth, channels", [(3, 5), (3, 600), (600, 3), (512, 512)])
def test_a_projection_has_the_gradients_of_a_product(depth, channels):
    random = np.random.RandomState(depth)
    x, kernel, dy = (random.randn(*shape) for shape in (
        (2, 4, depth), (depth, channels), (2, 4, channels)))
    with tf.Graph().as_default(), tf.Session() as session:
        at = tf.constant(x)
        y = projections.project(at, channels, "q")
        (variable,) = tf.global_variables()
        variable.load(kernel, session)
        found = session.run([y, *tf.gradients(y, [at, variable], tf.constant(dy))])
    expected = [x @ kernel, dy @ kernel.T, np.einsum("bnd,bnc->dc", x, dy)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
