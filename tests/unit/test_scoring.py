"""Scores against sacreBLEU's own command and against counts by hand; a real WMT test set."""
import gzip
import json
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from conftest import NEWSTEST, refused, rpr_command
from hypothesis import given
from hypothesis import strategies as st
from report_runs import SENTENCES, damage
from sacrebleu import metrics as sacrebleu_metrics
from scipy import stats

from rpr.cli.score import as_text
from rpr.evaluation import ratio_metrics, scoring
from rpr.evaluation.metrics import Metric
from rpr.utils.errors import UserError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    reference = SENTENCES * 12
    for name, lines in (("reference", reference), ("good", damage(reference, 0.1, 1)),
                        ("bad", damage(reference, 0.3, 2)), ("short", reference[:7]),
                        ("same", ["page"] * 60), ("empty", [])):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (folder / "cut.gz").write_bytes(gzip.compress(b"a line\n" * 99)[:30])
    return folder


def sacrebleu(*argv):
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *map(str, argv), "-f", "json", "-w",
                           "9"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_bleu_by_hand():
    # 4/5 words, 3/4 pairs, 2/3 triples and 1/2 quadruples are right; equal lengths.
    system, = scoring.score({"x": ["a b c d e"]}, {"y": ["a b c d f"]}, ("bleu",))
    assert system.scores["bleu"].score == pytest.approx(
        100 * (4/5 * 3/4 * 2/3 * 1/2) ** 0.25)


def test_bleu_without_words_in_hypothesis_and_reference():
    metric, sums = Metric("bleu"), np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]], np.float64)
    assert metric.scores(sums) == pytest.approx([metric.corpus_score(sums)[0]])


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
@given(st.data())
def test_scores_of_sums_are_sacrebleus(name, data):
    """Sums as they occur in resamples, also without matches or without words."""
    metric = Metric(name)
    counts = {"bleu": 10, "chrf": 18, "ter": 2}[name]
    rows = data.draw(st.lists(st.lists(st.integers(0, 40), min_size=counts, max_size=counts),
                              min_size=1, max_size=4))
    sums = np.array(rows, np.float64)
    if name == "bleu":                                # no more matches than n-grams
        sums[:, 2:6] = np.minimum(sums[:, 2:6], sums[:, 6:])
    if name == "chrf":
        sums[:, 2::3] = np.minimum(sums[:, 2::3], np.minimum(sums[:, 0::3], sums[:, 1::3]))
    expected = [metric.corpus_score(row[None])[0] for row in sums]
    np.testing.assert_allclose(metric.scores(sums), expected, rtol=1e-12, atol=1e-12)


def test_scores_and_signatures_are_sacrebleus(files):
    system = json.loads(rpr_command("score", files / "good", "--reference", files / "reference",
                                    "--json").stdout)
    expected = sacrebleu(files / "reference", "-i", files / "good", "-m", "bleu", "chrf", "ter")
    assert system["system"] == str(files / "good") and system["lines"] == 60
    for name, score in zip(("bleu", "chrf", "ter"), expected, strict=True):
        assert system[name]["score"] == pytest.approx(score["score"], abs=1e-8)
        assert system[name]["signature"] == score["signature"]
    assert 0 < system["bleu"]["score"] < 100


@pytest.mark.parametrize(("flag", "sacrebleu_flag"), [("--paired_bootstrap", "--paired-bs"),
                                                      ("--paired_randomization", "--paired-ar")])
