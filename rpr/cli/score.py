"""`rpr score`, `rpr judge` (a test of arms on the scores of others) and `rpr test-set`."""
import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rpr.cli.arguments import Parser, number
from rpr.evaluation import ALL_METRICS, DIGITS, LOSS_METRICS, judging, scoring, test_sets
from rpr.evaluation.metrics import METRICS, MOSES
from rpr.evaluation.ratio_metrics import read_losses
from rpr.evaluation.scoring import Score, System
from rpr.evaluation.significance import LEVEL, p_text
from rpr.evaluation.test_sets import read_lines
from rpr.inference.file_checks import check_input, check_output
from rpr.utils import files
from rpr.utils.console import for_tables, printable
from rpr.utils.errors import InvalidValue, UserError

if TYPE_CHECKING:
    from rich.console import Console

MOST_SAMPLES = 1_000_000                              # of sacreBLEU's tests


def as_text(systems: Sequence[System], test: str | None = None, samples: int | None = None) -> str:
    """Lines for a terminal: scores, signatures, and what the test of `samples` trials means."""
    lines = []
    width = max(len(system.name) for system in systems)
    for system in systems:
        for name, score in system.scores.items():
            result = score.details
            if test:
                digits = DIGITS.get(name, 1) + 1      # one more than in a report
                result = (f"{ALL_METRICS[name]:<4} = {score.score:6.{digits}f}"
                          f"{_uncertainty(score, digits)}")
                result += "  baseline" if system is systems[0] else ""
            lines.append(f"{system.name:<{width}}  {result}")
    lines += [f"{system.name:<{width}}  exact = {system.exact:.2f}% of its lines"
              for system in systems if system.exact is not None]
    lines += [f"{ALL_METRICS[name]}: {score.signature}"
              for name, score in systems[0].scores.items()]
    if test:
        lines += _explanation(test, systems[0], samples)
    return "\n".join(lines)


def _uncertainty(score: Score, digits: int) -> str:
    text = ""
    if score.mean is not None:
        text += f"  mean {score.mean:6.{digits}f} +- {score.interval:.{digits}f}"
    if score.difference is not None:
        text += f"  difference {score.difference:+.{digits}f}"
        if score.p_value is None:
            text += "  no p: it does not vary"
    if score.low is not None:
        text += f" [{score.low:+.{digits}f}, {score.high:+.{digits}f}]"
    if score.p_value is not None:
        p = p_text(score.p_value)
        text += f"  p {p if p.startswith('<') else '= ' + p}"
    if score.p_holm is not None:
        text += f" (Holm {p_text(score.p_holm)})"
    return text


def _explanation(test: str, system: System, samples: int | None) -> list[str]:
    """What p means."""
    if test == "jackknife":
        units = (f"{system.lines:,} {'text' if system.exact is None else 'sentence'}"
                 f"{'s' * (system.lines != 1)}")
        if system.documents:
            units = f"{system.documents:,} documents ({units})"
        line = (f"difference [95%] and p: {scoring.TESTS[test]} over {units}, two-sided; Holm: "
                "corrected for all systems and metrics.")
    elif test == "bootstrap":
        line = (f"p: {scoring.TESTS[test]} ({samples:,} resamples). Its formula gives about half "
                "of a two-sided p-value.")
    else:
        line = f"p: {scoring.TESTS[test]} ({samples:,} trials), two-sided."
    return [line, "It compares these outputs. Training again with another seed may change the "
            "difference; `rpr report` compares arms of several seeds."]


