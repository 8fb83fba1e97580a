"""Scores, differences and rankings of a report, on runs with invented translations."""
import dataclasses
import itertools
import json

import pytest
from conftest import refused, rpr_command
from report_runs import (
    REFERENCE,
    SOURCE,
    damage,
    read_scored,
    unchanged,
    write_pair,
    write_run,
    write_study,
)

from rpr.evaluation import scoring
from rpr.report import comparison, study_reader, tables
from rpr.report.results import load_record
from rpr.utils.errors import UserError


def test_scores_are_those_of_sacrebleu(clipping_study):
    folder, results = clipping_study
    run = results.arms[1].runs[0]
    lines = (folder / run.path / "hypotheses.test.txt").read_text().splitlines()
    expected, = scoring.score({"x": lines}, {"reference": REFERENCE}, ("bleu", "chrf"))
    assert run.scores["bleu"] == pytest.approx(expected.scores["bleu"].score, abs=1e-9)
    assert run.scores["chrf"] == pytest.approx(expected.scores["chrf"].score, abs=1e-9)
    assert [*run.scores] == ["bleu", "chrf"]                  # scores.json has TER, too
    assert results.signatures["BLEU"] == expected.scores["bleu"].signature


def test_an_arm_is_averaged_over_its_seeds(clipping):
    assert [arm.settings for arm in clipping.arms] == [
        {"max_relative_position": k} for k in (16, 0, 1, 2, 4)]
    baseline, zero, one, half, failed = clipping.arms
    scores = [run.scores["bleu"] for run in baseline.runs]
    assert baseline.scores["bleu"].mean == pytest.approx(sum(scores) / 2)
    assert baseline.scores["bleu"].deviation == pytest.approx(
        abs(scores[0] - scores[1]) / 2 ** 0.5)
    assert not baseline.differences and baseline.relative_speed == 1.0
    assert zero.differences["bleu"].difference == pytest.approx(
        zero.scores["bleu"].mean - baseline.scores["bleu"].mean)
    assert zero.differences["bleu"].high < 0 and zero.differences["bleu"].p < 0.05
    assert zero.relative_speed == pytest.approx(3.6 / 3.9, abs=1e-4)
    assert len(half.done) == 1
    assert half.scores["bleu"].deviation is half.differences["bleu"].p is None
    assert half.differences["bleu"].low < half.differences["bleu"].difference
    assert not failed.scores and failed.parameters == 1234567
    assert clipping.unfinished[0].startswith("runs/k2-2: waiting")
    assert clipping.unfinished[1] == "runs/k4-1: failed (train: NaN in step 30_0)"


def test_speeds_of_other_machines_are_not_compared(tmp_path):
    cpus = {"a-1": "EPYC", "a-2": "Xeon", "b-1": "EPYC", "b-2": "Xeon",
            "c-1": "Xeon", "c-2": "Xeon"}
    for name, cpu in cpus.items():
        run = write_run(tmp_path, name, seed=int(name[-1]))
        (run / "environment.json").write_text(json.dumps({"cpu": cpu, "command": [name]}))
    write_study(tmp_path, unchanged(dict.fromkeys("abc", 2)), "a")
    results = study_reader.read_study(str(tmp_path))
    assert [arm.relative_speed for arm in results.arms] == [1.0, 1.0, None]


def test_the_letters_and_the_corrected_p_agree(clipping):
    for metric in ("bleu", "chrf"):
        tested = [arm.differences[metric] for arm in clipping.arms[1:3]]
        assert all(difference.p <= difference.p_holm <= 1 for difference in tested)
    by_names = {frozenset((pair.first, pair.second)): pair.comparison for pair in clipping.pairs}
    letters = {arm.name: set(arm.letters) for arm in clipping.arms}
    for arm in clipping.arms[1:]:
        pair = by_names.get(frozenset((clipping.baseline, arm.name)))
        if pair:
            assert pair.p_holm == arm.differences["bleu"].p_holm
            assert (pair.p_holm > 0.05) == bool(letters[arm.name] & letters[clipping.baseline])


