"""`rpr bleu` (t2t-bleu): T2T's approximate BLEU. `rpr score` computes the one to publish."""
import os
from typing import Any

from rpr.t2t.launcher import parse
from rpr.utils.errors import UserError


def main(argv: list[str], logs: Any) -> None:
    """Runs the command.

    Args:
      argv: T2T's flags.
      logs: a `QuietLogs`, or None with --verbose.
    """
    del logs
    from tensor2tensor.bin import t2t_bleu
    flags, _ = parse(argv, "t2t-bleu")
    for name in ("translation", "reference"):
        path = flags[name].value
        if path and not os.path.exists(path):
            raise UserError(f"--{name}={path}: there is no such file")
    t2t_bleu.main(None)
