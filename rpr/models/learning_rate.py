"""The learning rate: T2T's factors, joined by `*` in `learning_rate_schedule`, and our own."""
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import learning_rate as t2t_learning_rate

from rpr.utils.interfaces import HParams

DECAY = ("learning_rate_decay_steps", "learning_rate_decay_staircase", "learning_rate_decay_rate")
# {factor of learning_rate_schedule: the hparams that it reads}
FACTORS: dict[str, tuple[str, ...]] = {
    "constant": ("learning_rate_constant",),
    "linear_warmup": ("learning_rate_warmup_steps",),
    "linear_decay": ("learning_rate_decay_steps",),
    "cosdecay": ("learning_rate_warmup_steps", "learning_rate_decay_steps"),
    "single_cycle_cos_decay": ("learning_rate_warmup_steps",),
    "multi_cycle_cos_decay": ("learning_rate_warmup_steps", "learning_rate_decay_steps"),
    "rsqrt_decay": ("learning_rate_warmup_steps",),
    "rsqrt_normalized_decay": ("learning_rate_warmup_steps",),
    "exp_decay": ("learning_rate_warmup_steps", *DECAY),
    "rsqrt_hidden_size": (),
    "legacy": ("learning_rate", "learning_rate_decay_scheme", "learning_rate_warmup_steps"),
    "cosine_restarts": tuple(f"learning_rate_restart_{name}"
                             for name in ("steps", "t_mul", "m_mul", "alpha")),
}


def cosine_restarts(step: tf.Tensor, hparams: HParams) -> tf.Tensor:
    """Cosine decay from 1 with warm restarts (Loshchilov and Hutter 2017, equation 5).

    Period i lasts T_i = restart_steps * t_mul^i steps. Its factor, a float32 scalar, is
    alpha + (1 - alpha) m_mul^i (1 + cos(pi t / T_i)) / 2, where t counts from the period's start.
    """
    return tf.train.cosine_decay_restarts(
        1.0, step, hparams.learning_rate_restart_steps, hparams.learning_rate_restart_t_mul,
        hparams.learning_rate_restart_m_mul, hparams.learning_rate_restart_alpha)


def learning_rate(hparams: HParams) -> tf.Tensor:
    """The learning rate of the current step, a float32 scalar."""
    step, rate = t2t_learning_rate._global_step(hparams), tf.constant(1.0)
    for name in filter(None, map(str.strip, hparams.learning_rate_schedule.split("*"))):
        rate *= (cosine_restarts(step, hparams) if name == "cosine_restarts"
                 else t2t_learning_rate.learning_rate_factor(name, step, hparams))
    return rate
