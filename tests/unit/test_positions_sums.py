"""Sums of schemes that change the logits with schemes that read them."""
import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.conformance import checks
from rpr.conformance.layer import AttentionLayer
from rpr.positions import relative
from rpr.positions.layout import Layout

HEADS, HIDDEN = 2, 16
SIDES = ("inputs", "targets")
SETTINGS = {"hidden_size": HIDDEN, "num_heads": HEADS, "num_hidden_layers": 1, "filter_size": 16,
            "max_length": 9, "max_relative_position": 2}


def hparams(position, **settings):
    return tiny_models.hparams(position=position, **{**SETTINGS, **settings})


def using(*hooks):
    """The schemes that use one of these hooks on some side, by name."""
    return [name for name, scheme in positions.SCHEMES.items()
            if any(getattr(scheme, hook) is not getattr(positions.Scheme, hook) for hook in hooks)]


def possible(values, side):
    try:
        return positions.build(values, side)
    except ValueError:
        return None


READERS = using("normalize", "adjust")
SUMS = [(f"{reader}+{name}", side) for reader in READERS for side in SIDES
        for name in {**dict.fromkeys(using("logits")), "sandwich": None, "bipe": None}
        if possible(hparams(f"{reader}+{name}"), side)]


@pytest.mark.parametrize("position, side", SUMS)
def test_sums_are_the_same_in_all_ways_to_compute_them(position, side, monkeypatch):
    subject = checks.Subject(hparams(position), side)
    assert not (checks.cached if side == "targets" else checks.padding)(subject)
    if "relative" in position or "graph" in position:
        monkeypatch.setattr(relative, "MAX_BAND_CLIP", -1)
        x, other = subject.words(2, 7), AttentionLayer(subject.hparams, side)
        other.set_weights(subject.layer.weights())
        np.testing.assert_allclose(subject.layer(x), other(x), atol=1e-9)


def output(position, weights, x, side="targets", **settings):
    layer = AttentionLayer(hparams(position, **settings), side)
    layer.set_weights([weights[name] for name in layer.variables])
    return layer(x)


def random_weights(position, side="targets", **settings):
    layer, random = AttentionLayer(hparams(position, **settings), side), np.random.RandomState(1)
    return {name: value + 0.3 * random.randn(*value.shape)
            for name, value in zip(layer.variables, layer.weights(), strict=True)}


@pytest.mark.parametrize("names", [
    (one, other) for one in ("cope", "differential") for other in using("logits", "values")
    if one != other and possible(hparams(f"{one}+{other}"), "targets")])
def test_the_order_of_a_sum_does_not_matter(names):
    weights, x = random_weights("+".join(names)), np.random.RandomState(2).randn(2, 7, HIDDEN)
    np.testing.assert_allclose(output("+".join(names), weights, x),
                               output("+".join(reversed(names)), weights, x), atol=1e-9)


def test_the_output_is_normalised_with_all_its_terms():
    """Also that of edges, which `graph` adds to what `relative` computes."""
    random, parts = np.random.RandomState(0), ("differential", "graph", "relative")
    q, k, v = (random.randn(1, HEADS, 5, 8) for _ in "qkv")
    edges, outputs = random.randint(0, 2, [1, 5, 5]), []
    for order in itertools.permutations(parts):
        values = hparams("+".join(order), num_edge_labels=2)
        with tf.Graph().as_default(), tf.Session() as session:
            layout = Layout(5, 5, edges=tf.constant(edges))
            scheme = positions.build(values, "inputs").at(0)
            with tf.variable_scope("layer"):
                weights = scheme.normalize(scheme.scores(
                    *(tf.constant(each) for each in (q, k)), layout), layout)
                z = scheme.weighted_values(weights, tf.constant(v), layout)
            variables = sorted(tf.trainable_variables(), key=lambda variable: variable.name)
            state = np.random.RandomState(3)
            session.run([variable.initializer for variable in variables], {
                variable.initializer.inputs[1]: state.randn(*variable.shape.as_list())
                for variable in variables})
            outputs.append(session.run(z))
    for other in outputs[1:]:
        np.testing.assert_allclose(other, outputs[0], atol=1e-9)


def test_sandwich_is_the_formula_for_a_scheme_that_reads_the_logits():
    for position, own in (("sandwich", 0), ("sandwich+rotary", 0), ("sandwich+differential", 0),
                          ("sandwich+sink", 64), ("dape+sandwich", 64)):
        scheme = positions.build(hparams(position, sandwich_channels=128), "inputs")
        with tf.Graph().as_default(), tf.Session() as session:
            bias = session.run(scheme.at(0).bias(Layout(3, 3), tf.float64))
        np.testing.assert_allclose(bias[0, :, 1, 1], np.array([own / 4, own / 8]), atol=1e-4)


@pytest.mark.parametrize("name", using("adjust"))
def test_a_network_over_logits_that_a_bias_masks_is_refused(name):
    values = hparams(f"{name}+alibi", alibi_directions="heads")
    with pytest.raises(ValueError, match=rf"{name}\+alibi: alibi masks pairs .*, and {name} would"):
        positions.build(values, "inputs")
    positions.build(values, "targets")                       # has one direction
