"""Scores against sacreBLEU's own command and against counts by hand; a real WMT test set."""
import json
import random
import subprocess
import sys

import pytest
from conftest import NEWSTEST, refused, rpr_command

from rpr.evaluation import scoring
from rpr.utils.errors import UserError

SENTENCES = ["Der Hund bellt laut im Garten.", "Die Katze schläft auf dem Sofa.",
             "Es regnet heute nicht.", "Wir gehen morgen ins Kino.",
             "Das Buch liegt auf dem Tisch."]


def damaged(lines, share, seed):
    """Lines with a share of their words dropped."""
    dice = random.Random(seed)
    return [" ".join(word for word in line.split() if dice.random() > share) or "."
            for line in lines]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    reference = SENTENCES * 12
    for name, lines in (("reference", reference), ("good", damaged(reference, 0.1, 1)),
                        ("bad", damaged(reference, 0.3, 2)), ("short", reference[:7]),
                        ("empty", [])):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (folder / "latin1").write_bytes("schläft\n".encode("latin-1"))
    return folder


def sacrebleu(*argv):
    done = subprocess.run([sys.executable, "-m", "sacrebleu", *map(str, argv), "-f", "json", "-w",
                           "9"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_bleu_by_hand():
    # 4/5 words, 3/4 pairs, 2/3 triples and 1/2 quadruples are right; equal lengths.
    found = scoring.score({"x": ["a b c d e"]}, {"y": ["a b c d f"]}, ("bleu",))
    assert found[0].scores["bleu"].score == pytest.approx(100 * (4/5 * 3/4 * 2/3 * 1/2) ** 0.25)


def test_scores_and_signatures_are_sacrebleus(files):
    found = json.loads(rpr_command("score", files / "good", "--reference", files / "reference",
                                   "--json").stdout)
    expected = sacrebleu(files / "reference", "-i", files / "good", "-m", "bleu", "chrf", "ter")
    assert found["system"] == str(files / "good") and found["lines"] == 60
    for name, score in zip(("bleu", "chrf", "ter"), expected, strict=True):
        assert found[name]["score"] == pytest.approx(score["score"], abs=1e-8)
        assert found[name]["signature"] == score["signature"]
    assert 0 < found["bleu"]["score"] < 100


@pytest.mark.parametrize(("flag", "theirs"), [("--paired_bootstrap", "--paired-bs"),
                                              ("--paired_randomization", "--paired-ar")])
def test_paired_tests_are_sacrebleus(files, flag, theirs):
    found = json.loads(rpr_command(
        "score", files / "bad", files / "good", f"--reference={files / 'reference'}", flag,
        "--samples=60", "--metrics=bleu,chrf", "--json").stdout)
    expected = sacrebleu(files / "reference", "-i", files / "bad", files / "good", theirs,
                         theirs + "-n", "60", "-m", "bleu", "chrf")
    assert len(found) == len(expected) == 2
    for ours, sacre in zip(found, expected, strict=True):
        for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
            for key, their_key in (("score", "score"), ("mean", "mean"), ("interval", "ci"),
                                   ("p_value", "p_value")):
                assert ours[name].get(key) == pytest.approx(sacre[column][their_key], abs=1e-6)
    assert "p_value" not in found[0]["bleu"] and found[1]["bleu"]["p_value"] < 0.05
    assert f"|{theirs[-2:]}:60|seed:12345|" in found[0]["bleu"]["signature"]


def test_a_seed_is_kept_and_identical_outputs_do_not_differ():
    reference = {"r": SENTENCES * 6}
    systems = {"a": damaged(SENTENCES * 6, 0.2, 3), "b": damaged(SENTENCES * 6, 0.2, 4),
               "same": damaged(SENTENCES * 6, 0.2, 3)}

    def means(seed):
        found = scoring.score(systems, reference, ("bleu",), paired="bootstrap", samples=30,
                              seed=seed)
        return [system.scores["bleu"].mean for system in found], found

    assert means(1)[0] == means(1)[0] != means(2)[0]
    same = means(1)[1][2].scores["bleu"]
    assert same.p_value == 1.0


def test_the_text_names_every_system_and_signature(files):
    text = rpr_command("score", files / "bad", files / "good", "--metrics=bleu",
                       f"--reference={files / 'reference'}", "--samples=20").stdout.splitlines()
    assert "baseline" in text[0] and str(files / "bad") in text[0] and "p = " in text[1]
    assert all("exact = " in line for line in text[2:4])
    assert text[4].startswith("BLEU: nrefs:1|bs:20|seed:12345|")


def test_json_goes_to_a_file(files, tmp_path):
    target = tmp_path / "scores.json"
    done = rpr_command("score", files / "good", f"--reference={files / 'reference'}",
                       "--metrics=chrf", f"--json={target}")
    assert json.loads(target.read_text())["chrf"]["details"] in done.stdout


@pytest.mark.parametrize(("argv", "says"), [
    (["short", "--reference=reference"], "short has 7 lines, reference has 60"),
    (["empty", "--reference=reference"], "empty: it is empty"),
    (["good", "--reference=empty"], "empty: it is empty"),
    (["missing", "--reference=reference"], "missing: No such file"),
    (["latin1", "--reference=reference"], "latin1: not UTF-8"),
    (["good", "good", "--reference=reference"], "given twice"),
    (["good", "--reference=reference", "--paired_bootstrap"], "two or more systems"),
    (["good", "--reference=reference", "--metrics=bleu,meteor"], "--metrics=meteor: of bleu"),
    (["good", "--reference=reference", "--tokenize=words"], "--tokenize=words: one of"),
    (["good", "--test_set=wmt41", "--language_pair=en-de"], "nearest: wmt24"),
    (["good", "--test_set=wmt41", "--language_pair=en-de"], "sacrebleu --list"),
    (["good", "--test_set=wmt14/full"], "--language_pair is missing"),
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
    code = ("import sys; from rpr import scoring; assert 'sacrebleu' not in sys.modules; "
            f"scoring.main(['{files}/good', '--reference={files}/reference', '--metrics=bleu']); "
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


def test_the_source_comes_in_its_own_order(sacrebleu_cache):
    code = ("import json; from rpr import scoring; print(json.dumps(["
            "scoring.test_set_source('wmt21', 'en-de'), "
            "list(scoring.test_set_references('wmt21', 'en-de').values())]))")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                          env={"SACREBLEU": str(sacrebleu_cache)})
    source, references = json.loads(done.stdout)
    expected = [" ".join(line.split()) for line in (NEWSTEST / "newstest2021.en-de.src.en")
                .read_text(encoding="utf-8").splitlines()]
    assert source == expected and len(references) == 1 and len(references[0]) == len(source)


def test_a_damaged_cache_gets_one_line(sacrebleu_cache, files, monkeypatch, tmp_path):
    monkeypatch.setenv("SACREBLEU", str(tmp_path))
    raw = tmp_path / "wmt21" / "raw"
    (raw / "test").mkdir(parents=True)
    (raw / "wmt21.test.tgz").write_bytes(b"cut")
    (raw / "test" / "newstest2021.en-de.xml").write_text("<dataset><doc>")
    assert "if it is damaged, remove it" in refused(
        "score", "good", "--test_set=wmt21", "--language_pair=en-de", cwd=files)


def test_score_takes_what_other_code_gives():
    with pytest.raises(UserError, match="a: it is empty"):
        scoring.score({"a": []}, {"r": []})
    with pytest.raises(UserError, match="a has 1 lines, r has 2"):
        scoring.score({"a": ["x"]}, {"r": ["x", "y"]})
