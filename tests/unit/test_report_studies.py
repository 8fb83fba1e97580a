"""Reports of several studies, of a study and a run of another one, and of chosen arms."""
import json
import shutil

import pytest
from report_runs import read_scored, write_pair, write_run, write_study

from rpr import cli
from rpr.cli import report
from rpr.evaluation import test_sets
from rpr.report import comparison, study_reader, tables
from rpr.utils.errors import UserError


def test_a_study_is_compared_with_a_run_of_another_one(clipping_study, tmp_path):
    folder, results = clipping_study
    write_run(tmp_path, "other", 0.3)
    compared = read_scored(folder, against=tmp_path / "other")
    assert compared.baseline.endswith("other") and len(compared.arms) == 6
    assert compared.arms[1].differences["bleu"].difference == pytest.approx(
        results.arms[0].scores["bleu"].mean - compared.arms[0].scores["bleu"].mean)
    write_run(tmp_path, "begun", done=False)
    with pytest.raises(UserError, match="begun: the run is not done"):
        study_reader.read_study(str(folder), against=str(tmp_path / "begun"))
    with pytest.raises(UserError, match="contains neither a run .* nor a study"):
        study_reader.read_study(str(folder), against=str(tmp_path))


def test_a_run_of_another_study_is_an_arm_of_its_own_whatever_its_name(clipping_study, tmp_path,
                                                                       monkeypatch):
    folder, results = clipping_study
    write_run(tmp_path, "max_relative_position=0", 0.3)
    monkeypatch.chdir(tmp_path)
    compared = read_scored(folder, against="max_relative_position=0")
    assert compared.baseline == str(tmp_path / "max_relative_position=0")
    assert len({arm.name for arm in compared.arms}) == len(compared.arms) == 6
    assert compared.arms[2].scores["bleu"] == results.arms[1].scores["bleu"]
    assert compared.arms[2].differences["bleu"].p is None        # the baseline has one seed


def test_studies_are_compared_with_all_their_seeds(tmp_path):
    one = write_pair(tmp_path, "one", {"base": 0.2, "beam": 0.1}, beam_size=8)
    two = write_pair(tmp_path, "two", {"base": 0.3, "sum": 0.4}, hparams="position=rope")
    joined = study_reader.read_study(one, others=[two])
    comparison.score_runs(joined, one)
    assert joined.title == "one and two" and joined.baseline == "base"
    assert [arm.name for arm in joined.arms] == ["base", "beam", "two: base", "sum"]
    assert all(len(arm.done) == 2 for arm in joined.arms) and joined.arms[3].letters
    assert [arm.settings["beam_size"] for arm in joined.arms] == [4, 8, 4, 4]
    alone = read_scored(two)
    assert joined.arms[3].scores["bleu"] == alone.arms[1].scores["bleu"]
    compared = study_reader.read_study(one, against=two, chosen=["beam", "two: base"])
    assert [arm.name for arm in compared.arms] == ["two: base", "beam"]
    assert study_reader.read_study(one, against=two, chosen=["beam"]).arms == compared.arms
    assert compared.baseline == "two: base" and len(compared.baseline_arm.done) == 2
    with pytest.raises(UserError, match="arms=x: one of base, beam, two: base, sum"):
        study_reader.read_study(one, others=[two], chosen=["base,x"])
    with pytest.raises(UserError, match="the run directory .*beam-1' occurs twice"):
        study_reader.read_study(one, against=f"{one}/runs/beam-1")


def test_runs_that_two_studies_share_are_compared_once(tmp_path, capsys):
    one = write_pair(tmp_path, "one", {"k = 16": 0.2, "k = 1": 0.3})
    two = write_pair(tmp_path, "two", {"both": 0.2, "keys": 0.25, "copied": 0.25})

    def compared(*flags):
        report.main([*flags, "--skip_model_analysis"])
        with open(f"{flags[0]}/results.json") as record:
            return [arm["name"] for arm in json.load(record)["arms"]], capsys.readouterr().err

    names, said = compared(one, two)
    assert names == ["k = 16", "k = 1", "keys", "copied"]     # those of one study are its own
    assert "both is left out: its runs are those of k = 16" in said
    names, said = compared(one, two, "--baseline=both")
    assert names == ["k = 1", "both", "keys", "copied"] and "k = 16 is left out" in said
    names, said = compared(one, two, "--arms=k = 1,both")
    assert names == ["k = 1", "both"] and "left out" not in said


