"""Commands that use one trained model: `rpr translate`, `rpr perplexity` and `rpr export`."""
import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rpr.cli import arguments
from rpr.evaluation import ratio_metrics, test_sets
from rpr.experiments.config import Run
from rpr.export import QUANTIZATIONS, check_installed
from rpr.inference import file_checks
from rpr.utils import files
from rpr.utils.console import Task, say, terminal
from rpr.utils.errors import InvalidPath, InvalidValue, UserError
from rpr.utils.interfaces import ModelRequest

if TYPE_CHECKING:
    import numpy as np

    from rpr.inference.inspector import Translation


def translate(argv: list[str]) -> None:
    """`rpr translate RUN [TEXT]`; without a run directory, T2T's flags name the model."""
    from rpr.inference.inspector import Inspector
    from rpr.t2t import preflight
    from rpr.t2t.trained_model import find_trained_model
    parser = _parser("translate", "RUN [TEXT]", "Translates one sentence, the lines of the "
                     "standard input, or what is typed.\nShows the score of the beam search (log "
                     "probability divided by the length penalty)\nand the probability of each "
                     "token. In a pipe a line has the translation, the score and\nthe "
                     "probabilities, separated by tabs. rpr decode is faster for a whole file.")
    _add_search_flags(parser)
    parser.add_argument("--show_attention", metavar="DIR", type=os.path.expanduser,
                        help="draw the attention weights of every layer and head for each "
                        "sentence: DIR/1.encoder.png, ...")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--one_line", action="store_true", help="print the translation, the "
                      "probability of each token (the end mark's last) and the score in one line")
    args = parser.parse_intermixed_args(argv)
    words = args.words[:1] if args.output_dir is None else []
    run, request = arguments.find_model(args, words)
    text = args.words[len(words):]
    if len(text) > 1:
        raise UserError(f"{text[1]!r}: put the sentence in quotes")
    beam_size, alpha = (run.beam_size, run.alpha) if run else (4, 0.6)
    beam_size, alpha = args.beam_size or beam_size, alpha if args.alpha is None else args.alpha
    if os.path.isfile(args.show_attention or ""):
        raise InvalidPath(args.show_attention, "is a file; expected a directory")
    with terminal.status("loading the model"):
        trained = find_trained_model(request)
        preflight.say_if_nothing_is_sampled(trained.hparams, beam_size)
        model = Inspector(trained, beam_size, alpha)
    say(f"{trained.checkpoint}: beam {beam_size}, alpha {alpha}", style="dim")
    for number, line in enumerate(text or _read_lines(), 1):
        translation = model.translate(line)
        if args.json:
            print(_to_json(line, translation), flush=True)
        else:
            print(_to_line(translation) if args.one_line else _to_text(translation), flush=True)
        if args.show_attention:
            attention = model.sentence_attention(model.encode(line), translation.ids, found=True)
            attention.draw(os.path.join(args.show_attention, str(number)))


def _read_lines() -> Iterator[str]:
    """The lines of the standard input; on a terminal, the lines that are typed."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                text = line.decode().rstrip("\r\n")
                yield text.removeprefix("\ufeff") if number == 1 else text
            except UnicodeDecodeError as error:
                raise UserError(f"standard input: line {number} is not UTF-8 "
                                f"({error.reason})") from None
        return
    import readline  # noqa: F401  lets `input` edit and recall lines
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line.strip():
            yield line


def _to_text(translation: "Translation") -> str:
    if not sys.stdout.isatty():
        return "\t".join([translation.text.replace("\t", " "), f"{translation.score:.4f}",
                          " ".join(f"{p:.4f}" for p in translation.probabilities)])
    tokens = "  ".join(f"{token.strip()} {p:.2f}" for token, p in
                       zip(translation.tokens, translation.probabilities, strict=True))
    return f"{translation.text}\n  score {translation.score:.3f}: {tokens}"


def _to_line(translation: "Translation") -> str:
    return (f"{translation.text} [{' '.join(f'{p:.3f}' for p in translation.probabilities)}] "
            f"Score: {translation.score:.3f}")


def _to_json(source: str, translation: "Translation") -> str:
    return json.dumps({"source": source, "translation": translation.text,
                       "score": round(translation.score, 6), "tokens": translation.tokens,
                       "probabilities": [round(float(p), 6) for p in translation.probabilities]},
                      ensure_ascii=False)


def perplexity(args: argparse.Namespace) -> None:
    """`rpr perplexity RUN --input=FILE`; without a run directory, T2T's flags name the model."""
    _, request = arguments.find_model(args, args.words)
    file_checks.check_input(args.input)
    if args.output:
        file_checks.check_output(args.output, [args.input], of_json=True)
    from rpr.inference.language_model import LanguageModel
    from rpr.t2t.trained_model import find_trained_model
    model = LanguageModel(find_trained_model(request))
    say(model.checkpoint, style="dim")
    lines, losses = test_sets.read_lines(args.input), list["np.ndarray"]()
    with Task("losses", len(lines), "lines") as task:
        for first in range(0, len(lines), 256):
            losses += model.losses(lines[first:first + 256], args.window, args.stride)
            task.update(len(losses))
    for name in ratio_metrics.LOSS_METRICS:
        print(ratio_metrics.make_metric(name).corpus_score(ratio_metrics.loss_counts(losses))[1])
    _print_by_position(losses)
    if args.output:
        files.write_atomically(args.output, ratio_metrics.losses_to_json(losses))


