"""`rpr average` (t2t-avg-all): averages checkpoints."""
import os
from typing import Any

from rpr.t2t.launcher import need, parse
from rpr.utils.errors import UserError


def main(argv: list[str], logs: Any) -> None:
    """Runs the command.

    Args:
      argv: T2T's flags.
      logs: a `QuietLogs`, or None with --verbose.
    """
    from tensor2tensor.bin import t2t_avg_all  # noqa: F401  defines the flags
    from tensor2tensor.utils import bleu_hook

    from rpr.training import averaging
    flags, _ = parse(argv, "t2t-avg-all")
    need(flags, "model_dir")
    model_dir, output_dir = map(os.path.expanduser, (flags.model_dir, flags.output_dir))
    count = 0
    if os.path.isdir(model_dir):
        count = sum(1 for _ in bleu_hook.stepfiles_iterator(model_dir, 0, flags.min_steps))
    if count < flags.n and not flags.wait_minutes:    # T2T would succeed and write nothing
        raise UserError(f"--n={flags.n}: --model_dir={flags.model_dir} holds {count} checkpoints "
                        f"from step {flags.min_steps} on")
    if logs:
        logs.keep(os.path.join(output_dir, "average.log"))
    averaging.average_all(model_dir, output_dir, flags.n, flags.min_steps, flags.wait_minutes)
