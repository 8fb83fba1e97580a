"""BLEU, chrF and TER as functions of sufficient statistics.

A corpus score depends on the sentences only through a few sums (n-gram matches, lengths, edits).
sacreBLEU's own metric objects compute these statistics for each sentence, the reported score and
the signature. `Metric.scores` computes scores of many sums at once, which resampling needs; it
agrees with sacreBLEU to rounding.

sacreBLEU is imported when a metric is made, so that `rpr --help` does not wait for it.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rpr.evaluation.ter import count_edits
from rpr.utils.errors import InvalidValue
from rpr.utils.moses import LowerCaseTokenizer

NGRAM_ORDER = 4                                       # of BLEU, as in sacreBLEU
# Tokenized, lower-cased BLEU, as published for Multi30k: lower case, punctuation normalized, Moses
# tokens (the corpus' own files *.lc.norm.tok.*), then BLEU without further tokenization.
MOSES = "moses_lowercase"
CHRF_BETA, CHRF_ORDER = 2, 6
METRICS = ("bleu", "chrf", "ter")                     # sacreBLEU's


class Metric:
    """One of sacreBLEU's metrics.

    Args:
      name: one of `METRICS`.
      references: number of references per sentence, for the signature.
      tokenize: sacreBLEU's tokenizer for BLEU, or `MOSES`; None: chosen by the target language.
      language_pair: for example "en-de", or ""; `MOSES` needs it.

    Raises:
      UserError: unknown tokenizer, or the tokenizer's package is missing.
    """

    def __init__(self, name: str, references: int = 1, tokenize: str | None = None,
                 language_pair: str | None = "") -> None:
        self.name = name
        self._sacrebleu = _sacrebleu_metric(name, tokenize, language_pair or "")
        self._moses = None
        if name == "bleu" and tokenize == MOSES:
            target = (language_pair or "").split("-")[-1]
            if not target:
                raise InvalidValue("language_pair", None,
                                   f"tokenize={MOSES} needs it, for example en-de")
            self._moses = LowerCaseTokenizer(target)
        self._sacrebleu.num_refs = references

    def sentence_statistics(self, systems: Sequence[Sequence[str]],
                            references: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Sufficient statistics of every sentence: for each system [sentences, counts], float64.

        `systems` are the lines of each system, `references` those of each reference.
        """
        if self._moses:
            systems = [list(map(self._moses, lines)) for lines in systems]
            references = [list(map(self._moses, lines)) for lines in references]
        # Systems often give the same translation of a sentence, above all seeds of one arm.
        distinct = sorted({item for lines in systems for item in enumerate(lines)})
        sentences = np.array([index for index, _ in distinct])
        compute = {"bleu": self._word_counts, "chrf": self._character_counts,
                   "ter": self._edit_counts}[self.name]
        statistics = compute([line for _, line in distinct], sentences, references)
        places = {item: place for place, item in enumerate(distinct)}
        return [statistics[[places[item] for item in enumerate(lines)]].astype(np.float64)
                for lines in systems]

    def _word_counts(self, lines: Sequence[str], sentences: np.ndarray,
                     references: Sequence[Sequence[str]]) -> np.ndarray:
        """BLEU's lengths, matches and totals; the reference of the nearest length counts."""
        ids: dict[str, int] = {}
        hypotheses, *expected = (word_tokens(list(map(self._tokens, text)), ids)
                                 for text in (lines, *references))
        lengths = hypotheses.lengths
        candidates = np.array([tokens.lengths[sentences] for tokens in expected])
        # Of two lengths that are equally near the shorter one.
        nearest = np.lexsort((candidates, abs(candidates - lengths)), axis=0)[:1]
        return np.column_stack([
            lengths, np.take_along_axis(candidates, nearest, axis=0)[0],
            count_matches(hypotheses, sentences, expected, NGRAM_ORDER),
            _totals(lengths, NGRAM_ORDER)])

    def _character_counts(self, lines: Sequence[str], sentences: np.ndarray,
                          references: Sequence[Sequence[str]]) -> np.ndarray:
        """chrF's totals of hypothesis and reference and matches, order by order.

        The best reference of a sentence counts.
        """
        hypotheses = character_tokens(lines)
        own = _totals(hypotheses.lengths, CHRF_ORDER)
        counts = []
        for text in references:
            expected = character_tokens(text)
            totals = _totals(expected.lengths, CHRF_ORDER)[sentences]
            matches = count_matches(hypotheses, sentences, [expected], CHRF_ORDER)
            counts.append(np.stack([np.where(totals > 0, own, 0), totals, matches], axis=-1)
                          .reshape(len(lines), -1))
        if len(counts) == 1:
            return counts[0]
        scores = [[self._sacrebleu._compute_f_score(row) for row in rows.tolist()]
                  for rows in counts]
        return np.array(counts)[np.argmax(scores, axis=0), np.arange(len(lines))]

    def _edit_counts(self, lines: Sequence[str], sentences: np.ndarray,
                     references: Sequence[Sequence[str]]) -> np.ndarray:
        """TER's edits from the nearest reference, and the mean length of the references."""
        expected = [list(map(self._tokens, text)) for text in references]
        hypotheses = list(map(self._tokens, lines))
        edits = [count_edits([(words, text[index]) for words, index
                              in zip(hypotheses, sentences, strict=True)]) for text in expected]
        lengths = np.mean([list(map(len, text)) for text in expected], axis=0)
        return np.column_stack([np.min(edits, axis=0), lengths[sentences]])

    def _tokens(self, line: str) -> list[str]:
        """sacreBLEU's tokens."""
        return self._sacrebleu._preprocess_segment(line).split()

    def corpus_score(self, statistics: np.ndarray) -> tuple[float, str]:
        """sacreBLEU's score of [sentences, counts], and its line with the details."""
        sums = statistics.sum(axis=0).tolist()
        if self.name != "ter":                        # its mean reference length is a fraction
            sums = [round(count) for count in sums]
        score = self._sacrebleu._compute_score_from_stats(sums)
        return float(score.score), score.format(width=2)

    def scores(self, sums: np.ndarray) -> np.ndarray:
        """Corpus scores of summed statistics: [..., counts] -> [...]."""
        return {"bleu": _bleu, "chrf": _chrf, "ter": _ter}[self.name](sums)

    def signature(self, **fields: object) -> str:
        """sacreBLEU's signature; `fields` (test, lang, seed, bs, ar) are added where not empty."""
        signature = self._sacrebleu.get_signature()
        if self._moses:
            signature.update("tok", f"none(sacremoses-{self._moses.version}-lc-norm-"
                                    f"{self._moses.language})")
        for name, value in fields.items():
            if value not in (None, ""):
                signature.update(name, value)
        return str(signature)


