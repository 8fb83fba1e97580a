import argparse
import contextlib
import functools
import itertools
import json

import bench_attention
import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
from conftest import python_script
from hypothesis import given, settings
from hypothesis import strategies as st

from rpr import positions
from rpr.nn import attention
from rpr.nn.dropout import dropout
from rpr.positions import relative
from rpr.positions.layout import Layout

NAMES = ("q", "k", "v", "keys", "values")


# MAX_BAND_CLIP that forces each of the two algorithms of `relative`.
ALGORITHMS = {"banded": 99, "skewed": -1}


def attend(q, k, v, keys, values, layout, bias=None, **kwargs):
    """Attention with the tables that are given."""
    return attention.attention(
        q, k, v, bias,
        None if keys is None else lambda q, k: relative.add_scores(
            tf.matmul(q, k, transpose_b=True), q, keys, layout),
        None if values is None else lambda w, v: relative.weighted_values(w, v, values, layout),
        **kwargs)


@functools.cache
def graph(algorithm, heads, depth, k, shared, keys, values, causal, sizes=None):
    """Attention, its output and gradients; lengths and the offset are left to the session, or are
    the `sizes` (batch, queries, keys, offset)."""
    g = tf.Graph()
    batch, n, m, offset = sizes or [None] * 4
    with g.as_default(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative, "MAX_BAND_CLIP", ALGORITHMS[algorithm])
        at = {"q": tf.placeholder(tf.float64, [batch, heads, n, depth]),
              "k": tf.placeholder(tf.float64, [batch, heads, m, depth]),
              "v": tf.placeholder(tf.float64, [batch, heads, m, depth])}
        table = [2 * k + 1, depth] if shared else [heads, 2 * k + 1, depth]
        for name, exists in (("keys", keys), ("values", values)):
            if exists:
                at[name] = tf.placeholder(tf.float64, table)
        at["bias"] = tf.placeholder(tf.float64, [None, None, None, None])
        at["offset"] = tf.placeholder(tf.int32, [])
        at["dz"] = tf.placeholder(tf.float64, [batch, heads, n, depth])
        layout = Layout(
            tf.shape(at["q"])[2] if n is None else n, tf.shape(at["k"])[2] if m is None else m,
            at["offset"] if offset is None else offset, causal)
        z = attend(*(at.get(name) for name in NAMES), layout, at["bias"])
        learned = {name: at[name] for name in NAMES if name in at}
        gradients = dict(zip(learned, tf.gradients(z, list(learned.values()), at["dz"]),
                             strict=True))
    return at, z, gradients, tf.Session(graph=g)


def check(random, batch, heads, len_q, len_k, depth, k, shared, keys, values, bias, offset=0,
          causal=False, algorithm="banded", known=False):
    """Output and all gradients against the reference."""
    at, z, gradients, session = graph(
        algorithm, heads, depth, k, shared, keys, values, causal,
        (batch, len_q, len_k, offset) if known is True else
        (None, len_q, None, None) if known == "queries" else None)
    table = (2 * k + 1, depth) if shared else (heads, 2 * k + 1, depth)
    given_ = {"q": random.randn(batch, heads, len_q, depth),
              "k": random.randn(batch, heads, len_k, depth),
              "v": random.randn(batch, heads, len_k, depth),
              "keys": random.randn(*table) if keys else None,
              "values": random.randn(*table) if values else None}
    dz = random.randn(batch, heads, len_q, depth)
    feed = {at[name]: value for name, value in given_.items() if value is not None}
    feed.update({at["bias"]: bias, at["offset"]: offset, at["dz"]: dz})
    z_, gradients_ = session.run([z, gradients], feed)
    bias = np.broadcast_to(bias, (batch, heads, len_q, len_k))
    np.testing.assert_allclose(
        z_, reference.attention(**given_, bias=bias, offset=offset)[0], atol=1e-10)
    expected = reference.gradients(dz, **given_, bias=bias, offset=offset)
    for name, gradient in zip(NAMES, expected, strict=True):
        if gradient is not None:
            np.testing.assert_allclose(gradients_[name], gradient, atol=1e-10, err_msg=name)


def encoder_bias(random, batch, n):
    return reference.padded(random.randint(1, n + 1, batch), n)


def decoder_bias(random, batch, n):
    return reference.causal(n, n)


def packed_bias(random, batch, n):
    return reference.packed(np.sort(random.randint(1, 4, (batch, n))))


def packed_decoder_bias(random, batch, n):
    return packed_bias(random, batch, n) + reference.causal(n, n)


CAUSAL = [decoder_bias, packed_decoder_bias]
BIASES = [encoder_bias, packed_bias, *CAUSAL]


