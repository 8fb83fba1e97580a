"""BLEU, chrF and TER through sacreBLEU, with signatures and paired significance; WMT test sets.

Nothing here imports TensorFlow, and sacreBLEU is imported where it is needed, so that `rpr --help`
does not wait for it.

A test set's references are those that sacreBLEU chooses for its name: `wmt21` with en-de is scored
against reference A alone, `wmt21/C` against C, and `wmt21/AC` against both.
"""
import argparse
import contextlib
import dataclasses
import difflib
import gzip
import http.client
import json
import logging
import os
import tarfile

from rpr.utils import metrics_log as files
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


def read_lines(path):
    """The lines of a UTF-8 text file (gzipped where the name ends in .gz), as sacreBLEU reads them.

    Raises:
      UserError: it is missing, empty or not UTF-8.
    """
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as text:
            lines = [line.rstrip() for line in text]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not lines:
        raise UserError(f"{path}: it is empty")
    return lines


def test_set_source(name, language_pair):
    """The source lines of a test set that `sacrebleu --list` knows, in the source's order."""
    with _sacrebleu_data(name, language_pair) as dataset:
        return list(dataset.source(language_pair))


def test_set_references(name, language_pair):
    """The references of a test set: {name: lines}."""
    with _sacrebleu_data(name, language_pair) as dataset:
        return {os.path.basename(path): read_lines(path)
                for path in dataset.get_reference_files(language_pair)}


@contextlib.contextmanager
def _sacrebleu_data(name, language_pair):
    """A test set; what goes wrong when sacreBLEU fetches or unpacks it becomes one line."""
    from sacrebleu.dataset import DATASETS
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=4, cutoff=0.5)
        raise UserError(f"--test_set={name}: no such test set"
                        + (f"; nearest: {', '.join(near)}" if near else "")
                        + "; sacrebleu --list shows all")
    dataset = DATASETS[name]
    if language_pair not in dataset.langpairs:
        raise UserError(f"--language_pair={language_pair}: {name} has "
                        f"{', '.join(sorted(dataset.langpairs))}")
    logger = logging.getLogger("sacrebleu")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield dataset
    except UserError:
        raise
    except (OSError, SystemExit, ValueError, SyntaxError, AssertionError, tarfile.TarError,
            http.client.HTTPException) as error:
        reason = "a damaged download" if isinstance(error, SystemExit) else str(error)
        raise UserError(
            f"--test_set={name}: sacreBLEU could not get it from {' '.join(dataset.data)} "
            f"({reason}); its cache is {dataset._outdir} (below $SACREBLEU): without a network, "
            "copy it from a machine that has one; if it is damaged, remove it") from None
    finally:
        logger.setLevel(level)


def as_text(results, paired=None):
    """Systems as lines for a terminal: scores first, then each metric's signature once.

    Args:
      results: a list of `System`s.
      paired: the paired test that they went through, or None.
    """
    lines = []
    width = max(len(system.name) for system in results)
    for number, system in enumerate(results):
        for name, found in system.scores.items():
            line = f"{system.name:<{width}}  "
            if not paired:
                line += found.details
            else:
                line += f"{METRICS[name]:<4} = {found.score:6.2f}"
                if found.mean is not None:
                    line += f"  mean {found.mean:6.2f} +- {found.interval:.2f}"
                line += "  baseline" if number == 0 else f"  p = {found.p_value:.4f}"
            lines.append(line)
    lines += [f"{system.name:<{width}}  exact = {system.exact:.2f}% of its lines"
              for system in results]
    lines += [f"{METRICS[name]}: {found.signature}" for name, found in results[0].scores.items()]
    if paired:
        lines.append("p: the probability of so large a difference from the baseline by chance "
                     f"(paired {paired})")
    return "\n".join(lines)


def main(argv):
    """`rpr score HYP [HYP ...] (--reference=FILE | --test_set=NAME --language_pair=PAIR)`."""
    parser = argparse.ArgumentParser(
        prog="rpr score", description="BLEU, chrF and TER with signatures. With two or more "
        "systems the first is the baseline, and a paired test says whether the others differ.")
    parser.add_argument("hypotheses", nargs="+", metavar="HYP",
                        help="detokenised text, one sentence a line; .gz is understood")
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument("--reference", nargs="+", action="extend", metavar="FILE",
                         help="one or more references of the same sentences")
    against.add_argument("--test_set", metavar="NAME", help="such as wmt14/full: any that "
                         "sacrebleu --list knows")
    parser.add_argument("--language_pair", metavar="PAIR", help="of --test_set, such as en-de")
    test = parser.add_mutually_exclusive_group()
    test.add_argument("--paired_bootstrap", action="store_const", const="bootstrap", dest="paired",
                      help="paired bootstrap resampling (what two or more systems get)")
    test.add_argument("--paired_randomization", action="store_const", const="randomization",
                      dest="paired", help="paired approximate randomisation instead")
    parser.add_argument("--samples", type=_positive, help="resamples (default 1000), or trials of "
                        "the randomisation (default 10000)")
    parser.add_argument("--seed", type=_positive, default=SEED,
                        help=f"of the paired test (default {SEED})")
    parser.add_argument("--metrics", default=",".join(METRICS),
                        help=f"separated by commas (default {','.join(METRICS)})")
    parser.add_argument("--tokenize", help="sacreBLEU's tokenizer for BLEU (default 13a; zh, "
                        "ja-mecab and ko-mecab for those languages)")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE",
                        help="the record as JSON: to FILE, or in place of the text")
    args = parser.parse_args(argv)
    if args.test_set and not args.language_pair:
        raise UserError("--language_pair is missing: that of --test_set, such as en-de")
    systems = _read_all(args.hypotheses)
    references = (_read_all(args.reference) if args.reference
                  else test_set_references(args.test_set, args.language_pair))
    paired = args.paired or ("bootstrap" if len(systems) > 1 else None)
    results = score(
        systems, references, tuple(args.metrics.split(",")), tokenize=args.tokenize,
        test_set=args.test_set, language_pair=args.language_pair, paired=paired,
        samples=args.samples, seed=args.seed)
    record = [system.as_dict() for system in results]
    text = json.dumps(record if len(record) > 1 else record[0], indent=1) + "\n"
    if args.json and args.json != "-":
        files.write_atomically(args.json, text)
    print(text if args.json == "-" else as_text(results, paired), end="\n" * (args.json != "-"))


def _read_all(paths):
    if len(set(paths)) != len(paths):
        raise UserError(f"{' '.join(paths)}: a file is given twice")
    return {path: read_lines(path) for path in paths}


def _positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
