"""Optimizers and loss scaling that T2T takes from modules which TensorFlow 2 does not have.

The functions import TensorFlow, because `compat` imports this module before the logs exist.
"""
from collections.abc import Iterable, Sequence
from typing import Any

# Graph collection: the number of target tokens by which the loss of the batch is divided.
TOKENS = "rpr/tokens"


def loss_scale(init_loss_scale: float, incr_every_n_steps: int, incr_ratio: float = 2,
               **_: Any) -> Any:
    """A dynamic loss scale, with the signature of contrib's ExponentialUpdateLossScaleManager."""
    import tensorflow.compat.v1 as tf
    return tf.mixed_precision.DynamicLossScale(
        initial_loss_scale=init_loss_scale, increment_period=incr_every_n_steps,
        multiplier=incr_ratio)


def multistep_adam() -> type:
    """The class of Adam with gradient accumulation, for T2T's `multistep_adam`."""
    import tensorflow.compat.v1 as tf

    class MultistepAdamOptimizer(tf.train.AdamOptimizer):
        """Adam that updates once per n batches, as if they were one (Saunders et al. 2018).

        The sum of the losses of all n batches is divided by their tokens. T2T averages the
        gradients of the batches, so that a token in a smaller batch has more weight.
        """

        def __init__(self, *args: Any, n: int, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._n = n

        def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
            super()._create_slots(var_list)
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(0, "batches", first)
            self._create_non_slot_variable(0.0, "tokens", first)
            for variable in var_list:
                self._zeros_slot(variable, "sum", self._name)

        def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, tf.Variable]],
                            global_step: tf.Variable | None = None, name: str | None = None
                            ) -> tf.Operation:
            pairs = [(tf.convert_to_tensor(gradient), variable)
                     for gradient, variable in grads_and_vars if gradient is not None]
            variables = [variable for _, variable in pairs]
            with tf.init_scope():
                self._create_slots(variables)
            graph = tf.get_default_graph()
            batches, tokens = (self._get_non_slot_variable(x, graph) for x in ("batches", "tokens"))
            sums = [self.get_slot(variable, "sum") for variable in variables]
            weight = (tf.get_collection(TOKENS) or [tf.constant(1.0)])[-1]
            added = [tf.assign_add(batches, 1), tf.assign_add(tokens, weight)]
            added += [tf.assign_add(sum_, weight * gradient)
                      for sum_, (gradient, _) in zip(sums, pairs, strict=True)]
            with tf.control_dependencies(added):
                due = tf.equal(tf.identity(batches.read_value()), self._n)

            def update() -> tf.Operation:
                total = tf.maximum(tokens.read_value(), 1.0)
                means = [sum_.read_value() / total for sum_ in sums]
                updated = super(MultistepAdamOptimizer, self).apply_gradients(
                    list(zip(means, variables, strict=True)), global_step)
                with tf.control_dependencies([updated]):
                    return tf.group(*[tf.assign(x, tf.zeros_like(x))
                                      for x in (batches, tokens, *sums)])

            return tf.cond(due, update, tf.no_op, name=name)

    return MultistepAdamOptimizer


def lazy_adam() -> type:
    """The class of contrib's LazyAdamOptimizer, T2T's `adam`.

    It updates the moments only in the rows of a sparse gradient. The LazyAdam of
    tensorflow_addons is a Keras optimizer, which T2T cannot use.
    """
    import tensorflow.compat.v1 as tf

    class LazyAdamOptimizer(tf.train.AdamOptimizer):

        def _apply_sparse_shared(self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor,
                                 scatter_add: Any) -> tf.Operation:
            dtype = var.dtype.base_dtype
            beta1_power, beta2_power = (tf.cast(x, dtype) for x in self._get_beta_accumulators())
            rate, beta1 = tf.cast(self._lr_t, dtype), tf.cast(self._beta1_t, dtype)
            beta2, epsilon = tf.cast(self._beta2_t, dtype), tf.cast(self._epsilon_t, dtype)
            rate *= tf.sqrt(1 - beta2_power) / (1 - beta1_power)
            m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
            m_rows = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
            v_rows = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
            step = rate * m_rows / (tf.sqrt(v_rows) + epsilon)
            locking = self._use_locking
            return tf.group(tf.scatter_sub(var, indices, step, use_locking=locking),
                            tf.scatter_update(m, indices, m_rows, use_locking=locking),
                            tf.scatter_update(v, indices, v_rows, use_locking=locking))

    return LazyAdamOptimizer
