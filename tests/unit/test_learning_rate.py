"""Learning rates against their formulas."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.utils import learning_rate as t2t_learning_rate

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
