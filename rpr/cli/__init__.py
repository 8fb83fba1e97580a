"""The `rpr` command, and T2T's launchers as other names of its commands, without TensorFlow."""
import functools
import gc
import importlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rpr.utils import errors
from rpr.utils.console import printable, write_traceback
from rpr.utils.errors import STOPPED, InvalidPath, InvalidValue, UserError, nearest

Command = Callable[[list[str]], Any]

HELP = """rpr: position schemes for Transformers, compared

usage: rpr COMMAND [FLAGS]     (rpr COMMAND --help lists the flags of a command)

Experiments
  run GIN       one run in its own directory: datagen, train, average, decode, score; resumable
  study GIN     the runs of a study (arms, seeds) on all GPUs or cores of this machine; resumable
  report DIR    a study, or the runs below DIR: tables with significance, plots, an HTML page
  verify RUN    repeats the first steps of a run and compares losses and weights bit for bit
  benchmark NAME   a position scheme: checked, trained, and compared with the recorded others
  track DIR     sends the records of runs to Weights & Biases, MLflow or Aim

T2T's programs, with T2T's flags and this project's models, hparams sets and problems
  datagen       t2t-datagen: vocabulary and TFRecords of a problem
  train         t2t-trainer
  decode        t2t-decoder; also RUN, and --test_set=wmt14/full --language_pair=en-de
  evaluate      t2t-eval; also RUN
  average       t2t-avg-all: checkpoint averaging
  bleu          t2t-bleu: T2T's approximate BLEU; publish that of `rpr score`

Also
  translate RUN one sentence, lines or typed text: scores, probabilities, attention plots
  perplexity RUN   a language model's loss per token of a text, by position, in sliding windows
  judge FILE    the test of arms on scores of other experiments, from a CSV file
  export RUN    the model for CTranslate2, TensorFlow Serving, or as safetensors
  score         BLEU, chrF, TER, accuracy or edit distance, with signatures and paired tests
  test-set      register text files of your own as a test set, for --test_set
  check-scheme  what every position scheme must satisfy, checked for one of your own
  list          models, hparams sets, problems and position schemes

  --verbose     with T2T's programs: their logs on the terminal instead of in a file
  --version     versions of rpr, Python and TensorFlow
"""
_RESUMABLE = {"rpr run", "rpr study", "rpr benchmark", "rpr datagen", "rpr train", "rpr decode",
              "t2t-datagen", "t2t-trainer", "t2t-decoder"}
_BROKEN_PIPE = 141                                    # exit code, as if killed by SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """`rpr COMMAND ...`; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:                  # a shell asks how the line can go on
        _complete(os.environ["COMP_LINE"].split()[1:2])
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(_version())
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        near = nearest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        return _refuse("rpr", f"no command {name[:80]!r}{near}")
    return run_command(f"rpr {name}", functools.partial(_run, name), arguments[1:])


def _version() -> str:
    """Such as "rpr 0.1.0 (commit 9f4d615ae872), Python 3.11.7, TensorFlow 2.15.1"."""
    from rpr.experiments.provenance import describe_environment
    environment = describe_environment()
    own = environment["rpr"]
    changes = "" if own.get("clean") else ", with changes"
    commit = f" (commit {own['commit'][:12]}{changes})" if "commit" in own else ""
    return (f"rpr {own['version']}{commit}, Python {environment['python']}, TensorFlow "
            f"{environment['tensorflow'] or 'not installed'}")


