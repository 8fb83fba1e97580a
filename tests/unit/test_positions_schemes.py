"""Each scheme's logits against its paper's equation, written as loops over float64 numbers."""
import functools
import math
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st

from rpr import positions
from rpr.nn.attention import additive_logits
from rpr.positions import bias, layout, relative
from rpr.positions.layout import Layout

HEADS, DEPTH, HIDDEN = 2, 4, 8
BUCKETS = dict(t5_num_buckets=8, t5_max_distance=10, deberta_num_buckets=4, deberta_max_distance=6)
# (queries, keys, offset, causal): whole sentences, a cached step, some queries among more keys.
SHAPES = [(6, 6, 0, False), (6, 6, 0, True), (1, 6, 5, True), (1, 6, 2, False), (3, 9, 4, False),
          (3, 9, 4, True), (1, 1, 0, True), (2, 2, 0, False)]


def t5_bucket(distance, buckets, most, causal):
    """Raffel et al. 2020: half single distances, half in equal ratios up to `most`."""
    side = buckets if causal else buckets // 2
    first = side if not causal and distance > 0 else 0
    away = max(-distance, 0) if causal else abs(distance)
    exact = side // 2
    if away < exact:
        return first + away
    wide = math.log(away / exact) / math.log(most / exact) * (side - exact)
    return first + min(side - 1, exact + int(wide + 1e-9))


def deberta_delta(distance, span, most):
    """The bucket of query less key, from 0 on, as DeBERTa's code defines its log buckets."""
    half, away = span // 2, abs(distance)
    if away > half:
        ratio = math.log(away / half) / math.log((most - 1) / half)
        away = math.ceil(ratio * (half - 1) - 1e-9) + half
    return max(0, min(2 * span - 1, int(math.copysign(away, distance)) + span))


def turned(x, place, base=10000.0):
    """Su et al. 2021, equation (34), the halves paired."""
    half, y = DEPTH // 2, np.array(x)
    for pair in range(half):
        angle = place * base ** (-2 * pair / DEPTH)
        turn = complex(x[pair], x[pair + half]) * complex(math.cos(angle), math.sin(angle))
        y[pair], y[pair + half] = turn.real, turn.imag
    return y


def head(kernel, h):
    return kernel[:, h * DEPTH:(h + 1) * DEPTH]


def logit(scheme, variables, q, k, h, i, j, causal):
    """One logit of head h, query at position i, key at position j; q is scaled by the caller."""
    get = {name.split("/", 1)[-1]: value for name, value in variables.items()}
    scale = DEPTH ** -0.5
    if scheme == "relative_unclipped":
        table = get["relative_unclipped/embeddings"][h]
        zero = 9 - 1                                         # max_length - 1
        return q @ k + q @ table[zero + j - i]
    if scheme == "transformer_xl":
        row = reference.sinusoid(i - j, HIDDEN) @ head(get["transformer_xl/r/kernel"], h)
        u, v = get["transformer_xl/u"][h], get["transformer_xl/v"][h]
        return q @ k + q @ row + scale * (u @ k + v @ row)
    if scheme == "t5_bias":
        return q @ k + get["t5_bias/embeddings"][t5_bucket(j - i, 8, 10, causal), h]
    if scheme == "alibi":
        return q @ k - [2 ** -4, 2 ** -8][h] * abs(i - j)
    if scheme == "rotary":
        return turned(q, i) @ turned(k, j)
    if scheme == "deberta":
        table = get["deberta/embeddings"]
        key = table[deberta_delta(i - j, 4, 6)] @ head(get["deberta/k/kernel"], h)
        query = table[deberta_delta(j - i, 4, 6)] @ head(get["deberta/q/kernel"], h)
        return (q @ k + q @ key + scale * (k @ query)) / math.sqrt(3)
    raise AssertionError(scheme)


SCHEMES = ["relative_unclipped", "transformer_xl", "t5_bias", "alibi", "rotary", "deberta"]


def visible(shape):
    n, m, offset, causal = shape
    return np.array([[not causal or j <= i + offset for j in range(m)] for i in range(n)])


