"""The embedded corpus and text files, through datagen to TFRecords and back."""
import collections
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import tracemalloc

import pytest
import tensorflow.compat.v1 as tf
from conftest import lines_of, without_text
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensor2tensor.utils import registry

import rpr.problems  # noqa: F401
from rpr.problems import checks, graphs, libreoffice, parallel_text, text_files
from rpr.utils.errors import UserError

HELP = pathlib.Path(rpr.problems.__file__).parent / "libreoffice_help"
TRAINING_PAIRS = 2660


def examples(problem, data_dir, split):
    """The text of a split's TFRecords, in their order."""
    encoder = problem.feature_encoders(data_dir)["inputs"]
    for path in sorted(tf.gfile.Glob(problem.filepattern(data_dir, checks.SPLITS[split]))):
        for record in tf.io.tf_record_iterator(path):
            feature = tf.train.Example.FromString(record).features.feature
            ids = [list(feature[side].int64_list.value) for side in ("inputs", "targets")]
            assert all(side[-1] == 1 for side in ids)             # <EOS>
            yield tuple(encoder.decode(side[:-1]) for side in ids)


@pytest.fixture(scope="module")
def ende(tmp_path_factory):
    """Data of the embedded corpus, of a tenth of its training text."""
    folder = tmp_path_factory.mktemp("libreoffice")
    for path in HELP.glob("*.en-de.*.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as text, gzip.open(
                folder / path.name, "wt", encoding="utf-8") as part:
            part.writelines(itertools.islice(text, TRAINING_PAIRS))
    problem = registry.problem("translate_ende_libreoffice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libreoffice, "FOLDER", str(folder))
        problem.generate_data(str(folder / "data"), str(folder / "tmp"))
    return problem, str(folder / "data")


def test_the_embedded_corpus_comes_back_from_its_tfrecords(ende):
    problem, data_dir = ende
    for split, count in (("train", TRAINING_PAIRS), ("dev", 304), ("test", 789)):
        expected = list(zip(*(lines_of(HELP / f"{split}.en-de.{language}.gz")
                              for language in ("en", "de")), strict=True))[:count]
        found = list(examples(problem, data_dir, split))
        assert len(found) == count
        if split == "train":
            assert collections.Counter(found) == collections.Counter(expected)
            assert found != expected                              # shuffled
        else:
            assert found == expected


def test_the_vocabulary_is_about_4096_sub_words(ende):
    problem, data_dir = ende
    size = problem.feature_encoders(data_dir)["targets"].vocab_size
    assert abs(size - 4096) < 0.02 * 4096
    assert size == checks.check_subwords(os.path.join(data_dir, problem.vocab_filename))


def test_test_text_lies_beside_the_data(ende):
    problem, data_dir = ende
    for split in ("dev", "test"):
        for side, language in (("source", "en"), ("reference", "de")):
            assert lines_of(pathlib.Path(data_dir, f"{problem.name}.{split}.{side}.txt")) == \
                lines_of(HELP / f"{split}.en-de.{language}.gz")


@pytest.mark.parametrize("pair, pages", [("en-de", 49), ("en-fr", 47)])
def test_the_pages_of_the_test_lines_are_known_and_each_is_in_one_piece(ende, pair, pages):
    names = lines_of(HELP / f"test.{pair}.pages.gz")
    assert len(names) == len(lines_of(HELP / f"test.{pair}.en.gz"))
    assert len(set(names)) == pages == len(list(itertools.groupby(names)))
    problem, data_dir = ende
    if pair == "en-de":
        assert lines_of(pathlib.Path(data_dir, f"{problem.name}.test.documents.txt")) == names
        assert problem.documents("dev", "") is None


@pytest.mark.parametrize(("name", "pair"), [("ende", "en-de"), ("enfr", "en-fr")])
def test_text_can_be_written_and_turned_round(tmp_path, name, pair):
    source, target = (lines_of(HELP / f"test.{pair}.{language}.gz")
                      for language in pair.split("-"))
    for suffix, expected in (("", (source, target)), ("_rev", (target, source))):
        problem = registry.problem(f"translate_{name}_libreoffice{suffix}")
        paths = tmp_path / "source", tmp_path / "target"
        assert problem.write_text("test", str(tmp_path), *map(str, paths)) == len(source)
        assert tuple(map(lines_of, paths)) == expected
    with pytest.raises(UserError, match="one of train, dev, test"):
        problem.write_text("eval", str(tmp_path), "x", "y")


def test_the_corpus_ships_with_its_notice():
    notice = (HELP / "NOTICE").read_text()
    for part in ("Mozilla Public License, version 2.0", "2000, 2010 Oracle", "2000, 2010 LibreOff",
                 "https://mozilla.org/MPL/2.0/", "Apache License", "What was done"):
        assert part in notice


def test_data_is_found_in_a_directory_with_brackets(tmp_path):
    """File managers append [1] to a name."""
    problem, data_dir = registry.problem("toy_reverse_repeats_5"), str(tmp_path / "data [1]*?")
    problem.generate_data(data_dir, data_dir)
    for split, count in (("train", 5000), ("dev", 500), ("test", 1000)):
        path, = checks.data_files(problem, split, data_dir)
        assert tf.gfile.Glob(problem.filepattern(data_dir, checks.SPLITS[split])) == [path]
        assert checks.count_records(path) == count


# Text files.

@pytest.fixture
def pair_of_files(tmp_path, monkeypatch):
    """Makes translate_text_files read these lines."""
    without_text(monkeypatch)
    monkeypatch.setenv("RPR_TEXT_VOCAB_SIZE", "150")

    def make(source, target, split=""):
        for side, lines in (("SOURCE", source), ("TARGET", target)):
            path = tmp_path / f"{split}{side}.gz"
            path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
            monkeypatch.setenv(f"RPR_TEXT_{split}{side}", str(path))
        return registry.problem("translate_text_files")
    return make


SOURCE = [f"sentence number {number}" for number in range(600)]
TARGET = [f"Satz Nummer {number}" for number in range(600)]


def test_a_split_is_a_partition_whatever_the_order(pair_of_files):
    def splits(order):
        problem = pair_of_files([SOURCE[i] for i in order], [TARGET[i] for i in order])
        return {split: list(problem.text_pairs(split, "")) for split in checks.SPLITS}

    found = splits(range(600))
    assert sorted(sum(found.values(), [])) == sorted(zip(SOURCE, TARGET, strict=True))
    assert 8 < len(found["dev"]) < 40 and 8 < len(found["test"]) < 40
    backwards = splits(range(599, -1, -1))
    assert {name: sorted(pairs) for name, pairs in backwards.items()} == \
        {name: sorted(pairs) for name, pairs in found.items()}


@pytest.mark.parametrize("often", [0, 300])
def test_a_large_set_that_is_held_out_is_said(pair_of_files, capsys, often):
    share = text_files.held_out_share(len(SOURCE) + often)
    source = next(line for line in SOURCE
                  if text_files.split_of(line, {"dev": share, "test": share}) == "dev")
    problem = pair_of_files(SOURCE + [source] * often, TARGET + ["Satz"] * often)
    for split in ("train", "dev", "train"):
        pairs = list(problem.text_pairs(split, ""))
    said = [line for line in capsys.readouterr().err.splitlines() if "held out" in line]
    dev = len(SOURCE) + often - len(pairs) - len(list(problem.text_pairs("test", "")))
    assert len(said) == bool(often)
    assert not said or f"{dev} of 900 lines are held out as the dev set" in said[0]


@settings(max_examples=200)
@given(st.text(), st.floats(0, 0.5), st.floats(0, 0.5))
def test_every_sentence_has_one_split(source, dev, test):
    shares = {"dev": dev, "test": test}
    found = text_files.split_of(source, shares)
    assert found in checks.SPLITS and found == text_files.split_of(source, shares)
    if dev == 0:
        assert found != "dev"
    if text_files.split_of(source, {"dev": dev / 2, "test": 0}) == "dev":
        assert found == "dev"                         # a larger share only adds to it


def test_sets_that_are_given_are_used_and_nothing_is_taken_for_them(pair_of_files):
    pair_of_files(["dev source"], ["dev target"], "DEV_")
    pair_of_files(["test source"], ["test target"], "TEST_")
    problem = pair_of_files(SOURCE, TARGET)
    assert list(problem.text_pairs("dev", "")) == [("dev source", "dev target")]
    assert list(problem.text_pairs("test", "")) == [("test source", "test target")]
    assert list(problem.text_pairs("train", "")) == list(zip(SOURCE, TARGET, strict=True))


@pytest.mark.parametrize(("source", "target", "says"), [
    (["a", "", "c", "  "], ["a", "b", "c", "d"], r"SOURCE\.gz: 2 lines are empty \(2, 4\)$"),
    (["a"] * 3, ["a"] * 2, r"SOURCE\.gz has 3 lines, but .*TARGET\.gz has 2$"),
    (["a"] * 30, [""] * 15 + ["a"] * 15,
     r"TARGET\.gz: 15 lines are empty \(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, \.\.\.\)$"),
    ([], [], r"SOURCE\.gz is empty"),
    (["", "b"], ["", "b", "c"], r"SOURCE.*.*1 is empty; .*TARGET.*1 is empty; .*has 2 lines"),
])
def test_what_is_wrong_is_said_in_one_line(pair_of_files, tmp_path, source, target, says):
    problem = pair_of_files(source, target)
    with pytest.raises(UserError, match=says) as caught:
        problem.generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    assert "\n" not in str(caught.value)


def test_edges_without_words_are_refused(pair_of_files):
    pair_of_files(["a b\t0 1 x", "\t0 1 x", "a", "\u00a0\t0 1 x"], ["\ta"] * 4)
    with pytest.raises(UserError, match=r"^[^;]*SOURCE\.gz: 2 lines are without words before the "
                                        r"edges \(2, 4\)$"):
        registry.problem("graph_text_files").sources("")
    registry.problem("translate_text_files").sources("")


def test_a_language_model_checks_its_text_once(pair_of_files, tmp_path):
    pair_of_files(["a", "", "c"], ["a"] * 3)
    with pytest.raises(UserError, match=r"^[^;]*SOURCE\.gz: line 2 is empty$"):
        registry.problem("lm_text_files").sources("")


def test_bad_encoding_and_a_damaged_gzip_are_said(pair_of_files, tmp_path):
    problem = pair_of_files(["a"] * 5, ["a"] * 5)
    path = tmp_path / "TARGET.gz"
    path.write_bytes(gzip.compress(b"a\n\xff\na\n\xe4\na\n"))
    with pytest.raises(UserError, match=r"TARGET\.gz: 2 lines are not UTF-8 \(2, 4\)"):
        list(problem.text_pairs("train", ""))
    path.write_bytes(gzip.compress(os.urandom(1000))[:-50])
    with pytest.raises(UserError, match=r"TARGET\.gz: "):
        list(problem.text_pairs("train", ""))


@pytest.mark.parametrize(("name", "value", "says"), [
    ("RPR_TEXT_TARGET", None, "RPR_TEXT_SOURCE is set and RPR_TEXT_TARGET is not"),
    ("RPR_TEXT_DEV_SOURCE", "x", "RPR_TEXT_DEV_SOURCE is set and RPR_TEXT_DEV_TARGET is not"),
    ("RPR_TEXT_SOURCE", "/nowhere", "/nowhere: No such file"),
    ("RPR_TEXT_VOCAB_SIZE", "many", "RPR_TEXT_VOCAB_SIZE=many: a whole number from 1 to"),
])
def test_a_bad_environment_is_said(pair_of_files, tmp_path, monkeypatch, name, value, says):
    problem = pair_of_files(SOURCE, TARGET)
    monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(UserError, match=says):
        problem.generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))


