"""Decoding step by step with a cache gives what the whole model gives."""
import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.layers import modalities
from tensor2tensor.utils import registry, t2t_model

EOS = 1
EXTRA = 4
INPUTS = tiny_models.sentences([6, 3, 5], seed=3)
LIMITS = np.array([6, 3, 5]) + EXTRA                         # of each sentence's hypotheses
# The conformance kit has each scheme's layer alone; here are whole models, settings in pairs.
RELATIVE = [
    dict(position="relative"),
    dict(position="relative", heads_share_relative_embedding=True, max_relative_position_left=3,
         max_relative_position_right=0),
    dict(position="relative", max_relative_position=0, relative_keys=False),
    dict(position="relative", max_relative_position=40, relative_values=False),
]
RIVALS = [
    dict(position="transformer_xl", num_hidden_layers=2),
    dict(position="rotary+t5_bias", rotary_fraction=0.5),
    dict(position="relative+t5_bias", compatibility="additive", t5_num_buckets=4,
         t5_max_distance=4),
    dict(encoder_position="learned", decoder_position="rotary"),
    dict(position="forgetting@1:dape+alibi@heads1:fire", num_hidden_layers=2),
    dict(position="randomized+relative", decoder_position="cope", cross_position="rotary"),
    dict(position="relative+forgetting", num_heads=1),
]
# Heads whose keys and values are neither as long as each other nor hidden_size / num_heads.
SIZES = dict(attention_key_channels=24, attention_value_channels=40)
SCHEMES = [*RELATIVE, dict(position="learned+relative"), *RIVALS,
           dict(SIZES, position="deberta", num_hidden_layers=2, deberta_num_buckets=4,
                deberta_max_distance=5),
           dict(SIZES, position="relative+scaled_sinusoid", masked_softmax=True,
                norm_type="layer_without_scale"),
           dict(position="relative+sinusoid", num_hidden_layers=2, layer_preprocess_sequence="none",
                layer_postprocess_sequence="dan", norm_after_embedding=True)]


def name(overrides):
    return ",".join(f"{key}={value}" for key, value in overrides.items())


@pytest.fixture(autouse=True)
def only_fast(monkeypatch):
    def slow(*_, **__):
        raise AssertionError("the slow path, which runs the whole model at every step")
    for method in ("_slow_greedy_infer", "_slow_greedy_infer_tpu", "_beam_decode_slow"):
        monkeypatch.setattr(t2t_model.T2TModel, method, slow)


class Decoded(NamedTuple):
    """What one model gives, all of it from one run of its graph.

    Attributes:
      forced: symbols [sentences, length] that go in one by one.
      steps: log probabilities of the symbols after them, with a cache.
      found: the results of `infer`.
      whole: a function of sources and targets, [sentences, length] log probabilities by symbol
        without any cache.
    """
    forced: np.ndarray
    steps: np.ndarray
    found: dict
    whole: Callable


BEAM, ALPHA = 3, 0.6


