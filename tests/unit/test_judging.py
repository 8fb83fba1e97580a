"""`rpr judge`: the test of arms on scores from a CSV file."""
import random

import numpy as np
import pytest
from conftest import ROOT, refused, rpr_command

from rpr.evaluation import judging, significance
from rpr.utils.errors import UserError

PUBLISHED = ROOT.parent / "shared" / "published" / "kazemnejad2023.csv"


def write(path, effects, tables=("copy", "sort"), lengths=(10, 20)):
    """Four seeds per arm; the scores of a run are its mean plus and minus the same amount."""
    dice = random.Random(0)
    lines = ["task,scheme,run,length,accuracy"]
    for table in tables:
        for scheme, effect in effects.items():
            for run in range(4):
                mean = effect + dice.gauss(0, 0.02)
                lines += [f"{table},{scheme},{run},{length},{mean + sign * 0.1}"
                          for length, sign in zip(lengths, (1, -1), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_comparison_is_that_of_the_means_of_the_runs(tmp_path):
    path = write(tmp_path / "x.csv", {"none": 0.3, "rotary": 0.5, "alibi": 0.5})
    scores = judging.read_scores(path, "scheme", "run", "accuracy", ["task"])
    assert list(scores) == ["copy", "sort"] and list(scores["copy"]["none"]) == list("0123")
    pairs = judging.judge(scores)
    assert [(pair.table, pair.first, pair.second) for pair in pairs[:3]] == [
        ("copy", "none", "rotary"), ("copy", "none", "alibi"), ("copy", "rotary", "alibi")]
    values = {name: np.array(list(seeds.values())) for name, seeds in scores["copy"].items()}
    for pair in pairs[:3]:
        difference = values[pair.second].mean() - values[pair.first].mean()
        assert pair.comparison.difference == pytest.approx(difference, abs=1e-12)
        assert pair.comparison.low < difference < pair.comparison.high
        assert pair.comparison.basis == "seeds"
    assert judging.outcomes(pairs, "p_all") == {
        ("none", "rotary"): [2, 0, 0], ("none", "alibi"): [2, 0, 0], ("rotary", "alibi"): [0, 0, 2]}
    p_values = significance.holm([pair.comparison.p for pair in pairs])
    assert [pair.p_all for pair in pairs] == p_values


def test_the_command_prints_tables_and_counts(tmp_path):
    path = write(tmp_path / "x.csv", {"none": 0.3, "rotary": 0.5})
    shown = rpr_command("judge", path, "--arm=scheme", "--seed=run", "--score=accuracy",
                        "--tables=task").stdout
    assert "2 tables: ahead, behind, undecided" in shown
    assert shown.splitlines()[-1] == ("significant pairs: 2 of 2 with p ≤ 0.05; 2 of 2 with Holm, "
                                      "of a table; 2 of 2 with Holm, of all tables")


def test_an_arm_with_one_seed_is_shown_and_not_tested(tmp_path):
    path = write(tmp_path / "x.csv", {"none": 0.3, "rotary": 0.5}, tables=("copy",))
    path.write_text(path.read_text() + "copy,alibi,0,10,0.9\ncopy,alibi,0,20,0.9\n")
    shown = rpr_command("judge", path, "--arm=scheme", "--seed=run", "--score=accuracy").stdout
    assert shown.count("alibi") == 1 and "significant pairs: 1 of 1" in shown


@pytest.mark.parametrize("text, problem", [
    ("", "is empty"),
    ("\n", "is empty"),
    ("scheme,run\na,1\n", "--score=accuracy: must be a column of"),
    ("scheme;run;accuracy\na;1;2\n", "the header is one column; separate columns by commas"),
    ("scheme\trun\taccuracy\na\t1\t2\n", "the header is one column; separate columns by commas"),
    ("scheme,run,accuracy\na,1,x\n", "--score=accuracy: 'x' in line 2 of "),
    ("scheme,run,accuracy\na,1,1e999\n", "'1e999' in line 2 of "),
    ("scheme,run,accuracy\na,1,-1e200\n", "is not a number from -1e+50 to 1e+50"),
    ("scheme,run,accuracy,run\na,1,2,3\n", "--seed=run: occurs twice in the header of"),
    ("scheme,run,accuracy\na\n", "line 2: fewer fields than columns"),
    ("scheme,run,accuracy\na,1,27,5\n", "line 2: more fields than columns"),
    ("scheme,run,accuracy\n", "no rows"),
    ("scheme,run,accuracy\na,1,2\n,2,3\n", "line 3: column scheme is empty"),
    ("scheme,run,accuracy\na,1,2\nb, ,3\n", "line 3: column run is empty"),
    ("scheme,run,accuracy\n\xff\xfe", "line 2 is not UTF-8 (invalid start byte at byte 1"),
    ("scheme,run,accuracy\na,1,2\na,2,3\n", "--arm=scheme: a single value in each table"),
    ("scheme,run,accuracy\na,1,2\na,2,3\nb,1,3\n", "--seed=run: no table of "),
])
def test_damaged_files_are_refused_in_one_line(tmp_path, text, problem):
    (tmp_path / "x.csv").write_bytes(text.encode("latin-1"))
    line = refused("judge", tmp_path / "x.csv", "--arm=scheme", "--seed=run", "--score=accuracy")
    assert problem in line and "x.csv" in line


def test_a_row_without_the_column_of_a_table_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("arm,seed,score,task\na,1,2,\na,2,3\n")
    with pytest.raises(UserError, match="line 3: fewer fields than columns"):
        judging.read_scores(str(path), "arm", "seed", "score", ["task"])


def test_a_run_with_fewer_rows_than_others_is_refused(tmp_path):
    path = write(tmp_path / "x.csv", {"none": 0.3, "rotary": 0.5}, lengths=(10, 20))
    path.write_text("\n".join(line for line in path.read_text().splitlines()
                              if not line.startswith("sort,none,2,20")))
    flags = ["--arm=scheme", "--seed=run", "--score=accuracy", "--tables=task"]
    assert "x.csv: table sort: arm none with seed 2 has 1 row" in refused("judge", path, *flags)


def test_arms_without_spread_over_seeds_are_not_compared(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("task,arm,seed,score\n" + "".join(
        f"{task},{arm},{seed},{score + (seed / 9 if task == 'sort' else 0)}\n"
        for task in ("copy", "sort") for arm, score in (("a", 1), ("b", 0)) for seed in range(3)))
    shown = rpr_command("judge", path, "--tables=task").stdout
    assert "scores do not vary between seeds: 1 of 1 pairs" in shown
    assert shown.splitlines()[-1].startswith("significant pairs: 1 of 1")
    # With unequal numbers of seeds, arms keep their own variances.
    path.write_text("arm,seed,score\na,0,1\na,1,1\na,2,1\nb,0,2\nb,1,2\nc,0,3\nc,1,4\n")
    assert [pair[1:3] for pair in judging.judge(judging.read_scores(
        str(path), "arm", "seed", "score"))] == [("a", "c"), ("b", "c")]


def test_rounding_is_no_spread():
    """Means of the same rows in another order differ in the last digit."""
    scores = {"": {"a": {"1": 0.7, "2": 0.7, "3": 0.7 + 2e-16},
                   "b": {"1": 0.2, "2": 0.2, "3": 0.2}}}
    assert judging.judge(scores) == []
    scores[""]["c"] = {"1": 0.3, "2": 0.4, "3": 0.35}
    assert len(judging.judge(scores)) == 3            # the spread of c is that of all


def test_an_arm_that_diverged_does_not_change_the_difference_of_others():
    """Beside a perplexity of 1e43, other arms seem not to vary over seeds."""
    scores = {"a": {"1": 30.0, "2": 31.0}, "b": {"1": 30.5, "2": 29.5}, "c": {"1": 1e43, "2": 40.0}}
    assert judging.judge({"": scores})[0].comparison.difference == pytest.approx(-0.5)


@pytest.mark.parametrize("unit", [1e-300, 1e-90, 1e-6, 1e50])
def test_the_unit_of_the_scores_does_not_matter(unit):
    dice = random.Random(1)
    scores = {arm: {str(seed): mean + dice.gauss(0, 0.1) for seed in range(3)}
              for arm, mean in (("a", 0.2), ("b", 0.4), ("c", 0.9))}
    one = judging.judge({"": scores})
    scaled = judging.judge({"": {arm: {seed: unit * score for seed, score in seeds.items()}
                                 for arm, seeds in scores.items()}})
    for first, second in zip(one, scaled, strict=True):
        assert second.comparison.p == pytest.approx(first.comparison.p, rel=1e-6)
        assert second.comparison.low == pytest.approx(unit * first.comparison.low, rel=1e-6)


@pytest.mark.parametrize("flags, line", [
    (["--seed=arm"], "--seed=arm: is also the column of arm"),
    (["--tables=task,score"], "--tables=score: is also the column of score")])
def test_a_column_has_one_meaning(tmp_path, flags, line):
    (tmp_path / "x.csv").write_text("task,arm,seed,score\na,a,1,1\n")
    assert refused("judge", tmp_path / "x.csv", *flags) == f"rpr judge: {line}"


def test_a_pair_is_one_in_whatever_order_tables_list_it(tmp_path):
    first, second = (write(tmp_path / f"{number}.csv", effects, tables=(number,)).read_text() for
                     number, effects in enumerate(({"a": 1, "b": 2}, {"b": 1, "a": 2})))
    (tmp_path / "x.csv").write_text(first + second.partition("\n")[2])
    scores = judging.read_scores(str(tmp_path / "x.csv"), "scheme", "run", "accuracy", ["task"])
    assert judging.outcomes(judging.judge(scores), "p") == {("a", "b"): [1, 1, 0]}


def test_tables_whose_names_join_to_the_same_text_stay_apart(tmp_path):
    (tmp_path / "x.csv").write_text('t,u,arm,seed,score\n"x, y",z,a,1,1\nx,"y, z",a,1,2\n')
    assert judging.read_scores(str(tmp_path / "x.csv"), "arm", "seed", "score", ["t", "u"]) == {
        "'x, y', z": {"a": {"1": 1}}, "x, 'y, z'": {"a": {"1": 2}}}


def test_only_a_line_feed_ends_a_row(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('scheme,run,accuracy\n"a\nb",1,2\nab,1,3\nc\u2028d,1,4\n', encoding="utf-8")
    scores = judging.read_scores(str(path), "scheme", "run", "accuracy")
    assert scores == {"": {"a\nb": {"1": 2}, "ab": {"1": 3}, "c\u2028d": {"1": 4}}}


@pytest.mark.skipif(not PUBLISHED.exists(), reason="others' results are not part of the project")
def test_published_results():
    scores = judging.read_scores(str(PUBLISHED), "scheme", "seed", "accuracy", ["dataset", "split"])
    pairs = judging.judge(scores)
    assert len(scores) == 12 and len(pairs) == 110       # all scores of a table are 0
    assert judging.outcomes(pairs, "p_all")["none", "t5_relative_bias"] == [2, 0, 9]
    with pytest.raises(UserError):
        judging.read_scores(str(PUBLISHED.with_name("README.md")), "scheme", "seed", "accuracy")
