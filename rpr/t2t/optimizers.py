"""rpr.t2t.optimizers"""

TOKENS = "rpr/tokens"                                # a graph collection: those of the loss


def _loss_scale(init_loss_scale, incr_every_n_steps, incr_ratio=2, **_):
    import tensorflow.compat.v1 as tf
    return tf.mixed_precision.DynamicLossScale(
        initial_loss_scale=init_loss_scale, increment_period=incr_every_n_steps,
        multiplier=incr_ratio)


def _loss_scale_optimizer(optimizer, scale):
    import tensorflow.compat.v1 as tf
    return tf.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)


def _multistep_adam():
    import tensorflow.compat.v1 as tf

    class MultistepAdamOptimizer(tf.train.AdamOptimizer):
        """Adam that updates once in n batches, as if they were one (Saunders et al. 2018)."""

        def __init__(self, *args, n, **kwargs):
            super().__init__(*args, **kwargs)
            self._n = n

        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(0, "batches", first)
            self._create_non_slot_variable(0.0, "tokens", first)
            for variable in var_list:
                self._zeros_slot(variable, "sum", self._name)

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
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

            def update():
                total = tf.maximum(tokens.read_value(), 1.0)
                means = [sum_.read_value() / total for sum_ in sums]
                updated = super(MultistepAdamOptimizer, self).apply_gradients(
                    list(zip(means, variables, strict=True)), global_step)
                with tf.control_dependencies([updated]):
                    return tf.group(*[tf.assign(x, tf.zeros_like(x))
                                      for x in (batches, tokens, *sums)])

            return tf.cond(due, update, tf.no_op, name=name)

    return MultistepAdamOptimizer


def _lazy_adam():
    """T2T's `adam` is contrib's LazyAdamOptimizer: Adam whose moments move only in the rows of a
    sparse gradient. tensorflow_addons' LazyAdam is a Keras optimizer and does not fit its place."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.ops import resource_variable_ops

    class LazyAdamOptimizer(tf.train.AdamOptimizer):

        def _rows(self, variable, gradient, indices):
            """The new moments of these rows and the step to take on them."""
            kind = variable.dtype.base_dtype
            beta1_power, beta2_power = (tf.cast(x, kind) for x in self._get_beta_accumulators())
            rate, beta1 = tf.cast(self._lr_t, kind), tf.cast(self._beta1_t, kind)
            beta2, epsilon = tf.cast(self._beta2_t, kind), tf.cast(self._epsilon_t, kind)
            rate *= tf.sqrt(1 - beta2_power) / (1 - beta1_power)
            m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
            m_rows = beta1 * tf.gather(m, indices) + (1 - beta1) * gradient
            v_rows = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(gradient)
            return m, v, m_rows, v_rows, rate * m_rows / (tf.sqrt(v_rows) + epsilon)

        def _apply_sparse(self, grad, var):
            m, v, m_rows, v_rows, step = self._rows(var, grad.values, grad.indices)
            locking = self._use_locking
            return tf.group(tf.scatter_sub(var, grad.indices, step, use_locking=locking),
                            tf.scatter_update(m, grad.indices, m_rows, use_locking=locking),
                            tf.scatter_update(v, grad.indices, v_rows, use_locking=locking))

        def _resource_apply_sparse(self, grad, var, indices):
            m, v, m_rows, v_rows, step = self._rows(var, grad, indices)
            ops = resource_variable_ops
            return tf.group(ops.resource_scatter_sub(var.handle, indices, step),
                            ops.resource_scatter_update(m.handle, indices, m_rows),
                            ops.resource_scatter_update(v.handle, indices, v_rows))

    return LazyAdamOptimizer
