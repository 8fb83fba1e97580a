"""`rpr export`: writes a trained model for programs that have neither T2T nor rpr."""
import argparse

from rpr.cli import arguments
from rpr.export import bundle, to_ctranslate2
from rpr.export.bundle import Search
from rpr.inference.file_checks import MOST_ALPHA
from rpr.inference.model_session import ModelSession
from rpr.t2t import registration, trained_model
from rpr.utils.console import QuietLogs, say, terminal
from rpr.utils.errors import InvalidValue, UserError


def main(argv: list[str], logs: QuietLogs | None = None) -> None:
    """`rpr export RUN --format=... --to=DIR`; without a run directory, T2T's flags name the model.
    """
    del logs                                          # the model's directory is not written
    args = _parse(argv)
    if args.format != "saved_model":
        to_ctranslate2.check_installed("format", args.format)
    if args.quantization != "float32" and args.format != "ctranslate2":
        raise InvalidValue("quantization", args.quantization, "only with format ctranslate2")
    if args.output_dir is None and not args.words:
        raise UserError("name a run directory, or a model by --output_dir, --problem, --data_dir, "
                        "--model and --hparams_set")
    run, request = arguments.find_model(args, args.words)
    default = Search(run.beam_size, run.alpha) if run else Search()
    search = default._replace(**{name: getattr(args, name) for name in default._fields
                                 if getattr(args, name) is not None})
    with bundle.new_directory(args.to) as directory, terminal.status("exporting"):
        registration.register(request.t2t_usr_dir)
        trained = trained_model.find_trained_model(request)
        longest, translates = None, args.format != "safetensors"
        if args.format == "safetensors":
            bundle.save_safetensors(trained, directory)
        elif args.format == "saved_model":
            ModelSession(trained.name, trained.hparams, trained.checkpoint, *search).save(directory)
        else:
            longest = to_ctranslate2.save(trained, directory, args.quantization)
        translates = translates and bundle.add_translator(
            trained, directory, search, args.format, longest)
    say(f"{args.to}: {args.format} of {trained.checkpoint}")
    if translates:
        say(f"translate with: python {args.to}/translate.py < source.txt > output.txt")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.Parser(
        prog="rpr export", description="Writes a trained model for programs that have neither T2T "
        "nor rpr. docs/export.md\ndescribes the formats.")
    parser.add_argument("words", nargs="*", metavar="RUN",
                        help="a run directory, unless --output_dir names the model")
    parser.add_argument("--format", required=True, help="ctranslate2: fast translation; "
                        "saved_model: TensorFlow, every model; safetensors: the weights",
                        choices=("ctranslate2", "saved_model", "safetensors"))
    parser.add_argument("--to", required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--quantization", default="float32", choices=to_ctranslate2.QUANTIZATIONS,
                        help="type of the weights for ctranslate2 (default float32)")
    parser.add_argument("--beam_size", type=arguments.whole_number(1, 1000),
                        help="hypotheses kept, at least 1 (default: the run's, else 4)")
    parser.add_argument("--alpha", type=arguments.number(0, MOST_ALPHA), help="exponent of "
                        "the length penalty, at least 0 (default: the run's, else 0.6)")
    parser.add_argument("--extra_length", type=arguments.whole_number(0, 100_000), help="most "
                        "tokens of a hypothesis beyond those of its source (default 100)")
    arguments.add_model_flags(parser)
    return parser.parse_args(argv)