def _totals(lengths: np.ndarray, order: int) -> np.ndarray:
    """Number of n-grams of lines of so many tokens: [lines] -> [lines, order]."""
    return np.maximum(lengths[:, None] - np.arange(order), 0)


def _sacrebleu_metric(name: str, tokenize: str | None, language_pair: str) -> Any:
    from sacrebleu.metrics import BLEU, CHRF, TER
    if name == "chrf":
        return CHRF(CHRF_ORDER, beta=CHRF_BETA)
    if name == "ter":
        return TER()
    if tokenize is not None and tokenize not in (names := [*BLEU.TOKENIZERS, MOSES]):
        raise InvalidValue("tokenize", tokenize, f"one of {', '.join(names)}")
    if tokenize == MOSES:
        return BLEU(lowercase=True, tokenize="none", force=True)
    try:                                              # force: no warning for every block of lines
        return BLEU(tokenize=tokenize, force=True, trg_lang=language_pair.split("-")[-1])
    except (RuntimeError, ImportError, OSError) as error:    # an extra package, or a download
        name, value = ("tokenize", tokenize) if tokenize else ("language_pair", language_pair)
        raise InvalidValue(name, value, " ".join(str(error).split())) from None


def _bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU with sacreBLEU's exponential smoothing, of the columns of `_word_counts`."""
    hypothesis, reference = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2:2 + NGRAM_ORDER], sums[..., 2 + NGRAM_ORDER:]
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.where(hypothesis < reference, np.exp(1 - reference / hypothesis), 1.0)
        smoothed = 0.5 ** np.cumsum(matches == 0, axis=-1)
        precisions = np.where(matches == 0, smoothed, matches) / totals
        scores = 100 * brevity * np.exp(np.log(precisions).mean(axis=-1))
    # Without any match, or without any n-gram of some order, BLEU is 0.
    return np.where(matches.any(axis=-1) & (totals > 0).all(axis=-1), scores, 0.0)


