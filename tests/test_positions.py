import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.layers import common_attention

from rpr import positions, relations, t2t
from rpr.errors import UserError
from rpr.positions import absolute

SIDES = ("inputs", "targets")


@pytest.mark.parametrize("channels", [2, 3, 7, 8])
def test_sinusoid_is_the_formula_and_t2ts_signal(channels):
    places = [[0, 1, 2, 3, 4, 250]]
    with tf.Graph().as_default(), tf.Session() as session:
        got, t2t = session.run([absolute.sinusoid(tf.constant(places), channels),
                                common_attention.get_timing_signal_1d(5, channels)])
    expected = np.array([[reference.sinusoid(place, channels) for place in places[0]]])
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(got[:, :5], t2t, atol=2e-6)


def test_learned_takes_the_row_of_each_position():
    table = np.arange(10.0).reshape(5, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(absolute.learned(tf.constant([[0, 4], [2, 2]]), tf.constant(table)))
    np.testing.assert_array_equal(got, table[[[0, 4], [2, 2]]])


def test_learned_says_so_when_a_sequence_is_too_long():
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.zeros([5, 2])
        length = tf.placeholder(tf.int32, [])
        rows = absolute.learned(tf.range(length), table)
        assert session.run(rows, {length: 5}).shape == (5, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="max_length=5 positions"):
            session.run(rows, {length: 6})


def test_a_command_that_meets_a_longer_sequence_ends_in_that_line(monkeypatch):
    def verb(argv, logs):
        with tf.Graph().as_default(), tf.Session() as session:
            length = tf.placeholder(tf.int32, [])
            session.run(absolute.learned(tf.range(length), tf.zeros([5, 2])), {length: 6})

    monkeypatch.setitem(t2t._VERBS, "decode", verb)
    monkeypatch.setattr(t2t.compat, "install", lambda: None)
    with pytest.raises(UserError) as error:
        t2t.launch("decode", ["--verbose"])
    assert str(error.value) == (
        "position=learned has rows for max_length=5 positions, and this sequence is longer: raise "
        "max_length before training, or take position=sinusoid or relative")


@pytest.mark.parametrize("overrides, message", [
    ({"position": "sinusiod"}, r"position=sinusiod: no scheme is called 'sinusiod'; allowed are "
                               r"none, sinusoid, scaled_sinusoid, learned, relative"),
    ({"position": ""}, r"position=: no scheme is called ''"),
    ({"position": "relative+"}, r"position=relative\+: no scheme is called ''"),
    ({"position": "relative+relative"}, r"position=relative\+relative names a scheme twice"),
    ({"position": "none+relative"}, r"position=none\+relative: none stands alone"),
    ({"encoder_position": "a", "decoder_position": "a"}, r"coder_position=a: no scheme is called"),
    ({"max_relative_position": -1}, r"max_relative_position=-1: .* 0 or more"),
    ({"position": "learned", "max_length": 0}, r"max_length=0: position=learned needs"),
])
def test_what_cannot_be_built_is_said(overrides, message):
    values = tiny_models.hparams(**overrides)
    for side in SIDES:
        with pytest.raises(ValueError, match=message):
            positions.build(values, side)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tiny_models.make(values)


def test_the_sides_differ_where_they_are_told_to():
    values = tiny_models.hparams(position="learned", decoder_position="none", max_length=9)
    with tf.Graph().as_default():
        x = tf.zeros([2, 3, 8])
        embedded = [positions.build(values, side).embed(x, tf.range(3)) for side in SIDES]
        assert embedded[1] is x and embedded[0] is not x
        assert [v.op.name for v in tf.global_variables()] == ["inputs_positional_embedding"]


def test_what_layers_share_is_made_once_a_relation():
    scheme = positions.Scheme(None, "inputs")
    first, second = relations.Distances(3, 3), relations.Distances(3, 3)
    made = iter("abc")
    got = [scheme.once(relation, lambda: next(made)) for relation in (first, first, second, second)]
    assert got == list("aabb")


def test_every_scheme_has_a_line_of_description():
    assert set(positions.SCHEMES) >= {"none", "sinusoid", "learned", "relative"}
    for scheme in positions.SCHEMES.values():
        first, *rest = scheme.__doc__.splitlines()
        assert 20 < len(first) < 100 and (not rest or not rest[0])


def terms(q, weights, **overrides):
    """Scores and outputs over one layer's tensors, and the variables made for them; keys and values
    are zero, so that nothing is left but what the scheme adds."""
    scheme = positions.build(tiny_models.hparams(**overrides), "inputs")
    with tf.variable_scope("layer", initializer=tf.random_normal_initializer()):
        relation = relations.Distances(5, 5)
        k, v = 0 * q, 0 * q
        score, value = scheme.scores(q, k, relation), scheme.outputs(weights, v, relation)
    return score, value, {v.op.name: v for v in tf.global_variables()}


PREFIX = "layer/dot_product_attention_relative/relative_positions_"


@pytest.mark.parametrize("position", ["relative", "relative+sinusoid", "learned+relative"])
@pytest.mark.parametrize("shared, shape", [(True, [9, 16]), (False, [2, 9, 16])])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("values", [True, False])
def test_tables_exist_as_far_as_they_are_asked_for(position, shared, shape, keys, values):
    with tf.Graph().as_default():
        score, value, variables = terms(
            tf.zeros([3, 2, 5, 16]), tf.zeros([3, 2, 5, 5]), position=position, relative_keys=keys,
            relative_values=values, heads_share_relative_embedding=shared)
    expected = {f"{PREFIX}{which}/embeddings": shape
                for which, exists in (("keys", keys), ("values", values)) if exists}
    assert {name: v.shape.as_list() for name, v in variables.items()} == expected
    assert score.shape.as_list() == [3, 2, 5, 5]
    assert value.shape.as_list() == [3, 2, 5, 16]


def test_k_0_is_one_row_and_says_nothing_of_the_distance():
    with tf.Graph().as_default(), tf.Session() as session:
        score, _, variables = terms(tf.ones([1, 2, 5, 16]), tf.ones([1, 2, 5, 5]),
                                    max_relative_position=0)
        assert {v.shape.as_list()[1] for v in variables.values()} == {1}
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(np.ptp(session.run(score), axis=3), 0, atol=1e-6)


def test_each_head_starts_as_a_shared_table_does():
    spread = []
    for shared in (True, False):
        with tf.Graph().as_default(), tf.Session() as session:
            scheme = positions.build(tiny_models.hparams(
                num_heads=8, hidden_size=1024, max_relative_position=64,
                heads_share_relative_embedding=shared), "inputs")
            with tf.variable_scope("layer", initializer=tf.variance_scaling_initializer(
                    1.0, mode="fan_avg", distribution="uniform")):
                x = tf.zeros([1, 8, 5, 128])
                scheme.scores(x, x, relations.Distances(5, 5))
            session.run(tf.global_variables_initializer())
            table = session.run(tf.global_variables()[0])
            spread.append(table.std())
    assert spread[0] == pytest.approx(spread[1], rel=0.03)
    assert np.abs(table[0] - table[1]).max() > spread[1]               # and no two are the same


def test_a_sum_adds_signals_and_terms_to_the_products():
    class One(positions.Scheme):
        def embed(self, x, positions):
            return x + 1

        def rotate(self, q, k, relation):
            return q * 2, k * 3

        def score_term(self, q, k, relation):
            return tf.reduce_sum(q) + 10 * tf.reduce_sum(k)

    class Whole(positions.Scheme):
        def scores(self, q, k, relation):
            return q + k

        def outputs(self, weights, v, relation):
            return weights - v

    one, nothing, whole = (scheme(None, "inputs") for scheme in (One, positions.Scheme, Whole))
    several = positions.scheme.Sum([one, nothing, one])
    assert several.embed(0, None) == 2
    assert several.rotate(1, 1, None) == (4, 9)
    with tf.Graph().as_default(), tf.Session() as session:
        q, k = tf.constant([[[[2.0, 3.0]]]]), tf.constant([[[[5.0, 7.0]]]])

        def value(x):
            return session.run(x).ravel().tolist()

        assert value(several.scores(q, k, None)) == [31 + 2 * (5 + 120)]
        assert value(several.outputs(q, tf.transpose(k, [0, 1, 3, 2]), None)) == [31]
        both = positions.scheme.Sum([one, whole])
        assert value(both.scores(q, k, None)) == [7 + 125, 10 + 125]
        assert value(both.outputs(q, k, None)) == [-3, -4]
        with pytest.raises(ValueError, match="two schemes of one sum"):
            positions.scheme.Sum([whole, whole]).scores(q, k, None)