@settings(max_examples=100)
@example([("", "\ufeff"), ("\ufeff", "a")])
@given(st.lists(st.tuples(*[st.text(st.characters(blacklist_characters="\n",
                                                  blacklist_categories=["Cs"]))] * 2)))
def test_only_a_newline_ends_a_line(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("pairs")
    for name, side in (("a", 0), ("b", 1)):
        (folder / name).write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
    if pairs:                                         # a byte order mark is no part of the text
        pairs[0] = tuple(line.removeprefix("\ufeff") for line in pairs[0])
    assert list(parallel_text.read_pairs(str(folder / "a"), str(folder / "b"))) == [
        (source.strip(), target.strip()) for source, target in pairs]


@pytest.mark.parametrize("pair", [("a\nb", "c"), ("a", "b\n")])
def test_text_with_a_newline_is_not_written(tmp_path, pair):
    with pytest.raises(UserError, match="^a: the text of pair 2 has a newline: .*n") as caught:
        parallel_text.write_pairs([("x", "y"), pair], str(tmp_path / "a"), str(tmp_path / "b"))
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_files_of_unequal_length_are_refused_while_reading(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(UserError, match="one ends after line 1,"):
        list(parallel_text.read_pairs(str(tmp_path / "a"), str(tmp_path / "b")))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_without_end_is_refused_with_its_number(tmp_path, suffix):
    """A gzip file of a megabyte may hold a line of a gigabyte."""
    path = tmp_path / f"text{suffix}"
    path.write_bytes((gzip.compress if suffix else bytes)(b"short\n" + b"x" * 50_000_000 + b"\n"))
    with pytest.raises(UserError, match="line 2 is longer than 1,048,576 bytes"):
        list(parallel_text.raw_lines(str(path)))
    tracemalloc.start()
    with pytest.raises(UserError, match="line 2 is longer"):
        text_files.check_pair(str(path), str(path))
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@given(st.binary(max_size=3000), st.booleans())
def test_files_are_hashed_as_they_are_stored(tmp_path_factory, content, is_gzip):
    path = tmp_path_factory.mktemp("lines") / ("text.gz" if is_gzip else "text")
    stored = gzip.compress(content) if is_gzip else content
    path.write_bytes(stored)
    assert b"".join(parallel_text.raw_lines(str(path))) == content
    path.write_bytes(gzip.compress(b"a\n") if is_gzip else b"a\n")
    assert text_files.check_pair(*[str(path)] * 2).digests == (
        hashlib.sha256(path.read_bytes()).hexdigest(),) * 2


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b"\r\n", b"\xff", b"\x00"]),
                max_size=8), st.sampled_from(["", ".gz", "packed.gz"]))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, parts, suffix):
    folder = tmp_path_factory.mktemp("fuzz")
    content = b"".join(parts)
    for name in ("a", "b"):
        (folder / f"{name}{suffix}").write_bytes(
            gzip.compress(content)[:-len(parts) or None] if "packed" in suffix else content)
    paths = [str(folder / f"{name}{suffix}") for name in ("a", "b")]
    try:
        checked = text_files.check_pair(*paths)
        assert checked.lines == len(list(parallel_text.read_pairs(*paths))) > 0
    except UserError as error:
        assert "\n" not in str(error)


