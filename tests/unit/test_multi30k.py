"""Multi30k from a mirror directory, and what its lower-cased form needs."""
import pathlib
import sys

import pytest
from conftest import lines_of
from tensor2tensor.utils import registry

import rpr.problems  # noqa: F401
from rpr.evaluation import metrics
from rpr.utils.errors import UserError

MULTI30K = pathlib.Path(__file__).parents[3] / "shared" / "corpora" / "multi30k"


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"{MULTI30K} is not there")
@pytest.mark.parametrize("language", ["de", "fr"])
def test_multi30k_from_a_mirror_directory(monkeypatch, tmp_path, language):
    monkeypatch.setenv("RPR_MIRROR", str(MULTI30K))
    problem = registry.problem(f"translate_en{language}_multi30k")
    for split, name, count in (("train", "train", 29000), ("dev", "val", 1014),
                               ("test", "test_2016_flickr", 1000)):
        pairs = list(problem.text_pairs(split, str(tmp_path)))
        assert len(pairs) == count
        assert [source for source, _ in pairs] == lines_of(MULTI30K / f"{name}.en.gz")
        assert [target for _, target in pairs] == lines_of(MULTI30K / f"{name}.{language}.gz")
    for split, count in (("test_2017_flickr", 1000), ("test_2017_mscoco", 461)):
        paths = tmp_path / "source", tmp_path / "target"
        assert problem.write_text(split, str(tmp_path), *map(str, paths)) == count
        assert lines_of(paths[1]) == lines_of(MULTI30K / f"{split}.{language}.gz")


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"{MULTI30K} is not there")
def test_lower_cased_multi30k_has_the_tokens_that_are_scored(monkeypatch, tmp_path):
    pytest.importorskip("sacremoses")
    monkeypatch.setenv("RPR_MIRROR", str(MULTI30K))
    problem = registry.problem("translate_ende_multi30k_lc")
    paths = tmp_path / "source", tmp_path / "target"
    assert problem.write_text("test_2017_mscoco", str(tmp_path), *map(str, paths)) == 461
    lower, cased = lines_of(paths[1]), lines_of(MULTI30K / "test_2017_mscoco.de.gz")
    assert lower[2] == "ein finger zeigt auf einen hotdog mit käse , sauerkraut und ketchup ."
    # Scored like text that is not tokenized: the two forms differ in nothing that the score sees.
    metric = metrics.Metric("bleu", tokenize=metrics.MOSES, language_pair="en-de")
    statistics, = metric.sentence_statistics([lower], [cased])
    assert metric.corpus_score(statistics)[0] == pytest.approx(100)


def test_what_needs_sacremoses_is_named_and_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match="Moses tokens need sacremoses"):
        registry.problem("translate_ende_multi30k_lc").generate_data(
            str(tmp_path / "data"), str(tmp_path / "tmp"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="Moses tokens need sacremoses"):
        metrics.Metric("bleu", tokenize=metrics.MOSES, language_pair="en-de")


def test_multi30k_without_a_mirror_names_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("RPR_MIRROR", str(tmp_path))
    with pytest.raises(UserError, match=r"RPR_MIRROR=.*there is no train\.en\.gz in it"):
        next(registry.problem("translate_ende_multi30k").text_pairs("train", str(tmp_path)))
