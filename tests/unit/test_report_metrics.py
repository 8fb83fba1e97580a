"""Reports of runs whose first metric is not BLEU, by length and beyond the training length."""
import copy
import csv
import dataclasses
import json

import numpy as np
import pytest
from report_runs import REFERENCE, SOURCE, damage, read_scored, unchanged, write_run, write_study
from tensorboard.backend.event_processing import event_file_loader

from rpr.cli import report
from rpr.evaluation import significance
from rpr.evaluation.ratio_metrics import make_metric
from rpr.report import columns, comparison, plots, study_reader, tables
from rpr.report.results import BEYOND, ArmResult, RunResult, StudyResults, load_record
from rpr.utils.errors import UserError

TRAINED = 12
_LENGTHS = np.array([len(line.split()) for line in SOURCE])


def answers(share_long, seed):
    """Hypotheses that are right for short sources and damaged for some of the long ones."""
    wrong = damage(REFERENCE, 0.9, seed)
    dice = np.random.default_rng(seed).random(len(REFERENCE))
    return [bad if length > TRAINED and luck < share_long else line for line, bad, length, luck
            in zip(REFERENCE, wrong, _LENGTHS, dice, strict=True)]


def make_study(folder, metrics):
    for arm, share in (("good", 0.2), ("bad", 0.8)):
        for seed in (1, 2, 3):
            run = write_run(folder, f"{arm}-{seed}", seed=seed,
                            hypotheses=answers(share, seed + int(100 * share)),
                            config=f"run.metrics = {metrics}\n")
            (run / "data.json").write_text(json.dumps(
                {"problem": "p", "sources": {}, "trained_length": TRAINED}))
    write_study(folder, unchanged({"good": 3, "bad": 3}), "good", length_buckets=[6, 12, 20])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "accuracy"
    make_study(folder, ("accuracy", "edit_distance"))
    return folder, read_scored(folder)


def test_arms_are_compared_by_the_first_metric(study):
    folder, results = study
    good, bad = results.arms
    assert (results.metrics, list(good.scores), results.length_unit) == (
        ["accuracy", "edit_distance"], ["accuracy", "edit_distance", BEYOND], "tokens")
    lines = (folder / bad.runs[0].path / "hypotheses.test.txt").read_text().splitlines()
    right = [line == expected for line, expected in zip(lines, REFERENCE, strict=True)]
    assert bad.runs[0].scores["accuracy"] == pytest.approx(100 * np.mean(right))
    assert bad.differences["accuracy"].p < 0.05 and not good.differences
    assert [pair.comparison for pair in results.pairs] == [bad.differences["accuracy"]]
    assert (good.letters, bad.letters) == ("a", "b")
    assert [column.key for column in columns.columns(results)][:8] == [
        "model", "seeds", "accuracy", "difference", "p", "p_holm", "rank", "edit_distance"]


def test_what_is_beyond_the_training_length_is_tested_by_itself(study):
    folder, results = study
    metric, longer = make_metric("accuracy"), _LENGTHS > TRAINED
    scores = [[significance.run_scores(metric, metric.sentence_statistics(
        [(folder / run.path / "hypotheses.test.txt").read_text().splitlines()],
        [REFERENCE])[0][longer]) for run in arm.runs] for arm in results.arms]
    expected = significance.compare(*scores)
    found = results.arms[1].differences[BEYOND]
    assert (found.difference, found.p) == pytest.approx((expected.difference, expected.p))


def test_the_table_by_length_has_the_chosen_buckets_and_marks_longer_ones(study):
    _, results = study
    shown = columns.length_columns(results)
    assert [column.heading for column in shown] == [
        "model", "1–6", "7–12", "13–20 >", "21–30 >", "all > 12", "difference [95%]", "p (Holm)"]
    assert shown[1].cells == ["100.0 ± 0.0"] * 2
    longest = [run.by_length[3] for run in results.arms[1].runs]
    assert shown[4].cells[1] == f"{np.mean(longest):.1f} ± {np.std(longest, ddof=1):.1f}"
    title = "accuracy by source length (tokens); > has longer ones than training (12)"
    assert [title for title, _ in columns.tables(results)][-1] == title
    assert "| 21–30 &gt; |" in tables.to_markdown(results)


def test_chosen_lengths_that_make_no_table_are_explained(study):
    _, results = study
    one = dataclasses.replace(results, buckets=results.buckets[:1], length_unit="words")
    assert not columns.length_columns(one)
    assert "study.length_buckets: all sources fall into one" in tables.to_markdown(one)
    for other in (results, dataclasses.replace(one, length_buckets=[])):
        assert not any("bucket" in note.text for note in columns.notes(other))


