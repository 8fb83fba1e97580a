"""`rpr list`: what is registered."""
from typing import Any

from rpr.cli.arguments import Parser
from rpr.t2t.registration import import_all_of_t2t, register, registered_hparams
from rpr.utils.console import printable
from rpr.utils.settings import Setting

_KINDS = ("models", "hparams", "problems", "schemes")


def main(argv: list[str]) -> None:
    """`rpr list [models|hparams|problems|schemes] [--hparams_set=SET] [--all] ...`."""
    parser = Parser(prog="rpr list", description="Models, hparams sets, problems and position "
                    "schemes, one per line.")
    parser.add_argument("kinds", nargs="*", metavar="KIND",
                        help=f"{', '.join(_KINDS)} (default: all of them)")
    parser.add_argument("--hparams_set", metavar="SET", help="the hparams of this set instead: "
                        "value, meaning and allowed values")
    parser.add_argument("--all", action="store_true", help="also list T2T's own")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="also list those in this directory")
    args = parser.parse_args(argv)
    for kind in args.kinds:
        if kind not in _KINDS:
            parser.error(f"{kind[:80]!r}: must be one of {', '.join(_KINDS)}")
    register(args.t2t_usr_dir)
    if args.all:
        import_all_of_t2t("problem")
        import_all_of_t2t("model")
    if args.hparams_set:
        _print_hparams(args.hparams_set)
        return
    from tensor2tensor.utils import registry

    from rpr import positions
    for kind in args.kinds or _KINDS:
        known: Any = (positions.SCHEMES if kind == "schemes"
                      else getattr(registry.Registries, kind)._registry)
        entries = [(name, entry) for name, entry in sorted(known.items())
                   if args.all or not entry.__module__.startswith("tensor2tensor.")]
        width = max((len(name) for name, _ in entries), default=0)
        print(kind)
        for name, entry in entries:
            meaning = (entry.__doc__ or "").strip().split("\n")[0]
            print(printable(f"  {name:<{width}}  {meaning}".rstrip()))
            for setting in entry.settings if kind == "schemes" else ():
                print(printable(f"  {'':<{width}}    {_describe(setting, setting.default)}"))


def _print_hparams(name: str) -> None:
    from rpr.models.declarations import declared
    hparams = registered_hparams(name)
    others = hparams.values()
    print(f"{name}: hparams whose values are checked")
    for setting in declared(hparams):
        print(printable(f"  {_describe(setting, others.pop(setting.name, None))}"))
    print("others, which are T2T's")
    for other, value in sorted(others.items()):
        print(printable(f"  {other}={value}"))


def _describe(setting: Setting, value: Any) -> str:
    meaning = f"{setting.help} ({setting.allowed()})" if setting.help else setting.allowed()
    return f"{setting.name}={value}: {meaning}"
