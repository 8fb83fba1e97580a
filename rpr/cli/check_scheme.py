"""`rpr check-scheme`: the conformance checks of a position scheme."""
from rpr.cli.arguments import Parser
from rpr.t2t.registration import register, registered_hparams
from rpr.utils.console import QuietLogs, printable
from rpr.utils.errors import UserError


def main(argv: list[str], logs: QuietLogs | None) -> int:
    """`rpr check-scheme NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    del logs
    parser = Parser(prog="rpr check-scheme", description="Checks that a position scheme is exact "
                    "with a cache, sees no later word, is not changed by padding, batches and "
                    "packing, and more. The exit code is 1 if a check finds a counter-example.")
    parser.add_argument("scheme", help="a value of the hparam position, such as alibi+rotary")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="directory of your own scheme")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="an hparam; may be repeated")
    args = parser.parse_args(argv)
    register(args.t2t_usr_dir)
    from rpr.conformance.checks import HPARAMS_SET, check_scheme
    from rpr.t2t.preflight import parse_hparams
    parse_hparams(registered_hparams(HPARAMS_SET), ",".join(args.set), "set")
    failed = False
    try:
        for result in check_scheme(args.scheme, ",".join(args.set)):
            outcome = f"FAILED: {result.problem}" if result.problem else result.note or "pass"
            print(f"{result.side:<9}{result.check:<34}{printable(outcome)}", flush=True)
            failed |= bool(result.problem)
    except ValueError as error:
        raise UserError(str(error)) from None
    return int(failed)
