"""Schemes since 2022 against their papers' equations, written as loops over float64 numbers."""
import math

import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.nn import attention
from rpr.positions.layout import Layout

HEADS, DEPTH, HIDDEN = 2, 4, 8


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def dense(x, get, name):
    return x @ get[f"{name}/kernel"] + get[f"{name}/bias"]


def fire(get, x, logits, i, j, h, q, causal):
    def psi(distance):
        return math.log(1 + abs(get["fire/c"]) * distance)

    threshold = abs(get["fire/threshold_factor"]) * 3.0
    ratio = psi(abs(i - j)) / (psi(max(i, threshold)) + 1e-6)
    hidden = np.maximum(dense(np.array([ratio]), get, "fire/hidden"), 0)
    return logits[h, i, j] + dense(hidden, get, "fire/output")[h]


def forgetting(get, x, logits, i, j, h, q, causal):
    def gate(name, word):
        return math.log(sigmoid(dense(x[word], get, f"forgetting/{name}")[h]))

    if j <= i:
        return logits[h, i, j] + sum(gate("forward", word) for word in range(j + 1, i + 1))
    return logits[h, i, j] + sum(gate("backward", word) for word in range(i, j))


def cope(get, x, logits, i, j, h, q, causal):
    position = min(sum(sigmoid(logits[h, i, word]) for word in range(j, i + 1)), 3.0)
    below = math.floor(position)
    values = q[h, i] * math.sqrt(DEPTH) @ get["cope/embeddings"].T
    share = position - below
    return logits[h, i, j] + (1 - share) * values[below] + share * values[math.ceil(position)]


def dape(get, x, logits, i, j, h, q, causal):
    bias = [-abs(i - j) * slope for slope in (2 ** -4, 2 ** -8)]
    hidden = dense(np.array([*logits[:, i, j], *bias]), get, "dape/hidden")
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    return logits[h, i, j] + bias[h] + dense(hidden, get, "dape/output")[h]


def kerple(get, x, logits, i, j, h, q, causal):
    amplitude, rate = (max(get[f"kerple/{name}"][h], 0.01) for name in ("amplitude", "rate"))
    return logits[h, i, j] - amplitude * math.log(1 + rate * abs(i - j))


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def by_pair(get, x, logits, q, k, v, causal, formula):
    """The heads' outputs [HEADS, n, DEPTH] where the weights are the softmax of a formula."""
    z, n = np.zeros_like(v), len(x)
    for h in range(HEADS):
        for i in range(n):
            e = np.array([formula(get, x, logits, i, j, h, q, causal)
                          for j in range(i + 1 if causal else n)])
            z[h, i] = softmax(e) @ v[h, :len(e)]
    return z


def stick_breaking(get, x, logits, q, k, v, causal):
    z = np.zeros_like(v)
    for h in range(HEADS):
        for i in range(len(x)):
            left = 1.0
            for j in reversed(range(i)):
                share = sigmoid(logits[h, i, j])
                z[h, i] += left * share * v[h, j]
                left *= 1 - share
            z[h, i] += left * v[h, i]                        # stick_breaking_remainder
    return z


def differential(get, x, logits, q, k, v, causal):
    if causal:
        logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
    get = {name.removeprefix("differential/"): value for name, value in get.items()}
    initial = 0.8 - 0.6                                      # of the first layer
    factor = (math.exp(get["query_1"] @ get["key_1"]) - math.exp(get["query_2"] @ get["key_2"])
              + initial)
    weights = softmax(logits[0]) - factor * softmax(logits[1])
    z = weights @ np.concatenate(v, axis=1)                  # the value has twice the depth
    z *= (np.mean(z ** 2, axis=1, keepdims=True) + 1e-5) ** -0.5 * get["scale"].reshape(-1)
    return np.stack(np.split((1 - initial) * z, 2, axis=1))


