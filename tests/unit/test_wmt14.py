"""WMT 2014 and 2015 from small archives of the same layout, and what the constants agree with."""
import dataclasses
import gzip
import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.utils import registry
from test_download import Site, tar
from test_problems import examples

from rpr.problems import checks, wmt14
from rpr.utils.errors import UserError

ENGLISH = [f"This is sentence {number} of the text" for number in range(40)]


def sgml(tag, lines):
    body = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, 1))
    return (f'<{tag} setid="newstest2014" srclang="any">\n<doc sysid="ref" docid="a">\n<p>\n{body}'
            f"</p>\n</doc>\n</{tag}>\n").encode()


def text(lines):
    return "".join(line + "\n" for line in lines).encode()


TEST = {"en": ["Fish &amp; chips", "  two   spaces ", "Third"], "xx": ["a &amp; b", "zwei", "3"]}


def content(name, language):
    """What a member of an archive holds; Common Crawl has an empty line and stray separators."""
    lines = ENGLISH if name.endswith((".en", ".en.gz")) else [line + f" [{language}]"
                                                              for line in ENGLISH]
    if name.startswith("commoncrawl"):
        lines = ["", "a\u2028b\rc", *lines]
        if not name.endswith(".en"):
            lines[0] = "no source"
    if name.endswith(".sgm"):
        source = name.endswith(".en.sgm")
        return sgml("srcset" if source else "refset", TEST["en" if source else "xx"])
    return gzip.compress(text(lines)) if name.endswith(".gz") else text(lines)


class Small:
    """A small WMT 2014: archives of the same names and layout, on a loopback server."""

    def __init__(self, problem, folder, language):
        self.corpora, archives = {}, {}
        for split, corpora in problem.corpora.items():
            self.corpora[split] = []
            for remote, *members in corpora:
                path = tar(folder / remote.name,
                           {name: content(name, language) for name in members},
                           "w" if remote.name.endswith(".tar") else "w:gz")
                archives[remote.name] = open(path, "rb").read()
                os.unlink(path)
                digest = "sha256:" + hashlib.sha256(archives[remote.name]).hexdigest()
                self.corpora[split].append((dataclasses.replace(
                    remote, digest=digest, size=len(archives[remote.name])), *members))
        self.archives = archives


@pytest.fixture
def site(monkeypatch):
    with Site() as served:
        monkeypatch.setenv("RPR_MIRROR", served.url)
        yield served


@pytest.fixture(params=["ende_wmt14", "enfr_wmt14", "enfr_wmt15"])
def problem(request, site, tmp_path, monkeypatch):
    found = registry.problem(f"translate_{request.param}_rpr")
    small = Small(found, tmp_path, request.param[2:4])
    monkeypatch.setattr(type(found), "corpora", small.corpora)
    monkeypatch.setattr(type(found), "train_shards", 3)
    monkeypatch.setattr(type(found), "approx_vocab_size", 100)
    site.files.update(small.archives)
    return found


def test_from_the_archives_to_tfrecords(problem, site, tmp_path, monkeypatch):
    data_dir, tmp_dir = str(tmp_path / "data"), str(tmp_path / "tmp")
    problem.generate_data(data_dir, tmp_dir)
    language = problem.name[12:14]
    corpora = len(problem.corpora["train"])
    pairs = [(line, f"{line} [{language}]") for line in ENGLISH]
    odd = ("a\u2028b\rc", "a\u2028b\rc")              # one line, and the empty one is left out
    assert sorted(examples(problem, data_dir, "train")) == sorted(corpora * pairs + [odd])
    assert list(examples(problem, data_dir, "dev")) == pairs
    assert list(examples(problem, data_dir, "test")) == [
        ("Fish &amp; chips", "a &amp; b"), ("two spaces", "zwei"), ("Third", "3")]
    assert len(site.requests) == corpora + 2          # each archive once
    checks.check_data(problem, data_dir, checks.SPLITS)
    problem.write_text("test", tmp_dir, str(tmp_path / "s"), str(tmp_path / "t"))
    assert (tmp_path / "t").read_text() == "a &amp; b\nzwei\n3\n"
    names = os.path.join(data_dir, f"{problem.dataset_filename()}.{{}}.documents.txt")
    assert open(names.format("test")).read() == "a\na\na\n"
    assert not os.path.exists(names.format("dev"))    # newstest2013 comes without documents
    monkeypatch.setattr(type(problem), "documents", lambda self, split, tmp_dir: ["a"] * 2)
    with pytest.raises(UserError, match="documents of 2 lines, the text has"):
        problem.generate_data(data_dir + "2", tmp_dir)


