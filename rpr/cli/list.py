"""`rpr list`: what is registered."""
from typing import Any

from rpr.cli.arguments import Parser
from rpr.t2t.registration import import_all_of_t2t, register
from rpr.utils.console import printable

_KINDS = ("models", "hparams", "problems", "schemes")


def main(argv: list[str], logs: Any) -> None:
    """`rpr list [models|hparams|problems|schemes] [--all] [--t2t_usr_dir=DIR]`."""
    del logs
    parser = Parser(prog="rpr list", description="Models, hparams sets, problems and position "
                    "schemes, one per line.")
    parser.add_argument("kinds", nargs="*", metavar="KIND",
                        help=f"{', '.join(_KINDS)} (default: all of them)")
    parser.add_argument("--all", action="store_true", help="T2T's own, too")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="and those in a directory of yours")
    args = parser.parse_args(argv)
    for kind in args.kinds:
        if kind not in _KINDS:
            parser.error(f"{kind[:80]!r}: one of {', '.join(_KINDS)}")
    register(args.t2t_usr_dir)
    if args.all:
        import_all_of_t2t("problem")
        import_all_of_t2t("model")
    for kind in args.kinds or _KINDS:
        entries = sorted(_entries(kind, args.all).items())
        width = max((len(name) for name, _ in entries), default=0)
        print(kind)
        for name, entry in entries:
            meaning = (entry.__doc__ or "").strip().split("\n")[0]
            print(printable(f"  {name:<{width}}  {meaning}".rstrip()))
            for setting in entry.settings if kind == "schemes" else ():
                print(printable(f"  {'':<{width}}    {setting.name}={setting.default}: "
                                f"{setting.help} ({setting.allowed()})"))


def _entries(kind: str, is_all: bool) -> dict[str, Any]:
    """{name: class or function} of a kind; those of T2T only if `is_all`."""
    if kind == "schemes":
        from rpr import positions
        return positions.SCHEMES
    from tensor2tensor.utils import registry
    entries = getattr(registry.Registries, kind)._registry
    return {name: entry for name, entry in entries.items()
            if is_all or not entry.__module__.startswith("tensor2tensor.")}
