"""BLEU, chrF and TER through sacreBLEU, with signatures and paired significance; WMT test sets.

Nothing here imports TensorFlow, and sacreBLEU is imported where it is needed, so that `rpr --help`
does not wait for it.

A test set's references are those that sacreBLEU chooses for its name: `wmt21` with en-de is scored
against reference A alone, `wmt21/C` against C, and `wmt21/AC` against both.
"""
import contextlib
import dataclasses
import os

from rpr.utils.errors import UserError

METRICS = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER"}  # as named in JSON and in text
PAIRED = {"bootstrap": ("bs", 1000), "randomization": ("ar", 10000)}
SEED = 12345                                          # sacreBLEU's own


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one system.

    Attributes:
      score: 0 to 100 (TER may be more; there less is better).
      signature: sacreBLEU's, which says how the score was made.
      details: sacreBLEU's line, with n-gram precisions, brevity penalty and lengths for BLEU.
      mean, interval: of the bootstrap resamples: the score lies in mean +- interval with 95%
        confidence. None without a paired bootstrap.
      p_value: of the paired test against the baseline. None for the baseline, or without a test.
    """
    score: float
    signature: str
    details: str
    mean: float | None = None
    interval: float | None = None
    p_value: float | None = None


@dataclasses.dataclass(frozen=True)
class System:
    """One system's scores: {"bleu": Score, ...}, and how many per cent of its lines are exact.

    A line is exact if it equals one of its references, but for spaces at its ends.
    """
    name: str
    lines: int
    exact: float
    scores: dict[str, Score]

    def as_dict(self):
        """For JSON; what is None is left out."""
        return {"system": self.name, "lines": self.lines, "exact": self.exact, **{
            name: {key: value for key, value in dataclasses.asdict(score).items()
                   if value is not None} for name, score in self.scores.items()}}


def score(systems, references, metrics=tuple(METRICS), *, tokenize=None, test_set=None,
          language_pair=None, paired=None, samples=None, seed=SEED):
    """Scores systems against the same references.

    Args:
      systems: {name: lines}; the first is the baseline of a paired test.
      references: {name: lines}, of the same sentences; all count.
      metrics: of "bleu", "chrf" and "ter".
      tokenize: sacreBLEU's tokenizer for BLEU; None: by the target language, 13a for most.
      test_set, language_pair: where the references come from, for the signature; the pair's target
        also chooses the tokenizer.
      paired: None, "bootstrap" or "randomization".
      samples: resamples or trials; None: sacreBLEU's 1,000 and 10,000.
      seed: of the paired test.

    Returns:
      a list of `System`s, in the order given.

    Raises:
      UserError: an unknown metric or tokenizer, a system without lines, unequal counts of lines, a
        paired test of one system.
    """
    for name, lines in systems.items():
        if not lines:
            raise UserError(f"{name}: it is empty")
        for reference, expected in references.items():
            if len(lines) != len(expected):
                raise UserError(f"{name} has {len(lines):,} lines, {reference} has "
                                f"{len(expected):,}")
    if paired and len(systems) < 2:
        raise UserError("a paired test needs two or more systems, the baseline first")
    made = {name: make_metric(name, tokenize, language_pair, list(references.values()))
            for name in metrics}
    results = {system: {} for system in systems}
    for name, metric in made.items():
        for system, lines in systems.items():
            found = metric.corpus_score(lines, None)
            results[system][name] = Score(
                found.score, signature_text(metric.get_signature(), test_set, language_pair),
                found.format(width=2))
    if paired:
        from sacrebleu.significance import PairedTest
        kind, default = PAIRED[paired]
        with _environment("SACREBLEU_SEED", str(seed)):   # the only way in for a seed
            test = PairedTest(list(systems.items()), made, None, kind, samples or default)
        signatures, columns = test()
        baseline = next(iter(systems.values()))
        # Both are named by the score ("chrF2"), in the order of the metrics.
        for name, (column, signature) in zip(made, signatures.items(), strict=True):
            signature = signature_text(signature, test_set, language_pair)
            for system, found in zip(systems, columns[column], strict=True):
                # sacreBLEU finds two identical outputs different, with the smallest p there is.
                same = found.p_value is not None and systems[system] == baseline
                results[system][name] = dataclasses.replace(
                    results[system][name], signature=signature, mean=_float(found.mean),
                    interval=_float(found.ci), p_value=1.0 if same else _float(found.p_value))
    return [System(name, len(systems[name]), _exact(systems[name], references.values()), scores)
            for name, scores in results.items()]


def _exact(lines, references):
    same = sum(line.strip() in (text.strip() for text in expected)
               for line, *expected in zip(lines, *references, strict=True))
    return 100 * same / len(lines)


def signature_text(signature, test_set, language_pair):
    """A signature of sacreBLEU as text, with the test set's name where there is one."""
    if test_set:
        signature.update("test", test_set)
        signature.update("lang", language_pair)
    return str(signature)


def make_metric(name, tokenize, language_pair, references):
    """sacreBLEU's metric.

    Args:
      name: of `METRICS`.
      tokenize: for BLEU, or None: by the pair's target language.
      language_pair: such as en-de, or empty.
      references: lists of lines.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER
    if name not in METRICS:
        raise UserError(f"--metrics={name}: of {', '.join(METRICS)}")
    if name == "chrf":
        return CHRF(references=references)
    if name == "ter":
        return TER(references=references)
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise UserError(f"--tokenize={tokenize}: one of {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(tokenize=tokenize, references=references,
                    trg_lang=language_pair.split("-")[-1] if language_pair else "")
    except (RuntimeError, ImportError, OSError) as error:    # an extra package, or a download
        raise UserError(f"--tokenize={tokenize}: {' '.join(str(error).split())}") from None


def _float(value):
    return None if value is None else float(value)


@contextlib.contextmanager
def _environment(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
