"""Sub-word ids are T2T's."""
import gzip
import io
import itertools
import random
import sys
import time

import pytest
from conftest import CORPUS
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.data_generators import text_encoder, tokenizer

from rpr.export import translator
from rpr.problems import shards


def lines(count):
    for language in ("en", "de", "fr"):
        pair = "en-de" if language == "de" else "en-fr"
        with gzip.open(CORPUS / f"train.{pair}.{language}.gz", "rt", encoding="utf-8") as text:
            yield from itertools.islice(text, count)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocab.subwords")
    text_encoder.SubwordTextEncoder.build_from_generator(lines(100), 400).store_to_file(path)
    return text_encoder.SubwordTextEncoder(path), shards.SubwordEncoder(path)


def test_letters_and_numbers_are_those_of_t2t():
    every = "".join(map(chr, range(sys.maxunicode)))
    ours = shards._find_tokens(every)
    assert "".join(ours) == every
    kinds = [{char in tokenizer._ALPHANUMERIC_CHAR_SET for char in token} for token in ours]
    assert all(len(kind) == 1 for kind in kinds)
    assert all(kind != after for kind, after in itertools.pairwise(kinds))


@given(st.one_of(st.text(), st.text(st.sampled_from("ab _,\n\té中"))))
def test_tokens_of_any_text(text):
    assert shards._find_tokens(text) == tokenizer.encode(text)


@settings(max_examples=300)
@given(st.one_of(st.text(), st.text(st.sampled_from("ab _\\u;0123456789,-\n\t\r\u2028éß½²中")),
                 st.lists(st.sampled_from(["", " ", "  ", "Datei", "öffnen", "_", "\\", "1;"]))
                 .map("".join)))
def test_any_text(encoders, text):
    t2t, ours = encoders
    assert ours.encode(text) == t2t.encode(text)


def test_what_is_remembered_is_bounded_and_forgetting_changes_nothing(encoders, monkeypatch):
    monkeypatch.setattr(shards, "_CACHE_SIZE", 7)
    t2t, ours = encoders
    ours = shards.SubwordEncoder(ours.filename)
    for line in lines(50):
        assert ours.encode(line) == t2t.encode(line)
        assert ours._ids.cache_info().currsize <= 7


# Long words, in the text of a vocabulary.

def test_words_are_shortened_and_no_character_is_lost():
    short = "x" * shards.LONGEST_COUNTED_WORD
    assert shards.shorten_long_words(f"a {short} b") == [f"a {short} b"]
    assert shards.shorten_long_words(f"a {short}xyz b") == [f"a {short} b", "y", "z"]
    assert shards.shorten_long_words("." * 200 + "!") == ["." * 100, "!"]


@given(st.text(st.sampled_from("ab .-"), max_size=400), st.integers(1, 5))
def test_shortened_text_has_no_long_word_and_all_characters(text, times):
    texts = shards.shorten_long_words(text * times)
    assert {char for part in texts for char in part} >= set(text)
    assert all(len(token) <= shards.LONGEST_COUNTED_WORD for part in texts
               for token in shards._find_tokens(part))


@pytest.mark.parametrize("length", [4000, 200_000])
def test_a_long_word_does_not_slow_down_a_vocabulary(tmp_path, length):
    """T2T alone takes time and memory that grow with the square of the length."""
    word = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyzäöü", k=length))
    texts = [*lines(200), f"a {word} b"]
    begin = time.process_time()
    encoder = text_encoder.SubwordTextEncoder.build_from_generator(
        itertools.chain.from_iterable(map(shards.shorten_long_words, texts)), 400)
    assert time.process_time() - begin < 20
    encoder.store_to_file(str(tmp_path / "vocab"))
    encoder = shards.SubwordEncoder(str(tmp_path / "vocab"))
    assert encoder.decode(encoder.encode(word)) == word


def test_an_exported_model_reads_lines_as_rpr_decode_does(monkeypatch, capsys):
    text = "\ufeffone\rline\r\nö\n\n".encode()
    monkeypatch.setattr(sys, "argv", ["translate.py"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="latin-1"))
    monkeypatch.setattr(translator, "Translator", lambda directory: translator)
    monkeypatch.setattr(translator, "translate", lambda lines, batch_size: [
        (repr(line.strip()), 0.0) for line in lines], raising=False)
    translator.main()
    assert capsys.readouterr().out.splitlines() == [r"'one\rline'", "'ö'", "''"]