def test_one_seed_gives_an_interval_and_no_p_value(tmp_path):
    for name, share in (("a", 0.1), ("b", 0.12)):
        write_run(tmp_path, name, share, seed=3)
    results = read_scored(tmp_path, "b")
    assert [arm.name for arm in results.arms] == ["b", "a"]
    difference = results.arms[1].differences["bleu"]
    assert difference.low < difference.difference < difference.high and difference.p is None
    assert not results.pairs and results.seeds_needed is None
    assert "so there is no p-value" in tables.to_markdown(results)


def write_documents(run, documents):
    (run / "documents.test.txt").write_text("".join(f"{name}\n" for name in documents))


def test_documents_are_the_unit_where_a_run_knows_them(tmp_path):
    runs = [write_run(tmp_path, f"run{number}", share=0.2 + number / 10) for number in range(2)]
    alone = read_scored(tmp_path, "run0")
    pages = [number // 7 for number in range(len(REFERENCE))]
    write_documents(runs[1], pages)                   # the other run was made before there were any
    results = read_scored(tmp_path, "run0")
    assert (alone.documents, results.documents) == (0, 9)
    systems = {run.name: (run / "hypotheses.test.txt").read_text().splitlines() for run in runs}
    _, expected = scoring.score(systems, {"": REFERENCE}, ("bleu",), test="jackknife",
                                documents=[f"{page}" for page in pages])
    difference = results.arms[1].differences["bleu"]
    assert (difference.low, difference.high) == pytest.approx(
        (expected.scores["bleu"].low, expected.scores["bleu"].high))
    assert difference.low != alone.arms[1].differences["bleu"].low
    assert "over the 9 documents of the test set (60 sentences)" in tables.to_markdown(results)
    write_documents(runs[0], [0] * 30 + [1] * 30)
    with pytest.raises(UserError, match="run1/documents.test.txt names other documents than"):
        read_scored(tmp_path, "run0")
    write_documents(runs[0], [0])
    with pytest.raises(UserError, match="run0/documents.test.txt has 1 lines"):
        read_scored(tmp_path, "run0")
    for run in runs:
        write_documents(run, [0] * len(REFERENCE))
    assert read_scored(tmp_path, "run0").arms[1] == alone.arms[1]      # one shows nothing


def test_empty_cut_and_short_translations_are_reported(tmp_path):
    short = [" ".join(line.split()[:2 if number < 7 else 4])
             for number, line in enumerate(REFERENCE)]
    write_run(tmp_path, "short", hypotheses=short)
    write_run(tmp_path, "empty", hypotheses=["" for _ in REFERENCE])
    write_run(tmp_path, "cut", share=0.0, cut=9)
    write_run(tmp_path, "sound", share=0.0)
    results = read_scored(tmp_path, "sound")
    by_name = {arm.name: arm.runs[0] for arm in results.arms}
    words = [sum(len(line.split()) + line.endswith(".") for line in lines)
             for lines in (short, [line for line in REFERENCE])]
    assert by_name["short"].brevity_penalty == pytest.approx(0.55, abs=0.3) and words[0] < words[1]
    assert (by_name["empty"].empty, by_name["empty"].brevity_penalty) == (60, 0.0)
    cut, empty, short = results.warnings
    assert cut.startswith("cut: 9 of 60") and empty.startswith("empty: 60 of 60")
    assert f"{by_name['short'].brevity_penalty:.2f}" in short and "7 of 60" in short
    assert "60 of 60 hypotheses are empty" in tables.to_markdown(results)


def test_a_test_set_of_one_sentence_has_scores_and_no_intervals(tmp_path):
    for name, share in (("a", 0.0), ("b", 0.6)):
        for seed in (1, 2):
            run = write_run(tmp_path, f"{name}-{seed}", share, seed)
            for text in run.glob("*.test.txt"):
                text.write_text(text.read_text().splitlines()[7] + "\n")
    write_study(tmp_path, unchanged(dict.fromkeys("ab", 2)), "a")
    rpr_command("report", tmp_path, "--skip_model_analysis")
    results = load_record(str(tmp_path))
    first, second = results.arms
    score, difference = first.scores["bleu"], second.differences["bleu"]
    assert score.low is score.high is None and score.mean > second.scores["bleu"].mean
    assert (difference.low, difference.p) == (None, 1.0)
    text = tables.to_markdown(results)
    assert f"{difference.difference:.1f} |" in text
    assert "The test set is too small" in text


def write_second_test_set(run, share, seed, documents=False):
    """A test set "news" of run.test_sets, of 20 sentences."""
    with open(run / "config.gin", "a") as config:
        config.write("run.test_sets = ('news',)\n")
    for kind, lines in (("source", SOURCE[:20]), ("reference", REFERENCE[:20]),
                        ("hypotheses", damage(REFERENCE[:20], share, 9 + seed)),
                        *([("documents", ["x", "y"] * 10)] if documents else [])):
        (run / f"{kind}.news.txt").write_text("".join(line + "\n" for line in lines))


def test_all_test_sets_are_judged_in_one_test(tmp_path):
    for name, share in (("a", 0.1), ("b", 0.3)):
        for seed in (1, 2):
            write_second_test_set(write_run(tmp_path / "both", f"{name}-{seed}", share, seed),
                                  share, seed)
            joined = write_run(tmp_path / "joined", f"{name}-{seed}", share, seed)
            for kind in ("source", "reference", "hypotheses"):
                (joined / f"{kind}.test.txt").write_text("".join(
                    (tmp_path / "both" / f"{name}-{seed}" / f"{kind}.{which}.txt").read_text()
                    for which in ("test", "news")))
    for folder in ("both", "joined"):
        write_study(tmp_path / folder, unchanged(dict.fromkeys("ab", 2)), "a")
    rpr_command("report", tmp_path / "both", "--test_set=all", "--skip_model_analysis")
    together = load_record(str(tmp_path / "both" / "reports" / "all"))
    expected = read_scored(tmp_path / "joined")
    assert together.title == "both, test + news" and together.sentences == 80
    assert together.arms[1].differences["bleu"] == expected.arms[1].differences["bleu"]
    alone = [read_scored(tmp_path / "both", measure=comparison.Measure(name))
             for name in ("", "news")]
    assert together.arms[1].by_test_set == {
        name: pytest.approx(results.arms[1].scores["bleu"].mean)
        for name, results in zip(("test", "news"), alone, strict=True)}
    text = tables.to_markdown(together)
    assert "| BLEU test | BLEU news |" in text and "all test sets together" in text
    write_second_test_set(tmp_path / "both" / "a-1", 0.1, 1, documents=True)
    known = read_scored(tmp_path / "both", measure=comparison.Measure("all"))
    assert known.documents == 60 + 2
    assert "62 documents or single sentences of the test set (80" in tables.to_markdown(known)
    with pytest.raises(UserError, match="test_set=all: the runs share no test set"):
        read_scored(tmp_path / "joined", measure=comparison.Measure("all"))


def test_the_same_text_does_not_count_twice(tmp_path):
    for name in "ab":
        run = write_run(tmp_path, name)
        write_second_test_set(run, 0.1, 1)
        for kind in ("source", "reference", "hypotheses"):
            (run / f"{kind}.news.txt").write_text((run / f"{kind}.test.txt").read_text())
    line = refused("report", tmp_path, "--baseline=a", "--test_set=all", "--skip_model_analysis")
    assert line == ("rpr report: --test_set=all: test and news are the same text, which would "
                    "count twice")


def write_tuned_study(folder):
    """Two arms that try three rates with two seeds; the rate 4 fails with one seed of "b"."""
    arms = {}
    for arm, better in (("a", 1), ("b", 2)):
        entries = []
        for seed, rate in itertools.product((1, 2), (1, 2, 4)):
            failed = (arm, seed, rate) == ("b", 2, 4)
            name = f"runs/{arm}-{rate}-{seed}"
            run = write_run(folder, name, 0.1 * rate, seed, done=not failed, status={
                "train": {"state": "failed", "code": 1, "reason": "NaN"}} if failed else None)
            (run / ".lock").touch()
            with open(run / "metrics.jsonl", "a") as metrics:
                metrics.write(json.dumps({"event": "eval", "step": 1000, "loss":
                                          2 + abs(rate - better) - (rate == 4) + 0.1 * seed}))
            entries.append({"seed": seed, "directory": name, "tuned": {"rate": rate}})
        arms[arm] = entries
    (folder / "study.json").write_text(json.dumps({"baseline": "a", "arms": [
        {"name": name, "changes": {}, "paper_bleu": None, "runs": entries}
        for name, entries in arms.items()]}))


def test_a_tuned_arm_is_judged_with_the_setting_of_the_least_loss(tmp_path):
    write_tuned_study(tmp_path)
    rpr_command("report", tmp_path, "--skip_model_analysis")
    results = load_record(str(tmp_path))
    first, second = results.arms
    assert [run.path for run in first.runs] == ["runs/a-1-1", "runs/a-1-2"]
    assert [run.path for run in second.runs] == ["runs/b-2-1", "runs/b-2-2"]
    assert (first.settings, second.settings) == ({"rate": 1}, {"rate": 2})
    assert first.scores["bleu"].mean == pytest.approx(
        sum(run.scores["bleu"] for run in first.runs) / 2)
    assert second.differences["bleu"].p is not None
    assert results.unfinished == ["runs/b-4-2: failed (train: NaN)"]
    text = tables.to_markdown(results)
    assert "| model | rate=1 | rate=2 | rate=4 |" in text and "The interval and p account" in text
    row = next(line for line in text.splitlines() if line.startswith("| b | 3.150"))
    assert f"chosen: 2.150 ({second.scores['bleu'].mean:.1f})" in row and row.endswith("failed |")
    # A setting that still trains keeps the seeds from counting that it lacks.
    (tmp_path / "runs" / "a-4-2" / "scores.json").unlink()
    (tmp_path / "runs" / "a-4-2" / "status.json").write_text("{}")
    again = read_scored(tmp_path)
    assert [run.path for run in again.arms[0].runs] == ["runs/a-1-1"]
    assert again.arms[1].differences["bleu"].p is None
    (tmp_path / "runs" / "a-1-1" / "metrics.jsonl").write_text('{"event": "eval", "loss": NaN}\n')
    diverged = read_scored(tmp_path)
    assert [run.path for run in diverged.arms[0].runs] == ["runs/a-2-1"]
    diverged.metrics = ["token_loss"]
    for run in diverged.arms[0].runs:
        run.scores = {"token_loss": 1.2346}
    assert "| a | failed | chosen: 3.100 (1.235) |  |" in tables.to_markdown(diverged)


def test_a_default_is_read_from_the_model(tmp_path):
    write_run(tmp_path, "runs/both-1")
    write_run(tmp_path, "runs/values-1", 0.3, relative_keys=False)
    write_study(tmp_path, {"both": ({"max_relative_position": 16}, None, {1: "runs/both-1"}),
                           "values only": ({"max_relative_position": 16, "relative_keys": False},
                                           None, {1: "runs/values-1"})}, "both")
    results = read_scored(tmp_path)
    assert [arm.settings for arm in results.arms] == [{"relative_keys": True},
                                                      {"relative_keys": False}]
    assert tables.to_markdown(results).splitlines()[3].startswith("| values only | no |")
    assert read_scored(tmp_path, "values only").arms[0].differences["bleu"].difference > 0


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path, name)
    with pytest.raises(UserError, match="baseline is missing: one of one, two"):
        study_reader.read_study(str(tmp_path), None)
    with pytest.raises(UserError, match="baseline=three: one of one, two"):
        study_reader.read_study(str(tmp_path), "three")
    (tmp_path / "two" / "reference.test.txt").write_text("other\n" * len(REFERENCE))
    with pytest.raises(UserError, match="two was scored on other text"):
        read_scored(tmp_path, "one")
    with pytest.raises(UserError, match="no such directory"):
        study_reader.read_study(str(tmp_path / "nothing"), None)
    with pytest.raises(UserError, match="neither a study"):
        study_reader.read_study(str(tmp_path / "one"), None)


