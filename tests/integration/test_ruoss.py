"""The tasks of Ruoss et al. 2023, and the model without a decoder that they are for."""
import itertools
import random
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import ROOT
from tensor2tensor.utils import registry

import rpr.problems  # noqa: F401
from rpr.models import transformer_stacks
from rpr.problems import ruoss

PAGE = (ROOT / "docs" / "length_generalisation.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (?:regular|dcf|cs) \|.*\| ([^|]*): ([^|:]*) \|", PAGE, re.M)


def bits(text):
    return int(text[::-1], 2)


def run(source):
    """A stack, by its definition."""
    stack = ""
    for action in source:
        stack = stack[:-1] if action == "P" else stack + {"a": "0", "b": "1"}.get(action, action)
    return stack[::-1]


def solves(source, x):
    left, right = source.replace("x", x).split("=")
    return (eval(left) - int(right)) % 5 == 0


# Another definition of each task: whether an answer to a source is right.
RIGHT = {
    "even_pairs": lambda s, a: (s[0] != s[-1]) == (a == "1"),
    "modular_arithmetic": lambda s, a: (eval(s) - int(a)) % 5 == 0 <= int(a) < 5,
    "parity_check": lambda s, a: sum(map(int, s)) % 2 == int(a),
    "cycle_navigation": lambda s, a: (s.count("2") - s.count("0")) % 5 == int(a),
    "stack_manipulation": lambda s, a: a == run(s) + ".",
    "reverse_string": lambda s, a: s == "".join(reversed(a)),
    "modular_arithmetic_brackets": lambda s, a: (eval(s) - int(a)) % 5 == 0 <= int(a) < 5,
    "solve_equation": solves,
    "duplicate_string": lambda s, a: a == s + s,
    "missing_duplicate": lambda s, a: len(s) == 1 or (
        s.replace("?", a)[:len(s) // 2] == s.replace("?", a)[len(s) // 2:].rstrip("-")),
    "odds_first": lambda s, a: [s[i] for i in [*range(1, len(s), 2), *range(0, len(s), 2)]] == [*a],
    "binary_addition": lambda s, a: a[-1] == "." and bits(a[:-1]) == sum(map(bits, s.split("+"))),
    "binary_multiplication": lambda s, a: a[-1] == "." and (
        len(s) < 3 or bits(a[:-1]) == np.prod([bits(part) for part in s.split("*")], dtype=object)),
    "compute_sqrt": lambda s, a: int(a, 2) ** 2 <= int(s, 2) < (int(a, 2) + 1) ** 2,
    "bucket_sort": lambda s, a: all(s.count(digit) == a.count(digit) for digit in "01234")
    and all(x <= y for x, y in itertools.pairwise(a)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_answers_are_right_and_fit_into_their_places(name):
    task, rng = ruoss.TASKS[name], random.Random(name)
    for n in [*range(1, 41), 99, 100]:
        seen = set()
        for _ in range(20):
            source, answer = ("".join(part) for part in task.make(rng, n))
            assert len(source) == n - (name == "modular_arithmetic" and n % 2 == 0)
            assert 0 < len(answer) <= task.places(n)
            assert set(source + answer) <= set(task.tokens)
            assert name == "solve_equation" and n < 3 or RIGHT[name](source, answer), source
            seen.add(source)
        assert n < 9 or len(seen) > 10


def test_the_page_has_each_task_with_its_level_and_a_right_example():
    assert sorted(name for name, *_ in ROWS) == sorted(ruoss.TASKS) and len(RIGHT) == 15
    for name, source, answer in ROWS:
        tokens = source.replace(" ", "")
        places = ruoss.TASKS[name].places(len(tokens.rstrip("_")))
        assert tokens.count("_") == places
        assert RIGHT[name](tokens.rstrip("_"), answer.replace(" ", ""))


def test_lengths_and_places_of_the_splits(monkeypatch):
    problem = registry.problem("ruoss_reverse_string")
    monkeypatch.setattr(type(problem), "sizes", {"train": 3000, "dev": 300, "test": 600})
    lengths = {split: {source.count("_") for source, _ in problem.text_pairs(split, "")}
               for split in ("train", "dev", "test")}
    assert lengths == {"train": set(range(1, 41)), "dev": set(range(21, 41)),
                       "test": set(range(21, 101))}
    assert (problem.trained_length, problem.tested_length) == (80, 200)


def sources(places, padding=0):
    """Random sources, places (symbol 2) after them, the end mark: int32 [sources, length, 1, 1]."""
    rows = [[*row, *[2] * count, 1] for count, row in
            zip(places, np.random.RandomState(0).randint(3, 11, [len(places), 4]), strict=True)]
    longest = max(map(len, rows)) + padding
    return np.array([row + [0] * (longest - len(row)) for row in rows], np.int32)[..., None, None]


def test_a_search_gives_the_most_probable_symbol_of_each_place_whatever_the_padding():
    values = tiny_models.hparams(answer_symbol=2, encoder_position="sinusoid", position="none")
    places = [3, 1, 5]
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values)
        targets = np.ones([3, 6, 1, 1], np.int32)
        logits, _ = model(tiny_models.features(sources(places), targets))
        model.set_mode("infer")
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            found = [model.infer(tiny_models.features(sources(places, padding), targets),
                                 beam_size=beams, decode_length=0)
                     for beams in (1, 3) for padding in (0, 4)]
        assert not [v for v in tf.trainable_variables() if "/decoder/" in v.name]
        tiny_models.lively(session, seed=4)
        logits, (greedy, padded, *of_beams) = session.run([logits, found])
    best = logits[:, :, 0, 0].argmax(axis=-1)
    for row, first, second, count in zip(best, greedy["outputs"], padded["outputs"], places,
                                         strict=True):
        length = min([count + 1, *np.flatnonzero(row == 1) + 1])
        assert first[:length].tolist() == second[:length].tolist() == row[:length].tolist()
    assert max(len(set(row)) for row in best) > 1
    one, other = (result["outputs"][:, :4] for result in of_beams)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(*(result["scores"] for result in of_beams), rtol=1e-4)


def test_places_are_found_in_sources_that_were_cut_and_in_rows_of_padding():
    """`max_input_seq_length` cuts the end mark off. Rows of padding fill up a batch."""
    symbols = np.array([[5, 6, 2, 2, 1, 0], [5, 6, 2, 2, 2, 2], [5, 6, 2, 0, 0, 0],
                        [5, 6, 7, 8, 9, 3], [0] * 6], np.int32)
    memory = np.broadcast_to(np.arange(6.0, dtype=np.float32)[:, None], [5, 6, 1])
    with tf.Graph().as_default(), tf.Session() as session:
        places = session.run(transformer_stacks.answers(
            tf.constant(memory), tf.constant(symbols), 2, tf.range(4)[None]))
    assert places[..., 0].tolist() == [[2, 3, 4, 4], [2, 3, 4, 5], [2, 2, 2, 2], [5, 5, 5, 5],
                                       [0, 0, 0, 0]]


def test_an_answer_depends_on_the_whole_source_but_on_no_other_target():
    values = tiny_models.hparams(answer_symbol=2, encoder_position="sinusoid", position="none")
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        logits, _ = tiny_models.make(values)({"inputs": inputs, "targets": targets,
                                              "target_space_id": tf.constant(1)})
        tiny_models.lively(session)
        source, answer = sources([3]), np.full([1, 4, 1, 1], 5, np.int32)
        usual, other_answer = (session.run(logits, {inputs: source, targets: ids})
                               for ids in (answer, answer + 1))
        np.testing.assert_array_equal(usual, other_answer)
        for place in range(7):
            changed = source.copy()
            changed[0, place] = 9 if source[0, place] != 9 else 8
            after = session.run(logits, {inputs: changed, targets: answer})
            assert (np.abs(after - usual).max(axis=-1) > 1e-4).all() or place >= 4


def test_without_a_decoder_its_settings_have_no_effect_and_sampling_is_refused():
    from rpr.models import live_hparams
    values = tiny_models.hparams(answer_symbol=2)
    dead = live_hparams.without_effect("rpr_transformer", values)
    assert {"decoder_position", "cross_position", "num_decoder_layers"} <= set(dead)
    values.sampling_method = "random"
    with tf.Graph().as_default(), pytest.raises(ValueError, match="answer_symbol=2: such a model"):
        tiny_models.make(values, "infer").infer(
            tiny_models.features(sources([2]), np.ones([1, 3, 1, 1], np.int32)), beam_size=1)


@pytest.mark.parametrize("position", ["none", "relative", "cope"])
def test_a_unidirectional_encoder_sees_no_later_words(position):
    values = tiny_models.hparams(encoder_position=position, position="none",
                                 unidirectional_encoder=True)
    with tf.Graph().as_default(), tf.Session() as session:
        model, inputs = tiny_models.make(values), tf.placeholder(tf.int32, [None, None, 1, 1])
        with tf.variable_scope("transformer/body"):
            words = tf.one_hot(inputs[..., 0], 32)
            memory, _ = model.encode(words, None, model.hparams, {"inputs_raw": inputs})
        tiny_models.lively(session)
        source = tiny_models.sentences([8, 5])
        usual = session.run(memory, {inputs: source})
        assert usual.shape == (2, 8, 32)
        for place in range(8):
            changed = source.copy()
            changed[0, place] = 2 if source[0, place] != 2 else 3
            after = np.abs(session.run(memory, {inputs: changed}) - usual).max(axis=-1)
            assert after[0, place:].max() > 1e-4 and after[0, :place].max(initial=0) < 1e-5
            assert after[1].max() < 1e-5


def test_a_unidirectional_encoder_is_that_of_t2t():
    values, theirs = (tiny_models.hparams(
        "rpr_tiny_absolute", unidirectional_encoder=True, pos=pos) for pos in ("none", "timing"))
    batch = [tiny_models.sentences([7, 7], seed) for seed in (1, 2)]
    results, weights = [], {}
    for hparams, model in ((values, "rpr_transformer"), (theirs, "transformer")):
        with tf.Graph().as_default(), tf.Session() as session:
            logits = tiny_models.make(hparams, model=model)(tiny_models.features(*batch))[0]
            if weights:
                for variable in tf.trainable_variables():
                    variable.load(weights[variable.name], session)
            else:
                tiny_models.lively(session)
                weights = {variable.name: session.run(variable)
                           for variable in tf.trainable_variables()}
            results.append(session.run(logits))
    assert np.abs(results[0]).max() > 0.1
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
