"""`rpr average` (t2t-avg-all): averages checkpoints."""
import os

from rpr.cli.launcher import need, parse
from rpr.utils import metrics_log
from rpr.utils.console import QuietLogs, say
from rpr.utils.errors import UserError
from rpr.utils.files import refuse_unusable


def main(argv: list[str], logs: QuietLogs | None) -> None:
    """`rpr average`, with the flags of t2t-avg-all."""
    from tensor2tensor.bin import t2t_avg_all  # noqa: F401  defines the flags
    from tensor2tensor.utils import bleu_hook

    from rpr.t2t import checkpoints
    from rpr.training import averaging
    flags, _ = parse(argv, "rpr average (t2t-avg-all)", example="--model_dir=DIR")
    need(flags, "model_dir", "output_dir")
    model_dir, output_dir = map(os.path.expanduser, (flags.model_dir, flags.output_dir))
    refuse_unusable(model_dir)
    refuse_unusable(output_dir)
    if os.path.realpath(model_dir) == os.path.realpath(output_dir):
        raise UserError(f"--output_dir={output_dir}: averages would replace the checkpoints of "
                        "--model_dir; take another directory")
    if os.path.exists(os.path.join(output_dir, metrics_log.CHECKSUMS)):
        raise UserError(f"--output_dir={output_dir}: averages would replace the checkpoints of the "
                        "training in it; take another directory")
    min_steps = max(flags.min_steps, 1)               # the checkpoint at step 0 is not trained
    found = (list(bleu_hook.stepfiles_iterator(model_dir, 0, min_steps))
             if os.path.isdir(model_dir) else [])
    for each in found:
        problem = checkpoints.damage(each.filename)
        if problem:
            raise UserError(f"--model_dir={model_dir}: {each.filename} cannot be read: {problem}")
    if len(found) < flags.n and not flags.wait_minutes:      # T2T would succeed and write nothing
        raise UserError(f"--n={flags.n}: --model_dir={flags.model_dir} holds {len(found)} "
                        f"checkpoints from step {min_steps} on")
    if found:
        averaging.averaged_variables([each.filename for each in found])
    if logs:
        logs.keep(os.path.join(output_dir, "average.log"))
    for path in averaging.average_all(model_dir, output_dir, flags.n, min_steps,
                                      flags.wait_minutes):
        say(f"{path}: mean of {flags.n} checkpoints of {model_dir}")
