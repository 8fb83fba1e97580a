"""Positions as data, at random and from symbols; schemes per layer, per head and to the encoder."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.conformance import checks
from rpr.models import transformer
from rpr.nn import attention
from rpr.positions import placement
from rpr.positions.layout import Layout

HEADS, DEPTH, HIDDEN = 2, 4, 8
SETTINGS = dict(num_heads=HEADS, hidden_size=HIDDEN, fire_threshold=3.0, max_length=40,
                max_relative_position=3, t5_num_buckets=8, t5_max_distance=10,
                deberta_num_buckets=4, deberta_max_distance=6)
BY_PLACE = [name for name in positions.SCHEMES
            if name not in ("forgetting", "cope", "path", "dape_v2")]     # use the order of words


@pytest.mark.parametrize("position, side", [
    (name, side) for name in BY_PLACE for side in ("inputs", "targets")
    if side in positions.SCHEMES[name].sides])
def test_positions_given_as_data_are_those_of_a_longer_sentence(position, side):
    """Some words at the positions that they have in a sentence, different ones in each example."""
    random, causal = np.random.RandomState(0), side == "targets"
    at = np.array([[1, 4, 5, 9], [0, 2, 3, 11]])
    q, k, v = random.randn(3, 2, HEADS, 12, DEPTH)
    weights = np.zeros([2, HEADS, 12, 12])
    for b, places in enumerate(at):
        weights[b][:, places[:, None], places] = random.rand(HEADS, 4, 4)
    weights = np.tril(weights) if causal else weights

    def chosen(array, axes):
        return np.stack([array[b][(slice(None), *np.ix_(*[places] * axes))]
                         for b, places in enumerate(at)])

    with tf.Graph().as_default(), tf.Session() as session:
        scheme = positions.build(tiny_models.hparams(
            position=position, **SETTINGS), side)
        got = []
        for arrays, data in (((q, k, v, weights), None), ((
                chosen(q, 1), chosen(k, 1), chosen(v, 1), chosen(weights, 2)), at)):
            with tf.variable_scope("layer", initializer=tf.random_normal_initializer(seed=3),
                                   reuse=tf.AUTO_REUSE):
                layout = Layout(arrays[0].shape[2], arrays[0].shape[2], causal=causal)
                if data is not None:
                    data = tf.constant(data)
                    layout = layout.replace(query_at=data, key_at=data, unit_steps=False)
                places = layout.query_positions()
                q_, k_, v_, weights_ = map(tf.constant, arrays)
                logits = scheme.scores(scheme.rotate(q_, places, layout, "query"),
                                       scheme.rotate(k_, places, layout, "key"), layout)
                got += [logits, scheme.weighted_values(weights_, v_, layout),
                        scheme.embed(tf.zeros([2, arrays[0].shape[2], HIDDEN]), places)]
        session.run(tf.global_variables_initializer())
        logits, z, embedded, *few = session.run(got)
    logits = chosen(np.broadcast_to(logits, weights.shape), 2)
    few[0] = np.broadcast_to(few[0], logits.shape)
    logits, few[0] = ((x - x[..., :1])[..., np.tri(4, dtype=bool) if causal else
                                       np.ones([4, 4], bool)] for x in (logits, few[0]))
    np.testing.assert_allclose(few[0], logits, atol=1e-5)
    np.testing.assert_allclose(few[1], chosen(z, 1), atol=1e-5)
    np.testing.assert_allclose(few[2], np.stack([x[places] for x, places in zip(
        embedded, at, strict=True)]), atol=1e-5)


def test_random_positions_are_ascending_subsets_drawn_uniformly():
    draws = np.random.RandomState(0).randint(0, 2 ** 32, [6000, 5], np.uint32)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(placement.ascending_subsets(tf.constant(draws), 2))
    pairs, counts = np.unique(got, axis=0, return_counts=True)
    assert [tuple(pair) for pair in pairs] == [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert (abs(counts - 600) < 5 * 600 ** 0.5).all()


@pytest.mark.parametrize("position", ["relative", "rotary", "learned"])
def test_random_positions_reach_every_scheme_and_training_alone(position):
    values = tiny_models.hparams(position=f"randomized+{position}", randomized_length=30,
                                 max_length=30, num_hidden_layers=1)
    words = tiny_models.sentences([4, 7]), tiny_models.sentences([5, 6])
    for mode, same in (("train", False), ("eval", True)):
        values.layer_prepostprocess_dropout = values.attention_dropout = values.relu_dropout = 0.0
        with tf.Graph().as_default(), tf.Session() as session:
            logits, _ = tiny_models.make(values, mode)(tiny_models.features(*words))
            tiny_models.lively(session)
            first, second = session.run(logits), session.run(logits)
        assert np.array_equal(first, second) == same


@pytest.mark.parametrize("position, message", [
    ("rotary@1", "no part is for head 1 of layer 2"),
    ("rotary@0:none", "'@0' must be a layer such as 4"),
    ("rotary@2-1:none", "'@2-1' must be"),
    ("rotary@every2-3:none", "'@every2-3' must be"),
    ("sinusoid@1:none", "sinusoid acts before the first layer"),
    ("rotary@heads1:nothing", "no scheme is called 'nothing'"),
    ("cope", "cope works only in the decoder"),
    ("rotary@1@2:none", "'rotary@1@2' names layers twice; write two parts"),
    ("rotary@3:none", r"leave out 'rotary@3', which no head has .num_heads=2, layers: 2"),
    ("rotary@heads3:none", "leave out 'rotary@heads3'"),
    ("none@every4:rotary", "leave out 'none@every4'"),
    ("rotary:alibi", "leave out 'alibi'"),
    ("none@2-40:rotary", "'none@2-40' goes beyond the last of 2 layers"),
    ("rotary@heads2-9:none", "'rotary@heads2-9' goes beyond the last of 2 heads"),
    ("rotary@1-9@heads1:none", "'rotary@1-9@heads1' goes beyond the last of 2 layers"),
])
def test_assignments_that_cannot_be_are_refused(position, message):
    with pytest.raises(ValueError, match=f"position={position.replace('+', '.')}.*{message}"):
        tiny_models.make(tiny_models.hparams(position=position))


@pytest.mark.parametrize("position", [
    "differential@heads1-2:rotary", "rotary@heads1:differential", "alibi@heads1-2:rotary"])
def test_a_scheme_of_pairs_of_heads_needs_them_in_its_own_group_only(position):
    values = tiny_models.hparams(position=position, num_heads=3, hidden_size=24,
                                 num_hidden_layers=1, alibi_directions="heads")
    ids = tiny_models.sentences([4, 3])
    with tf.Graph().as_default():
        tiny_models.make(values)(tiny_models.features(ids, ids))
    values.num_heads = 4
    values.position = position.replace("1-2", "1-3")
    with pytest.raises(ValueError, match="into (pairs|halves): 3 must be an even number"):
        transformer.checked_hparams(values)


def test_a_part_for_the_layers_of_one_side_is_not_refused():
    values = tiny_models.hparams(position="rotary@2-3:none", num_encoder_layers=3)
    transformer.checked_hparams(values)
    values = tiny_models.hparams(position="rotary@3:none", num_encoder_layers=3)
    transformer.checked_hparams(values)
    values.encoder_position = "rotary"
    with pytest.raises(ValueError, match="leave out 'rotary@3'.*layers: 2"):
        transformer.checked_hparams(values)


def layers_of(position, layers=4, side="inputs"):
    scheme = positions.build(tiny_models.hparams(
        position=position, num_heads=4, num_hidden_layers=layers), side)
    return [scheme.at(layer) for layer in range(layers)]


def test_layers_and_heads_have_the_first_part_that_names_them():
    one, two, three, four = layers_of("none@every4:rotary@1-2:alibi")
    assert one is two and one.uses("rotate") and not one.uses("bias")
    assert three.uses("bias") and not three.uses("rotate")
    assert not any(map(four.uses, ("bias", "rotate", "logits")))
    same = layers_of("t5_bias")
    assert all(layer is same[0] for layer in same)


def test_heads_with_schemes_of_their_own_are_attention_with_fewer_heads():
    n = 5
    random = np.random.RandomState(0)
    q, k = random.randn(2, 2, 4, n, DEPTH)
    with tf.Graph().as_default(), tf.Session() as session:
        values = tiny_models.hparams(position="rotary@heads1-3:alibi", num_heads=4, hidden_size=16)
        layout = Layout(n, n)
        places = layout.query_positions()

        def scores(scheme, q, k):
            return scheme.scores(scheme.rotate(q, places, layout, "query"),
                                 scheme.rotate(k, places, layout, "key"), layout)

        got = scores(positions.build(values, "inputs").at(0), *map(tf.constant, (q, k)))
        parts = []
        for name, heads in (("rotary", slice(0, 3)), ("alibi", slice(3, 4))):
            part = tiny_models.hparams(position=name, num_heads=len(range(4)[heads]),
                                       hidden_size=len(range(4)[heads]) * DEPTH)
            parts.append(scores(positions.build(part, "inputs"),
                                *(tf.constant(x[:, heads]) for x in (q, k))))
        got, *parts = session.run([got, *parts])
    np.testing.assert_allclose(got, np.concatenate(parts, axis=1), atol=1e-6)


def check_search(**overrides):
    """Searches find hypotheses with the probability that the whole model gives."""
    assert checks.compare_search(tiny_models.hparams(num_hidden_layers=1, **overrides)) == ""


@pytest.mark.parametrize("position", ["pope", "relative", "mixed_rotary"])
def test_positions_to_the_encoder_cached_and_whole(position):
    check_search(position="none", cross_position=position)


@pytest.mark.parametrize("position", [
    "sinusoid+rotary@heads1:sinusoid", "sinusoid+rotary@1:sinusoid",
    "randomized+alibi@heads1:randomized+rotary"])
def test_groups_act_before_the_first_layer(position):
    """A signal or random positions are those of a stack with the same schemes for all heads."""
    values = [tiny_models.hparams(position=name, num_heads=2, randomized_length=9)
              for name in (position, position.split("+")[0])]
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.zeros([2, 3, 32])
        layout = Layout(3, 3, x=x, training=True)
        for grouped, whole in [[positions.build(each, "targets") for each in values]]:
            for hook in ("embed", "place"):
                assert grouped.uses(hook) == whole.uses(hook)
            signals = [scheme.embed(x, layout.query_positions()) for scheme in (grouped, whole)]
            np.testing.assert_array_equal(*session.run(signals))
            if whole.uses("place"):
                assert (np.diff(session.run(grouped.place(layout))) > 0).all()


def test_a_scheme_is_told_layer_training_mask_symbols_and_segments(monkeypatch):
    seen = []

    class Recorder(positions.Scheme):
        def bias(self, layout, dtype):
            seen.append((self, layout))

    monkeypatch.setitem(positions.SCHEMES, "recorder", Recorder)
    values = tiny_models.hparams(position="recorder", num_hidden_layers=2)
    words = tiny_models.sentences([4, 4])
    packed = {f"{side}_{name}": np.array([[1, 1, 2, 2]] * 2 if name == "segmentation" else
                                         [[0, 1, 0, 1]] * 2, np.int32)
              for side in ("inputs", "targets") for name in ("segmentation", "position")}
    with tf.Graph().as_default(), tf.Session() as session:
        tiny_models.make(values, "train")(tiny_models.features(words, words, **packed))
        encoder, decoder = seen[:2], seen[2:]
        shifted = np.pad(words[:, :-1], [(0, 0), (1, 0), (0, 0), (0, 0)])
        shifted[:, 2] = 0                                    # not of the sentence before
        for stack, ids in ((encoder, words), (decoder, shifted)):
            assert len({id(scheme) for scheme, _ in stack}) == 1
            for number, (_, layout) in enumerate(stack):
                assert (layout.layer, layout.training) == (number, True)
                assert layout.x.shape.as_list() == [2, 4, 32]
                got = session.run([layout.segments, layout.query_positions(), layout.ids])
                np.testing.assert_array_equal(got[0], packed["inputs_segmentation"])
                np.testing.assert_array_equal(got[1], packed["inputs_position"])
                np.testing.assert_array_equal(got[2], ids[:, :, 0, 0])
                mask = session.run(layout.mask)
                assert mask[0, 0, 0, 2] < -1e8 and mask[0, 0, 1, 0] == 0


def test_heads_without_weights_of_their_own_keep_the_masked_softmax():
    with tf.Graph().as_default(), tf.Session() as session:
        values = tiny_models.hparams(position="sink@heads1:none")
        scheme, saved = positions.build(values, "inputs"), {}
        x, hidden_keys = tf.ones([1, 3, 8]), tf.fill([1, 1, 1, 3], -1e9)
        attention.multihead_attention(x, None, hidden_keys, 8, 8, 8, 2, scheme.at(0), Layout(3, 3),
                                      save_weights_to=saved, masked=True)
        session.run(tf.global_variables_initializer())
        weights = session.run(saved["multihead_attention/dot_product_attention"])
    np.testing.assert_array_equal(weights, np.zeros([1, 2, 3, 3]))