@functools.cache
def graph(scheme, causal, side, one):
    """Logits and gradients with dynamic lengths; a single query is static."""
    with tf.Graph().as_default():
        values = tiny_models.hparams(position=scheme, num_heads=HEADS, hidden_size=HIDDEN,
                                     max_length=9, **BUCKETS)
        q, k = (tf.placeholder(tf.float64, [None, HEADS, n, DEPTH]) for n in (one or None, None))
        offset, dy = tf.placeholder(tf.int32, []), tf.placeholder(tf.float64, [None] * 4)
        layout = Layout(one or tf.shape(q)[2], tf.shape(k)[2], offset, causal)
        with tf.variable_scope("layer", initializer=tf.random_normal_initializer()):
            built = positions.build(values, side)
            at = layout.query_positions()
            turned_q = built.rotate(q, at, layout, "query")
            new = built.rotate(k[:, :, offset:offset + layout.queries], at, layout, "key")
            keys = k
            if scheme == "rotary":                           # others stand in the cache already
                every = Layout(layout.keys, layout.keys)
                keys = built.rotate(k, every.query_positions(), every, "key")
                with tf.control_dependencies([tf.debugging.assert_near(
                        new, keys[:, :, offset:offset + layout.queries], 1e-5, 1e-5)]):
                    keys = tf.identity(keys)
            y = built.scores(turned_q, keys, layout)
        variables = tf.trainable_variables()
        gradients = list(map(tf.convert_to_tensor, tf.gradients(y, [q, k, *variables], dy)))
        session = tf.Session()
        for number, variable in enumerate(variables):
            shape = variable.shape.as_list()
            variable.load(np.random.RandomState(number).randn(*shape), session)
    return session, (q, k, offset, dy), y, gradients, variables


def naive(scheme, side, q, k, variables, shape):
    n, m, offset, causal = shape
    y = np.zeros([len(q), HEADS, n, m])
    if scheme == "relative_unclipped" and side == "targets":  # no row is for keys to the right
        variables = {name: np.concatenate([x, np.zeros_like(x)], axis=1)
                     for name, x in variables.items()}
    for b, h, i, j in np.ndindex(*y.shape):
        if visible(shape)[i, j]:
            y[b, h, i, j] = logit(scheme, variables, q[b, h, i], k[b, h, j], h, i + offset, j,
                                  causal)
    return y


def naive_gradients(dy, scheme, side, q, k, variables, shape):
    """Derivatives of sum(dy * logits), entry by entry. The logits are linear in each, so that
    differences are exact; those of the same place in each sentence and head do not meet."""
    at = naive(scheme, side, q, k, variables, shape)
    dq, dk = np.zeros_like(q), np.zeros_like(k)
    for x, dx in ((q, dq), (k, dk)):
        for place in np.ndindex(*x.shape[2:]):
            moved = x.copy()
            moved[:, :, *place] += 1
            both = (moved, k) if x is q else (q, moved)
            y = naive(scheme, side, *both, variables, shape)
            dx[:, :, *place] = ((y - at) * dy).sum(axis=(2, 3))
    gradients = {name: np.zeros_like(x) for name, x in variables.items()}
    for name, x in variables.items():
        for place in np.ndindex(*x.shape):
            moved = x.copy()
            moved[place] += 1
            y = naive(scheme, side, q, k, {**variables, name: moved}, shape)
            gradients[name][place] = ((y - at) * dy).sum()
    return dq, dk, gradients


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_are_those_of_the_equation(scheme, shape):
    n, m, offset, causal = shape
    side = "targets" if causal else "inputs"
    session, (q, k, offset_, dy), y, gradients, variables = graph(
        scheme, causal, side, 1 if n == 1 else 0)
    random = np.random.RandomState(m)
    q_, k_ = random.randn(2, HEADS, n, DEPTH), random.randn(2, HEADS, m, DEPTH)
    dy_ = random.randn(2, HEADS, n, m) * visible(shape)
    got, dq, dk, *rest, learned = session.run(
        [y, *gradients, {v.op.name: v for v in variables}],
        {q: q_, k: k_, offset_: offset, dy: dy_})
    expected = naive(scheme, side, q_, k_, learned, shape)
    got = np.broadcast_to(got, expected.shape)
    np.testing.assert_allclose(np.where(visible(shape), got, 0), expected, atol=1e-5)
    expected_q, expected_k, expected = naive_gradients(
        dy_, scheme, side, q_, k_, learned, shape)
    np.testing.assert_allclose(dq, expected_q, atol=1e-5)
    np.testing.assert_allclose(dk, expected_k, atol=1e-5)
    for variable, gradient in zip(variables, rest, strict=True):
        np.testing.assert_allclose(gradient, expected[variable.op.name], atol=3e-5)