def main(argv: Sequence[str]) -> None:
    """`rpr score HYP [HYP ...] (--reference=FILE | --test_set=NAME --language_pair=PAIR)`."""
    args = main_parser().parse_args(argv)
    names = args.metrics.split(",") if args.metrics else []
    if set(names) & set(LOSS_METRICS):
        _score_losses(args, names)
        return
    if not args.reference and not args.test_set:
        raise UserError("--reference or --test_set is missing: what the text is compared with")
    if args.test_set and not args.language_pair:
        raise UserError("--language_pair is missing: that of --test_set, for example en-de")
    if args.language_pair and not args.test_set:
        test_sets.check_language_pair(args.language_pair)
    systems = {path: read_lines(path) for path in _once(args.hypotheses)}
    references = ({path: read_lines(path) for path in _once(args.reference)} if args.reference
                  else test_sets.test_set_references(args.test_set, args.language_pair))
    test = args.test or ("jackknife" if len(systems) > 1 else None)
    samples = args.samples or scoring.SAMPLES.get(test or "")
    for name in ("samples", "seed"):
        value = getattr(args, name)
        if value is not None and test not in scoring.SAMPLES:
            raise InvalidValue(name, value, "only with --paired_bootstrap or "
                               "--paired_randomization")
    documents = _documents(args, test)
    if args.documents:
        scoring.check_lengths(systems, {args.documents: documents or ()})
    _check_json(args, [*systems, *(args.reference or ()), args.documents])
    results = scoring.score(
        systems, references, _metrics(args.metrics, {**systems, **references}),
        tokenize=args.tokenize, test_set=args.test_set, language_pair=args.language_pair, test=test,
        samples=samples, seed=scoring.SEED if args.seed is None else args.seed, documents=documents)
    for path, lines in systems.items():
        if scoring.looks_tokenized(lines):
            _note(f"{path}: {scoring.TOKENIZED_LINES} or more lines end in ' .'; sacreBLEU expects "
                  "detokenized text")
    if not args.tokenize and not args.language_pair and any(
            map(scoring.looks_unspaced, references.values())):
        _note("the references have no spaces between words, so BLEU takes whole sentences for "
              "words; give --language_pair (target zh, ja) or --tokenize=char")
    _show(args, results, test, samples)


def _score_losses(args: argparse.Namespace, names: list[str]) -> None:
    """Scores files of `rpr perplexity`."""
    if not set(names) <= set(LOSS_METRICS) or args.reference or args.test_set:
        raise InvalidValue("metrics", args.metrics, "losses of rpr perplexity have no other "
                           "metrics and no reference")
    unused = {"documents": args.documents, f"paired_{args.test}": args.test,
              "samples": args.samples, "seed": args.seed, "tokenize": args.tokenize,
              "language_pair": args.language_pair}
    for name in (name for name, value in unused.items() if value is not None):
        raise UserError(f"--{name}: not with losses of rpr perplexity")
    paths = _once(args.hypotheses)
    _check_json(args, paths)
    results = scoring.score_losses({path: read_losses(path) for path in paths}, names)
    _show(args, results, "jackknife" if len(results) > 1 else None, None)


def _show(args: argparse.Namespace, results: Sequence[System], test: str | None,
          samples: int | None) -> None:
    record = [system.as_dict() for system in results]
    text = json.dumps(record if len(record) > 1 else record[0], indent=1) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
        return
    if args.json:
        files.write_atomically(args.json, text)
    print(as_text(results, test, samples))


def _check_json(args: argparse.Namespace, read: Sequence[str | None]) -> None:
    if args.json and args.json != "-":
        check_output(args.json, filter(None, read), of_json=True)


def _documents(args: argparse.Namespace, test: str | None) -> list[str] | None:
    """The document of each sentence, where it is known and the jackknife test is made."""
    if not args.documents:
        return (test_sets.test_set_documents(args.test_set, args.language_pair)
                if args.test_set and test == "jackknife" else None)
    if test != "jackknife":
        raise InvalidValue("documents", args.documents, "only the jackknife test of two or more "
                           "systems uses documents")
    names = read_lines(args.documents)
    if not test_sets.several_documents(names):
        raise InvalidValue("documents", args.documents, "it names a single document")
    return names


