"""Scores over lower-cased Moses tokens (sacremoses)."""
import json

import pytest
from conftest import rpr_command
from sacrebleu import metrics as sacrebleu_metrics


def test_moses_bleu_is_that_of_lower_cased_tokens(tmp_path):
    version = pytest.importorskip("sacremoses").__version__
    (tmp_path / "cased").write_text(
        "Ein Mann, der \u201eHallo\u201c sagt.\nZwei Hunde laufen.\n" * 3)
    (tmp_path / "lower").write_text("ein mann, der \"hallo\" ruft.\nzwei Hunde rennen.\n" * 3)
    score = json.loads(rpr_command(
        "score", "cased", "--reference=lower", "--language_pair=en-de", "--json",
        "--tokenize=moses_lowercase", "--metrics=bleu,chrf", cwd=tmp_path).stdout)
    expected = sacrebleu_metrics.BLEU(tokenize="none", force=True).corpus_score(
        ['ein mann , der " hallo " sagt .', "zwei hunde laufen ."] * 3,
        [['ein mann , der " hallo " ruft .', "zwei hunde rennen ."] * 3])
    assert score["bleu"]["score"] == pytest.approx(expected.score)
    assert f"case:lc|eff:no|tok:none(sacremoses-{version}-lc-norm-de)|" in (
        score["bleu"]["signature"])
    assert "case:mixed" in score["chrf"]["signature"]


@pytest.mark.parametrize(("pair", "warned"), [("en-xx", True), ("en-cs", False)])
def test_a_language_without_rules_of_moses_gets_a_warning(tmp_path, pair, warned):
    pytest.importorskip("sacremoses")
    (tmp_path / "text").write_text("Ein Mann sagt etwas.\n" * 3)
    done = rpr_command("score", "text", "--reference=text", f"--language_pair={pair}",
                       "--tokenize=moses_lowercase", "--metrics=bleu,chrf", cwd=tmp_path)
    assert done.stderr.count("sacremoses has no abbreviations of the language xx") == warned