def test_t5_buckets_are_those_of_t5():
    """32 buckets up to 128, as T5's models have them."""
    away = np.arange(200)
    starts = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    expected = np.searchsorted(starts, away, side="right") - 1
    with tf.Graph().as_default(), tf.Session() as session:
        left, right, causal = session.run([
            layout.t5_buckets(tf.constant(-away, tf.int32), 32, 128, False),
            layout.t5_buckets(tf.constant(away, tf.int32), 32, 128, False),
            layout.t5_buckets(tf.constant(-away, tf.int32), 32, 128, True)])
    np.testing.assert_array_equal(left, expected)
    np.testing.assert_array_equal(right[1:], 16 + expected[1:])
    assert causal[:16].tolist() == list(range(16)) and causal[[16, 127, 199]].tolist() == [
        16, 31, 31]


@pytest.mark.parametrize("exact, most", [(32, 128), (8, 20), (256, 512)])
def test_log_buckets_are_those_of_deberta(exact, most):
    distances = np.arange(-2 * most, 2 * most, dtype=np.int32)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(layout.log_buckets(tf.constant(distances), exact, most))
    assert got.tolist() == [deberta_delta(int(d), exact, most) - exact for d in distances]


def test_alibi_slopes_are_those_of_the_paper():
    assert bias.alibi_slopes(8) == [2.0 ** -i for i in range(1, 9)]
    assert bias.alibi_slopes(16)[:3] == [2 ** -0.5, 2 ** -1, 2 ** -1.5]
    assert bias.alibi_slopes(12) == bias.alibi_slopes(8) + bias.alibi_slopes(16)[:8:2]


def assert_equal_up_to_a_constant_per_query(scores, expected, seen):
    difference = np.where(seen, scores - expected, np.nan)
    np.testing.assert_allclose(
        np.nanmax(difference, axis=-1), np.nanmin(difference, axis=-1), atol=1e-10)


@settings(max_examples=30)
@given(n=st.integers(1, 6), more=st.integers(0, 5), left=st.integers(0, 7), right=st.integers(0, 7),
       causal=st.booleans(), shared=st.booleans(), max_band_clip=st.sampled_from([99, -1]),
       seed=st.integers(0, 99))
def test_a_clipping_distance_for_each_side(n, more, left, right, causal, shared, max_band_clip,
                                           seed):
    random = np.random.RandomState(seed)
    rows, m = left + right + 1, n + more
    keys, values = (random.randn(*([] if shared else [2]), rows, 3) for _ in range(2))
    q, k, weights, v = (random.randn(2, 2, *shape) for shape in ((n, 3), (m, 3), (n, m), (m, 3)))
    layout = Layout(n, m, more, causal)
    if causal:
        weights *= visible((n, m, more, causal))
    with (mock.patch.object(relative, "MAX_BAND_CLIP", max_band_clip), tf.Graph().as_default(),
          tf.Session() as session):
        got, z = session.run([
            relative.add_scores(tf.constant(q @ k.swapaxes(2, 3)), *map(tf.constant, (q, keys)),
                                layout, left),
            relative.weighted_values(*map(tf.constant, (weights, v, values)), layout, left)])
    label = np.clip(np.arange(m) - np.arange(n)[:, None] - more, -left, right) + left

    def of_pairs(table):                                     # [heads, n, m, depth]
        return np.broadcast_to(table if not shared else table[None], (2, rows, 3))[:, label]

    expected = np.einsum("bhid,bhijd->bhij", q, k[:, :, None] + of_pairs(keys))
    seen = visible((n, m, more, causal))
    assert_equal_up_to_a_constant_per_query(got, expected, seen)
    np.testing.assert_allclose(
        z, np.einsum("bhij,bhijd->bhid", weights, v[:, :, None] + of_pairs(values)), atol=1e-10)


