"""rpr.cli.score"""
import argparse
import json

from rpr.evaluation.scoring import METRICS, SEED, score
from rpr.evaluation.test_sets import read_lines, test_set_references
from rpr.utils import files
from rpr.utils.errors import UserError


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
