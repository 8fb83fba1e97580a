"""rpr.cli.list"""
from rpr.t2t.registration import import_all_of_t2t, register
from rpr.utils.errors import UserError


def main(argv, logs):
    """`rpr list [models|hparams|problems|schemes] [--all]`."""
    del logs
    from rich.console import Console
    from rich.table import Table
    kinds = ["models", "hparams", "problems", "schemes"]
    whole = "--all" in argv
    asked = [arg for arg in argv if arg != "--all"] or kinds
    for kind in asked:
        if kind not in kinds:
            raise UserError(f"'{kind}': one of {', '.join(kinds)}, and --all for T2T's own too")
    register()
    from tensor2tensor.utils import registry

    from rpr import positions
    if whole:
        import_all_of_t2t("problem")
        import_all_of_t2t("model")
    for kind in asked:
        if kind == "schemes":
            entries = positions.SCHEMES
        else:
            entries = getattr(registry.Registries, kind)._registry
            if not whole:
                entries = {name: entry for name, entry in entries.items()
                           if entry.__module__.split(".")[0] in ("rpr", "problems", "hparams")}
        table = Table(title=kind, title_justify="left", show_header=False, box=None)
        for name, entry in sorted(entries.items()):
            table.add_row(name, (entry.__doc__ or "").strip().split("\n")[0])
        Console().print(table)