@pytest.mark.parametrize("edges", [None, (4, 5, 3), (2, 4, 5, 3), (2, 1, 4, 5, 3)])
def test_additive_compatibility_is_its_formula(edges):
    random = np.random.RandomState(0)
    arrays = [random.randn(2, 2, 4, 3), random.randn(2, 2, 5, 3), random.randn(2, 3)]
    arrays += [random.randn(*edges)] if edges else []
    dy = random.randn(2, 2, 4, 5)

    def naive(q, k, vector, a=0.0):
        return (np.tanh(q[:, :, :, None] + k[:, :, None] + a) * vector[:, None, None]).sum(-1)

    with tf.Graph().as_default(), tf.Session() as session:
        at = [tf.placeholder(tf.float64, [None, *x.shape[1:]]) for x in arrays[:2]]
        at += [tf.constant(x) for x in arrays[2:]]
        y = additive_logits(*at)
        got, gradients = session.run([y, tf.gradients(y, at, dy)],
                                     dict(zip(at[:2], arrays[:2], strict=True)))
    np.testing.assert_allclose(got, naive(*arrays), atol=1e-12)
    for number, gradient in enumerate(gradients):
        expected = np.zeros_like(arrays[number])
        for place in np.ndindex(*expected.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in arrays]
                moved[number][place] += step
                ends.append((naive(*moved) * dy).sum())
            expected[place] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_a_direction_without_its_own_clipping_distance_has_that_of_both():
    hparams = tiny_models.hparams(max_relative_position=7, max_relative_position_left=3)
    assert [relative.clip_of(hparams, each) for each in ("left", "right")] == [3, 7]
    hparams.del_hparam("max_relative_position_left")          # as in T2T's own sets
    assert relative.clip_of(hparams, "left") == 7


