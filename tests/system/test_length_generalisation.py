"""docs/length_generalisation.md: its tasks, and its study with a task of one's own."""
import csv
import itertools
import random
import re
import shlex

import pytest
from conftest import ROOT, rpr_command
from tensor2tensor.utils import registry

from rpr.problems import toy
from rpr.utils.errors import UserError

PAGE = (ROOT / "docs" / "length_generalisation.md").read_text(encoding="utf-8")
SMALL = ["--set", "run.train_steps=4", "--set", "run.checkpoint_steps=4", "--set",
         "run.eval_steps=1", "--set", 'run.hparams="num_hidden_layers=1,hidden_size=16"', "--set",
         "study.seeds=(1,)", "--set", "study.length_buckets=(6, 8, 16)", "--set",
         'study.arms={"sinusoid": {}, "rotary": {"position": "rotary", "decoder_only": True}}']
EXAMPLES = re.findall(r"\| `(\w+)` \|.*\| ([^|]*): ([^|:]*) \|",
                      PAGE.partition("## The tasks of Ruoss")[0])


def test_the_page_lists_every_task_with_a_right_example():
    tasks = {name.split("_")[1] for name in registry.list_base_problems()
             if name.startswith("length_")}
    assert {name for name, *_ in EXAMPLES} == tasks
    for name, source, target in EXAMPLES:
        assert registry.problem(f"length_{name}_20").answer(source.split()) == target.split()


@pytest.mark.parametrize("name", [name for name, *_ in EXAMPLES])
def test_sources_are_not_longer_than_asked_for_and_have_answers_of_the_tokens(name):
    problem, rng, answers = registry.problem(f"length_{name}_20"), random.Random(1), set()
    for length in (problem.shortest, 20, 60):
        for _ in range(50):
            source = problem.source(rng, length)
            answer = problem.answer(source)
            assert length // 2 < len(source) <= length or name == "scan" and source
            assert answer and {*source, *answer} <= {*problem.tokens}
            answers.add(tuple(answer))
    assert len(answers) > 1


@pytest.mark.parametrize("name", ["length_copy_10", "length_addition_20", "length_parity_20"])
def test_tests_are_longer_than_trainings_and_share_no_source(name):
    problem = registry.problem(name)
    made = {split: [source for source, _ in problem.text_pairs(split, "")]
            for split in ("train", "dev", "test")}
    assert {split: len(sources) for split, sources in made.items()} == problem.sizes
    lengths = {split: {len(source.split()) for source in sources}
               for split, sources in made.items()}
    assert max(lengths["train"]) == problem.trained_length - (name == "length_addition_20")
    assert lengths["train"] == lengths["dev"] == {
        length for length in lengths["test"] if length <= problem.trained_length}
    assert max(lengths["test"]) >= 3 * problem.trained_length - 1
    assert not {*made["test"]} & {*made["train"], *made["dev"]}
    assert not {*made["dev"]} & {*made["train"]}


def test_every_task_has_enough_different_sources():
    for name in registry.list_base_problems():
        if name.startswith("length_"):
            problem = registry.problem(name)
            assert len(list(problem.text_pairs("dev", ""))) == problem.sizes["dev"]
            assert len(list(itertools.islice(problem.text_pairs("train", ""), 500))) == 500


def test_too_few_different_sources_are_an_error_and_no_endless_loop():
    class Bits(toy.GeneratedProblem):
        name = "bits"
        sizes = {"train": 4, "dev": 4, "test": 4}

        def example(self, rng, split):
            return rng.choice("01"), "0"

    with pytest.raises(UserError, match="bits: too few different sources for test"):
        list(Bits().text_pairs("dev", ""))


def test_the_study_of_the_page_with_its_own_task(tmp_path):
    (tmp_path / "gin").symlink_to(ROOT / "gin")
    (tmp_path / "my_tasks").mkdir()
    code, = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "my_tasks" / "__init__.py").write_text(code)
    study = next(line for line in PAGE.splitlines() if "--t2t_usr_dir=my_tasks" in line)
    done = rpr_command(*shlex.split(study)[1:], *SMALL, cwd=tmp_path)
    title = "accuracy by source length (tokens); > has longer ones than training (8)"
    assert title in " ".join(done.stdout.split())
    out = tmp_path / "runs" / "rotate"
    rows = list(csv.DictReader((out / "results_by_length.csv").open()))
    assert {(row["name"], row["seed"], row["low"], row["high"]) for row in rows} == {
        (arm, "1", low, high) for arm in ("sinusoid", "rotary")
        for low, high in (("1", "6"), ("7", "8"), ("9", "16"))}
    assert sum(int(row["sentences"]) for row in rows) == 2 * 200
    arms = list(csv.DictReader((out / "results.csv").open()))
    assert all(arm["accuracy_mean"] and arm["beyond_mean"] for arm in arms)
    assert (out / "plots" / "accuracy_by_length.png").exists()