def test_too_few_long_sources_are_not_compared_and_a_note_says_so(study):
    folder, results = study
    few = copy.deepcopy(results)
    few.trained_length = int(np.sort(_LENGTHS)[-comparison.MIN_SENTENCES])
    assert (_LENGTHS > few.trained_length).sum() < comparison.MIN_SENTENCES
    for scored in (*few.arms, *(run for arm in few.arms for run in arm.runs)):
        del scored.scores[BEYOND]
    says = (f"the arms are not compared beyond the training ({few.trained_length} tokens): fewer "
            "than 10 sources are longer, or all are.")
    assert says in tables.to_markdown(few) and "fewer than 10" not in tables.to_markdown(results)


def test_the_test_set_of_a_language_model_has_texts(study):
    _, results = study
    model = copy.deepcopy(dataclasses.replace(results, metrics=["perplexity"]))
    for arm in model.arms:
        arm.scores["perplexity"] = arm.scores["accuracy"]
        arm.differences["perplexity"] = arm.differences.get("accuracy")
    assert "other seeds and other test texts (60 test texts)" in tables.to_markdown(model)
    assert "(60 test sentences)" in tables.to_markdown(results)
    assert ": 60 test texts}" in tables.to_latex(model)
    assert "on the development set, nats per token." in tables.to_markdown(model)


def test_files_have_the_values_of_each_seed_and_the_record_is_read_again(study):
    folder, results = study
    tables.write_tables(results, str(folder))
    assert load_record(str(folder)) == results
    rows = list(csv.DictReader((folder / "results_by_length.csv").open()))
    assert len(rows) == 2 * 3 * 4
    assert [float(row["accuracy"]) for row in rows[:4]] == results.arms[0].runs[0].by_length
    _, bad = csv.DictReader((folder / "results.csv").open())
    assert list(map(float, bad["accuracy_runs"].split(";"))) == [
        run.scores["accuracy"] for run in results.arms[1].runs]
    assert not any(name.startswith("bleu") for name in bad)
    assert float(bad["beyond_difference"]) == results.arms[1].differences[BEYOND].difference
    assert [name for name, _ in plots.draw_study(results)] == [
        "curves", "ranking", "accuracy_by_length"]


def test_tensorboard_gets_the_scores_in_these_metrics(study):
    folder, results = study
    tables.write_events(results, str(folder))
    run = results.arms[1].runs[0]
    sent = {value.tag: value.simple_value for event in event_file_loader.LegacyEventFileLoader(
        str(folder / run.path / tables.EVENTS)).Load() for value in event.summary.value}
    assert [sent["test/accuracy"], sent["test/edit distance"]] == pytest.approx(
        [run.scores["accuracy"], run.scores["edit_distance"]])
    assert "test/BLEU" not in sent


def test_the_heat_map_has_the_mean_of_each_arm_and_length(study):
    _, results = study
    axes, colours = plots.plot_heat_map(results).axes
    means = np.array([np.mean([run.by_length for run in arm.runs], axis=0)
                      for arm in results.arms])
    assert [text.get_text() for text in axes.texts] == [f"{mean:.1f}" for mean in means.flat]
    np.testing.assert_array_equal(axes.images[0].get_array(), means)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == [arm.name for arm in results.arms]
    assert axes.lines[0].get_xdata() == [1.5, 1.5] and axes.get_title() == (
        "right of the line: has longer ones than training (12)")
    assert colours.get_ylabel() == "Accuracy"
    more = dataclasses.replace(results, arms=results.arms + results.arms[1:])
    assert "heat_map" in [name for name, _ in plots.draw_study(more)]


def test_the_smallest_edit_distance_is_the_best(tmp_path):
    make_study(tmp_path, ("edit_distance",))
    results = read_scored(tmp_path)
    good, bad = results.arms
    assert good.scores["edit_distance"].mean < bad.scores["edit_distance"].mean
    assert (good.letters, results.featured(1)[0].name) == ("a", "good")


def test_recorded_scores_are_not_taken_for_those_of_another_test_set(tmp_path):
    # The metrics of a finished run may change.
    run = write_run(tmp_path, "a",
                    config="run.metrics = ('accuracy',)\nrun.test_sets = ('more',)\n")
    (run / "scores.json").write_text('{"step": 1000, "bleu": {"score": 20}, "chrf": {"score": 30}}')
    for kind in ("source", "reference", "hypotheses"):
        (run / f"{kind}.more.txt").write_text((run / f"{kind}.test.txt").read_text())
    found, = read_scored(tmp_path, "a", measure=comparison.Measure("more")).arms[0].runs
    assert list(found.scores) == ["accuracy"]