def test_a_study_cannot_name_runs_outside_its_directory(tmp_path):
    write_run(tmp_path, "elsewhere")
    for directory in ("../elsewhere", str(tmp_path / "elsewhere")):
        write_study(tmp_path / "study", {"a": ({}, None, {1: directory})}, "a")
        with pytest.raises(UserError, match="not inside"):
            study_reader.read_study(str(tmp_path / "study"))


def test_a_linked_study_gin_is_not_shown(tmp_path):
    write_run(tmp_path, "study/run")
    write_study(tmp_path / "study", {"a": ({}, None, {1: "run"})}, "a")
    (tmp_path / "private").write_text("secret")
    (tmp_path / "study" / "study.gin").unlink()
    (tmp_path / "study" / "study.gin").symlink_to(tmp_path / "private")
    assert study_reader.read_study(str(tmp_path / "study")).study_gin == ""


def test_the_configuration_of_runs_is_that_of_all_or_differs(tmp_path):
    folder = write_pair(tmp_path, "one", {"base": 0.2, "other": 0.1}, beam_size=8,
                        hparams="relative_keys=False,max_length=20", alpha=0.0)
    results = study_reader.read_study(folder)
    assert results.configuration == {
        "problem": "p", "hparams_set": "h", "train_steps": 1000, "model": "rpr_transformer",
        "checkpoint_steps": 1000, "eval_frequency": 1000, "eval_steps": 100,
        "average_checkpoints": 1, "decode_batch_size": 32, "worker_gpu": 1, "max_length": 20,
        "relative_keys": True}
    assert [arm.configuration for arm in results.arms] == [
        {"beam_size": 4, "alpha": 0.6}, {"beam_size": 8, "alpha": 0.0}]


