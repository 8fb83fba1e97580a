"""The reversal toy: its examples, its model's settings, its loss, and its log; own tasks."""
import json
import pathlib
import random

import pytest
import tiny_models
from hypothesis import given
from hypothesis import strategies as st
from tensor2tensor.utils import registry

from rpr.evaluation import scoring
from rpr.problems import length_tasks, toy
from rpr.utils.errors import UserError


def test_the_example_that_the_toy_is_described_with():
    assert toy.reverse_repeats("0 1 5 9 0 3 5 2 5".split()) == "5 2 X 3 X 9 5 1 0".split()


@given(st.lists(st.sampled_from("0123456789"), max_size=20))
def test_a_place_is_crossed_out_where_the_digit_came_an_odd_number_of_times_before(digits):
    out = toy.reverse_repeats(digits)[::-1]
    assert len(out) == len(digits)
    for place, (digit, found) in enumerate(zip(digits, out, strict=True)):
        assert found == ("X" if digits[:place].count(digit) % 2 else digit)


@pytest.mark.parametrize("name, lengths", [("toy_reverse_repeats", {10}),
                                           ("toy_reverse_repeats_15", {15}),
                                           ("toy_reverse_repeats_5_to_10", set(range(5, 11)))])
def test_the_sets_are_seeded_disjoint_and_of_their_length(name, lengths):
    problem = registry.problem(name)
    found = {split: list(problem.text_pairs(split, "")) for split in ("dev", "test", "train")}
    assert found["dev"] == list(registry.problem(name).text_pairs("dev", ""))
    assert {split: len(pairs) for split, pairs in found.items()} == problem.sizes
    sources = [{source for source, _ in pairs} for pairs in found.values()]
    assert not sources[0] & sources[1] and not (sources[0] | sources[1]) & sources[2]
    for source, target in found["test"]:
        assert target.split() == toy.reverse_repeats(source.split())
        assert len(source.split()) in lengths
    assert {len(source.split()) for source, _ in found["dev"]} == lengths


def test_a_word_that_the_toy_does_not_know_is_named():
    assert toy.Tokens("abc").encode("b a") == [3, 2]
    with pytest.raises(UserError, match="'a bb': 'bb' is not a token of this problem: a b c"):
        toy.Tokens("abc").encode("a bb")


class Own(toy.GeneratedProblem):
    """A task of a user's own."""

    name = "own"
    tokens = ("a", "b")
    sizes = {"train": 100, "dev": 10, "test": 10}

    def example(self, rng, split):
        letters = " ".join(rng.choices(self.tokens, k=12))
        return letters, letters


def test_a_task_that_changed_is_refused(tmp_path):
    paths = str(tmp_path / "data"), str(tmp_path / "tmp")
    Own().generate_data(*paths)
    Own().generate_data(*paths)

    class Changed(Own):
        def example(self, rng, split):
            source, target = super().example(rng, split)
            return source, "b" if split == "test" else target

    with pytest.raises(UserError, match="contains other data of own .examples changed.: take"):
        Changed().generate_data(*paths)
    path = tmp_path / "data" / "own.datagen.json"
    record = json.loads(path.read_text())
    assert set(record["sources"]) == {"settings", "examples"}
    del record["sources"]["examples"]                 # as in older records
    path.write_text(json.dumps(record))
    Own().generate_data(*paths)


@pytest.mark.parametrize("example, says", [
    (lambda rng: (["a"], ["b"]), r"own: the example .* is not \(source, target\)"),
    (lambda rng: "a b", "own: the example 'a b' is not"),
    (lambda rng: ("a", "b", "a"), "is not .source, target., two texts"),
    (lambda rng: ("a b", " "), "the example .'a b', ' '. is not .* two texts that are not empty"),
    (lambda rng: (str(random.random()), "b"), "same random numbers gave two different"),
    (lambda rng: ("a" + chr(10) + " ".join(rng.choices("ab", k=12)), "b"),
     "own.dev.source.txt: the text of pair 1 has a newline"),
])
def test_examples_that_are_no_pair_of_texts_are_refused(tmp_path, monkeypatch, example, says):
    monkeypatch.setattr(Own, "example", lambda self, rng, split: example(rng))
    with pytest.raises(UserError, match=says) as caught:
        Own().generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    assert "\n" not in str(caught.value)