def test_paired_tests_are_sacrebleus(files, flag, sacrebleu_flag):
    systems = json.loads(rpr_command(
        "score", files / "bad", files / "good", f"--reference={files / 'reference'}", flag,
        "--samples=60", "--metrics=bleu,chrf", "--json").stdout)
    expected = sacrebleu(files / "reference", "-i", files / "bad", files / "good", sacrebleu_flag,
                         sacrebleu_flag + "-n", "60", "-m", "bleu", "chrf")
    assert len(systems) == len(expected) == 2
    for ours, theirs in zip(systems, expected, strict=True):
        for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
            for key, their_key in (("score", "score"), ("mean", "mean"), ("interval", "ci"),
                                   ("p_value", "p_value")):
                assert ours[name].get(key) == pytest.approx(theirs[column][their_key], abs=1e-6)
    assert "p_value" not in systems[0]["bleu"] and systems[1]["bleu"]["p_value"] < 0.05
    assert f"|{sacrebleu_flag[-2:]}:60|seed:12345|" in systems[0]["bleu"]["signature"]


def test_a_translation_that_systems_share_is_counted_once():
    lines = damage(SENTENCES, 0.3, 4)
    systems = [lines, lines, [*lines[:-1], ""]]
    for name, method in (("bleu", "_word_counts"), ("chrf", "_character_counts"),
                         ("ter", "_edit_counts")):
        metric = Metric(name)
        alone = [metric.sentence_statistics([system], [SENTENCES])[0] for system in systems]
        with mock.patch.object(metric, method, side_effect=getattr(metric, method)) as compute:
            together = metric.sentence_statistics(systems, [SENTENCES])
        assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))
        assert sorted(compute.call_args.args[0]) == sorted([*lines, ""])


def test_ter_of_two_references_is_sacrebleus():
    references = [SENTENCES * 4, damage(SENTENCES * 4, 0.3, 8)]
    lines = [*damage(SENTENCES * 4, 0.2, 9)[:-1], ""]
    metric = Metric("ter", 2)
    counts, = metric.sentence_statistics([lines], references)
    expected = sacrebleu_metrics.TER().corpus_score(lines, references)
    assert metric.corpus_score(counts) == (expected.score, expected.format(width=2))


def test_an_unknown_test_is_refused():
    with pytest.raises(UserError, match="test=bootstap: must be one of jackknife, bootstrap"):
        scoring.score({"a": SENTENCES, "b": SENTENCES}, {"": SENTENCES}, test="bootstap")


def test_a_seed_is_kept_and_identical_outputs_do_not_differ():
    reference = {"r": SENTENCES * 6}
    systems = {"a": damage(SENTENCES * 6, 0.2, 3), "b": damage(SENTENCES * 6, 0.2, 4),
               "same": damage(SENTENCES * 6, 0.2, 3)}

    def bootstrap(seed):
        return scoring.score(systems, reference, ("bleu",), test="bootstrap", samples=30, seed=seed)

    def means(seed):
        return [system.scores["bleu"].mean for system in bootstrap(seed)]

    assert means(1) == means(1) != means(2)
    assert "|seed:0|" in bootstrap(0)[1].scores["bleu"].signature
    assert bootstrap(1)[2].scores["bleu"].p_value == 1.0
    same = scoring.score(systems, reference, ("bleu",), test="jackknife")[2].scores["bleu"]
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_outputs_that_score_alike_on_every_sentence_do_not_differ(test):
    reference = SENTENCES * 6
    lines = damage(reference, 0.2, 3)
    systems = {"a": lines, "spaces": [f" {line.replace(' ', '  ')} " for line in lines]}
    for name in ("bleu", "chrf", "ter", "accuracy"):
        found = scoring.score(systems, {"r": reference}, (name,), test=test, samples=30)
        assert found[1].scores[name].p_value == 1.0


@pytest.mark.parametrize("metric", ["accuracy", "token_accuracy", "edit_distance"])
def test_randomization_counts_ties_where_sacrebleu_has_no_rule(metric):
    """One sentence of 20 differs: each exchange gives the observed difference, or its negative."""
    reference = [f"{number} a" for number in range(20)]
    systems = {"a": reference, "b": ["x", *reference[1:]]}
    found = scoring.score(systems, {"r": reference}, (metric,), test="randomization", samples=99)
    assert found[1].scores[metric].p_value == 1.0


