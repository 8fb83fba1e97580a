"""`rpr translate`: sentences through a trained model, with scores, probabilities and attention."""
import argparse
import json
import os
import sys
from collections.abc import Iterator

from rpr.cli import arguments
from rpr.inference.attention_plots import draw_attention
from rpr.inference.file_checks import MOST_ALPHA
from rpr.inference.inspector import Inspector, Translation, until_end
from rpr.t2t import registration, trained_model
from rpr.utils.console import QuietLogs, say, terminal
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest


def main(argv: list[str], logs: QuietLogs | None = None) -> None:
    """`rpr translate RUN [TEXT]`; without a run directory, T2T's flags name the model."""
    del logs                                          # the model's directory is not written
    args = _parse(argv)
    request, beam_size, alpha, text = _model_and_text(args)
    if args.show_attention:
        os.makedirs(args.show_attention, exist_ok=True)
    with terminal.status("loading the model"):
        registration.register(request.t2t_usr_dir)
        trained = trained_model.find_trained_model(request)
        model = Inspector(trained, beam_size, alpha)
    say(f"{trained.checkpoint}: beam {beam_size}, alpha {alpha}", style="dim")
    for number, line in enumerate([text] if text is not None else _read_lines(), 1):
        translation = model.translate(line)
        if args.json:
            print(_to_json(line, translation), flush=True)
        else:
            print(_to_line(translation) if args.one_line else _to_text(translation), flush=True)
        if args.show_attention:
            source = model.encode(line)
            weights = model.attention([source], [translation.ids])
            draw_attention(weights, model.tokens(until_end(source), "inputs"), translation.tokens,
                           os.path.join(args.show_attention, str(number)))


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.Parser(
        prog="rpr translate", description="Translates one sentence, the lines of the standard "
        "input, or what is typed.\nShows the score of the beam search (log probability divided by "
        "the length penalty)\nand the probability of each token. In a pipe a line has the "
        "translation, the score and\nthe probabilities, separated by tabs. rpr decode is faster "
        "for a whole file.")
    parser.add_argument("words", nargs="*", metavar="RUN [TEXT]",
                        help="a run directory, unless --output_dir names the model; a sentence")
    parser.add_argument("--beam_size", type=arguments.whole_number(1, 1000),
                        help="hypotheses kept, at least 1 (default: the run's, else 4)")
    parser.add_argument("--alpha", type=arguments.number(0, MOST_ALPHA), help="exponent of "
                        "the length penalty, at least 0 (default: the run's, else 0.6)")
    parser.add_argument("--show_attention", metavar="DIR", help="draw the attention weights of "
                        "every layer and head for each sentence: DIR/1.encoder.png, ...")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--one_line", action="store_true", help="print the translation, the "
                        "probability of each token (the end mark's last) and the score in one line")
    arguments.add_model_flags(parser)
    return parser.parse_intermixed_args(argv)


def _model_and_text(args: argparse.Namespace) -> tuple[ModelRequest, int, float, str | None]:
    """The model, beam size, alpha, and the sentence or None."""
    if args.output_dir is None and not args.words:
        raise UserError("name a run directory, or a model by --output_dir, --problem, --data_dir, "
                        "--model and --hparams_set")
    words = args.words[:1] if args.output_dir is None else []
    run, request = arguments.find_model(args, words)
    text = args.words[len(words):]
    if len(text) > 1:
        raise UserError(f"{text[1]!r}: put the sentence in quotes")
    beam_size, alpha = (run.beam_size, run.alpha) if run else (4, 0.6)
    return (request, args.beam_size or beam_size, alpha if args.alpha is None else args.alpha,
            text[0] if text else None)


def _read_lines() -> Iterator[str]:
    """The lines of the standard input; on a terminal, the lines that are typed."""
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                text = line.decode().rstrip("\n")
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


def _to_text(translation: Translation) -> str:
    if not sys.stdout.isatty():
        return "\t".join([translation.text.replace("\t", " "), f"{translation.score:.4f}",
                          " ".join(f"{p:.4f}" for p in translation.probabilities)])
    tokens = "  ".join(f"{token.strip()} {p:.2f}" for token, p in
                       zip(translation.tokens, translation.probabilities, strict=True))
    return f"{translation.text}\n  score {translation.score:.3f}: {tokens}"


def _to_line(translation: Translation) -> str:
    return (f"{translation.text} [{' '.join(f'{p:.3f}' for p in translation.probabilities)}] "
            f"Score: {translation.score:.3f}")


def _to_json(source: str, translation: Translation) -> str:
    return json.dumps({"source": source, "translation": translation.text,
                       "score": round(translation.score, 6), "tokens": translation.tokens,
                       "probabilities": [round(float(p), 6) for p in translation.probabilities]},
                      ensure_ascii=False)
