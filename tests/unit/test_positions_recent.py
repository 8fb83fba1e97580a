"""FIRE, forgetting attention, contextual positions, DAPE and random positions against their papers'
equations, written as loops over float64 numbers; schemes per layer, per head and to the encoder."""
import math

import numpy as np
import pytest
import reference
import tensorflow.compat.v1 as tf
import tiny_models

from rpr import positions
from rpr.nn import attention
from rpr.positions import placement, rotary
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


FORMULAS = {"fire": fire, "kerple": kerple, "forgetting": forgetting, "cope": cope,
            "dape+alibi": dape}
SETTINGS = dict(num_heads=HEADS, hidden_size=HIDDEN, fire_threshold=3.0, cope_positions=4,
                dape_width=5, fire_width=5)


def naive(position, get, x, causal):
    """The output of a layer without its last projection: [batch, length, HIDDEN]."""
    out = np.zeros_like(x)
    for b, words in enumerate(x):
        n = len(words)
        q, k, v = (np.stack(np.split(words @ get[f"multihead_attention/{name}/kernel"], HEADS, 1))
                   for name in "qkv")
        q = q * DEPTH ** -0.5
        logits = q @ k.swapaxes(1, 2)
        inner = {name.removeprefix("multihead_attention/"): value for name, value in get.items()}
        for h in range(HEADS):
            for i in range(n):
                seen = range(i + 1 if causal else n)
                e = np.array([FORMULAS[position](inner, words, logits, i, j, h, q, causal)
                              for j in seen])
                weights = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
                out[b, i, h * DEPTH:(h + 1) * DEPTH] = weights @ v[h, :len(e)]
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
    if (position, side) != ("cope", "inputs")])
def test_a_layer_and_its_gradients_are_those_of_the_equations(position, side):
    random, n = np.random.RandomState(0), 5
    x, dz, causal = random.randn(2, n, HIDDEN), random.randn(2, n, HIDDEN), side == "targets"
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("layer", initializer=tf.random_normal_initializer(seed=3)):
            at = tf.constant(x)
            z = layer(at, position, side, Layout(n, n, causal=causal))
            variables = tf.trainable_variables()
            gradients = tf.gradients(z, [at, *variables], tf.constant(dz))
        session.run([v.initializer for v in variables], {
            v.initializer.inputs[1]: random.randn(*v.shape.as_list()) / 2 for v in variables})
        values = session.run({v.op.name.removeprefix("layer/"): v for v in variables})
        got, dx, *learned = session.run([z, *map(tf.convert_to_tensor, gradients)])
    np.testing.assert_allclose(got, naive(position, values, x, causal), atol=1e-8)
    np.testing.assert_allclose(dx, gradient_by_differences(
        lambda moved: (naive(position, values, moved, causal) * dz).sum(), x), atol=1e-5)
    for name, gradient in zip(values, learned, strict=True):
        if "/q/" not in name and "/k/" not in name and "/v/" not in name:
            np.testing.assert_allclose(gradient, gradient_by_differences(
                lambda moved, name=name: (naive(
                    position, {**values, name: moved}, x, causal) * dz).sum(), values[name]),
                atol=1e-5, err_msg=name)


ALONE = [name for name, scheme in positions.SCHEMES.items() if "targets" in scheme.sides]


@pytest.mark.parametrize("position", [*ALONE, "dape+alibi", "rotary@heads1:forgetting@heads2",
                                      "forgetting@heads1:forgetting+alibi@heads2"])
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
            cache = {name: tf.zeros([2, HEADS, 0, DEPTH]) for name in "kv"}
            cache |= {name: tf.zeros([2, *shape]) for name, shape in scheme.at(0).states().items()}
            steps = [attention.multihead_attention(
                x[:, t:t + 1], None, None, *arguments, Layout(1, t + 1, t, causal=True),
                cache=cache) for t in range(n)]
        session.run(tf.global_variables_initializer())
        whole, steps = session.run([whole, tf.concat(steps, axis=1)])
    np.testing.assert_allclose(steps, whole, atol=1e-5)


BY_PLACE = [name for name in positions.SCHEMES if name not in ("forgetting", "cope")]


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
            position=position, max_length=40, max_relative_position=3, t5_num_buckets=8,
            t5_max_distance=10, deberta_num_buckets=4, deberta_max_distance=6, **SETTINGS), side)
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


@pytest.mark.parametrize("position", ["alibi", "relative", "rotary", "learned", "fire"])
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
    ("dape+dape", "names a scheme twice"),
])
def test_assignments_that_cannot_be_are_refused(position, message):
    with pytest.raises(ValueError, match=f"position={position.replace('+', '.')}.*{message}"):
        tiny_models.make(tiny_models.hparams(position=position))


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


