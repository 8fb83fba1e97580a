"""The recurrent and convolutional model: exact parts, padding, decoding, and its sets."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.utils import learning_rate, registry

from rpr.models import seq2seq

EOS, EXTRA = 1, 4
INPUTS = tiny_models.sentences([6, 3, 5], seed=3)
CASES = [
    dict(encoder="birnn", attention_flavour="dot", num_encoder_layers=2, num_decoder_layers=2),
    dict(encoder="cnn", attention_flavour="bilinear", num_encoder_layers=2, position="learned"),
    dict(encoder="cnn", attention_flavour="mlp", encoder_position="scaled_sinusoid",
         decoder_position="sinusoid"),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, c, h, kernel, bias):
    """c and h of each step, straight from the equations; gates in the order i, j, f, o."""
    cs, hs = [], []
    for word in x:
        i, j, f, o = np.split(np.concatenate([word, h], axis=1) @ kernel + bias, 4, axis=1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        h = sigmoid(o) * np.tanh(c)
        cs.append(c)
        hs.append(h)
    return np.stack(cs), np.stack(hs)


def attend(queries, values, lengths, flavour, weights):
    """Each flavour as its equation is written, query by query."""
    out = np.zeros_like(queries)
    for b, i in np.ndindex(queries.shape[:2]):
        q, v = queries[b, i], values[b, :lengths[b]]
        if flavour == "dot":
            e = v @ q / np.sqrt(len(q))
        elif flavour == "bilinear":
            e = np.array([q @ (one @ weights["keys"]) for one in v])
        else:
            e = np.array([weights["vector"][0] @ np.tanh(q @ weights["queries"]
                                                         + one @ weights["keys"]) for one in v])
        alpha = np.exp(e - e.max())
        out[b, i] = alpha / alpha.sum() @ v
    return out


def slopes(function, arguments, dout):
    """Derivatives of sum(dout * function) by each argument, by central differences."""
    def total():
        return sum((d * y).sum() for d, y in zip(dout, function(*arguments), strict=True))

    found = []
    for argument in arguments:
        slope = np.zeros_like(argument)
        for at in np.ndindex(*argument.shape):
            here = argument[at]
            argument[at] = here + 1e-5
            above = total()
            argument[at] = here - 1e-5
            slope[at] = (above - total()) / 2e-5
            argument[at] = here
        found.append(slope)
    return found


def check(session, outputs, inputs, expected, arguments, seed=9):
    """Outputs and gradients of a graph against a function of float64 arrays."""
    random = np.random.RandomState(seed)
    want = expected(*arguments)
    dout = [random.randn(*y.shape) for y in want]
    gradients = tf.gradients([tf.reduce_sum(y * d.astype("f"))
                              for y, d in zip(outputs, dout, strict=True)], inputs)
    got, got_gradients = session.run([outputs, gradients])
    for y, x in zip([*got, *got_gradients], [*want, *slopes(expected, arguments, dout)],
                    strict=True):
        np.testing.assert_allclose(y, x, atol=2e-5, rtol=1e-4)


def test_the_recurrence_and_its_gradient_are_exact():
    random = np.random.RandomState(1)
    arguments = [scale * random.randn(*shape) for shape, scale in (
        ([4, 2, 3], 1), ([2, 5], 9), ([2, 5], 1), ([8, 20], 1), ([20], 1))]  # cells beyond any clip
    with tf.Graph().as_default(), tf.Session() as session:
        x, c, h = (tf.constant(value, tf.float32) for value in arguments[:3])
        outputs = seq2seq.lstm(x, (c, h), 5)
        variables = [tf.trainable_variables(name)[0] for name in ("kernel", "bias")]
        for variable, value in zip(variables, arguments[3:], strict=True):
            variable.load(value, session)
        check(session, list(outputs), [x, c, h, *variables], lstm, arguments)


@pytest.mark.parametrize("flavour, names", [
    ("dot", []), ("bilinear", ["keys"]), ("mlp", ["keys", "queries", "vector"])])
def test_each_attention_and_its_gradient_are_exact(flavour, names):
    random = np.random.RandomState(2)
    shapes = {"keys": [4, 4], "queries": [4, 4], "vector": [1, 4]}
    lengths = [3, 5]
    arguments = [random.randn(*shape) for shape in (
        [2, 3, 4], [2, 5, 4], *(shapes[name] for name in names))]

    def expected(queries, values, *weights):
        return [attend(queries, values, lengths, flavour,
                       dict(zip(names, weights, strict=True)))]

    with tf.Graph().as_default(), tf.Session() as session:
        queries, values = (tf.constant(value, tf.float32) for value in arguments[:2])
        bias = -1e9 * (1 - tf.sequence_mask(lengths, 5, tf.float32))[:, None, None]
        keys = seq2seq.attention_keys(values, flavour)
        outputs = seq2seq.attend(queries, keys, values, bias, flavour)
        variables = [tf.trainable_variables(name)[0] for name in names]
        for variable, value in zip(variables, arguments[2:], strict=True):
            variable.load(value, session)
        check(session, [outputs], [queries, values, *variables], expected, arguments)


def ident(overrides):
    return ",".join(f"{key}={value}" for key, value in overrides.items())


@pytest.fixture(scope="module", params=CASES, ids=ident)
def case(request):
    """A model with random weights: its session, itself, and its log probabilities for targets."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(
            tiny_models.hparams("qkv_seq2seq_tiny", **{"max_length": 40, **request.param}),
            model="qkv_seq2seq")
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        logits, _ = model({"inputs": inputs, "targets": targets, "target_space_id": 1})
        log_probabilities = tf.nn.log_softmax(logits)
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)

        def whole(input_ids, target_ids):
            """[sentences, length] log probabilities by symbol."""
            feed = {inputs: input_ids, targets: np.asarray(target_ids)[:, :, None, None]}
            return session.run(log_probabilities, feed)[:, :, 0, 0]

        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            model.set_mode(tf.estimator.ModeKeys.PREDICT)
            yield session, model, whole


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), padding=st.integers(1, 6),
       seed=st.integers(0, 99))