TERMS = st.sampled_from([(True, True), (True, False), (False, True)])


@settings(max_examples=40)
@given(seed=st.integers(0, 2 ** 16), batch=st.integers(1, 3), heads=st.sampled_from([1, 3]),
       n=st.integers(1, 9), k=st.sampled_from([0, 1, 2, 4, 12]), shared=st.booleans(), terms=TERMS,
       bias=st.sampled_from(BIASES), algorithm=st.sampled_from(list(ALGORITHMS)),
       declared=st.booleans())
def test_self_attention_is_equations_3_and_4(seed, batch, heads, n, k, shared, terms, bias,
                                             algorithm, declared):
    """Dynamic lengths; `declared`: whether the layout of a causal mask is declared causal."""
    random = np.random.RandomState(seed)
    check(random, batch, heads, n, n, 4, k, shared, *terms, bias(random, batch, n),
          causal=declared and bias in CAUSAL, algorithm=algorithm)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("known", [None, 64])
def test_queries_keys_and_values_from_one_tensor(algorithm, causal, known):
    """As in a model, with dynamic lengths, or a known one as in packed batches."""
    random = np.random.RandomState(0)
    tables = {name: random.randn(2, 5, 3) for name in ("keys", "values")}
    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(relative, "MAX_BAND_CLIP", ALGORITHMS[algorithm])
        x = tf.placeholder(tf.float64, [None, 2, known, 3])
        length = known or tf.shape(x)[2]
        learned = [tf.get_variable(name, initializer=table, use_resource=True)
                   for name, table in tables.items()]
        z = attend(x, x, x, *learned, Layout(length, length, 0, causal),
                   tf.cast(tf.linalg.band_part(tf.ones([length, length]), -1, 0) - 1, x.dtype) * 1e9
                   if causal else None)
        gradients = tf.gradients(z, [x, *learned], z)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for n in [known] if known else (2, 3, 4, 5):
                at = random.randn(3, 2, n, 3)
                got, (dx, *dtables) = session.run([z, gradients], {x: at})
                arrays = dict(q=at, k=at, v=at, **tables)
                bias = np.broadcast_to(reference.causal(n, n) if causal else 0.0, (3, 2, n, n))
                np.testing.assert_allclose(got, reference.attention(**arrays, bias=bias)[0],
                                           atol=1e-10)
                *parts, dkeys, dvalues = reference.gradients(got, **arrays, bias=bias)
                np.testing.assert_allclose(dx, sum(parts), atol=1e-9)
                np.testing.assert_allclose(dtables, [dkeys, dvalues], atol=1e-9)


@pytest.mark.parametrize("k, banded", [(0, True), (64, True), (65, False)])
def test_small_clipping_distances_use_the_band(k, banded, monkeypatch):
    calls = []
    monkeypatch.setattr(relative, "Band", lambda *args: calls.append(args) or 1 / 0)
    with tf.Graph().as_default():
        q = tf.zeros([1, 1, 3, 2])
        for layout in (Layout(3, 3), Layout(3, 3, causal=True)):
            with contextlib.suppress(ZeroDivisionError):
                relative.add_scores(
                    tf.matmul(q, q, transpose_b=True), q, tf.zeros([2 * k + 1, 2]), layout)
        relative.add_scores(tf.zeros([1, 1, 1, 3]), q[:, :, :1], tf.zeros([2 * k + 1, 2]),
                            Layout(1, 3, 2))
    assert len(calls) == (2 if banded else 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("k", [0, 2, 12])
@pytest.mark.parametrize("bias", BIASES)
def test_every_mask_with_every_table(bias, k, shared, algorithm):
    random = np.random.RandomState(k)
    check(random, 2, 3, 6, 6, 4, k, shared, True, True, bias(random, 2, 6),
          causal=bias in CAUSAL, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n, k", [(1, 2), (2, 1), (2, 2), (5, 1), (5, 2), (5, 4), (5, 9)])
def test_static_lengths(n, k, causal, algorithm):
    random = np.random.RandomState(n)
    bias = decoder_bias if causal else encoder_bias
    check(random, 2, 2, n, n, 3, k, bool(n % 2), True, True, bias(random, 2, n), causal=causal,
          algorithm=algorithm, known=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 2 ** 16), step=st.integers(0, 8), spare=st.integers(0, 3),
       k=st.sampled_from([0, 2, 12]), shared=st.booleans(), causal=st.booleans(),
       known=st.sampled_from(["queries", False]))
def test_a_cached_step_with_spare_places_in_the_cache(seed, step, spare, k, shared, causal, known):
    """One query at `step`, over step + 1 keys and over a longer cache."""
    keys = step + 1 + spare
    check(np.random.RandomState(seed), 2, 3, 1, keys, 4, k, shared, True, True,
          reference.causal(1, keys, step), step, causal, known=known)


@settings(max_examples=15)
@given(seed=st.integers(0, 2 ** 16), n=st.integers(1, 4), keys=st.integers(0, 5),
       spare=st.integers(0, 3), k=st.sampled_from([0, 1, 3, 12]), shared=st.booleans(),
       causal=st.booleans(), algorithm=st.sampled_from(list(ALGORITHMS)))
def test_queries_in_the_middle_of_the_keys(seed, n, keys, spare, k, shared, causal, algorithm):
    """A part of a sentence after a cache, which may have spare places."""
    check(np.random.RandomState(seed), 2, 3, n, keys + n + spare, 4, k, shared, True, True,
          reference.causal(n, keys + n + spare, keys), keys, causal, algorithm)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 2e-2), ("bfloat16", 1e-1)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", [True, False])