@pytest.mark.parametrize("position", ["alibi", "rotary", "relative", "t5_bias"])
def test_positions_to_the_encoder_cached_and_whole(position):
    """Teacher-forced probabilities of a hypothesis are those that the search found."""
    values = tiny_models.hparams(position="none", cross_position=position, num_hidden_layers=1)
    inputs = tiny_models.sentences([5, 3])
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values, "infer")
        found = model.infer(
            {"inputs": tf.constant(inputs), "target_space_id": tf.constant(1)},
            beam_size=3, top_beams=3, alpha=0.0, decode_length=4)
        tiny_models.lively(session)
        weights = session.run({v.op.name: v for v in tf.trainable_variables()})
        ids, scores = session.run([found["outputs"], found["scores"]])
    ids, scores = ids.reshape(6, -1), scores.ravel()
    assert sum(1 in sentence[1:] for sentence in ids) > 1
    with tf.Graph().as_default(), tf.Session() as session:
        logits, _ = tiny_models.make(values)(tiny_models.features(
            inputs.repeat(3, axis=0), ids[:, :, None, None]))
        for variable in tf.trainable_variables():
            variable.load(weights[variable.op.name], session)
        log_probs = session.run(tf.nn.log_softmax(logits))[:, :, 0, 0]
    for row, sentence, score in zip(log_probs, ids, scores, strict=True):
        if 1 in sentence:
            found = sum(row[t, sentence[t]] for t in range(list(sentence).index(1) + 1))
            assert found == pytest.approx(score, abs=1e-4)


def scaled_rate(kind, pair, channels, base, factor, length):
    """The angle per position of one pair, from the papers' formulas, which give wavelengths."""
    rate = base ** (-2 * pair / channels)
    turns = length * rate / (2 * math.pi)
    if kind == "linear":                                     # Chen et al. 2023, equation 4
        return rate / factor
    if kind == "ntk":                                        # another base
        return (base * factor ** (channels / (channels - 2))) ** (-2 * pair / channels)
    if kind == "llama3":                                     # between 1 and 4 turns
        if turns < 1:
            return rate / factor
        smooth = (turns - 1) / 3
        return rate if turns > 4 else (1 - smooth) * rate / factor + smooth * rate
    low, high = (channels * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))
                 for times in (32, 1))                       # Peng et al. 2024, section 3.2
    low, high = max(math.floor(low), 0), min(math.ceil(high), channels - 1)
    ramp = min(max((pair - low) / (high - low), 0), 1)
    return rate * (1 - ramp) + rate / factor * ramp


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
@pytest.mark.parametrize("channels, base, factor, length", [
    (64, 10000.0, 4.0, 2048), (128, 500000.0, 8.0, 8192), (32, 10000.0, 2.0, 512)])
def test_scaled_frequencies_are_those_of_the_papers(kind, channels, base, factor, length):
    got = rotary.frequency_factors(channels, base, kind, factor, length)
    got = got * base ** (-2 * np.arange(channels // 2) / channels)
    np.testing.assert_allclose(got, [scaled_rate(kind, pair, channels, base, factor, length)
                                     for pair in range(channels // 2)], rtol=1e-12)


def test_yarn_scales_the_logits_and_p_rope_stops_the_slowest_pairs():
    settings = dict(hidden_size=16, num_heads=2, position="rotary")
    x = np.random.RandomState(0).randn(1, 2, 3, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        layout, turned = Layout(3, 3), {}
        for name, more in (("plain", {}), ("kept", dict(rotary_frequencies=0.5)),
                           ("yarn", dict(rotary_scaling="yarn", rotary_scaling_factor=math.e))):
            scheme = positions.build(tiny_models.hparams(**settings, **more), "targets")
            turned[name] = scheme.rotate(tf.constant(x), layout.query_positions(), layout, "query")
        turned = session.run(turned)
    np.testing.assert_allclose(turned["yarn"][:, :, 0], 1.1 * x[:, :, 0], rtol=1e-6)
    slow = [2, 3, 6, 7]                                      # of the pairs (i, i + 4)
    np.testing.assert_allclose(turned["kept"][..., slow], x[..., slow])
    np.testing.assert_allclose(np.delete(turned["kept"], slow, axis=3),
                               np.delete(turned["plain"], slow, axis=3))


def test_xpos_is_rotary_with_a_decay_per_pair():
    q, k = np.random.RandomState(0).randn(2, 1, 2, 6, 8)
    with tf.Graph().as_default(), tf.Session() as session:
        layout, logits = Layout(6, 6, causal=True), []
        for position in ("rotary", "xpos"):
            scheme = positions.build(tiny_models.hparams(
                position=position, hidden_size=16, num_heads=2), "targets")
            at = layout.query_positions()
            turned = [scheme.rotate(tf.constant(x), at, layout, role)
                      for x, role in ((q, "query"), (k, "key"))]
            logits.append(turned)
        (plain_q, plain_k), (got_q, got_k) = session.run(logits)
    for i, j in ((0, 0), (3, 1), (5, 0)):
        expected = 0
        for pair in range(4):
            decay = ((pair / 4 + 0.4) / 1.4) ** ((i - j) / 512)
            expected += decay * sum(plain_q[0, 0, i, c] * plain_k[0, 0, j, c]
                                    for c in (pair, pair + 4))
        assert got_q[0, 0, i] @ got_k[0, 0, j] == pytest.approx(expected, rel=1e-5)


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