@pytest.mark.parametrize("overrides, message", [
    ({"position": "rotary+relative"}, "rotary rotates queries .* and relative would use the rot"),
    ({"position": "pope+rotary"}, "pope and rotary each rotate queries and keys: choose one"),
    ({"position": "relative_unclipped+rotary"}, "relative_unclipped would use the rotated"),
    ({"position": "rotary", "rotary_fraction": 0.0}, "rotary_fraction=0.0: .* above 0"),
    ({"position": "rotary", "rotary_scaling_factor": 4.0}, "rotary_scaling_factor=4.0: .*none has"),
    ({"position": "t5_bias", "t5_num_buckets": 7}, "t5_num_buckets=7: must be an even number"),
    ({"position": "t5_bias", "t5_max_distance": 9}, "t5_max_distance=9: "),
    ({"position": "deberta", "deberta_num_buckets": 3}, "deberta_num_buckets=3: "),
    ({"position": "deberta", "deberta_max_distance": 9}, "deberta_max_distance=9: "),
    ({"position": "rotary", "compatibility": "additive"}, "rotary is defined by a product"),
    ({"position": "deberta+transformer_xl"}, "deberta and transformer_xl each replace the product"),
    ({"cross_position": "cope"}, "cross_position=cope: cope works only in the decoder"),
])
def test_invalid_combinations_are_refused(overrides, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tiny_models.make(tiny_models.hparams(**overrides))


def test_a_scheme_whose_term_additive_compatibility_would_drop_is_refused(monkeypatch):
    class Product(positions.Scheme):
        def logits(self, q, k, layout, product):
            return product(q, k) + 1

    monkeypatch.setitem(positions.SCHEMES, "product", Product)
    positions.build(tiny_models.hparams(position="product"), "inputs")
    with pytest.raises(ValueError, match="product is defined by a product of query and key"):
        positions.build(tiny_models.hparams(position="product", compatibility="additive"),
                        "inputs")


def test_t5_bias_is_shared_by_layers_or_not_and_encoder_and_decoder_have_their_own():
    for share, layers in ((True, 1), (False, 2)):
        with tf.Graph().as_default():
            tiny_models.make(tiny_models.hparams(position="t5_bias", t5_share_layers=share))(
                tiny_models.features(tiny_models.sentences([4]), tiny_models.sentences([4])))
            names = [v.op.name for v in tf.global_variables() if "t5_bias" in v.op.name]
        assert len(names) == 2 * layers


PLAIN = '''
import numpy as np
import tensorflow as tf
from rpr.nn import attention, ops
from rpr.nn.attention import additive_logits
from rpr.positions.layout import Layout
from rpr.positions import absolute, bias, disentangled, pairs, relative, rotary

random = np.random.RandomState(0)
x = {name: random.randn(*shape).astype("float32") for name, shape in dict(
    q=(2, 2, 5, 4), k=(2, 2, 5, 4), v=(2, 2, 5, 4), table=(7, 4), t5=(8, 2), rows=(2, 10, 4),
    u=(2, 4), rows_by_bucket=(8, 2, 4), edges=(5, 5, 4)).items()}

def everything(q, k, v, table, t5, rows, u, rows_by_bucket, edges):
    n = ops.shape_list(q)[2]
    layout, causal = Layout(n, n), Layout(n, n, causal=True)
    turns = rotary.angles(tf.range(n), 4)
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True))
    labels = tf.zeros([2, 1, 1], tf.int64) + relative.clipped_pairs(table, layout)
    product = tf.matmul(q, k, transpose_b=True)
    terms = [relative.add_scores(product, q, table, layout),
             relative.weighted_values(weights, v, table, layout),
             tf.linalg.band_part(relative.add_scores(product, q, table, causal), -1, 0),
             relative.weighted_values(tf.linalg.band_part(weights, -1, 0), v, table, causal),
             pairs.score_term(q, table, labels), pairs.value_term(weights, table, labels),
             bias.t5_bias(t5, layout, 16) + bias.alibi(2, layout),
             rotary.rotate(q, *turns), absolute.sinusoid(tf.range(n), 4),
             absolute.learned(tf.range(n), table), additive_logits(q, k, u, edges),
             pairs.scores_by_distance(q, rows, layout),
             disentangled.score_terms(q, k, *(tf.transpose(rows, [1, 0, 2])
                                              for rows in disentangled.reachable_rows(
                                                  rows_by_bucket, layout, 16)), layout, 4, 16),
             attention.attention(q, k, v, None,
                                 lambda q, k: relative.add_scores(product, q, table, layout),
                                 lambda w, v: relative.weighted_values(w, v, table, layout))]
    total = tf.add_n([tf.reduce_sum(term * term) for term in terms])
    return terms, total

def derived(**x):
    with tf.GradientTape() as tape:
        tape.watch(list(x.values()))
        terms, total = everything(**x)
    return [*terms, *tape.gradient(total, [x[name] for name in sorted(x)])]

x = {name: tf.constant(value) for name, value in x.items()}
eager = [t.numpy() for t in derived(**x)]
lengths = {name: tf.TensorSpec([None, None, None, 4] if value.shape.rank == 4 else value.shape)
           for name, value in x.items()}
lengths.update(edges=tf.TensorSpec([None, None, 4]), rows=tf.TensorSpec([2, None, 4]))
for name in "qkv":
    lengths[name] = tf.TensorSpec([None, 2, None, 4])
compiled = [t.numpy() for t in tf.function(derived).get_concrete_function(**lengths)(**x)]
known = [t.numpy() for t in tf.function(derived)(**x)]
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    at = {name: tf.constant(value.numpy()) for name, value in x.items()}
    terms, total = everything(**at)
    built = session.run([*terms, *tf.gradients(total, [at[name] for name in sorted(at)])])
for other in (compiled, known, built):
    for a, b in zip(eager, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
print(len(eager), "equal")
'''


def test_functions_agree_eagerly_in_tf_function_and_in_graphs():
    out = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=False)
    assert out.stdout.split() == ["23", "equal"], out.stderr[-2000:]