def test_a_changed_archive_stops_datagen(problem, site, tmp_path):
    archive = problem.corpora["train"][0][0].name
    site.files[archive] = site.files[archive][:-1] + b"?"
    with pytest.raises(UserError, match=f"{archive}.*is not the file that is expected"):
        problem.generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    with pytest.raises(UserError, match="run rpr datagen"):
        checks.check_data(problem, str(tmp_path / "data"), ["train"])


def test_the_test_set_is_read_as_sacrebleu_reads_it(tmp_path):
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset
    lines = ["Fish &amp; chips", "  two   spaces ", "tab\there", "", "a <b>bold</b> one"]
    source, converted = tmp_path / "x.sgm", tmp_path / "x.txt"
    source.write_bytes(sgml("srcset", lines))
    FakeSGMLDataset("x", data=[], langpairs={})._convert_format(str(source), str(converted))
    assert wmt14.segments(str(source)) == converted.read_text().split("\n")[:-1]
    source.write_bytes(sgml("srcset", lines) + sgml("srcset", lines).replace(b'"a"', b'"b, c"'))
    FakeSGMLDataset("x", data=[], langpairs={})._convert_meta(str(source), "docid", str(converted))
    assert wmt14.document_names(str(source)) == ["a"] * 5 + ["b, c"] * 5
    assert wmt14.document_names(str(source)) == converted.read_text().split("\n")[:-1]


def test_the_test_set_is_sacrebleus():
    from sacrebleu.dataset import DATASETS
    full = DATASETS["wmt14/full"]
    assert full.data == [wmt14.TEST.url] and wmt14.TEST.digest == f"md5:{full.md5[0]}"
    for name, pair in (("ende", "en-de"), ("enfr", "en-fr")):
        problem = registry.problem(f"translate_{name}_wmt14_rpr")
        assert list(problem.corpora["test"][0][1:]) == full.langpairs[pair]
    later = DATASETS["wmt15"]
    test = wmt14.NEWSDISCUSS_TEST
    assert later.data == [test.url] and test.digest == f"md5:{later.md5[0]}"
    corpora = registry.problem("translate_enfr_wmt15_rpr").corpora
    assert list(corpora["test"][0][1:]) == later.langpairs["en-fr"]
    # In TensorFlow Datasets: news-commentary-v10.{src}-en.{src}.
    assert [corpora["train"][0][1:], *corpora["train"][1:]] == [
        ("news-commentary-v10.fr-en.en", "news-commentary-v10.fr-en.fr"),
        *wmt14.TranslateEnfrWmt14.corpora["train"][1:]]


def test_t2t_names_the_same_files_where_it_has_them():
    from tensor2tensor.data_generators import translate_enfr
    theirs = {os.path.basename(url): members
              for url, members in translate_enfr._ENFR_TRAIN_LARGE_DATA}
    ours = {remote.name: tuple(members) for remote, *members in
            wmt14.TranslateEnfrWmt14.corpora["train"]}
    assert ours == theirs


def test_the_paper_s_vocabulary():
    for name in ("ende", "enfr"):
        assert registry.problem(f"translate_{name}_wmt14_rpr").approx_vocab_size == 32768


@settings(max_examples=50)
@given(st.lists(st.text("ab ", max_size=30), max_size=200), st.integers(1, 500))
def test_a_sample_is_even_and_near_its_budget(tmp_path_factory, lines, budget):
    path = tmp_path_factory.mktemp("sample") / "text"
    path.write_bytes(text(lines))
    found = list(wmt14.sample(str(path), budget))
    step = max(1, path.stat().st_size // budget)
    assert found == [line.strip() for line in lines][::step]
    assert len(found) == -(-len(lines) // step)
