"""Learning rates against their formulas, and the momentum that goes with them."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.utils import learning_rate as t2t_learning_rate
from tensor2tensor.utils import optimize

from rpr.models import transformer


def restarts(step, first, t_mul, m_mul, alpha):
    """Loshchilov and Hutter 2017, equation (5), one run after the other."""
    length, height = first, 1.0
    while step >= length:
        step, length, height = step - length, length * t_mul, height * m_mul
    return alpha + (1 - alpha) * height * (1 + np.cos(np.pi * step / length)) / 2


@pytest.mark.parametrize("t_mul, m_mul, alpha", [(2.0, 1.0, 0.0), (1.5, 0.5, 0.1), (1.0, 0.9, 0.0)])
def test_the_cosine_with_restarts_is_its_formula(t_mul, m_mul, alpha):
    values = tiny_models.hparams(
        learning_rate_schedule="constant*cosine_restarts", learning_rate_constant=0.3,
        learning_rate_restart_steps=100, learning_rate_restart_t_mul=t_mul,
        learning_rate_restart_m_mul=m_mul, learning_rate_restart_alpha=alpha)
    # The first step of a run may fall, by float32, at the end of the one before.
    steps = [0, 1, 50, 99, 101, 175, 249, 251, 299, 301, 640, 699, 702, 1234]
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rate = transformer.learning_rate(values)
        session.run(tf.global_variables_initializer())
        for at in steps:
            step.load(at, session)
            expected = 0.3 * restarts(at, 100, t_mul, m_mul, alpha)
            assert session.run(rate) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["rpr_base", "rpr_small", "toy_graph"])
def test_other_schedules_are_t2ts(name):
    values = tiny_models.hparams(name)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rates = [transformer.learning_rate(values),
                 t2t_learning_rate.learning_rate_schedule(values)]
        session.run(tf.global_variables_initializer())
        for at in (0, 7, 4000, 9999):
            step.load(at, session)
            ours, theirs = session.run(rates)
            assert ours == theirs


def test_the_momentum_is_nesterovs():
    """a <- m a + g, x <- x - rate (g + m a): Sutskever et al. 2013, as TensorFlow writes it."""
    values = tiny_models.hparams(optimizer="momentum", optimizer_momentum_momentum=0.9,
                                 optimizer_momentum_nesterov=True)
    x, a = 2.0, 0.0
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("x", initializer=x)
        optimizer = optimize.ConditionalOptimizer("momentum", 0.1, values)
        step = optimizer.apply_gradients(
            optimizer.compute_gradients(tf.square(variable), [variable]))
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(step)
            a = 0.9 * a + 2 * x
            x -= 0.1 * (2 * x + 0.9 * a)
            assert session.run(variable) == pytest.approx(x, rel=1e-5)


def test_a_model_trains_with_it():
    values = tiny_models.hparams(
        learning_rate_schedule="constant*cosine_restarts", learning_rate_constant=0.05,
        optimizer="momentum", optimizer_momentum_nesterov=True, num_hidden_layers=1)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        model = tiny_models.make(values, tf.estimator.ModeKeys.TRAIN)
        _, losses = model(tiny_models.features(tiny_models.sentences([6, 3]),
                                               tiny_models.sentences([4, 5], seed=2)))
        train = model.optimize(losses["training"])
        session.run(tf.global_variables_initializer())
        found = [session.run([losses["training"], train])[0] for _ in range(20)]
    assert found[-1] < found[0]