def _chrf(sums: np.ndarray) -> np.ndarray:
    """chrF: F of mean precision and mean recall over the orders that occur."""
    hypothesis, reference, matches = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    occurs = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(occurs.sum(axis=-1), 1)
    precision = (np.where(occurs, matches, 0) / np.maximum(hypothesis, 1)).sum(axis=-1) / orders
    recall = (np.where(occurs, matches, 0) / np.maximum(reference, 1)).sum(axis=-1) / orders
    weighted = CHRF_BETA ** 2 * precision + recall
    return np.where(weighted > 0, 100 * (1 + CHRF_BETA ** 2) * precision * recall
                    / np.where(weighted > 0, weighted, 1), 0.0)


def _ter(sums: np.ndarray) -> np.ndarray:
    """Translation edit rate, of edits and mean length of the references."""
    edits, length = sums[..., 0], sums[..., 1]
    return 100 * np.where(length > 0, edits / np.where(length > 0, length, 1), edits > 0)


class Tokens(NamedTuple):
    """The tokens of several lines, one line after the other."""
    ids: np.ndarray                                   # not negative, int64 [tokens]
    lengths: np.ndarray                               # tokens of each line, int64 [lines]


def character_tokens(lines: Sequence[str]) -> Tokens:
    """The characters of each line, without white space."""
    texts = ["".join(line.split()) for line in lines]
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return Tokens(codes.astype(np.int64), np.array([len(text) for text in texts], np.int64))


def word_tokens(lines: Sequence[Sequence[str]], ids: dict[str, int]) -> Tokens:
    """The words of each line; `ids` gets those that it lacks."""
    return Tokens(np.array([ids.setdefault(word, len(ids)) for words in lines for word in words],
                           np.int64), np.array([len(words) for words in lines], np.int64))


def count_matches(hypotheses: Tokens, sentences: np.ndarray, references: Sequence[Tokens],
                  order: int) -> np.ndarray:
    """How many n-grams of each hypothesis are in the references of its sentence.

    An n-gram counts at most as often as it is in the reference that has it most often.

    Args:
      hypotheses: tokens of H hypotheses.
      sentences: index of the sentence of each hypothesis, int64 [H].
      references: tokens of the sentences in each reference.
      order: the largest n.

    Returns:
      int64 [H, order], for n from 1 to `order`.
    """
    own, size = len(sentences), len(references[0].lengths)
    ids = np.concatenate([tokens.ids for tokens in (hypotheses, *references)])
    lengths = np.concatenate([tokens.lengths for tokens in (hypotheses, *references)])
    vocabulary = 1 + int(ids.max(initial=0))
    sentence_of = np.concatenate([sentences, *[np.arange(size)] * len(references)])
    # For each n-gram its first token, its line, and the end of the line. The rank among the known
    # n-grams, those of the references, begins as the sentence: those of a sentence are together.
    starts, lines = np.arange(len(ids)), np.repeat(np.arange(len(lengths)), lengths)
    ends, ranks, owners = np.cumsum(lengths)[lines], sentence_of[lines], np.arange(size)
    matches = np.zeros((own, order), np.int64)
    for n in range(order):
        codes = ranks * vocabulary + ids[starts + n]
        known = np.unique(codes[np.searchsorted(lines, own):])
        if not len(known):
            break
        ranks = np.minimum(known.searchsorted(codes), len(known) - 1)
        kept = known[ranks] == codes
        starts, lines, ends, ranks = (array[kept] for array in (starts, lines, ends, ranks))
        # A cell for each line and each known n-gram of its sentence; those of a reference are all.
        owners = owners[known // vocabulary]
        sizes = np.bincount(owners, minlength=size)
        widths = sizes[sentence_of]
        last = np.cumsum(widths)
        shifts = last - np.cumsum(sizes)[sentence_of]
        times = np.bincount(ranks + shifts[lines], minlength=int(last[-1]))
        cells = np.arange(last[own - 1])
        most = times[len(cells):].reshape(len(references), len(known)).max(axis=0)
        clipped = np.minimum(times[cells], most[cells - np.repeat(shifts[:own], widths[:own])])
        sums = np.concatenate([[0], np.cumsum(clipped)])
        matches[:, n] = sums[last[:own]] - sums[last[:own] - widths[:own]]
        kept = starts + n + 1 < ends
        starts, lines, ends, ranks = (array[kept] for array in (starts, lines, ends, ranks))
    return matches
