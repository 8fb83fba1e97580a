"""What makes T2T run here, and the refusal where it would run wrong."""
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers
from tensor2tensor.utils import contrib, registry

import rpr


def test_layers_are_tf1_layers_that_towers_share():
    assert common_layers.layers() is tf.layers
    assert not tf.executing_eagerly()


def test_t2t_loaded_in_the_wrong_mode_is_refused():
    done = subprocess.run([sys.executable, "-c", "import tensor2tensor, rpr"], capture_output=True,
                          text=True)
    assert done.returncode != 0
    assert "rpr train" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("setting", [None, "0"])
def test_onednn_is_used_on_every_processor_unless_it_is_switched_off(setting):
    code = ("import rpr; rpr.register(); from tensorflow.python.util import _pywrap_util_port; "
            "print(_pywrap_util_port.IsMklEnabled())")
    environment = {name: value for name, value in os.environ.items()
                   if name != "TF_ENABLE_ONEDNN_OPTS"}
    if setting:
        environment["TF_ENABLE_ONEDNN_OPTS"] = setting
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=environment)
    assert done.stdout.split()[-1] == str(setting is None)


def test_importing_rpr_alone_loads_neither_tensorflow_nor_t2t():
    code = "import sys, rpr.cli; rpr.cli.main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = eval(done.stdout.splitlines()[-1])
    assert "rpr.cli" in loaded
    assert not {"tensorflow", "tensor2tensor", "numpy", "sacrebleu", "gin"} & set(loaded)


def lazy_adam_reference(rows, gradients, steps, rate, beta1, beta2, epsilon):
    m, v, x = np.zeros_like(rows), np.zeros_like(rows), rows.copy()
    for step in range(1, steps + 1):
        touched = step % 2                            # one row a step
        m[touched] = beta1 * m[touched] + (1 - beta1) * gradients[touched]
        v[touched] = beta2 * v[touched] + (1 - beta2) * gradients[touched] ** 2
        corrected = rate * np.sqrt(1 - beta2 ** step) / (1 - beta1 ** step)
        x[touched] -= corrected * m[touched] / (np.sqrt(v[touched]) + epsilon)
    return x


def test_lazy_adam_moves_only_the_rows_of_a_sparse_gradient():
    rows = np.random.RandomState(0).randn(3, 4)
    gradients = np.random.RandomState(1).randn(3, 4)
    for resource in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            table = tf.get_variable("table", initializer=rows, use_resource=resource)
            touched = tf.placeholder(tf.int32, [])
            slices = tf.IndexedSlices(tf.gather(gradients, touched)[None], touched[None],
                                      tf.constant([3, 4]))
            optimizer = contrib.opt().LazyAdamOptimizer(0.1, beta1=0.9, beta2=0.98, epsilon=1e-9)
            train = optimizer.apply_gradients([(slices, table)])
            session.run(tf.global_variables_initializer())
            for step in range(1, 6):
                session.run(train, {touched: step % 2})
            expected = lazy_adam_reference(rows, gradients, 5, 0.1, 0.9, 0.98, 1e-9)
            np.testing.assert_allclose(session.run(table), expected, rtol=1e-5)
            np.testing.assert_array_equal(expected[2], rows[2])


def test_no_letter_number_punctuation_or_symbol_is_beyond_the_planes_that_are_searched():
    from tensor2tensor.data_generators import tokenizer
    from tensor2tensor.utils import bleu_hook
    beyond = {unicodedata.category(chr(point))[0] for point in range(0x40000, sys.maxunicode + 1)}
    assert sys.maxunicode == 0x10ffff and not beyond & set("LNPS")
    found = {chr(point) for point in range(0x40000) if unicodedata.category(chr(point))[0] in "LN"}
    assert found == tokenizer._ALPHANUMERIC_CHAR_SET
    assert bleu_hook.bleu_tokenize("a\u2014b\U0001f600") == ["a", "\u2014", "b", "\U0001f600"]


@pytest.mark.parametrize("split", [0, 2])
def test_every_example_is_read_once_even_where_it_becomes_several(text, split):
    rpr.register()
    problem = registry.problem(text.problem)
    if split:
        problem.preprocess_example = lambda example, mode, hparams: (
            tf.data.Dataset.from_tensors(example).repeat(split))
    with tf.Graph().as_default(), tf.Session() as session:
        examples = problem.dataset("train", str(text.data_dir))
        following = tf.data.make_one_shot_iterator(examples).get_next()["targets"]
        found = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                found.append(tuple(session.run(following)))
    written = [tuple(tf.train.Example.FromString(record).features.feature["targets"]
                     .int64_list.value)
               for path in text.data_dir.glob(f"{text.problem}-train-*")
               for record in tf.python_io.tf_record_iterator(str(path))]
    assert len(written) == 300 and sorted(found) == sorted(max(1, split) * written)
