"""Accuracy and edit distance against counts by hand and a plain recursion."""
import functools
import json

import numpy as np
import pytest
from conftest import rpr_command
from hypothesis import given
from hypothesis import strategies as st

from rpr.cli import models, score
from rpr.evaluation import scoring, significance
from rpr.evaluation.ratio_metrics import count_edits, loss_counts, make_metric
from rpr.utils.errors import UserError

NAMES = ("accuracy", "token_accuracy", "edit_distance")
_WORDS = st.lists(st.sampled_from("abc"), max_size=6)


def naive_edits(first, second):
    @functools.cache
    def edits(i, j):
        if not i or not j:
            return i + j
        return min(edits(i - 1, j) + 1, edits(i, j - 1) + 1,
                   edits(i - 1, j - 1) + (first[i - 1] != second[j - 1]))
    return edits(len(first), len(second))


@given(st.lists(st.tuples(_WORDS, _WORDS), min_size=1, max_size=8))
def test_edits_are_those_of_the_recursion(pairs):
    assert count_edits(pairs).tolist() == [naive_edits(*pair) for pair in pairs]


def test_scores_by_hand():
    hypotheses = ["a b c", "a b", " b  c ", ""]
    reference = ["a b c", "a b c d", "a b c", "a"]
    system, = scoring.score({"x": hypotheses}, {"y": reference}, NAMES)
    assert {name: score.score for name, score in system.scores.items()} == pytest.approx({
        "accuracy": 100 / 4, "token_accuracy": 100 * (3 + 2 + 0 + 0) / (3 + 4 + 3 + 1),
        "edit_distance": 100 * (0 + 2 + 1 + 1) / (3 + 4 + 3 + 1)})
    assert system.scores["accuracy"].details == "accuracy = 25.00% (1 of 4)"
    assert system.scores["accuracy"].signature == "nrefs:1|tok:words"


@pytest.mark.parametrize("name", NAMES)
def test_the_best_reference_counts(name):
    metric = make_metric(name, 2)
    both, = metric.sentence_statistics([["a b", "c"]], [["a b", "d"], ["x", "c"]])
    assert metric.corpus_score(both)[0] == (0 if name == "edit_distance" else 100)


def test_empty_lines():
    counts, = make_metric("edit_distance").sentence_statistics([["", "a"]], [["", ""]])
    np.testing.assert_array_equal(counts, [[0, 0], [1, 0]])
    assert make_metric("edit_distance").scores(counts).tolist() == [0, 100]
    assert make_metric("token_accuracy").scores(np.zeros(2)) == 100


@pytest.mark.parametrize("flag", ["--documents=x", "--paired_bootstrap", "--samples=10",
                                  "--tokenize=char"])
def test_flags_that_losses_have_no_use_for_are_refused(flag):
    with pytest.raises(UserError, match=f"^{flag.partition('=')[0]}: not with losses"):
        score.main(["a", "b", "--metrics=perplexity", flag])


def test_losses_are_given_once_and_have_tokens(tmp_path):
    with pytest.raises(UserError, match="^a a: a file is given twice"):
        score.main(["a", "a", "--metrics=perplexity"])
    (tmp_path / "empty").write_text("[]\n")
    with pytest.raises(UserError, match="empty: has no losses"):
        score.main([str(tmp_path / "empty"), "--metrics=perplexity"])
    (tmp_path / "large").write_text("[1.0]\n[2.0, -1e40]\n")
    with pytest.raises(UserError, match=r"large: line 2 is not a list of losses: .* to 1e\+39"):
        score.main([str(tmp_path / "large"), "--metrics=perplexity"])


def test_small_differences_in_loss_are_seen():
    losses = [np.array([1.0, 2.0]), np.array([3.0])]
    text = score.as_text(scoring.score_losses(
        {"a": losses, "b": [row + [0.001, 0.002][:len(row)] for row in losses]},
        ("token_loss",)), "jackknife")
    assert "difference +0.0013 [" in text and "over 2 texts, two-sided" in text


def test_the_perplexity_of_a_diverged_model_can_be_compared():
    runs = [[np.full(3, 900.0 + number), np.array([905.0])] for number in range(2)]
    _, other = scoring.score_losses({"a": [row / 900 for row in runs[0]], "b": runs[1]},
                                    ("perplexity",))
    assert other.scores["perplexity"].score == pytest.approx(np.exp(100))
    assert np.isfinite(other.scores["perplexity"].difference)
    metric = make_metric("perplexity")
    arms = [[significance.run_scores(metric, loss_counts([row / scale for row in run]))
             for run in runs] for scale in (900, 9.5)]
    assert np.isfinite(significance.compare(*arms).p)


def test_rpr_score_has_accuracy_with_a_paired_test(tmp_path):
    reference = [f"{number} {number % 7} {number % 3}" for number in range(60)]
    for name, lines in (("ref", reference), ("good", reference[:50] + ["x"] * 10),
                        ("bad", reference[:30] + ["x"] * 30)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    done = rpr_command("score", tmp_path / "good", tmp_path / "bad", "--reference",
                       tmp_path / "ref", "--metrics=accuracy,edit_distance",
                       f"--json={tmp_path / 'scores.json'}")
    assert "accuracy =  83.33  baseline" in done.stdout
    _, bad = json.loads((tmp_path / "scores.json").read_text())
    assert bad["accuracy"]["difference"] == pytest.approx(-100 / 3)
    assert bad["accuracy"]["p_value"] < 1e-4 < bad["accuracy"]["p_holm"] * 1e3


def test_the_last_positions_are_named_as_they_are(capsys):
    for longest, last in ((5, "position         5  loss"), (6, "position       5-6  loss")):
        models._print_by_position([np.ones(longest)])
        assert capsys.readouterr().out.splitlines()[-1].startswith(last)
