"""Sentence statistics of BLEU and chrF against those that sacreBLEU computes, line by line."""
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu import metrics as sacrebleu_metrics

from rpr.evaluation.metrics import Metric

# Few words, so that n-grams recur; white space, and what the tokenizer 13a treats specially.
WORDS = ["a", "b", "ab", "ba", "a.b", "3.5", "3-4", "x-", "-", ".", "...", ",", "1,", "'s", "(",
         "&amp;", "&quot;a", "&lt;", "<skipped>", "ä", "字字", "\ud800", "😀"]
SPACES = [" ", "  ", "\t", "\u00a0", "\u3000", "\x1c", "\x85", "\u2028", "\r", "\n", "-\n"]
lines = st.lists(st.sampled_from(WORDS + SPACES), max_size=12).map("".join) | st.text(max_size=12)


def sacrebleu_statistics(name, hypotheses, references):
    """[sentences, counts]"""
    metric = {"bleu": sacrebleu_metrics.BLEU(force=True), "chrf": sacrebleu_metrics.CHRF()}[name]
    return np.array(metric._extract_corpus_statistics(hypotheses, references), np.float64)


@pytest.mark.parametrize("name", ["bleu", "chrf"])
@given(st.data())
def test_statistics_are_sacrebleus(name, data):
    count = data.draw(st.integers(1, 4))
    texts = st.lists(lines, min_size=count, max_size=count)
    systems, references = (data.draw(st.lists(texts, min_size=1, max_size=3)) for _ in range(2))
    statistics = Metric(name, len(references)).sentence_statistics(systems, references)
    for system, counts in zip(systems, statistics, strict=True):
        np.testing.assert_array_equal(counts, sacrebleu_statistics(name, system, references))


@given(lines)
@example(" ".join(WORDS))
def test_words_and_lines_have_the_same_13a_tokens(line):
    metric = Metric("bleu")
    assert metric._tokens(line) == metric._sacrebleu._preprocess_segment(line).split()


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_a_long_line_and_one_without_words(name):
    long = " ".join(str(number % 97) for number in range(30_000))
    systems, references = [[long, "", "a"]], [[long + " x", "a", ""]]
    counts, = Metric(name).sentence_statistics(systems, references)
    np.testing.assert_array_equal(counts, sacrebleu_statistics(name, systems[0], references))