def test_padding_changes_nothing(case, lengths, padding, seed):
    _, _, whole = case
    short = tiny_models.sentences(lengths, seed)
    long = tiny_models.sentences(lengths, seed, padding)
    targets = tiny_models.sentences([5] * len(lengths), seed + 1)[:, :, 0, 0]
    together = whole(short, targets)
    # Other shapes round otherwise, and with these weights a change of the word vectors by 1e-7
    # moves a log probability by as much as 5e-4.
    np.testing.assert_allclose(whole(long, targets), together, atol=1e-4)
    for row, length in enumerate(lengths):
        alone = whole(short[row:row + 1, :length], targets[row:row + 1])
        np.testing.assert_allclose(together[row:row + 1], alone, atol=1e-3)


def features():
    return {"inputs": tf.constant(INPUTS), "target_space_id": tf.constant(1)}


def test_every_cached_step_gives_the_logits_of_the_whole_model(case):
    session, model, whole = case
    forced = tiny_models.sentences([7, 7, 7], seed=5)[:, :, 0, 0]
    seen = []
    with tf.variable_scope(model.name):
        step, caches, sources = model.init_step(model.prepare_features(features()), 1)
        for last in np.pad(forced, [[0, 0], [1, 0]])[:, :-1].T:
            logits, caches = step(tf.constant(last), caches, sources)
            seen.append(tf.nn.log_softmax(logits))
    np.testing.assert_allclose(np.stack(session.run(seen), axis=1), whole(INPUTS, forced),
                               atol=2e-5)


def test_searches_find_what_the_whole_model_scores(case):
    session, model, whole = case
    for beams, alpha in ((1, 0.0), (3, 0.6)):
        found = model.infer(features(), decode_length=EXTRA, beam_size=beams, top_beams=beams,
                            alpha=alpha)
        got = session.run({key: found[key] for key in ("outputs", "scores")})
        ids = got["outputs"].reshape(3 * beams, -1)
        chances = whole(np.repeat(INPUTS, beams, axis=0), ids)
        expected = []
        for index, (row, symbols) in enumerate(zip(chances, ids, strict=True)):
            limit = np.count_nonzero(INPUTS[index // beams]) + EXTRA
            ends = np.flatnonzero(symbols == EOS)
            count = ends[0] + 1 if len(ends) else min(limit, len(symbols))
            penalty = ((5 + count) / 6) ** alpha if len(ends) else 1
            expected.append(row[np.arange(count), symbols[:count]].sum() / penalty)
            if beams == 1:
                np.testing.assert_array_equal(symbols[:count], row.argmax(axis=1)[:count])
                assert not symbols[count:].any()
        real = got["scores"].ravel() > -1e6
        assert real.reshape(3, -1)[:, 0].all()
        np.testing.assert_allclose(got["scores"].ravel()[real], np.array(expected)[real],
                                   atol=1e-4)


@pytest.mark.parametrize("overrides, named", [
    (dict(hidden_size=33), "hidden_size=33"),
    (dict(position="relative"), "position=relative: relative is a scheme of self-attention"),
    (dict(decoder_position="sinusoid+rotary"), "decoder_position=sinusoid.rotary: rotary"),
    (dict(sampling_method="random"), "sampling_method=random: qkv_seq2seq supports only argmax"),
])
def test_what_it_cannot_do_is_said_in_a_line(overrides, named):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=named):
        tiny_models.make(tiny_models.hparams("qkv_seq2seq_tiny", **overrides), model="qkv_seq2seq")


def test_a_problem_without_a_source_is_refused():
    values = tiny_models.hparams("qkv_seq2seq_tiny")
    problem = problem_hparams.test_problem_hparams(11, 11, values)
    del problem.modality["inputs"]
    with tf.Graph().as_default(), pytest.raises(ValueError, match="qkv_seq2seq needs a source"):
        registry.model("qkv_seq2seq")(values, "train", problem)({"targets": tf.ones(
            [1, 2, 1, 1], tf.int32)})


def test_the_settings_are_those_of_the_recipe():
    values = registry.hparams("qkv_seq2seq_base")
    assert (values.hidden_size, values.weight_decay, values.clip_grad_norm, values.optimizer) == (
        512, 1e-8, 1.0, "adam")
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rate = learning_rate.learning_rate_schedule(values)
        session.run(tf.global_variables_initializer())
        for at, expected in ((0, 5e-4), (4999, 5e-4), (5001, 4.5e-4), (10001, 4.05e-4),
                             (100001, 5e-4 * 0.9 ** 20), (110001, 5e-5), (900000, 5e-5)):
            step.load(at, session)
            assert session.run(rate) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("encoder", seq2seq.ENCODERS)
def test_it_learns_sentences_by_heart(encoder):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        model = tiny_models.make(tiny_models.hparams("qkv_seq2seq_tiny", encoder=encoder), "train",
                                 "qkv_seq2seq")
        _, found = model(tiny_models.features(INPUTS, tiny_models.sentences([6, 3, 5], seed=4)))
        loss = sum(found.values())
        optimizer = tf.train.AdamOptimizer(0.01)
        slopes = optimizer.compute_gradients(loss)
        assert all(slope is not None for slope, _ in slopes)
        step = optimizer.apply_gradients(slopes)
        session.run(tf.global_variables_initializer())
        seen = [session.run([loss, step])[0] for _ in range(60)]
    assert seen[0] > 2 and seen[-1] < 0.25 * seen[0]