def test_randomization_rejects_systems_of_equal_accuracy_in_five_percent():
    random, metric = np.random.default_rng(1), ratio_metrics.make_metric("accuracy")
    rejected = 0
    for trial in range(200):                          # about ten sentences differ
        first = np.stack([random.random(100) < 0.5, np.ones(100)], 1).astype(np.float64)
        second = first.copy()
        changed = random.random(100) < 0.1
        second[changed, 0] = random.integers(2, size=changed.sum())
        rejected += scoring.paired_randomization(metric, first, second, 200, trial) <= 0.05
    assert stats.binom.ppf(0.01, 200, 0.02) <= rejected <= stats.binom.ppf(0.99, 200, 0.05)


def test_the_default_test_is_two_sided_and_agrees_with_its_interval(files):
    systems = json.loads(rpr_command(
        "score", files / "bad", files / "good", f"--reference={files / 'reference'}", "--json",
        "--metrics=bleu,chrf").stdout)
    assert "p_value" not in systems[0]["bleu"]
    for name in ("bleu", "chrf"):
        score = systems[1][name]
        assert score["difference"] == pytest.approx(score["score"] - systems[0][name]["score"])
        assert (score["low"] > 0) == (score["p_value"] < 0.05)
        assert score["low"] + score["high"] == pytest.approx(2 * score["difference"])
        assert "seed" not in score["signature"]
    p_values = [systems[1][name]["p_value"] for name in ("bleu", "chrf")]
    assert min(systems[1][name]["p_holm"] for name in ("bleu", "chrf")) == pytest.approx(
        2 * min(p_values))


@pytest.mark.parametrize(("flags", "name"), [
    ([], "paired jackknife t-test over 60 sentences, two-sided"),
    (["--paired_bootstrap", "--samples=20"], "sacreBLEU's paired bootstrap (20 resamples)"),
    (["--paired_randomization", "--samples=20"],
     "sacreBLEU's paired approximate randomization (20 trials)")])
def test_the_text_names_systems_signatures_and_the_test(files, flags, name):
    text = rpr_command("score", files / "bad", files / "good", "--metrics=bleu",
                       f"--reference={files / 'reference'}", *flags).stdout.splitlines()
    assert "baseline" in text[0] and str(files / "bad") in text[0] and "  p " in text[1]
    assert "p = 0.0000" not in text[1]
    assert all("exact = " in line for line in text[2:4])
    assert text[4].startswith("BLEU: nrefs:1|") and ("seed" in text[4]) == bool(flags)
    assert name in text[5] and "another seed" in text[6]


def test_a_difference_that_never_varies_has_no_p():
    systems = scoring.score({"a": SENTENCES, "b": ["x"] * 5}, {"r": SENTENCES}, ("accuracy",),
                            test="jackknife")
    assert "p_value" not in systems[1].as_dict()["accuracy"]
    assert "difference -100.00  no p: it does not vary\n" in as_text(systems, "jackknife")


def test_documents_are_left_out_as_a_whole(files):
    (files / "documents").write_text("".join(f"page {n // 7 % 5}\n" for n in range(60)))
    argv = ["score", files / "bad", files / "good", f"--reference={files / 'reference'}",
            "--metrics=bleu"]
    alone, together = (json.loads(rpr_command(*argv, "--json", *flags).stdout)
                       for flags in ([], [f"--documents={files / 'documents'}"]))
    assert together[0]["documents"] == 5 and "documents" not in alone[0]
    assert together[1]["bleu"]["difference"] == alone[1]["bleu"]["difference"]
    assert together[1]["bleu"]["p_value"] != alone[1]["bleu"]["p_value"]
    text = rpr_command(*argv, f"--documents={files / 'documents'}").stdout
    assert "paired jackknife t-test over 5 documents (60 sentences), two-sided" in text