def run_command(name: str, command: Command, argv: list[str]) -> int:
    """Runs a command; its errors become one line, which begins with `name`, and an exit code."""
    gc.set_threshold(100_000)                         # imports and graphs stay in use
    for stream_name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream_name) is None:         # the caller closed it
            setattr(sys, stream_name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):      # text that the locale cannot encode
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = command(argv)
        except SystemExit as ended:                   # --help
            code = ended.code
        sys.stdout.flush()
        return code if isinstance(code, int) else int(bool(code))
    except UserError as error:
        return _refuse(name, _spelled(error, name, argv))
    except KeyboardInterrupt:
        resumes = "; the same command resumes it" if name in _RESUMABLE else ""
        print(f"{name}: stopped{resumes}", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:                           # `rpr ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        line = errors.resource_error(error)
        if line:
            return _refuse(name, line)
        own = errors.own_code_error(error)
        errors.send_failure_reason(own or error)
        first = (str(error).strip().splitlines() or [""])[0][:300]
        line = own or f"unexpected {type(error).__name__}: {first}"
        try:
            log = f"the traceback is in {write_traceback(error)}"
        except OSError as no_room:
            log = f"its traceback cannot be written: {no_room}"
        print(f"{name}: " + printable(f"{line}; {log}"), file=sys.stderr)
        return 1


def _spelled(error: UserError, command: str, argv: Sequence[str]) -> str:
    """The message of an error, with the flag or the setting of a gin file that it is about."""
    pairs = [*(word.partition("=")[::2] for word in argv), *itertools.pairwise(argv)]
    given = {name.lstrip("-"): value for name, value in pairs
             if name.startswith("-") and "=" not in name}
    if isinstance(error, InvalidPath):
        flags = [f"--{name}={error.path}" for name, value in given.items()
                 if value == error.path or value and (
                     os.path.abspath(os.path.expanduser(value)) == os.path.abspath(error.path))]
        if flags:
            return f"{' and '.join(flags)}: {error.problem}"
    if not isinstance(error, InvalidValue):
        return str(error)
    if command in ("rpr run", "rpr study") and error.name not in given:
        from rpr.experiments.config import Run
        if error.name in Run.__dataclass_fields__:
            return error.spelled(f"run.{error.name}", " = ")
    return error.spelled(f"--{error.name}")


def _refuse(name: str, line: str) -> int:
    line = printable(" ".join(line.splitlines()))
    errors.send_failure_reason(line)
    print(f"{name}: {line}", file=sys.stderr)
    return 1


def _function(path: str) -> Any:
    """`MODULE.FUNCTION` of `rpr.cli`, which is imported only now."""
    module, _, function = path.partition(".")
    return getattr(importlib.import_module(f"rpr.cli.{module}"), function)


def _run(name: str, argv: list[str]) -> Any:
    """Runs a command; T2T is prepared before a module that uses it is imported."""
    if name in _WITHOUT_T2T:
        return _function(COMMANDS[name])(argv)
    parsed = None
    if name in _PARSED_FIRST:
        parsed = _function(f"{COMMANDS[name]}_parser")().parse_args(
            [word for word in argv if word != "--verbose"])
    from rpr.cli import launcher
    return launcher.launch(lambda rest: _function(COMMANDS[name])(parsed or rest), argv)


COMMANDS = {
    "run": "run.main", "study": "study.main", "report": "report.main", "verify": "run.verify",
    "judge": "score.judge", "track": "track.main", "datagen": "t2t_programs.datagen",
    "train": "train.main", "decode": "decode.main", "evaluate": "evaluate.main",
    "average": "t2t_programs.average", "bleu": "t2t_programs.bleu", "translate": "models.translate",
    "export": "models.export", "perplexity": "models.perplexity", "score": "score.main",
    "test-set": "score.test_set", "check-scheme": "schemes.check_scheme",
    "benchmark": "schemes.benchmark", "list": "schemes.list_names"}
# For completion: the parser of MODULE.FUNCTION of these commands is MODULE.FUNCTION_parser.
# "export" loads T2T once its flags are checked.
_WITHOUT_T2T = ("run", "study", "report", "verify", "judge", "track", "score", "test-set", "export")
# These get parsed flags: what is wrong is refused before T2T is imported, which takes seconds.
_PARSED_FIRST = ("check-scheme", "benchmark", "list", "perplexity")


def _complete(typed: list[str]) -> None:
    """Prints how a command line can go on, for argcomplete, and ends the process.

    The flags of T2T's programs are left out: to know them takes seconds.
    """
    import argparse

    import argcomplete
    parser = argparse.ArgumentParser("rpr", add_help=False)
    commands = parser.add_subparsers()
    for name, path in COMMANDS.items():
        known = typed == [name] and name in _WITHOUT_T2T + _PARSED_FIRST
        parents = [_function(f"{path}_parser")()] if known else []
        commands.add_parser(name, parents=parents, add_help=False)
    argcomplete.autocomplete(parser)


def _run_script(name: str, script: str) -> int:
    return run_command(script, functools.partial(_run, name), sys.argv[1:])


datagen = functools.partial(_run_script, "datagen", "t2t-datagen")
train = functools.partial(_run_script, "train", "t2t-trainer")
decode = functools.partial(_run_script, "decode", "t2t-decoder")
evaluate = functools.partial(_run_script, "evaluate", "t2t-eval")
average = functools.partial(_run_script, "average", "t2t-avg-all")
bleu = functools.partial(_run_script, "bleu", "t2t-bleu")


# T2T's programs that do not run on TensorFlow 2.15: what to use instead. They are installed in
# place of those of its wheel, which end in a traceback.
INSTEAD = {
    "t2t-attack": "adversarial attacks are not supported (T2T's need cleverhans and TensorFlow 1)",
    "t2t-exporter": "use rpr export RUN --format=saved_model --to=DIR (docs/export.md)",
    "t2t-insights-server": "use rpr translate RUN --show_attention=DIR, which draws the attention "
                           "weights",
    "t2t-make-tf-configs": "parameter servers are not supported; scripts/tf_config prints the "
                           "TF_CONFIG of each worker (docs/training.md)",
    "t2t-query-server": "no server is needed: use rpr translate RUN, which translates what is "
                        "typed, or lines from a pipe",
    "t2t-translate-all": "use run.bleu_frequency of rpr run, which scores checkpoints on the "
                         "development set, or rpr decode with --checkpoint_path",
}


def replaced() -> int:
    """Prints the line of the program that was started; returns the exit code 1."""
    name = os.path.basename(sys.argv[0])
    print(f"{name}: {INSTEAD[name]}", file=sys.stderr)
    return 1