@settings(max_examples=200)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["files", "sources", "train", "bytes", "vocabulary"]),
                        inner), max_leaves=8))
def test_any_record_is_read_or_refused_in_one_line(tmp_path_factory, record):
    folder = tmp_path_factory.mktemp("record")
    problem = registry.problem("toy_reverse_repeats_5")
    (folder / f"{problem.name}.datagen.json").write_text(json.dumps(record))
    with pytest.raises(UserError) as caught:
        checks.check_data(problem, str(folder), ["train"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["translate_text_files", "graph_text_files"])
@pytest.mark.parametrize("given_sets", [False, True])
def test_training_text_is_read_three_times_at_most(pair_of_files, tmp_path, monkeypatch, name,
                                                   given_sets):
    pair_of_files([f"{line}\t0 1 x" for line in SOURCE], TARGET)
    if given_sets:
        for split in ("DEV_", "TEST_"):
            pair_of_files(["a b"], ["c"], split)
    opened, raw_lines = collections.Counter(), parallel_text.raw_lines
    monkeypatch.setattr(parallel_text, "raw_lines", lambda path: (
        opened.update([os.path.basename(path)]), raw_lines(path))[1])
    registry.problem(name).generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    assert opened["SOURCE.gz"] == opened["TARGET.gz"] == 3


def test_a_word_of_a_megabyte_is_encoded(pair_of_files, tmp_path):
    problem = pair_of_files([*SOURCE, "x" * 1_000_000], [*TARGET, "y" * 1_000_000])
    problem.generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    checks.check_data(problem, str(tmp_path / "data"), checks.SPLITS)


def test_a_label_of_a_held_out_line_is_known(tmp_path, monkeypatch):
    shares = {"dev": text_files.held_out_share(301), "test": text_files.held_out_share(301)}
    rare = next(line for line in (f"z{number} y\t1 0 rare" for number in range(10**4))
                if text_files.split_of(line, shares) == "dev")
    lines = [f"x{number} y\t1 0 usual" for number in range(300)] + [rare]
    for name in ("source", "target"):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        monkeypatch.setenv(f"RPR_TEXT_{name.upper()}", str(tmp_path / name))
    for name in ("DEV_SOURCE", "DEV_TARGET", "TEST_SOURCE", "TEST_TARGET"):
        monkeypatch.delenv(f"RPR_TEXT_{name}", raising=False)
    problem = graphs.GraphTextFiles()
    assert rare not in [source for source, _ in problem.text_pairs("train", "")]
    assert problem._labels == {"usual", "rare"}
    text = list(problem.vocabulary_text(""))
    assert not any("\t" in line for line in text[::2])
    assert all("\t" in line for line in text[1::2])   # a target has no edges