def path(get, x, logits, q, k, v, causal):
    z = np.zeros_like(v)
    get = {name.removeprefix("path/"): value for name, value in get.items()}
    features = x @ get["low_rank/kernel"] @ get["direction/kernel"]
    w = sum(np.pad(features, [(back, 0), (0, 0)])[:len(x)] * get["kernel"][back]
            for back in range(3))
    w = np.stack(np.split(w / (1 + np.exp(-w)), HEADS, axis=1))
    w /= np.sqrt((w ** 2).sum(axis=2, keepdims=True) + 1e-6)
    beta = 2 / (1 + np.exp(-dense(x, get, "beta")))
    for h in range(HEADS):
        for i in range(len(x)):
            moved = []
            for j in range(i + 1):
                key = k[h, j]
                for word in range(j + 1, i + 1):             # a reflection
                    key = key - beta[word, h] * (w[h, word] @ key) * w[h, word]
                moved.append(q[h, i] @ key)
            z[h, i] = softmax(np.array(moved)) @ v[h, :i + 1]
    return z


def pope(get, x, logits, q, k, v, causal):
    z = np.zeros_like(v)
    size_q, size_k = (np.log1p(np.exp(y)) for y in (q * math.sqrt(DEPTH), k))
    delta = np.clip(get["pope/phase"][:, 0], -2 * math.pi, 0)
    for h in range(HEADS):
        for i in range(len(x)):
            seen = range(i + 1 if causal else len(x))
            z[h, i] = softmax(np.array([sum(
                size_q[h, i, c] * size_k[h, j, c] * math.cos(
                    (j - i) * 10000 ** (-c / DEPTH) + delta[h, c]) for c in range(DEPTH)
            ) / math.sqrt(DEPTH) for j in seen])) @ v[h, :len(seen)]
    return z


