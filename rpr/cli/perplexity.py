"""`rpr perplexity`: the loss of each token of a text under a language model."""
import argparse

import numpy as np

from rpr.cli import arguments
from rpr.evaluation import ratio_metrics, test_sets
from rpr.inference import file_checks
from rpr.inference.language_model import LanguageModel
from rpr.t2t import registration, trained_model
from rpr.utils import files
from rpr.utils.console import QuietLogs, say
from rpr.utils.errors import UserError


def main(argv: list[str], logs: QuietLogs | None = None) -> None:
    """`rpr perplexity RUN --input=FILE`; without a run directory, T2T's flags name the model."""
    del logs                                          # the model's directory is not written
    args = _parse(argv)
    if args.output_dir is None and not args.run:
        raise UserError("name a run directory, or a model by --output_dir, --problem, --data_dir, "
                        "--model and --hparams_set")
    _, request = arguments.find_model(args, args.run)
    file_checks.check_input(args.input)
    if args.output:
        file_checks.check_output(args.output, [args.input], of_json=True)
    registration.register(request.t2t_usr_dir)
    model = LanguageModel(trained_model.find_trained_model(request))
    say(model.checkpoint, style="dim")
    losses = model.losses(test_sets.read_lines(args.input), args.window, args.stride)
    for name in ratio_metrics.LOSS_METRICS:
        print(ratio_metrics.make_metric(name).corpus_score(ratio_metrics.loss_counts(losses))[1])
    for line in by_position(losses):
        print(line)
    if args.output:
        files.write_atomically(args.output, ratio_metrics.losses_to_json(losses))


def by_position(losses: list[np.ndarray]) -> list[str]:
    """Lines with the loss per token at positions 1, 2, 3-4, 5-8, ... of the texts."""
    lines, low, high = [], 1, 1
    longest = max(map(len, losses))
    while low <= longest:
        total, count = ratio_metrics.loss_counts(losses, low, high).sum(axis=0)
        place = f"{low}-{min(high, longest)}" if high > low else f"{low}"
        lines.append(f"position {place:>9}  loss {total / count:.4f}  ({count:,.0f} tokens)")
        low, high = high + 1, 2 * high
    return lines


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.Parser(
        prog="rpr perplexity", description="Perplexity and loss per token (nats) of a text, one "
        "document a line, and the loss by position.\nIn a window, tokens have no more than its "
        "length before them. With --stride of the window's length\n(the default) windows do not "
        "overlap; with a smaller one they slide.")
    parser.add_argument("run", nargs="*", metavar="RUN", help="a run directory, unless "
                        "--output_dir names the model")
    parser.add_argument("--input", required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--output", metavar="FILE", help="write the loss of each token: a JSON "
                        "list per line. rpr score --metrics=perplexity compares such files")
    parser.add_argument("--window", type=arguments.whole_number(1), metavar="N",
                        help="most tokens that the model reads at once (default: the whole line)")
    parser.add_argument("--stride", type=arguments.whole_number(1), metavar="N",
                        help="tokens from one window to the next")
    parser.add_argument("--data_dir", help="vocabulary (default: where rpr run and rpr study "
                        "put the data)")
    model = parser.add_argument_group("a model without a run directory, by T2T's flags")
    for name in ("problem", "model", "hparams_set", "hparams", "checkpoint_path", "output_dir",
                 "t2t_usr_dir"):
        model.add_argument(f"--{name}")
    return parser.parse_args(argv)