def test_a_test_set_whose_text_was_replaced_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RPR_TEST_SETS", str(tmp_path / "sets"))
    study = write_pair(tmp_path, "s", {"a": 0.1, "b": 0.2})

    def add(words):
        for name in ("source", "reference"):
            (tmp_path / name).write_text("".join(f"{name} {word}\n" for word in words))
        test_sets.register("mine", "en-de", str(tmp_path / "source"), [str(tmp_path / "reference")])

    add(["one", "two", "three"])
    for run in ("a-1", "a-2", "b-1", "b-2"):
        folder = tmp_path / "s" / "runs" / run
        with open(folder / "config.gin", "a") as config:
            config.write("run.test_sets = ('mine:en-de',)\n")
        hypotheses = folder / "hypotheses.mine_en-de.txt"
        hypotheses.write_text(f"reference one\nreference {run}\nx\n")
        assert cli.main(["score", str(hypotheses), "--test_set=mine", "--language_pair=en-de",
                         f"--json={folder / 'scores.mine_en-de.json'}"]) == 0
    measure = comparison.Measure("mine:en-de")
    assert read_scored(study, measure=measure).sentences == 3
    shutil.rmtree(tmp_path / "sets")
    add(["one", "two", "four"])
    with pytest.raises(UserError, match="a-1 was scored on other text than is now the test set "
                                        "mine:en-de: restore it"):
        read_scored(study, measure=measure)


@pytest.mark.parametrize("arms, baseline, says", [
    ({}, "a", "no arm is called 'a'"), ({"b": {1: "b-1"}}, "a", "no arm is called 'a'"),
    ({"a": {1: "a-1"}, "b": {}}, "a", "the arm 'b' has no runs")])
def test_a_study_without_baseline_or_runs_is_damaged(tmp_path, arms, baseline, says):
    for name in ("a-1", "b-1"):
        write_run(tmp_path, name)
    write_study(tmp_path, {name: ({}, None, runs) for name, runs in arms.items()}, baseline)
    with pytest.raises(UserError, match=f"study.json is damaged: {says}"):
        study_reader.read_study(str(tmp_path))


def test_a_directory_without_a_name_is_refused():
    with pytest.raises(UserError, match="no such directory"):
        study_reader.read_study("")


def test_chosen_arms_may_have_commas_in_their_names(tmp_path):
    arms = {}
    for name in ("a=1,b=2", "a=1", "b=2"):
        write_run(tmp_path, name)
        arms[name] = ({}, None, {1: name})
    write_study(tmp_path, arms, "b=2")

    def names(*chosen):
        results = study_reader.read_study(str(tmp_path), chosen=chosen)
        return [arm.name for arm in results.arms], results.baseline
    assert names("a=1,b=2") == (["a=1,b=2"], "a=1,b=2")
    assert names("b=2,a=1") == (["a=1", "b=2"], "b=2")
    assert names("a=1,b=2", "a=1") == (["a=1,b=2", "a=1"], "a=1,b=2")


def test_a_study_with_one_finished_arm_has_no_differences_yet(tmp_path):
    write_run(tmp_path, "a")
    write_run(tmp_path, "b", done=False)
    text = tables.to_markdown(read_scored(tmp_path, "a"))
    assert "No differences yet: the baseline, a, alone is done." in text


def test_many_arms_are_compared_with_the_baseline_alone(clipping_study, monkeypatch):
    folder, results = clipping_study
    monkeypatch.setattr(comparison, "MOST_RANKED_ARMS", 2)
    many = "p (Holm): corrected for all comparisons with the baseline."
    assert many in tables.to_markdown(read_scored(folder))
    assert many not in tables.to_markdown(results)


def test_the_note_says_which_arms_have_one_seed(clipping_study):
    folder, _ = clipping_study
    results = study_reader.read_study(str(folder), chosen=["max_relative_position=16",
                                                           "max_relative_position=2"])
    comparison.score_runs(results, str(folder))
    assert "With one seed of each other arm the spread" in tables.to_markdown(results)
    text = tables.to_markdown(read_scored(folder, "max_relative_position=2"))
    assert "With one seed of the baseline the spread" in text
    assert "p (Holm): corrected for all pairs" in text and "with a power of 0.8" in text


@pytest.mark.parametrize("argv, says", [(["x", "x"], "x x: a directory is given twice"),
                                        ([""], "DIR or --against is empty"),
                                        (["x", "--against="], "DIR or --against is empty")])
def test_directories_are_named_once(argv, says):
    with pytest.raises(UserError, match=says):
        report.main(argv)