def main_parser() -> Parser:
    """The flags of `rpr score`."""
    parser = Parser(
        prog="rpr score", description="BLEU, chrF, TER, accuracy or edit distance, with "
        "signatures. With two or more\nsystems the first is the baseline, and a paired test shows "
        "whether the others differ.")
    parser.add_argument("hypotheses", nargs="+", metavar="HYP",
                        help="detokenized text, one sentence per line; may be gzipped (.gz). For "
                        f"{' and '.join(LOSS_METRICS)}: files of rpr perplexity --output")
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--reference", nargs="+", action="extend", metavar="FILE",
                         help="one or more references of the same sentences")
    against.add_argument("--test_set", metavar="NAME", help="a test set that sacrebleu --list "
                         "shows, such as wmt14/full, or a registered one")
    parser.add_argument("--language_pair", metavar="PAIR", help="of --test_set, for example en-de; "
                        "its target language chooses the tokenizer")
    parser.add_argument("--documents", metavar="FILE", help="the name of each sentence's document, "
                        "one per line: the jackknife test then leaves out whole documents "
                        "(default: those of --test_set, where it has them)")
    test = parser.add_mutually_exclusive_group()
    test.add_argument("--paired_bootstrap", action="store_const", const="bootstrap", dest="test",
                      help="sacreBLEU's paired bootstrap instead of the jackknife t-test; its p is "
                      "about half of a two-sided p-value")
    test.add_argument("--paired_randomization", action="store_const", const="randomization",
                      dest="test", help="sacreBLEU's paired approximate randomization")
    parser.add_argument("--samples", type=number(1, MOST_SAMPLES), help="of sacreBLEU's "
                        "tests: resamples (default 1000) or trials (default 10000)")
    parser.add_argument("--seed", type=number(0, 2 ** 63 - 1),
                        help=f"of sacreBLEU's tests (default {scoring.SEED})")
    parser.add_argument("--metrics", help=f"some of {', '.join(ALL_METRICS)}, separated by commas "
                        f"(default {','.join(METRICS)}; ter is left out where a line has more than "
                        f"{scoring.MOST_TER_WORDS:,} words)")
    parser.add_argument("--tokenize", help="sacreBLEU's tokenizer for BLEU (default 13a; zh, "
                        f"ja-mecab and ko-mecab for those languages), or {MOSES}: lower-cased "
                        "Moses tokens, as published for Multi30k (needs sacremoses)")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE",
                        help="write the scores as JSON to FILE, or print them instead of the text")
    return parser


def _metrics(names: str | None, texts: dict[str, list[str]]) -> tuple[str, ...]:
    """The metrics to compute: TER is refused, or left out of the default, for very long lines."""
    metrics = tuple(METRICS) if names is None else tuple(names.split(","))
    if len(set(metrics)) != len(metrics):
        raise InvalidValue("metrics", names, "a metric is given twice")
    for path, lines in texts.items() if "ter" in metrics else ():
        number, words = scoring.longest_line(lines)
        if words > scoring.MOST_TER_WORDS:
            problem = (f"line {number:,} of {path} has {words:,} words; TER takes at most "
                       f"{scoring.MOST_TER_WORDS:,}")
            if names:
                raise InvalidValue("metrics", names, problem)
            _note(f"TER is left out: {problem}")
            return tuple(name for name in metrics if name != "ter")
    return metrics


def _note(line: str) -> None:
    print(f"rpr score: {line}", file=sys.stderr)


def _once(paths: Sequence[str]) -> Sequence[str]:
    if len(set(paths)) != len(paths):
        raise UserError(f"{' '.join(paths)}: a file is given twice")
    return paths


_PS = {"p": f"p ≤ {LEVEL}", "p_holm": "Holm, of a table", "p_all": "Holm, of all tables"}


