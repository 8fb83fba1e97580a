"""`rpr judge`: the test of arms on the scores of others."""
import statistics
from typing import TYPE_CHECKING

from rpr.cli.arguments import Parser
from rpr.evaluation import judging
from rpr.evaluation.significance import LEVEL, p_text
from rpr.utils.console import printable

if TYPE_CHECKING:
    from rich.console import Console

_PS = {"p": f"p ≤ {LEVEL}", "p_holm": "Holm, of a table", "p_all": "Holm, of all tables"}


def main(argv: list[str]) -> None:
    """`rpr judge FILE [FLAGS]`."""
    args = _parser().parse_args(argv)
    scores = judging.read_scores(args.file, args.arm, args.seed, args.score,
                                 args.tables.split(",") if args.tables else ())
    pairs = judging.judge(scores)
    from rich.console import Console
    console = Console()
    if not console.is_terminal:
        console.width = 200
    for table, arms in scores.items():
        _print(console, table or args.file, ["arm", "seeds", "mean", "deviation"], [
            [name, str(len(seeds)), f"{statistics.fmean(seeds.values()):.4g}",
             f"{statistics.stdev(seeds.values()):.2g}" if len(seeds) > 1 else ""]
            for name, seeds in arms.items()])
        _print(console, "", ["", "minus", "difference", "95%", "p", "p (Holm)"], [
            [pair.second, pair.first, f"{found.difference:+.3g}",
             f"[{found.low:+.3g}, {found.high:+.3g}]", p_text(found.p), p_text(found.p_holm)]
            for pair in pairs if pair.table == table for found in (pair.comparison,)])
    if len(scores) > 1:
        counts = {p: judging.outcomes(pairs, p) for p in _PS}
        _print(console, f"{len(scores)} tables: ahead, behind, undecided",
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
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("minus", "against")
                         else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _parser() -> Parser:
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
