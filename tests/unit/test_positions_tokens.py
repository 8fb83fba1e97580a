"""Positions from the symbols of a sentence, against loops, cached and whole."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.conformance import checks
from rpr.nn import dropout
from rpr.positions import absolute
from rpr.positions.layout import Layout
from rpr.utils.errors import UserError

SETTINGS = dict(hidden_size=8, abacus_symbols="5-7;9", coupling_symbols="5-7;9",
                bipe_separators="3;4")
DIGITS, SEPARATORS = (5, 6, 7, 9), (3, 4)
IDS = np.random.RandomState(0).choice([2, 3, 4, 5, 6, 7, 8, 9], [20, 12])


def of_digits(words):
    places = []
    for word in words:
        places.append((places or [0])[-1] + 1 if word in DIGITS else 0)
    return places


def of_segments(words):
    within, segments = [0], [0]
    for word in words[:-1]:
        ends = word in SEPARATORS
        within.append(0 if ends else within[-1] + 1)
        segments.append(segments[-1] + ends)
    return segments, within


def build(position, side="targets", **more):
    return positions.build(tiny_models.hparams(position=position, **SETTINGS, **more), side)


def placed(position, ids, **layout):
    """The positions that other schemes read, and what is added to the words."""
    n = ids.shape[1]
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = build(position, "targets" if layout.get("causal") else "inputs")
        layout = Layout(n, n, ids=tf.constant(ids, tf.int32), **layout)
        if layout.segments is not None:
            layout = layout.replace(segments=tf.constant(layout.segments))
        at = scheme.place(layout)
        at = layout.query_positions() if at is None else at
        added = scheme.embed(tf.zeros([*ids.shape, 8]), at)
        session.run(tf.global_variables_initializer())
        return session.run([at, added, tf.trainable_variables()])


def test_abacus_counts_the_digits_of_each_number():
    at, added, (table,) = placed("abacus", IDS)
    np.testing.assert_array_equal(at, [range(12)])
    np.testing.assert_array_equal(added, table[[of_digits(words) for words in IDS]])


def test_coupling_gives_digits_of_the_same_significance_one_position():
    # 5 6 7 + 5 9 with the lowest digit last, as in 567 + 59
    ids = np.array([[5, 6, 7, 2, 5, 9, 1]])
    assert placed("coupling", ids)[0].tolist() == [[3, 2, 1, 0, 2, 1, 0]]
    assert placed("coupling", ids, causal=True)[0].tolist() == [[1, 2, 3, 0, 1, 2, 0]]
    at, _, _ = placed("coupling", IDS)
    np.testing.assert_array_equal(at, [of_digits(words[::-1])[::-1] for words in IDS])


def test_bipe_gives_places_in_segments_and_segments():
    at, added, _ = placed("bipe", IDS)
    segments, within = zip(*map(of_segments, IDS), strict=True)
    np.testing.assert_array_equal(at, segments)
    with tf.Session() as session:
        np.testing.assert_allclose(added, session.run(absolute.sinusoid(
            tf.constant(within), 8)), atol=1e-6)
    packed = np.concatenate([IDS, IDS[::-1]], axis=1)        # as two sentences of a row
    at, _, _ = placed("bipe", packed, segments=[[1] * 12 + [2] * 12] * 20)
    np.testing.assert_array_equal(at, np.concatenate([segments, segments[::-1]], axis=1))


@pytest.mark.parametrize("position", ["abacus", "coupling", "bipe"])
def test_step_by_step_the_positions_are_those_of_the_sentence(position):
    whole_at, whole, variables = placed(position, IDS, causal=True)
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = build(position)
        cache = {name: tf.zeros([20, *shape]) for name, shape in scheme.states().items()}
        steps = []
        with tf.variable_scope("", reuse=tf.AUTO_REUSE):
            for t in range(12):
                layout = Layout(1, t + 1, t, causal=True, cache=cache,
                                ids=tf.constant(IDS[:, t:t + 1], tf.int32))
                at = scheme.place(layout)
                at = layout.query_positions() if at is None else at
                steps.append((at, scheme.embed(tf.zeros([20, 1, 8]), at)))
        table = tf.trainable_variables()
        session.run([v.initializer for v in table], {
            v.initializer.inputs[1]: value for v, value in zip(table, variables, strict=True)})
        at, added = (np.concatenate(each, axis=1) for each in zip(*session.run(steps), strict=True))
    np.testing.assert_array_equal(at, whole_at)
    np.testing.assert_allclose(added, whole, atol=1e-6)


def test_positions_from_symbols_in_a_search():
    assert checks.compare_search(tiny_models.hparams(
        encoder_position="bipe+alibi", decoder_position="coupling+learned", num_hidden_layers=1,
        num_heads=2, bipe_separators="3;4", coupling_symbols="2-6")) == ""


def test_the_attention_to_the_encoder_reads_ordinary_places():
    ids, found = IDS[:2, :, None, None].astype(np.int32), []
    for position in ("none", "coupling"):                    # which no scheme of the decoder reads
        with tf.Graph().as_default(), tf.Session() as session:
            logits, _ = tiny_models.make(tiny_models.hparams(
                position="none", decoder_position=position, cross_position="rotary",
                coupling_symbols="5-7;9", num_hidden_layers=1))(tiny_models.features(ids, ids))
            tiny_models.lively(session)
            found.append(session.run(logits))
    np.testing.assert_array_equal(*found)


def test_a_random_number_is_added_to_the_places_of_digits_in_training():
    shifts = set()
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = build("abacus", abacus_shift=5, abacus_length=30)
        scheme.place(Layout(12, 12, ids=tf.constant(IDS, tf.int32), training=True))
        added = scheme.embed(tf.zeros([20, 12, 8]), tf.range(12)[None])
        session.run(tf.global_variables_initializer())
        table, = session.run(tf.trainable_variables())
        for _ in range(20):
            got = session.run(added)
            shift = next(k for k in range(6) if np.array_equal(got, table[
                [[place and place + k for place in of_digits(words)] for words in IDS]]))
            shifts.add(shift)
    assert len(shifts) > 2


def test_encoder_and_decoder_add_the_same_random_number():
    """As McLeish et al. 2024, who add one number to the digits of question and answer."""
    ids, shifts = np.array([[5, 2, 5, 6]]), []
    with tf.Graph().as_default(), tf.Session() as session:
        batch, added = tf.placeholder(tf.int64, []), []
        with dropout.reproducible_masks(7, batch):
            for side in ("inputs", "targets"):
                scheme = build("abacus", side, abacus_shift=20, abacus_length=30)
                scheme.place(Layout(4, 4, ids=tf.constant(ids, tf.int32), training=True))
                added.append(scheme.embed(tf.zeros([1, 4, 8]), tf.range(4)[None]))
        session.run(tf.global_variables_initializer())
        tables = session.run(tf.trainable_variables())
        for number in range(10):
            got = session.run(added, {batch: number})
            shifts.append([next(k for k in range(21) if np.array_equal(
                words[0], table[[1 + k, 0, 1 + k, 2 + k]]))
                for words, table in zip(got, tables, strict=True)])
    assert all(encoder == decoder for encoder, decoder in shifts)
    assert len({encoder for encoder, _ in shifts}) > 2


@pytest.mark.parametrize("position, settings, message", [
    ("abacus", dict(abacus_symbols="2-x"), "abacus_symbols=2-x: must be symbols and ranges"),
    ("bipe", dict(bipe_separators="7-2"), "bipe_separators=7-2: must be symbols and ranges"),
    ("abacus", dict(abacus_shift=127), "abacus_shift=127: leaves no place"),
    ("abacus+bipe", {}, "abacus and bipe each give the positions"),
])
def test_settings_that_cannot_be_are_refused(position, settings, message):
    with pytest.raises(ValueError, match=message):
        positions.build(tiny_models.hparams(position=position, **settings), "inputs")


def test_an_input_without_symbols_is_refused():
    with pytest.raises(UserError, match="position=bipe reads the symbols of a sentence"):
        build("bipe").place(Layout(3, 3))


@pytest.mark.parametrize("position, more, says", [
    ("randomized+sinusoid", {"randomized_length": 4},
     "position=randomized: randomized_length=4 is too small for a sentence of this batch; raise"),
    ("abacus", {"abacus_length": 4},
     "position=abacus: abacus_length=4 is too small for the digits of a number; raise it"),
    ("abacus", {"abacus_length": 4, "abacus_shift": 2},
     "abacus_length=4 is too small for the digits of a number and abacus_shift; raise it")])
def test_a_setting_that_is_too_small_for_a_batch_is_named(position, more, says):
    ids = np.full([1, 6], 5)                                 # one number
    with tf.Graph().as_default(), tf.Session() as session:
        length = tf.placeholder(tf.int32, [])
        x = tf.ones([1, length, 8])
        layout = Layout(length, length, x=x, ids=tf.constant(ids)[:, :length], training=True)
        scheme = build(position, "inputs", **more)
        at = scheme.place(layout)
        x = scheme.embed(x, layout.query_positions() if at is None else at)
        session.run(tf.global_variables_initializer())
        assert session.run(x, {length: 1}).shape == (1, 1, 8)
        with pytest.raises(tf.errors.InvalidArgumentError, match=says):
            session.run(x, {length: 6})