@pytest.mark.parametrize("metric, best", [("bleu", "b"), ("chrf", "b"), ("accuracy", "b"),
                                          ("edit_distance", "c"), ("perplexity", "c")])
def test_the_models_to_draw_are_the_best_by_what_was_recorded(tmp_path, metric, best):
    for name, score in (("a", 5.0), ("b", 7.0), ("c", 1.0)):
        run = write_run(tmp_path, name, config=f"run.metrics = ('{metric}',)\n")
        (run / "scores.json").write_text(json.dumps({"step": 1000, metric: {"score": score}}))
    unscored = study_reader.read_study(str(tmp_path), "a")
    assert [arm.name for arm in unscored.featured(2)] == ["a", best]


def test_a_bucket_of_one_sentence_has_no_interval(tmp_path):
    run = write_run(tmp_path, "a")
    (run / "source.test.txt").write_text("".join(f"{line}\n" for line in [*SOURCE[:-1], "w " * 60]))
    write_study(tmp_path, {"a": ({}, None, {1: "a"})}, "a", length_buckets=[30])
    results = read_scored(tmp_path)
    assert results.arms[0].interval_by_length[1] == [None, None]
    bars = plots.plot_by_length(results).axes[0].collections[0].get_segments()
    assert [len(bar) for bar in bars] == [2, 0]
    tables.write_tables(results, str(tmp_path))
    assert load_record(str(tmp_path)) == results
    results.arms[0].by_length = results.arms[0].runs[0].by_length = []
    tables.write_tables(results, str(tmp_path))
    assert not (tmp_path / "results_by_length.csv").exists()


def test_runs_with_other_metrics_get_a_note(tmp_path, capsys):
    for name, metric in (("a", "accuracy"), ("b", "ter")):
        write_run(tmp_path, name, config=f"run.metrics = ('{metric}',)\n")
    read_scored(tmp_path, "a")
    assert "run.metrics differs between the runs; all are scored by accuracy" in (
        capsys.readouterr().err)
    with pytest.raises(UserError, match="tokenize=x: is for bleu alone"):
        read_scored(tmp_path, "a", measure=comparison.Measure(tokenize="x"))


def test_language_models_are_compared_on_a_further_test_set(tmp_path):
    for name, loss in (("a", 1.0), ("b", 1.5)):
        run = write_run(tmp_path, name, config="run.metrics = ('token_loss',)\n"
                        "run.test_sets = ('more',)\n")
        for kind in ("source", "reference"):
            (run / f"{kind}.more.txt").write_text("text\n" * 3)
        for test_set, texts in (("test", len(SOURCE)), ("more", 3)):
            (run / f"losses.{test_set}.jsonl").write_text(f"[{loss}, {loss / texts}]\n" * texts)
    own = read_scored(tmp_path, "a")
    assert own.sentences == len(SOURCE) and own.title == tmp_path.name
    more = read_scored(tmp_path, "a", measure=comparison.Measure("more"))
    assert [arm.scores["token_loss"].mean for arm in more.arms] == pytest.approx([2 / 3, 1.0])
    assert more.sentences == 3 and more.title == f"{tmp_path.name}, more"
    for measure, problem in ((comparison.Measure("other"), "was not scored on it"),
                             (comparison.Measure("all"), "of language models, one at a time"),
                             (comparison.Measure(tokenize="char"), "which translate nothing")):
        with pytest.raises(UserError, match=problem):
            read_scored(tmp_path, "a", measure=measure)


def test_language_models_are_not_drawn():
    arms = [ArmResult("a", {}, None, [RunResult("runs/a", 1, "done")])]
    study = StudyResults("t", "a", arms=arms, metrics=["perplexity"])
    assert report._arms_to_draw(study, []) == []
    with pytest.raises(UserError, match="plot_model=a: these runs are language models"):
        report._arms_to_draw(study, ["a"])


def test_language_models_are_not_compared_with_translations(tmp_path):
    write_run(tmp_path, "a")
    write_run(tmp_path, "b", config="run.metrics = ('perplexity',)\n")
    with pytest.raises(UserError, match="b is a language model and .*a is not: report them separ"):
        read_scored(tmp_path, "a")
