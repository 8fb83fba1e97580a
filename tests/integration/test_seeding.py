"""Random values in a training graph keep no state and depend on the seed and on names."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr.models import seq2seq  # noqa: F401  registers the model
from rpr.training import seeding
from rpr.training.input_pipeline import BATCH_NUMBER

INPUTS, TARGETS = tiny_models.sentences([6, 3], seed=1), tiny_models.sentences([4, 5], seed=2)
TRAIN = tf.estimator.ModeKeys.TRAIN


def training_op(values, model="rpr_transformer", seed=1):
    """Builds the training graph of a model in the default graph; returns its last operation."""
    def model_fn(features, labels, mode, params, config):
        network = tiny_models.make(values, mode, model)
        _, losses = network(features)
        return network.optimize(losses["training"])

    tf.set_random_seed(seed)
    tf.train.create_global_step()
    features = tiny_models.features(INPUTS, TARGETS)
    return seeding.seeded(model_fn, seed)(
        {**features, BATCH_NUMBER: tf.constant(5, tf.int64)}, None, TRAIN, None, None).op


def ancestors(op):
    """The operations that an operation needs."""
    reached, left = {op}, [op]
    while left:
        current = left.pop()
        needed = {tensor.op for tensor in current.inputs} | set(current.control_inputs)
        left += needed - reached
        reached |= needed
    return reached


def mask_keys(values, **kwargs):
    """The keys of all dropout masks of a training step."""
    with tf.Graph().as_default(), tf.Session() as session:
        op = training_op(values, **kwargs)
        draws = [each for each in ancestors(op) if each.type == "StatelessRandomUniformFullIntV2"]
        keys = [int(key[0]) for key in session.run([draw.inputs[1] for draw in draws])]
    assert len(keys) == len(set(keys))                       # no two places share their masks
    return set(keys)


@pytest.mark.parametrize("model, hparams_set", [("rpr_transformer", "rpr_tiny"),
                                                ("qkv_seq2seq", "qkv_seq2seq_tiny")])
def test_a_training_step_draws_nothing_from_a_generator_with_state(model, hparams_set):
    values = tiny_models.hparams(hparams_set, num_hidden_layers=1)
    for name in ("attention_dropout", "relu_dropout", "layer_prepostprocess_dropout", "dropout"):
        if name in values:
            values.set_hparam(name, 0.1)
    with tf.Graph().as_default():
        ops = ancestors(training_op(values, model))
        stateful = [op.name for op in ops if op.op_def.is_stateful and (
            "Random" in op.type or "Truncated" in op.type or "Multinomial" in op.type)]
        assert not stateful
        assert any(op.type == "StatelessRandomUniformFullIntV2" for op in ops)


def test_arms_draw_the_same_masks_at_the_same_places():
    rates = dict(attention_dropout=0.1, relu_dropout=0.1, num_hidden_layers=1)
    relative = mask_keys(tiny_models.hparams(**rates))
    absolute = mask_keys(tiny_models.hparams(position="sinusoid", **rates))
    assert absolute == relative and len(relative) > 10
    assert not relative & mask_keys(tiny_models.hparams(**rates), seed=2)


def initial(position, seed=1, layers=1, **overrides):
    """The initial values of a training by the variables' names."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.zeros([])                                         # moves the numbers of the operations
        training_op(tiny_models.hparams(position=position, num_hidden_layers=layers, **overrides),
                    seed=seed)
        session.run(tf.global_variables_initializer())
        return session.run({variable.name: variable for variable in tf.trainable_variables()})


def test_initial_values_depend_on_seed_and_name_only():
    relative, absolute = initial("relative"), initial("sinusoid")
    common = relative.keys() & absolute.keys()
    assert len(common) > 20 and relative.keys() > absolute.keys()
    for name in common:
        np.testing.assert_array_equal(relative[name], absolute[name])
    kernels = [value for value in relative.values() if value.ndim == 2]
    assert not any(np.array_equal(kernel, other) for number, kernel in enumerate(kernels)
                   for other in kernels[:number])            # no two variables start alike
    # A table per head: the same in an arm without values, and another one for each head.
    keys = initial("relative", relative_values=False)
    tables = [name for name in keys if keys[name].ndim == 3]
    assert len(tables) == 2 and keys.keys() < relative.keys()
    for name, value in keys.items():
        np.testing.assert_array_equal(value, relative[name])
    assert not any(np.array_equal(*keys[name][:2]) for name in tables)
    reseeded = initial("relative", 2)
    assert any((value != reseeded[name]).any() for name, value in relative.items())


def test_initial_rates_of_rotary_positions_depend_on_seed_and_name_only():
    first, again, reseeded = (
        {name: value for name, value in initial(position, seed, layers=2).items()
         if "mixed_rotary" in name}
        for position, seed in (("mixed_rotary", 1), ("mixed_rotary@1:none", 1),
                               ("mixed_rotary", 2)))
    assert len(first) == 4 and len(again) == 2               # layers of both stacks
    assert len({value[0, head, 0, 0] for value in first.values() for head in range(2)}) == 8
    for name, value in again.items():
        np.testing.assert_array_equal(value, first[name])
        assert (value != reseeded[name]).all()


def test_relative_positions_without_keys_and_values_train_as_no_positions_do():
    def after_two_steps(**overrides):
        values = tiny_models.hparams(layer_prepostprocess_dropout=0.1, num_hidden_layers=1,
                                     **overrides)
        with tf.Graph().as_default(), tf.Session() as session:
            step = training_op(values)
            session.run(tf.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            return {variable.name: session.run(variable) for variable in tf.trainable_variables()}
    weights = after_two_steps(position="none")
    without = after_two_steps(position="relative", relative_keys=False, relative_values=False)
    assert weights.keys() == without.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(value, without[name], err_msg=name)
    absolute = after_two_steps(position="sinusoid")
    assert any((value != absolute[name]).any() for name, value in weights.items())