def test_half_precision_is_near_and_masks_hold(dtype, tolerance, causal, algorithm, monkeypatch):
    monkeypatch.setattr(relative, "MAX_BAND_CLIP", ALGORITHMS[algorithm])
    random = np.random.RandomState(0)
    heads, n, depth, k = 2, 7, 8, 3
    q, key, v = random.randn(3, 2, heads, n, depth)
    tables = random.randn(2, heads, 2 * k + 1, depth)
    bias = reference.padded([7, 4], n) + (reference.causal(n, n) if causal else 0)
    bias = np.broadcast_to(bias, (2, heads, n, n))
    layout = Layout(n, n, causal=causal)
    dtypes = []
    with tf.Graph().as_default(), tf.Session() as session:
        half = [tf.constant(x, dtype) for x in (q, key, v, *tables)]
        z = attend(
            *half, layout, tf.constant(bias, tf.float32),
            on_weights=lambda weights, logits: dtypes.extend([weights.dtype, logits.dtype]))
        nothing = attention.attention(*half[:3], tf.fill([2, 1, 1, n], -1e9))
        assert [z.dtype, *dtypes] == [dtype, dtype, "float32"]
        assert np.isfinite(session.run(nothing).astype(np.float64)).all()    # a row of padding
        gradients = tf.gradients(tf.cast(z, tf.float32), half)
        got = [x.astype(np.float64) for x in session.run([z, *gradients])]
    assert all(np.isfinite(x).all() for x in got)
    expected = [reference.attention(q, key, v, *tables, bias)[0],
                *reference.gradients(np.ones_like(q), q, key, v, *tables, bias)]
    for x, y in zip(got, expected, strict=True):
        assert np.abs(x - y).max() <= tolerance * max(1.0, np.abs(y).max())


def test_dropout_shares_its_decisions_along_the_axes_that_are_named():
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.ones([2, 3, 40, 40])
        dropped = session.run(dropout(x, 0.5, [1]))
        assert dropout(x, 0.0) is x
    assert set(np.unique(dropped)) == {0.0, 2.0}
    np.testing.assert_array_equal(dropped[:, 0], dropped[:, 1])
    assert not np.array_equal(dropped[0], dropped[1])


def test_heads_must_divide_the_channels():
    with tf.Graph().as_default():
        x = tf.zeros([1, 2, 10])
        with pytest.raises(ValueError, match="attention_key_channels: 10 .* num_heads=3"):
            attention.multihead_attention(x, None, None, 10, 9, 10, 3, None, None)


def test_the_benchmark_writes_its_records(tmp_path):
    """Every variant in every direction, measured on the smallest shapes."""
    file = tmp_path / "records.json"
    run = python_script("bench_attention.py", "--lengths=5", "--clips=2", "--memory_lengths=6",
                        "--heads=2", "--depth=4", "--seconds=0", f"--json={file}")
    assert not run.returncode and "deprecated" not in run.stderr
    records = json.loads(file.read_text())
    assert {tuple(record) for record in records} == {(
        "variant", "direction", "batch", "length", "max_relative_position",
        "heads_share_relative_embedding", "seconds", "ratio_to_absolute", "ratio_to_t2t",
        "peak_memory_ratio")}
    variants = {"ours", "absolute", "t2t"}
    for direction, length in itertools.product(("causal", "bidirectional"), (5, 6)):
        got = [x for x in records if (x["direction"], x["length"]) == (direction, length)]
        assert {x["variant"] for x in got} == variants
        for x in got:
            assert (x["seconds"] is None) == (length == 6)
            assert x["seconds"] is None or x["ratio_to_absolute"] > 0 and x["ratio_to_t2t"] > 0
    assert {x["variant"] for x in records if x["direction"] == "cached"} == variants