def test_json_goes_to_a_file(files, tmp_path):
    target = tmp_path / "scores.json"
    done = rpr_command("score", files / "good", f"--reference={files / 'reference'}",
                       "--metrics=chrf", f"--json={target}")
    assert json.loads(target.read_text())["chrf"]["details"] in done.stdout


def test_scoring_trusts_no_file_beside_the_text(files):
    """Whoever made the directory could have put counts of his own there."""
    argv = ["score", files / "good", f"--reference={files / 'reference'}", "--json"]
    before = rpr_command(*argv).stdout
    assert {path.name for path in files.iterdir() if path.name.startswith(".")} == set()
    np.savez(files / ".good.statistics.npz", **{"bleu": np.full((60, 10), 50)})
    assert rpr_command(*argv).stdout == before


def test_several_blocks_give_the_same(tmp_path):
    """More lines than a block has, through the command."""
    reference = [f"{line} {number % 7}" for number, line in enumerate(SENTENCES * 420)]
    lines = {"a": damage(reference, 0.1, 1), "b": damage(reference, 0.3, 2)}
    for name, text in (("reference", reference), *lines.items()):
        (tmp_path / name).write_text("".join(line + "\n" for line in text), encoding="utf-8")
    systems = json.loads(rpr_command("score", "a", "b", "--reference=reference", "--json",
                                     cwd=tmp_path).stdout)
    expected = sacrebleu(tmp_path / "reference", "-i", tmp_path / "b", "-m", "bleu", "chrf", "ter")
    for name, score in zip(("bleu", "chrf", "ter"), expected, strict=True):
        assert systems[1][name]["score"] == pytest.approx(score["score"], abs=1e-8)


def test_ter_of_a_very_long_line_is_left_out_or_refused(files):
    long = " ".join(["word"] * 25_000)
    (files / "long").write_text(long + "\n")
    argv = ["score", "long", "--reference=long", "--json"]
    done = rpr_command(*argv, cwd=files)
    assert set(json.loads(done.stdout)) == {"system", "lines", "references_sha256", "exact",
                                            "bleu", "chrf"}
    assert "TER is left out: line 1 of long has 25,000 words" in done.stderr
    assert "line 1 of long has 25,000 words" in refused(*argv, "--metrics=ter", cwd=files)


def test_text_without_spaces_between_words_gets_a_warning(tmp_path):
    for name, line in (("zh", "今天天气很好。"), ("de", "Das ist gut, 好.")):
        (tmp_path / name).write_text(f"{line}\n" * 3)
    warned = rpr_command("score", tmp_path / "zh", "--reference", tmp_path / "zh").stderr
    assert "the references have no spaces between words" in warned
    for more in (["--language_pair=en-zh"], ["--tokenize=char"]):
        assert not rpr_command("score", tmp_path / "zh", "--reference", tmp_path / "zh",
                               *more).stderr
    assert not rpr_command("score", tmp_path / "de", "--reference", tmp_path / "de").stderr


def test_the_longest_line_is_that_with_the_most_words():
    assert scoring.longest_line(["a b c", "\t".join("w" * 9), " " * 50]) == (2, 9)


def test_tokenized_text_gets_a_warning(files):
    (files / "tokenized").write_text("Das ist ein Satz .\n" * 100)
    done = rpr_command("score", "tokenized", "--reference=tokenized", "--metrics=bleu", cwd=files)
    assert "expects detokenized text" in done.stderr and "BLEU = 100.00" in done.stdout


