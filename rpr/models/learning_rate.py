"""The learning rate: T2T's factors, joined by `*` in `learning_rate_schedule`, and our own."""

import tensorflow.compat.v1 as tf
from tensor2tensor.utils import learning_rate as t2t_learning_rate

from rpr.utils.interfaces import HParams

# Names that `t2t_learning_rate.learning_rate_factor` knows.
T2T_FACTORS = ("constant", "linear_warmup", "linear_decay", "cosdecay", "single_cycle_cos_decay",
               "multi_cycle_cos_decay", "rsqrt_decay", "rsqrt_normalized_decay", "exp_decay",
               "rsqrt_hidden_size", "legacy")


def cosine_restarts(step: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Cosine decay from 1 with warm restarts (Loshchilov and Hutter 2017, equation 5).

    Period i lasts T_i = restart_steps * t_mul^i steps. Its factor is
    alpha + (1 - alpha) m_mul^i (1 + cos(pi t / T_i)) / 2, where t counts from the period's start.

    Args:
      step: scalar, from 0.
      hparams: has `learning_rate_restart_steps`, `_t_mul`, `_m_mul` and `_alpha`.

    Returns:
      a float32 scalar.
    """
    return tf.train.cosine_decay_restarts(
        1.0, step, hparams.learning_rate_restart_steps, hparams.learning_rate_restart_t_mul,
        hparams.learning_rate_restart_m_mul, hparams.learning_rate_restart_alpha)


OUR_FACTORS = {"cosine_restarts": cosine_restarts}
FACTOR_NAMES = (*T2T_FACTORS, *OUR_FACTORS)


def learning_rate(hparams: HParams) -> tf.Tensor:
    """The learning rate of the current step, a float32 scalar.

    Args:
      hparams: has `learning_rate_schedule`, factors joined by `*`.
    """
    step, rate = t2t_learning_rate._global_step(hparams), tf.constant(1.0)
    for name in filter(None, map(str.strip, hparams.learning_rate_schedule.split("*"))):
        factor = OUR_FACTORS.get(name)
        rate *= (factor(step, hparams) if factor
                 else t2t_learning_rate.learning_rate_factor(name, step, hparams))
    return rate
