"""The `rpr` command, and T2T's launchers as other names of its verbs.

Nothing here imports TensorFlow, so that `rpr --help` answers at once.
"""
import importlib
import sys

from rpr.utils.errors import UserError, resource_error, send_failure_reason

HELP = """rpr: what does a position scheme do to a Transformer?

usage: rpr VERB [FLAGS]        (rpr VERB --help lists the flags of a verb)

A whole experiment
  run GIN       one run in a directory of its own: datagen, train, average, decode, score; resumable
  study GIN     the runs of a study (arms, seeds) on all GPUs or cores of this machine; resumable
  report DIR    a study, or the runs below DIR: tables with significance, plots, one HTML page

T2T's programs, with T2T's own flags and this project's models, hparams sets and problems
  datagen       t2t-datagen: vocabulary and TFRecords of a problem
  train         t2t-trainer
  decode        t2t-decoder; also --test_set=wmt14/full --language_pair=en-de (through sacreBLEU)
  evaluate      t2t-eval
  average       t2t-avg-all: checkpoint averaging
  bleu          t2t-bleu: T2T's approximate BLEU; `rpr score` is the one to report

Beside them
  translate RUN one sentence, lines or what is typed: score, probabilities, pictures of attention
  score         BLEU, chrF and TER with signatures; paired significance of two and more systems
  list          models, hparams sets, problems and position schemes, a line each

  --verbose     with any verb: TensorFlow's and T2T's logs on the terminal instead of in a file
"""


def main(argv=None):
    """`rpr VERB ...`; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if argv else 2
    verb, rest = argv[0], argv[1:]
    if verb not in COMMANDS:
        print(f"rpr: no verb '{verb}': {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return _answer(f"rpr {verb}", COMMANDS[verb], rest)


def _answer(name, call, argv):
    """Runs a verb; bad input and Ctrl-C end in one line and an exit code, anything else in full."""
    try:
        return call(argv) or 0
    except UserError as error:
        return _refuse(name, str(error))
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except Exception as error:
        line = resource_error(error)
        if line:
            return _refuse(name, line)
        send_failure_reason(error)
        raise


def _refuse(name, line):
    send_failure_reason(line)
    print(f"{name}: {line}", file=sys.stderr)
    return 1


def _command(module):
    """The command that the module `rpr.cli.MODULE` holds, imported when it is called."""
    def call(argv):
        return importlib.import_module(f"rpr.cli.{module}").main(argv)
    return call


def _t2t_command(module):
    """The same for a command that takes T2T's flags: `main` takes them and the logs."""
    def call(argv):
        from rpr.t2t import launcher

        def main(argv, logs):
            """Imported only after `launch` has prepared T2T."""
            return importlib.import_module(f"rpr.cli.{module}").main(argv, logs)

        return launcher.launch(module, argv, main)
    return call


COMMANDS = {"run": _command("run"), "study": _command("study"), "report": _command("report"),
         "datagen": _t2t_command("datagen"), "train": _t2t_command("train"),
         "decode": _t2t_command("decode"), "evaluate": _t2t_command("evaluate"),
         "average": _t2t_command("average"), "bleu": _t2t_command("bleu"),
         "translate": _t2t_command("translate"), "score": _command("score"),
         "list": _t2t_command("list")}


def _launcher(verb, script):
    def entry():
        return _answer(script, COMMANDS[verb], sys.argv[1:])
    return entry


datagen = _launcher("datagen", "t2t-datagen")
train = _launcher("train", "t2t-trainer")
decode = _launcher("decode", "t2t-decoder")
evaluate = _launcher("evaluate", "t2t-eval")
average = _launcher("average", "t2t-avg-all")
bleu = _launcher("bleu", "t2t-bleu")
