"""`rpr bleu` (t2t-bleu): T2T's approximate BLEU. `rpr score` computes the one to publish."""
import os

from absl.flags import FlagValues

from rpr.t2t.launcher import need, parse
from rpr.utils.console import QuietLogs
from rpr.utils.errors import UserError


def main(argv: list[str], logs: QuietLogs | None) -> None:
    """`rpr bleu`, with the flags of t2t-bleu."""
    del logs
    from tensor2tensor.bin import t2t_bleu
    flags, words = parse(argv, "rpr bleu (t2t-bleu)")
    if words:
        raise UserError(f"{words[0]!r}: rpr bleu takes flags only: --translation and --reference")
    if flags.translations_dir:
        if flags.translation:
            raise UserError(f"--translations_dir={flags.translations_dir}: not together with "
                            "--translation")
        if not os.path.isdir(flags.translations_dir):
            raise UserError(f"--translations_dir={flags.translations_dir}: there is no such "
                            "directory")
        need(flags, "reference", "event_dir")
    else:
        need(flags, "translation", "reference")
    lines = [_count_lines(flags, name) for name in ("translation", "reference")
             if flags[name].value]
    if len(set(lines)) > 1:
        raise UserError(f"--translation={flags.translation}: it has {lines[0]:,} lines, the "
                        f"reference has {lines[1]:,}")
    t2t_bleu.main(None)
    if flags.translations_dir:
        print(f"scores as TensorBoard events: {flags.event_dir}")


def _count_lines(flags: FlagValues, name: str) -> int:
    from rpr.inference import file_checks
    path = getattr(flags, name)
    file_checks.check_input(path, name)
    with open(path, "rb") as text:
        return text.read().count(b"\n") + 1               # as T2T counts them