def judge(argv: list[str]) -> None:
    """`rpr judge FILE [FLAGS]`."""
    args = judge_parser().parse_args(argv)
    check_input(args.file)
    scores = judging.read_scores(args.file, args.arm, args.seed, args.score,
                                 args.tables.split(",") if args.tables else ())
    tested = {table: sum(len(seeds) > 1 for seeds in arms.values())
              for table, arms in scores.items()}
    if max(map(len, scores.values())) < 2:
        raise InvalidValue("arm", args.arm, f"a single value in each table of "
                           f"{args.file}; the test compares two or more")
    if max(tested.values()) < 2:
        raise InvalidValue("seed", args.seed, f"no table of {args.file} has two arms with two "
                           "seeds each, which the test needs")
    pairs = judging.judge(scores)
    from rich.console import Console
    console = for_tables(Console())
    for table, arms in scores.items():
        _print(console, table or args.file, ["arm", "seeds", "mean", "deviation"], [
            [name, str(len(seeds)), f"{statistics.fmean(seeds.values()):.4g}",
             f"{statistics.stdev(seeds.values()):.2g}" if len(seeds) > 1 else ""]
            for name, seeds in arms.items()])
        found = [pair for pair in pairs if pair.table == table]
        if found:
            _print(console, "", ["", "minus", "difference", "95%", "p", "p (Holm)"], [
                [pair.second, pair.first, f"{each.difference:+.3g}",
                 f"[{each.low:+.3g}, {each.high:+.3g}]", p_text(each.p), p_text(each.p_holm)]
                for pair in found for each in (pair.comparison,)])
        possible = math.comb(tested[table], 2)
        if len(found) < possible:
            console.print("not compared, because their scores do not vary between seeds: "
                          f"{possible - len(found)} of {possible} pairs\n", highlight=False)
    if not pairs:
        return
    compared = len({pair.table for pair in pairs})
    if compared > 1:
        counts = {p: judging.outcomes(pairs, p) for p in _PS}
        _print(console, f"{compared} tables: ahead, behind, undecided",
               ["", "against", *_PS.values()],
               [[second, first, *(", ".join(map(str, counts[p][first, second])) for p in _PS)]
                for first, second in counts["p"]])
    console.print("significant pairs: " + "; ".join(
        f"{sum(sum(count[:2]) for count in judging.outcomes(pairs, p).values())} of {len(pairs)} "
        f"with {text}" for p, text in _PS.items()), highlight=False)


def _print(console: "Console", title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text
    table = Table(title=Text(printable(title)) if title else None, title_justify="left",
                  box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 or column in ("minus", "against")
                         else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def judge_parser() -> Parser:
    """The flags of `rpr judge`."""
    parser = Parser(prog="rpr judge", description="Applies the test of arms of rpr report to "
                    "scores that were computed elsewhere: a CSV file with a row per run, or a row "
                    "per run and condition, such as the length, whose scores are averaged.")
    parser.add_argument("file", help="a CSV file with a header")
    parser.add_argument("--arm", default="arm", metavar="COLUMN", help="what is compared "
                        "(default: arm)")
    parser.add_argument("--seed", default="seed", metavar="COLUMN", help="which training (default: "
                        "seed)")
    parser.add_argument("--score", default="score", metavar="COLUMN", help="the score; more is "
                        "better (default: score)")
    parser.add_argument("--tables", default="", metavar="COLUMN,...", help="columns that divide "
                        "the file into tables, such as the task")
    return parser


def test_set(argv: Sequence[str]) -> None:
    """`rpr test-set add NAME SOURCE REFERENCE... --language_pair=PAIR`, `rpr test-set list`."""
    args = test_set_parser().parse_args(argv)
    if args.action == "list":
        for name, pair, directory in test_sets.registered():
            print(printable(f"{name}\t{pair}\t{directory}", lines=True))
        return
    directory = test_sets.register(args.name, args.language_pair, args.source, args.references,
                                   args.documents)
    print(f"--test_set={args.name} --language_pair={args.language_pair}: {directory}")


def test_set_parser() -> Parser:
    """The flags of `rpr test-set`."""
    parser = Parser(prog="rpr test-set", description="rpr test-set add NAME SOURCE REFERENCE... "
                    "--language_pair=en-de\nregisters text files of your own as a test set, for "
                    "--test_set=NAME and run.test_set.\nThe files are copied to $RPR_TEST_SETS "
                    "(default: ~/.local/share/rpr/test_sets).")
    actions = parser.add_subparsers(dest="action", required=True, metavar="add|list",
                                    parser_class=Parser)
    add = actions.add_parser("add", help="register a source and its references")
    add.add_argument("name", metavar="NAME", help="letters, digits and . _ -")
    add.add_argument("source", metavar="SOURCE", help="UTF-8 text, one sentence per line")
    add.add_argument("references", nargs="+", metavar="REFERENCE", help="as many lines; several "
                     "references are possible")
    add.add_argument("--language_pair", metavar="PAIR", required=True, help="such as en-de")
    add.add_argument("--documents", metavar="FILE", help="the name of each sentence's document, "
                     "one per line: significance tests then count documents, not sentences")
    actions.add_parser("list", help="show the registered test sets")
    return parser