@pytest.mark.parametrize(("argv", "says"), [
    (["good", "--reference=empty"], "--reference=empty: it is empty"),
    (["good", "--reference=reference", "--metrics=chrf", "--tokenize=char"],
     "--tokenize=char: is for bleu alone, and the metrics are chrf"),
    (["good", "--reference=reference", "--documents=good"], "two or more systems uses documents"),
    (["good", "bad", "--reference=reference", "--documents=short"],
     "good has 60 lines, short has 7"),
    (["good", "--reference=reference", "bad", "short"],
     "unrecognized arguments: bad short; repeat --reference for each value"),
    (["good", "bad", "--reference=reference", "--documents=same"], "names a single document"),
    (["good", "--reference=reference", "--language_pair=ende"],
     "--language_pair=ende: two language codes, such as en-de"),
    (["cut.gz", "--reference=reference"], "cut.gz: "),
    (["good", "--test_set=wmt14/full", "--language_pair=en-xx"], "wmt14/full has cs-en, de-en"),
])
def test_bad_input_gets_one_line(files, argv, says):
    assert says in refused("score", *argv, cwd=files)


def test_an_unreachable_network_gets_one_line(files, monkeypatch, tmp_path):
    monkeypatch.setenv("SACREBLEU", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):        # nothing listens there
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    line = refused("score", "good", "--test_set=wmt14/full", "--language_pair=en-de", cwd=files)
    assert "--test_set=wmt14/full: sacreBLEU could not get it" in line and str(tmp_path) in line


def test_scoring_needs_no_tensorflow(files):
    code = ("import sys; from rpr.cli import score; assert 'sacrebleu' not in sys.modules; "
            f"score.main(['{files}/good', '--reference={files}/reference', '--metrics=bleu']); "
            "assert 'tensorflow' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_real_wmt_test_set(sacrebleu_cache, monkeypatch):
    monkeypatch.setenv("SACREBLEU", str(sacrebleu_cache))
    a, c = (NEWSTEST / f"newstest2021.en-de.ref.{name}.de" for name in "AC")

    def score(path, *against):
        return json.loads(rpr_command("score", path, *against, "--json", "--metrics=bleu").stdout)

    wmt21 = score(c, "--test_set=wmt21", "--language_pair=en-de")
    assert wmt21["lines"] == 1002
    assert wmt21["bleu"]["score"] == pytest.approx(score(c, f"--reference={a}")["bleu"]["score"])
    assert "test:wmt21|lang:en-de|" in wmt21["bleu"]["signature"]
    assert 20 < wmt21["bleu"]["score"] < 40           # two people's translations of the same text
    both = score(c, "--test_set=wmt21/AC", "--language_pair=en-de")
    assert both["bleu"]["signature"].startswith("nrefs:2|")
    assert both["bleu"]["score"] == pytest.approx(100)


def test_a_damaged_cache_gets_one_line(sacrebleu_cache, files, monkeypatch, tmp_path):
    monkeypatch.setenv("SACREBLEU", str(tmp_path))
    raw = tmp_path / "wmt21" / "raw"
    (raw / "test").mkdir(parents=True)
    (raw / "wmt21.test.tgz").write_bytes(b"cut")
    (raw / "test" / "newstest2021.en-de.xml").write_text("<dataset><doc>")
    assert "is damaged, remove it" in refused(
        "score", "good", "--test_set=wmt21", "--language_pair=en-de", cwd=files)


def test_score_takes_what_other_code_gives():
    with pytest.raises(UserError, match="a: it is empty"):
        scoring.score({"a": []}, {"r": []})
    for name in ("r", "documents"):
        with pytest.raises(UserError, match=f"a has 1 lines, {name} has 2"):
            scoring.score({"a": ["x"]}, {name: ["x", "y"]}, documents=["z"])
    with pytest.raises(UserError, match="a has 1 lines, documents has 0"):
        scoring.score({"a": ["x"], "b": ["y"]}, {"r": ["x"]}, test="jackknife", documents=[])
    for systems, references in (({}, {"r": ["x"]}), ({"a": ["x"]}, {})):
        with pytest.raises(UserError, match="at least one system and one reference"):
            scoring.score(systems, references)
    with pytest.raises(UserError, match="metrics=perplexity: is of losses, not of text"):
        scoring.score({"a": ["x"]}, {"r": ["x"]}, ["bleu", "perplexity"])
