"""`rpr check-scheme`: the conformance checks of a position scheme."""
import argparse
from typing import TYPE_CHECKING

from rpr.cli.arguments import Parser
from rpr.t2t.registration import register, registered_hparams
from rpr.utils.console import QuietLogs, printable
from rpr.utils.errors import UserError

if TYPE_CHECKING:
    from rpr.conformance.checks import Result


def main(argv: list[str], logs: QuietLogs | None) -> int:
    """`rpr check-scheme NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    del logs
    parser = Parser(prog="rpr check-scheme", description="Checks that a position scheme is exact "
                    "with a cache, sees no later word, is not changed by padding, batches and "
                    "packing, and more. The exit code is 1 if a check finds a counter-example.")
    add_arguments(parser)
    return int(any(result.problem for result in show_checks(parser.parse_args(argv))))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a scheme."""
    parser.add_argument("scheme", help="a value of the hparam position, such as alibi+rotary")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="directory of your own scheme")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="an hparam; may be repeated")


def show_checks(args: argparse.Namespace) -> "list[Result]":
    """Runs the checks and prints a line for each.

    Args:
      args: those of `add_arguments`.

    Raises:
      UserError: there is no such scheme, or an hparam is unknown or out of range.
    """
    register(args.t2t_usr_dir)
    from rpr.conformance.checks import HPARAMS_SET, check_scheme
    from rpr.t2t.preflight import parse_hparams
    parse_hparams(registered_hparams(HPARAMS_SET), ",".join(args.set), "set")
    results = []
    try:
        for result in check_scheme(args.scheme, ",".join(args.set)):
            outcome = f"FAILED: {result.problem}" if result.problem else result.note or "pass"
            print(f"{result.side:<9}{result.check:<34}{printable(outcome)}", flush=True)
            results.append(result)
    except ValueError as error:
        raise UserError(str(error)) from None
    return results