def test_scores_that_say_nothing_are_not_compared(tmp_path):
    """Untrained models: no p-value, no rank, no number of seeds."""
    for seed in (1, 2):
        for arm in "ab":
            write_run(tmp_path, f"{arm}-{seed}", seed=seed, hypotheses=["x"] * len(REFERENCE))
    write_study(tmp_path, unchanged(dict.fromkeys("ab", 2)), "a")
    results = read_scored(tmp_path)
    text = tables.to_markdown(results)
    assert "All arms have 0.0 BLEU and are not compared." in text
    assert results.pairs == [] and results.seeds_needed is None
    assert not any(word in text for word in ("p (Holm)", "rank", "power of"))


def test_a_difference_that_never_varies_has_no_p(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path, f"a-{seed}", seed=seed, hypotheses=REFERENCE)
        for arm in "bc":
            write_run(tmp_path, f"{arm}-{seed}", seed=seed, hypotheses=["x"] * len(REFERENCE))
    write_study(tmp_path, unchanged(dict.fromkeys("abc", 2)), "a")
    results = read_scored(tmp_path)
    assert [arm.letters for arm in results.arms] == ["a", "a", "a"]
    assert [pair.comparison.p for pair in results.pairs] == [None, None, 1.0]
    text = tables.to_markdown(results)
    assert "b, c and the baseline differ by the same amount in all seeds and sentences" in text
    assert "so there is no interval and no p-value." in text
    assert "| -100.0 |" in text