def test_the_benchmark_runs_every_scheme_where_it_works(tmp_path):
    file, schemes = tmp_path / "records.json", bench_attention.SCHEMES
    run = python_script("bench_attention.py", "--lengths=6", "--clips=2", "--memory_lengths=",
                        "--heads=2", "--depth=8", "--seconds=0", f"--json={file}",
                        f"--variants={','.join(schemes)}")
    assert not run.returncode, run.stderr
    records = json.loads(file.read_text())
    ran = {direction: {x["variant"] for x in records if x["direction"] == direction}
           for direction in bench_attention.DIRECTIONS}
    assert set(schemes) == {"additive", *positions.SCHEMES} - {"none", "forgetting", "path"}
    assert ran == {"causal": set(schemes) - {"graph"}, "cached": set(schemes) - {"graph", "pope"},
                   "bidirectional": set(schemes) - {"xpos", "cope", "stick_breaking"}}


def test_the_benchmark_runs_the_weights_of_a_scheme():
    args = argparse.Namespace(heads=2, depth=8)
    shape = {"direction": "causal", "batch": 2, "length": 5, "max_relative_position": 2,
             "heads_share_relative_embedding": True}
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = bench_attention._inputs(args, shape)
        sink, sticks = (bench_attention._fetches(name, args, shape, inputs)
                        for name in ("sink", "stick_breaking"))
        session.run(tf.global_variables_initializer())
        z = session.run(sticks[0])
    assert sink[-1].shape == [2]                             # the gradient of its variable
    assert not z[:, :, 0].any() and z[:, :, 1:].all()        # a word does not attend to itself


def softmax_over(logits, defined, dy):
    """One softmax at a time over the defined keys, and its gradient; float64, zero elsewhere."""
    weights, gradient = np.zeros_like(logits), np.zeros_like(logits)
    for place in np.ndindex(logits.shape[:-1]):
        some = defined[place]
        if some.any():
            powers = np.exp(logits[place][some] - logits[place][some].max())
            weights[place][some] = powers / powers.sum()
            gradient[place] = weights[place] * (dy[place] - weights[place] @ dy[place])
    return weights, gradient


@given(seed=st.integers(0, 999), scale=st.sampled_from([1.0, 50.0, 1e4]))
@settings(max_examples=20)
def test_the_masked_softmax_is_zero_where_no_key_is_defined(seed, scale):
    random = np.random.RandomState(seed)
    logits, dy = scale * random.randn(2, 3, 4, 5), random.randn(2, 3, 4, 5)
    defined = random.rand(2, 1, 4, 5) < 0.5
    defined[0, 0, 0] = False                                 # nothing to attend to
    logits[~np.broadcast_to(defined, logits.shape)] *= 1e6   # far above what is defined
    everywhere = np.broadcast_to(defined, logits.shape)
    expected, by_logits = softmax_over(logits, everywhere, dy)
    for dtype, tolerance in ((tf.float64, 1e-12), (tf.float32, 2e-3 if scale > 1e3 else 1e-5)):
        with tf.Graph().as_default(), tf.Session() as session:
            given_logits = tf.constant(logits, dtype)
            weights = attention.masked_softmax(given_logits, tf.constant(defined))
            gradient, = tf.gradients(weights, given_logits, tf.constant(dy, dtype))
            weights, gradient = session.run([weights, gradient])
        assert not weights[~everywhere].any() and not gradient[~everywhere].any()
        np.testing.assert_allclose(weights, expected, atol=tolerance)
        np.testing.assert_allclose(gradient, by_logits, atol=10 * tolerance)


def attend_masked(inputs, bias):
    return attention.attention(*inputs, bias=tf.constant(bias), normalize=functools.partial(
        attention.masked_softmax, unmasked=tf.constant(bias > -1)))


def test_masked_attention_is_attention_where_every_query_has_a_key():
    random = np.random.RandomState(0)
    q, k, v, dz = (random.randn(2, 3, 4, 5) for _ in range(4))
    bias = np.zeros([2, 1, 1, 4])
    bias[0, 0, 0, 2:] = -1e9
    found = []
    for masked in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            inputs = [tf.constant(value) for value in (q, k, v)]
            z = attend_masked(inputs, bias) if masked else attention.attention(
                *inputs, bias=tf.constant(bias))
            found.append(session.run([z, *tf.gradients(z, inputs, tf.constant(dz))]))
    for plain, masked in zip(*found, strict=True):
        np.testing.assert_allclose(masked, plain, atol=1e-12)
    bias[1] = -1e9                                           # an empty sentence
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(value) for value in (q, k, v)]
        z = attend_masked(inputs, bias)
        values = session.run([z, *tf.gradients(z, inputs, tf.constant(dz))])
    assert all(not value[1].any() and value[0].any() for value in values)