def axial_rotary(get, x, logits, q, k, v, causal):
    def turned(y, at):                                       # pairs (0, 2) and (1, 3)
        angles = [at % 3, at // 3]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([y[:2] * cos - y[2:] * sin, y[2:] * cos + y[:2] * sin])

    q, k = (np.array([[turned(y, at) for at, y in enumerate(head)] for head in z]) for z in (q, k))
    logits = q @ k.swapaxes(1, 2)
    return softmax(np.where(np.tri(len(x), dtype=bool) | (not causal), logits, -np.inf)) @ v


def mixed_rotary(get, x, logits, q, k, v, causal):
    z = np.zeros_like(v)
    column_rates, row_rates = get["mixed_rotary/rates"][:, :, 0]
    for h in range(HEADS):
        for i in range(len(x)):
            e = np.zeros(i + 1 if causal else len(x))
            for j, c in np.ndindex(len(e), DEPTH // 2):      # pairs (0, 2) and (1, 3)
                turn = np.exp(1j * (column_rates[h, c] * (i % 3 - j % 3)
                                    + row_rates[h, c] * (i // 3 - j // 3)))
                query, key = (y[c] + 1j * y[c + DEPTH // 2] for y in (q[h, i], k[h, j]))
                e[j] += (turn * query * key.conjugate()).real
            z[h, i] = softmax(e) @ v[h, :len(e)]
    return z


def axial_t5_bias(get, x, logits, i, j, h, q, causal):
    bias = 0
    for name, distance in (("rows", j // 3 - i // 3), ("columns", j % 3 - i % 3)):
        bucket = min(abs(distance), 1) + (2 if distance > 0 else 0)      # 4 buckets
        bias += get[f"axial_t5_bias/{name}/embeddings"][bucket, h]
    return logits[h, i, j] + bias


def sandwich(get, x, logits, i, j, h, q, causal):
    product = sum(math.cos((i - j) * 10000 ** (-2 * c / 6)) for c in range(3))
    return logits[h, i, j] + product / (8 * (h + 1) / HEADS)


def dape_v2(get, x, logits, q, k, v, causal):
    get = {name.removeprefix("dape_v2/"): value for name, value in get.items()}
    z, n = np.zeros_like(v), len(x)

    def convolution(y, name):                                # over the keys
        y = np.pad(y, [(1, 1), (0, 0)])
        return dense(np.concatenate([y[:-2], y[1:-1], y[2:]], axis=1), get, name)

    for i in range(n):
        seen = i + 1 if causal else n
        bias = -np.abs(i - np.arange(seen)) * np.array([[2.0 ** -4], [2.0 ** -8]])
        pairs = np.concatenate([logits[:, i, :seen], bias])
        pairs = np.pad(pairs, [(0, 0), (0, 1 if causal else 0)])       # the next, masked key
        hidden = convolution(pairs.T, "hidden")
        y = convolution(np.where(hidden > 0, hidden, 0.01 * hidden), "output")[:seen].T
        z[:, i] = (softmax(logits[:, i, :seen] + bias + y)[:, None] @ v[:, :seen])[:, 0]
    return z


FORMULAS = {"fire": fire, "kerple": kerple, "forgetting": forgetting, "cope": cope,
            "dape+alibi": dape, "dape_v2+alibi": dape_v2, "sandwich": sandwich, "path": path,
            "pope": pope, "stick_breaking": stick_breaking, "differential": differential,
            "axial_rotary": axial_rotary, "axial_t5_bias": axial_t5_bias,
            "mixed_rotary": mixed_rotary}
# Not a logit for each pair.
WHOLE_LAYER = {"axial_rotary", "mixed_rotary", "dape_v2+alibi", "path", "pope", "stick_breaking",
               "differential"}
SETTINGS = dict(num_heads=HEADS, hidden_size=HIDDEN, fire_threshold=3.0, cope_positions=4,
                dape_width=5, fire_width=5, stick_breaking_remainder=True, path_rank=3,
                dape_v2_width=5, sandwich_channels=6, axial_width=3, t5_num_buckets=4,
                t5_max_distance=3)


def naive(position, get, x, causal):
    """The output of a layer without its last projection: [batch, length, HIDDEN]."""
    out = np.zeros_like(x)
    for b, words in enumerate(x):
        q, k, v = (np.stack(np.split(words @ get[f"multihead_attention/{name}/kernel"], HEADS, 1))
                   for name in "qkv")
        q = q * DEPTH ** -0.5
        logits = q @ k.swapaxes(1, 2)
        inner = {name.removeprefix("multihead_attention/"): value for name, value in get.items()}
        formula = FORMULAS[position]
        z = (formula(inner, words, logits, q, k, v, causal) if position in WHOLE_LAYER else
             by_pair(inner, words, logits, q, k, v, causal, formula))
        out[b] = np.concatenate(z, axis=1)
    return out @ get["multihead_attention/output_transform/kernel"]


def layer(x, position, side, layout, cache=None):
    causal = side == "targets"
    length = x.shape.as_list()[1]
    bias = None
    if causal and cache is None:
        bias = tf.constant(reference.causal(length, length))
    return attention.multihead_attention(
        x, None, bias, HIDDEN, HIDDEN, HIDDEN, HEADS,
        positions.build(tiny_models.hparams(position=position, **SETTINGS), side), layout,
        cache=cache)


def gradient_by_differences(function, value, step=1e-5):
    value = np.asarray(value)
    gradient = np.zeros_like(value)
    for place in np.ndindex(*value.shape):
        change = np.zeros_like(value)
        change[place] = step
        gradient[place] = (function(value + change) - function(value - change)) / (2 * step)
    return gradient


@pytest.mark.parametrize("position, side", [
    (position, side) for position in FORMULAS for side in ("inputs", "targets")
    if all(side in positions.SCHEMES[name].sides for name in position.split("+"))])
def test_a_layer_and_its_gradients_are_those_of_the_equations(position, side):
    random, n = np.random.RandomState(0), 5
    x, dz, causal = random.randn(2, n, HIDDEN), random.randn(2, n, HIDDEN), side == "targets"
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("layer", initializer=tf.random_normal_initializer(seed=3)):
            at = tf.constant(x)
            z = layer(at, position, side, Layout(n, n, causal=causal))
            variables = tf.trainable_variables()
            gradients = tf.gradients(z, [at, *variables], tf.constant(dz))
        draws = {v: random.randn(*v.shape.as_list()) / 2 for v in variables}
        if position in ("kerple", "pope"):                   # within the range of their values
            sign = 1 if position == "kerple" else -1
            draws = {v: sign * (0.02 + np.abs(draw)) for v, draw in draws.items()}
        session.run([v.initializer for v in variables],
                    {v.initializer.inputs[1]: draw for v, draw in draws.items()})
        values = session.run({v.op.name.removeprefix("layer/"): v for v in variables})
        got, dx, *learned = session.run([z, *map(tf.convert_to_tensor, gradients)])
    float32 = position in ("pope", "axial_rotary", "mixed_rotary")       # its angles
    atol = 1e-5 if float32 else 1e-8
    np.testing.assert_allclose(got, naive(position, values, x, causal), atol=atol)
    np.testing.assert_allclose(dx, gradient_by_differences(
        lambda moved: (naive(position, values, moved, causal) * dz).sum(), x), atol=1e-5)
    for name, gradient in zip(values, learned, strict=True):
        if "/q/" not in name and "/k/" not in name and "/v/" not in name:
            np.testing.assert_allclose(gradient, gradient_by_differences(
                lambda moved, name=name: (naive(
                    position, {**values, name: moved}, x, causal) * dz).sum(), values[name]),
                atol=1e-5, err_msg=name)


# Those alone: in the conformance kit.
@pytest.mark.parametrize("position", [
    "dape+alibi", "dape_v2+alibi", "path+relative", "rotary@heads1:forgetting@heads2",
    "forgetting@heads1:forgetting+alibi@heads2", "mixed_rotary@heads1:axial_rotary"])
def test_cached_steps_are_the_whole_sentence(position):
    n = 6
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(np.random.RandomState(0).randn(2, n, HIDDEN), tf.float32)
        scheme = positions.build(tiny_models.hparams(
            position=position, max_length=9, **SETTINGS), "targets")
        with tf.variable_scope("layer", initializer=tf.random_normal_initializer(seed=3),
                               reuse=tf.AUTO_REUSE):
            arguments = HIDDEN, HIDDEN, HIDDEN, HEADS, scheme.at(0)
            whole = attention.multihead_attention(
                x, None, tf.constant(reference.causal(n, n), tf.float32), *arguments,
                Layout(n, n, causal=True))
            cache = {"k": tf.zeros([2, HEADS, 0, DEPTH * scheme.at(0).depth_factor]),
                     "v": tf.zeros([2, HEADS, 0, DEPTH])}
            cache |= {name: tf.zeros([2, *shape]) for name, shape in scheme.at(0).states().items()}
            steps = [attention.multihead_attention(
                x[:, t:t + 1], None, None, *arguments, Layout(1, t + 1, t, causal=True),
                cache=cache) for t in range(n)]
        session.run(tf.global_variables_initializer())
        whole, steps = session.run([whole, tf.concat(steps, axis=1)])
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)


def test_a_sink_takes_its_share_of_the_weights():
    logits = np.random.RandomState(0).randn(2, 4, 3, 5)
    with tf.Graph().as_default(), tf.Session() as session:
        scheme = positions.build(tiny_models.hparams(position="sink+alibi", num_heads=4), "inputs")
        weights = scheme.normalize(tf.constant(logits), Layout(3, 5))
        variable, = tf.trainable_variables()
        variable.load([0.0, 1.0, -2.0, 30.0], session)
        got = session.run(weights)
    for h, sink in enumerate([0.0, 1.0, -2.0, 30.0]):
        powers = np.exp(logits[:, h])
        np.testing.assert_allclose(
            got[:, h], powers / (powers.sum(axis=2, keepdims=True) + math.exp(sink)), rtol=1e-6)


@pytest.mark.parametrize(("directions", "heads"), [
    ("shifted", 4), ("heads", 4), ("learned", 4), ("shifted", 1), ("learned", 1)])
def test_alibi_with_directions_of_its_own(directions, heads):
    n = 5
    with tf.Graph().as_default(), tf.Session() as session:
        at, both = tf.range(n)[None], []
        for layout in (Layout(n, n), Layout(n, n, query_at=at, key_at=at, unit_steps=False)):
            scheme = positions.build(tiny_models.hparams(
                position="alibi", num_heads=heads, alibi_directions=directions), "inputs")
            with tf.variable_scope("layer", reuse=tf.AUTO_REUSE):
                both.append(scheme.bias(layout, tf.float64))
        session.run(tf.global_variables_initializer())
        got, by_positions, learned = session.run([*both, tf.trainable_variables()])
    for h, i, j in np.ndindex(heads, n, n):
        if directions == "shifted":
            expected = -(abs(i - j) - (0.5 if j < i else 0)) * 2.0 ** (-8 / heads * (h + 1))
        elif directions == "heads":
            hidden = j > i if h < 2 else j < i
            expected = -1e9 if hidden else -abs(i - j) * 2.0 ** (-4 * (h % 2 + 1))
        else:
            expected = -abs(i - j) * sigmoid(learned[0 if j < i else 1][h, 0, 0])
        for each in (got, by_positions):
            assert each[0, h, i, j] == pytest.approx(expected)