def test_a_length_task_needs_only_tokens_and_an_answer():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "length_generalisation.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("@registry.register_problem\n", "")
    names = {"__name__": "my_tasks"}
    exec(code, names)
    names["RotateLetters"].name = "rotate_letters"    # registration gives it
    task = names["RotateLetters"]()
    pairs = list(task.text_pairs("test", ""))
    assert {len(source.split()) for source, _ in pairs} == set(range(5, 17)) and len(pairs) == 200
    assert all(target.split() == source.split()[1:] + source.split()[:1]
               for source, target in pairs)


def test_a_task_without_the_size_of_a_set_is_refused(monkeypatch):
    monkeypatch.setattr(Own, "sizes", {"train": 100, "dev": 10})
    for call in (Own().sources, lambda tmp_dir: list(Own().text_pairs("train", tmp_dir))):
        with pytest.raises(UserError, match="own: sizes = {'train': 100, 'dev': 10} lacks test"):
            call("")


@pytest.mark.parametrize("tokens, says", [
    ({"a", "b"}, "must be a tuple"),
    ((1, 2), "1 is not a text without white space"),
    (("a", "b c"), "'b c' is not a text without white space"),
    (("a", ""), "'' is not a text without"),
    (("a", "b", "a"), "'a' occurs twice"),
])
def test_tokens_that_are_no_vocabulary_are_refused(monkeypatch, tokens, says):
    monkeypatch.setattr(Own, "tokens", tokens)
    with pytest.raises(UserError, match=f"own: tokens.*: {says}"):
        Own().sources("")


class OwnLengths(length_tasks.LengthTask):
    """A task of a user's own with sources of any length."""

    name = "own_lengths"
    tokens = tuple("0123456789")
    sizes = {"train": 100, "dev": 10, "test": 10}

    def answer(self, source):
        return source


def test_an_answer_may_be_any_iterable(monkeypatch):
    monkeypatch.setattr(OwnLengths, "answer", lambda self, source: reversed(source))
    source, target = OwnLengths().example(random.Random(1), "train")
    assert target.split() == source.split()[::-1] and len(source.split()) >= 5


@pytest.mark.parametrize("attributes, says", [
    ({"answer": lambda self, source: source.sort()},
     r"own_lengths: answer\(\['.*\) gave None, not a list of tokens"),
    ({"answer": lambda self, source: [len(source)]}, r"answer\(.*\) gave \[\d+\], not a list"),
    ({"source": lambda self, rng, length: range(length)}, r"source\(rng, \d+\) gave range"),
    ({"shortest": 30}, "own_lengths: shortest = 30: must be at most trained_length = 20 and "
     "tested_length = 60"),
    ({"tested_length": 4}, "shortest = 5: must be at most"),
])
def test_a_length_task_that_gives_no_tokens_is_refused(attributes, says):
    task = type("Other", (OwnLengths,), attributes)()
    with pytest.raises(UserError, match=says):
        task.sources("")


def test_every_setting_is_the_recipes():
    recipe = dict(
        num_hidden_layers=2, hidden_size=128, num_heads=8, filter_size=256,
        layer_prepostprocess_dropout=0.1, attention_dropout=0.0, relu_dropout=0.0,
        layer_preprocess_sequence="none", layer_postprocess_sequence="dan",
        norm_after_embedding=True, shared_embedding_and_softmax_weights=True, position="sinusoid",
        batch_size=32, use_fixed_batch_size=True, learning_rate_warmup_steps=400,
        optimizer_adam_beta1=0.9, optimizer_adam_beta2=0.98, optimizer_adam_epsilon=1e-5,
        clip_grad_norm=5.0, label_smoothing=0.0)
    values = tiny_models.hparams("toy_reverse").values()
    assert {name: values[name] for name in recipe} == recipe


def test_exact_lines_are_counted():
    found = scoring.score({"x": ["a b", "c", "d "]}, {"one": ["a b", "x", "d"],
                                                      "two": ["y", "c", "y"]}, ("bleu",))
    assert found[0].exact == found[0].as_dict()["exact"] == 100
    found = scoring.score({"x": ["a b", "c", "d"]}, {"one": ["a", "x", "d"]}, ("bleu",))
    assert found[0].exact == pytest.approx(100 / 3)