def perplexity_parser() -> arguments.Parser:
    """The flags of `rpr perplexity`."""
    parser = _parser("perplexity", "RUN", "Perplexity and loss per token (nats) of a text, one "
                     "document a line, and the loss by position.\nIn a window, tokens have no more "
                     "than its length before them. With --stride of the window's length\n(the "
                     "default) windows do not overlap; with a smaller one they slide.")
    parser.add_argument("--input", required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument("--output", metavar="FILE", help="write the loss of each token: a JSON "
                        "list per line. rpr score --metrics=perplexity compares such files")
    parser.add_argument("--window", type=arguments.number(1), metavar="N",
                        help="most tokens that the model reads at once (default: the whole line)")
    parser.add_argument("--stride", type=arguments.number(1), metavar="N",
                        help="tokens from one window to the next")
    return parser


def _print_by_position(losses: "list[np.ndarray]") -> None:
    """Prints the loss per token at positions 1, 2, 3-4, 5-8, ... of the texts."""
    low, high, longest = 1, 1, max(map(len, losses))
    while low <= longest:
        total, count = ratio_metrics.loss_counts(losses, low, high).sum(axis=0)
        last = min(high, longest)
        place = f"{low}-{last}" if last > low else f"{low}"
        print(f"position {place:>9}  loss {total / count:.4f}  ({count:,.0f} tokens)")
        low, high = high + 1, 2 * high


# Flags of `rpr export` that only some formats read.
_READ = {"ctranslate2": ("beam_size", "alpha", "extra_length", "quantization"),
         "saved_model": ("beam_size", "alpha", "extra_length"), "safetensors": ()}


def export(argv: list[str]) -> None:
    """`rpr export RUN --format=... --to=DIR`; without a run directory, T2T's flags name the model.
    """
    args = export_parser().parse_args([arg for arg in argv if arg != "--verbose"])
    for name in _READ["ctranslate2"]:
        value = getattr(args, name)
        if value is not None and name not in _READ[args.format]:
            raise InvalidValue(name, value, f"the format {args.format} does not read it")
    if args.format != "saved_model":
        check_installed("format", args.format)
    files.check_new_directory(args.to)
    run, request = arguments.find_model(args, args.words)
    from rpr.cli import launcher
    launcher.launch(lambda _: _export(args, run, request), argv)


def export_parser() -> arguments.Parser:
    """The flags of `rpr export`."""
    parser = _parser("export", "RUN", "Writes a trained model for programs that have neither T2T "
                     "nor rpr. docs/export.md\ndescribes the formats.")
    parser.add_argument("--format", required=True, help="ctranslate2: fast translation; "
                        "saved_model: TensorFlow, every model that translates; safetensors: "
                        "the weights", choices=tuple(_READ))
    parser.add_argument("--to", required=True, metavar="DIR", type=os.path.expanduser,
                        help="a new directory")
    parser.add_argument("--quantization", choices=QUANTIZATIONS,
                        help="type of the weights for ctranslate2 (default float32)")
    _add_search_flags(parser)
    parser.add_argument("--extra_length", type=arguments.number(0, 100_000), help="most "
                        "tokens of a hypothesis beyond those of its source (default 100)")
    return parser


def _export(args: argparse.Namespace, run: Run | None, request: ModelRequest) -> None:
    from rpr.export import bundle, to_ctranslate2
    from rpr.inference.model_session import ModelSession
    from rpr.t2t.trained_model import find_trained_model
    default = bundle.Search(run.beam_size, run.alpha) if run else bundle.Search()
    if args.format == "saved_model":
        files.refuse_unusable(args.to)
    search = default._replace(**{name: getattr(args, name) for name in default._fields
                                 if getattr(args, name) is not None})
    with bundle.new_directory(args.to) as directory, terminal.status("exporting"):
        trained = find_trained_model(request)
        longest = None
        if args.format == "safetensors":
            bundle.save_safetensors(trained, directory)
        elif args.format == "saved_model":
            session = ModelSession(trained.name, trained.hparams, trained.checkpoint, *search)
            session.save(directory)
            longest = session.longest_source
        else:
            longest = to_ctranslate2.save(trained, directory, args.quantization or "float32")
        translates = args.format != "safetensors" and bundle.add_translator(
            trained, directory, search, args.format, longest)
    say(f"{args.to}: {args.format} of {trained.checkpoint}")
    if translates:
        say(f"translate with: python {args.to}/translate.py < source.txt > output.txt")


def _parser(command: str, words: str, description: str) -> arguments.Parser:
    parser = arguments.Parser(prog=f"rpr {command}", description=description)
    sentence = "; a sentence" if "TEXT" in words else ""
    parser.add_argument("words", nargs="*", metavar=words, help="a run directory, unless "
                        f"--output_dir names the model{sentence}")
    parser.add_argument("--data_dir", help="vocabulary (default: where rpr run and rpr study put "
                        "the data)")
    model = parser.add_argument_group("a model without a run directory, by T2T's flags")
    for name in ("problem", "model", "hparams_set", "hparams", "checkpoint_path", "output_dir",
                 "t2t_usr_dir"):
        model.add_argument(f"--{name}")
    return parser


def _add_search_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beam_size", type=arguments.number(1, 1000),
                        help="hypotheses kept, at least 1 (default: the run's, else 4)")
    parser.add_argument("--alpha", type=arguments.number(0, file_checks.MOST_ALPHA, float),
                        help="exponent of the length penalty, at least 0 (default: the run's, "
                        "else 0.6)")