def test_a_record_can_be_read_without_its_runs(clipping, tmp_path):
    text = tables.to_json(clipping)
    (tmp_path / "results.json").write_text(text)
    again = load_record(str(tmp_path))
    assert again == clipping and tables.to_json(again) == text
    assert tables.to_markdown(again) == tables.to_markdown(clipping)
    run = json.loads(text)["arms"][0]["runs"][1]
    assert json.loads(text) == dataclasses.asdict(clipping)
    assert (run["seed"], run["steps"], run["seconds"]["train"]) == (2, 1000, 120.0)
    assert clipping.date == "2020-09-13"


def test_samples_are_spread_over_the_test_set(clipping):
    samples = clipping.samples
    assert len(samples) == comparison.SAMPLES == len({sample.reference for sample in samples})
    first = damage(REFERENCE, 0.1, 1)
    for sample in samples:
        assert 4 <= len(sample.source.split()) <= 40
        assert sample.hypotheses["max_relative_position=16"] == first[
            REFERENCE.index(sample.reference)]


def test_a_report_without_samples_holds_no_sentence(tmp_path):
    for name, share in (("a", 0.1), ("b", 0.12)):
        write_run(tmp_path, name, share, seed=3)
    rpr_command("report", tmp_path, "--baseline=a", "--skip_model_analysis",
                "--sample_translations=0")
    for name in ("results.json", "report.html"):
        text = (tmp_path / name).read_text()
        assert not [line for line in REFERENCE if line in text]
    rpr_command("report", tmp_path, "--baseline=a", "--skip_model_analysis",
                "--sample_translations=2")
    assert len(load_record(str(tmp_path)).samples) == 2
