"""`rpr bleu` (t2t-bleu): T2T's approximate BLEU. `rpr score` computes the one to publish."""
import os

from rpr.cli.launcher import need, parse
from rpr.evaluation.test_sets import read_lines
from rpr.t2t import compat
from rpr.utils.console import QuietLogs
from rpr.utils.errors import InvalidPath, InvalidValue


def main(argv: list[str], logs: QuietLogs | None) -> None:
    """`rpr bleu`, with the flags of t2t-bleu."""
    del logs
    from tensor2tensor.bin import t2t_bleu
    flags, _ = parse(argv, "rpr bleu (t2t-bleu)", example="--translation=FILE")
    if flags.translations_dir:
        if flags.translation:
            raise InvalidValue("translations_dir", flags.translations_dir,
                               "not together with --translation")
        if not os.path.isdir(flags.translations_dir):
            raise InvalidPath(flags.translations_dir, "there is no such directory")
        need(flags, "reference", "event_dir")
    else:
        need(flags, "translation", "reference")
    compat.read_bleu_texts_with(read_lines)
    t2t_bleu.main(None)
    if flags.translations_dir:
        print(f"scores as TensorBoard events: {flags.event_dir}")
