"""`rpr test-set`: registers plain text files as a test set, for --test_set and run.test_set."""
from collections.abc import Sequence

from rpr.cli.arguments import Parser
from rpr.evaluation import test_sets
from rpr.utils.console import printable


def main(argv: Sequence[str]) -> None:
    """`rpr test-set add NAME SOURCE REFERENCE... --language_pair=PAIR`, `rpr test-set list`."""
    args = _parser().parse_args(argv)
    if args.action == "list":
        for name, pair, directory in test_sets.registered():
            print(printable(f"{name}\t{pair}\t{directory}", lines=True))
        return
    directory = test_sets.register(args.name, args.language_pair, args.source, args.references,
                                   args.documents)
    print(f"--test_set={args.name} --language_pair={args.language_pair}: {directory}")


def _parser() -> Parser:
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