@contextlib.contextmanager
def decode(overrides, **search):
    """A model with random weights, decoded step by step and by a search."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(tiny_models.hparams(**{"num_hidden_layers": 1, **overrides}))
        targets = tf.placeholder(tf.int32, [None, None, 1, 1])
        inputs = tf.placeholder(tf.int32, [None, None, 1, 1])
        logits, _ = model({"inputs": inputs, "targets": targets, "target_space_id": 1})
        log_probabilities = tf.nn.log_softmax(logits)[:, :, 0, 0]
        forced = tiny_models.sentences([7, 7, 7], seed=5)[:, :, 0, 0]
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            model.set_mode(tf.estimator.ModeKeys.PREDICT)
            found = model.infer(features(), EXTRA, **search)
            results = (forced_steps(model, forced), {name: found[name] for name in ("outputs",
                                                                                   "scores")})
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)

        def whole(input_ids, target_ids):
            return session.run(log_probabilities, {
                inputs: input_ids, targets: np.asarray(target_ids)[:, :, None, None]})

        yield Decoded(forced, *session.run(results), whole)


@pytest.fixture(scope="module", params=SCHEMES, ids=name)
def decoded(request):
    with decode(request.param, beam_size=BEAM, top_beams=BEAM, alpha=ALPHA) as found:
        yield found


def features():
    return {"inputs": tf.constant(INPUTS), "target_space_id": tf.constant(1)}


def forced_steps(model, symbols):
    """Log probabilities [sentences, length, symbols] after each of these symbols went in."""
    before = tf.constant(np.pad(symbols[:, :-1], [[0, 0], [1, 0]]))
    with tf.variable_scope("transformer"):
        step, caches, sources = model.init_step(model.prepare_features(features()), 1)

        def one_step(i, caches, seen):
            logits, caches = step(before[:, i], caches, sources)
            return i + 1, caches, seen.write(i, tf.nn.log_softmax(logits))

        length = symbols.shape[1]
        invariants = tf.nest.map_structure(
            lambda cache: tf.TensorShape([size or None for size in cache.shape.as_list()]), caches)
        _, _, seen = tf.while_loop(
            lambda i, caches, seen: i < length, one_step,
            (tf.constant(0), caches, tf.TensorArray(tf.float32, length)),
            (tf.TensorShape([]), invariants, tf.TensorShape(None)))
    return tf.transpose(seen.stack(), [1, 0, 2])


def test_every_cached_step_gives_the_logits_of_the_whole_model(decoded):
    """Teacher-forced: the same symbols go in, one by one and all at once."""
    np.testing.assert_allclose(decoded.steps, decoded.whole(INPUTS, decoded.forced), atol=2e-5)


def scores(log_probabilities, ids, limits):
    """Sum over each sentence up to and with its first end mark or its limit; symbols in it; whether
    it ends."""
    total, count = np.zeros(len(ids)), np.zeros(len(ids), int)
    for row, symbols in enumerate(ids):
        for place, symbol in enumerate(symbols[:limits[row]]):
            total[row] += log_probabilities[row, place, symbol]
            count[row] += 1
            if symbol == EOS:
                break
    return total, count, (ids == EOS).any(axis=1)


@pytest.mark.parametrize("overrides", [
    dict(position="relative"), dict(position="transformer_xl", num_hidden_layers=2)], ids=name)
def test_greedy_decoding_takes_the_best_symbol_of_the_whole_model(overrides):
    with decode(overrides, beam_size=1) as decoded:
        ids = decoded.found["outputs"]
        log_probabilities = decoded.whole(INPUTS, ids)
    totals, counts, _ = scores(log_probabilities, ids, LIMITS)
    np.testing.assert_allclose(decoded.found["scores"], totals, atol=1e-4)
    for row, count in enumerate(counts):
        np.testing.assert_array_equal(ids[row, :count], log_probabilities[row, :count].argmax(1))
        assert not ids[row, count:].any()


def test_beam_scores_are_those_of_the_whole_model(decoded):
    got = decoded.found["scores"]
    ids = decoded.found["outputs"].reshape(len(INPUTS) * BEAM, -1)
    total, count, ends = scores(decoded.whole(np.repeat(INPUTS, BEAM, axis=0), ids), ids,
                                np.repeat(LIMITS, BEAM))
    # What did not end in time has its plain log probability, as in T2T.
    expected = (total / np.where(ends, (5 + count) / 6, 1) ** ALPHA).reshape(len(INPUTS), BEAM)
    filled = got > -1e6                                      # T2T marks empty places by -1e7
    assert filled[:, 0].all() and (np.diff(got) <= 0).all()
    np.testing.assert_allclose(got[filled], expected[filled], atol=1e-4)


def test_the_encoder_is_projected_once_and_not_in_every_step():
    with tf.Graph().as_default() as graph:
        model = tiny_models.make(tiny_models.hparams(num_hidden_layers=1),
                                 tf.estimator.ModeKeys.PREDICT)
        model.infer(features(), decode_length=EXTRA, beam_size=2)
        products = [op.name for op in graph.get_operations()
                    if op.type == "MatMul" and "encdec_attention" in op.name]
    inside = [op for op in products if "while/" in op]
    assert len(products) == 4 and len(inside) == 2           # in the loop: query and output alone


@pytest.mark.parametrize("position, cross, beams", [
    ("learned", "", 1), ("relative_unclipped", "", 2), ("none", "relative_unclipped", 1)])
def test_a_hypothesis_ends_where_the_positions_end(position, cross, beams):
    def search(max_length):
        with tf.Graph().as_default(), tf.Session() as session:
            values = tiny_models.hparams(position=position, cross_position=cross,
                                         max_length=max_length, num_hidden_layers=1)
            model = tiny_models.make(values, tf.estimator.ModeKeys.PREDICT)
            outputs = model.infer(features(), decode_length=30, beam_size=beams)["outputs"]
            session.run(tf.global_variables_initializer())
            tiny_models.lively(session)
            return session.run(outputs)

    assert search(8).shape[-1] <= 8
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=5 positions"):
        search(5)                                            # too short for a source


def test_a_number_of_a_hypothesis_may_have_more_digits_than_there_are_places():
    with decode(dict(decoder_position="sinusoid+abacus", abacus_length=3, abacus_symbols="2-10"),
                beam_size=1) as found:
        assert found.found["outputs"].shape[-1] > 3


@pytest.mark.parametrize("beams", [1, 2])
def test_a_continuation_ends_where_the_positions_end(beams):
    with tf.Graph().as_default(), tf.Session() as session:
        values = tiny_models.hparams(position="learned", max_length=9, num_hidden_layers=1)
        model = tiny_models.make(values, tf.estimator.ModeKeys.PREDICT)
        prompt = tf.constant(tiny_models.sentences([3, 3, 3], seed=5))
        outputs = model.infer({**features(), "partial_targets": prompt}, decode_length=30,
                              beam_size=beams)["outputs"]
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session, seed=2)                  # does not end on its own
        assert session.run(outputs).shape[-1] == 9 - 3       # without the prompt


@pytest.mark.parametrize("position, precision, beams", [
    ("learned", "float32", 1), ("relative", "bfloat16", 2), ("relative", "float16", 1)])
def test_a_language_model_is_decoded(position, precision, beams):
    """A decoder alone, whose prompt is its only input."""
    with tf.Graph().as_default(), tf.Session() as session:
        values = tiny_models.hparams(position=position, max_length=9, activation_dtype=precision,
                                     num_hidden_layers=1)
        problem = problem_hparams.test_problem_hparams(11, 11, values)
        problem.modality = {"targets": modalities.ModalityType.SYMBOL}
        problem.vocab_size = {"targets": 11}
        model = registry.model("rpr_transformer")(values, tf.estimator.ModeKeys.PREDICT, problem)
        prompt = tf.constant(tiny_models.sentences([3, 3], seed=5))
        outputs = model.infer({"targets": prompt}, decode_length=30, beam_size=beams)["outputs"]
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        found = session.run(outputs)
    assert len(found) == 2 and 1 <= found.shape[-1] <= (9 if position == "learned" else 33)


def test_the_tpu_loop_is_refused():
    with tf.Graph().as_default():
        model = tiny_models.make(tiny_models.hparams(), tf.estimator.ModeKeys.PREDICT)
        with pytest.raises(NotImplementedError, match="TPU"):
            model.infer(features(), decode_length=EXTRA, beam_size=1, use_tpu=True)
