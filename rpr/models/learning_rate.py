"""The learning rate: T2T's factors, joined by `*` in `learning_rate_schedule`, and those here."""
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import learning_rate as t2t_learning_rate


def cosine_restarts(step, hparams):
    """Cosine decay from 1 with warm restarts (Loshchilov and Hutter 2017, equation 5).

    Run i takes T_i = restart_steps * t_mul^i steps and falls to alpha:
    alpha + (1 - alpha) m_mul^i (1 + cos(pi t / T_i)) / 2, t counted from its beginning.

    Args:
      step: a scalar, from 0 on.
      hparams: has `learning_rate_restart_steps`, `_t_mul`, `_m_mul` and `_alpha`.

    Returns:
      a float32 scalar.
    """
    return tf.train.cosine_decay_restarts(
        1.0, step, hparams.learning_rate_restart_steps, hparams.learning_rate_restart_t_mul,
        hparams.learning_rate_restart_m_mul, hparams.learning_rate_restart_alpha)


FACTORS = {"cosine_restarts": cosine_restarts}


def learning_rate(hparams):
    """The learning rate of the current step, a float32 scalar."""
    step, rate = t2t_learning_rate._global_step(hparams), tf.constant(1.0)
    for name in filter(None, map(str.strip, hparams.learning_rate_schedule.split("*"))):
        factor = FACTORS.get(name)
        rate *= (factor(step, hparams) if factor
                 else t2t_learning_rate.learning_rate_factor(name, step, hparams))
    return rate
