"""`rpr translate`: sentences through a trained model, with scores, probabilities and attention."""
import argparse
import json
import math
import os
import sys

from rpr.experiments import run_directory
from rpr.inference import inspector
from rpr.inference.attention_plots import draw_attention
from rpr.t2t import registration, trained_model
from rpr.utils.console import terminal
from rpr.utils.errors import UserError


def main(argv, logs=None):
    """`rpr translate RUN_DIR [TEXT]`; without a run's directory T2T's flags name the model."""
    del logs                                          # nothing is written where the model lies
    args = _parse(argv)
    flags, beam_size, alpha, text = _model_and_text(args)
    with terminal.status("loading the model"):
        registration.register(args.t2t_usr_dir)
        trained = trained_model.find_trained_model(flags)
        model = inspector.Inspector(trained, beam_size, alpha)
    terminal.print(f"{trained.checkpoint}: beam {beam_size}, alpha {alpha}", style="dim",
                   highlight=False, soft_wrap=True)
    for number, line in enumerate([text] if text is not None else _lines(), 1):
        found = model.translate(line)
        if args.json:
            print(_as_json(line, found), flush=True)
        else:
            print(_in_one_line(found) if args.one_line else _as_text(found), flush=True)
        if args.show_attention:
            source = model.encode(line)
            weights = model.attention([source], [found.ids])
            draw_attention(weights, model.tokens(source, "inputs"), found.tokens,
                           os.path.join(args.show_attention, str(number)))


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog="rpr translate", description="Translates one sentence, the lines of the standard "
        "input, or what is typed; with the score of the beam search (log probability, over the "
        "length penalty) and the probability of each token. In a pipe: translation, score and "
        "probabilities, separated by tabs. rpr decode is faster for a whole file.")
    parser.add_argument("words", nargs="*", metavar="RUN_DIR [TEXT]",
                        help="a run's directory, unless --output_dir names the model; a sentence")
    parser.add_argument("--beam_size", type=_at_least(int, 1), help="default: the run's; else 4")
    parser.add_argument("--alpha", type=_at_least(float, 0),
                        help="of the length penalty; default: the run's; else 0.6")
    parser.add_argument("--show_attention", metavar="DIR", help="for each sentence pictures of "
                        "where every head of every layer looks: DIR/1.encoder.png, ...")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--one_line", action="store_true",
                        help="translation [probability of each token, the end's last] Score: S")
    parser.add_argument("--data_dir", help="default: where rpr run and rpr study put the data")
    own = parser.add_argument_group("a model without a run's directory, by T2T's flags")
    for name in ("output_dir", "problem", "model", "hparams_set", "hparams", "checkpoint_path",
                 "t2t_usr_dir"):
        own.add_argument(f"--{name}", default="" if name == "hparams" else None)
    parser.error = _refuse                            # the error stream is a log by now
    return parser.parse_intermixed_args(argv)


def _refuse(message):
    raise UserError(message)


def _at_least(kind, least):
    def parse(text):
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: at least {least}")
        return value
    return parse


def _model_and_text(args):
    """The flags of the model, beam size, alpha, and the sentence or None."""
    words, flags = args.words, args
    beam_size, alpha = 4, 0.6
    if args.output_dir is None:
        if not words:
            raise UserError("name a run's directory, or a model by --output_dir, --problem, "
                            "--data_dir, --model and --hparams_set")
        run, flags = run_directory.find_trained_model(words[0], args.data_dir)
        beam_size, alpha, words = run.beam_size, run.alpha, words[1:]
    if len(words) > 1:
        raise UserError(f"'{words[1]}': one sentence, in quotes")
    return (flags, args.beam_size or beam_size, alpha if args.alpha is None else args.alpha,
            words[0] if words else None)


def _lines():
    """The lines of the standard input; on a terminal, what is typed until it ends."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
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


def _as_text(found):
    if not sys.stdout.isatty():
        return "\t".join([found.text, f"{found.score:.4f}",
                          " ".join(f"{p:.4f}" for p in found.probabilities)])
    tokens = "  ".join(f"{token.strip()} {p:.2f}" for token, p in
                       zip(found.tokens, found.probabilities, strict=True))
    return f"{found.text}\n  score {found.score:.3f}: {tokens}"


def _in_one_line(found):
    return (f"{found.text} [{' '.join(f'{p:.3f}' for p in found.probabilities)}] "
            f"Score: {found.score:.3f}")


def _as_json(source, found):
    return json.dumps({"source": source, "translation": found.text,
                       "score": round(found.score, 6), "tokens": found.tokens,
                       "probabilities": [round(float(p), 6) for p in found.probabilities]},
                      ensure_ascii=False)
