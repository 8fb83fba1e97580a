"""The `rpr` command, and T2T's launchers as other names of its commands.

Nothing here imports TensorFlow, so `rpr --help` answers immediately.
"""
import importlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rpr.utils.console import printable, write_traceback
from rpr.utils.errors import (
    InvalidPath,
    InvalidValue,
    UserError,
    nearest,
    resource_error,
    send_failure_reason,
)

Command = Callable[[list[str]], Any]

HELP = """rpr: position schemes for Transformers, compared

usage: rpr COMMAND [FLAGS]     (rpr COMMAND --help lists the flags of a command)

Experiments
  run GIN       one run in its own directory: datagen, train, average, decode, score; resumable
  study GIN     the runs of a study (arms, seeds) on all GPUs or cores of this machine; resumable
  report DIR    a study, or the runs below DIR: tables with significance, plots, an HTML page
  verify RUN    repeats the first steps of a run and compares losses and weights bit for bit

T2T's programs, with T2T's flags and this project's models, hparams sets and problems
  datagen       t2t-datagen: vocabulary and TFRecords of a problem
  train         t2t-trainer
  decode        t2t-decoder; also RUN, and --test_set=wmt14/full --language_pair=en-de
  evaluate      t2t-eval
  average       t2t-avg-all: checkpoint averaging
  bleu          t2t-bleu: T2T's approximate BLEU; publish that of `rpr score`

Also
  translate RUN one sentence, lines or typed text: scores, probabilities, attention plots
  score         BLEU, chrF and TER with signatures; paired significance of two or more systems
  test-set      register text files of your own as a test set, for --test_set
  list          models, hparams sets, problems and position schemes

  --verbose     with T2T's programs: their logs on the terminal instead of in a file
"""
_RESUMABLE = {"rpr run", "rpr study", "rpr datagen", "rpr train", "rpr decode", "t2t-datagen",
              "t2t-trainer", "t2t-decoder"}
_BROKEN_PIPE = 141                                    # exit code, as if killed by SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """`rpr COMMAND ...`; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    name = arguments[0]
    if name not in COMMANDS:
        near = nearest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        return _refuse("rpr", f"no command {name[:80]!r}{near}")
    return run_command(f"rpr {name}", COMMANDS[name], arguments[1:])


def run_command(name: str, command: Command, argv: list[str]) -> int:
    """Runs a command and turns its errors into one line and an exit code.

    Args:
      name: for messages.
      command: takes the arguments; returns an exit code or None.
      argv: arguments.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):      # text that the locale cannot encode
            stream.reconfigure(errors="backslashreplace")
    try:
        return _call(command, argv)
    except UserError as error:
        return _refuse(name, _spelled(error, name, argv))
    except KeyboardInterrupt:
        resumes = "; the same command resumes it" if name in _RESUMABLE else ""
        print(f"{name}: stopped{resumes}", file=sys.stderr)
        return 130
    except BrokenPipeError:                           # `rpr ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:
        line = resource_error(error)
        if line is None:
            send_failure_reason(error)
            first = (str(error).strip().splitlines() or [""])[0][:300]
            line = (f"unexpected {type(error).__name__}: {first}; the traceback is in "
                    f"{write_traceback(error)}")
            print(f"{name}: {printable(line)}", file=sys.stderr)
            return 1
        return _refuse(name, line)


def _call(command: Command, argv: list[str]) -> int:
    """The exit code of a command, also after --help; its output has been written."""
    try:
        code = command(argv)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    return code if isinstance(code, int) else int(bool(code))


def _spelled(error: UserError, command: str, argv: Sequence[str]) -> str:
    """The message of an error, with the flag or the setting of a gin file that it is about.

    Args:
      error: raised by a check, which knows no flags.
      command: such as "rpr run".
      argv: the command line.
    """
    pairs = [*(word.partition("=")[::2] for word in argv), *itertools.pairwise(argv)]
    given = {name.lstrip("-"): value for name, value in pairs
             if name.startswith("-") and "=" not in name}
    if isinstance(error, InvalidPath):
        for name, value in given.items():
            if os.path.abspath(os.path.expanduser(value)) == os.path.abspath(error.path):
                return f"--{name}={error}"
    if not isinstance(error, InvalidValue):
        return str(error)
    if command in ("rpr run", "rpr study") and error.name not in given:
        from rpr.experiments.config import Run
        if error.name in Run.__dataclass_fields__:
            return error.spelled(f"run.{error.name}", " = ")
    return error.spelled(f"--{error.name}")


def _refuse(name: str, line: str) -> int:
    line = printable(" ".join(line.splitlines()))
    send_failure_reason(line)
    print(f"{name}: {line}", file=sys.stderr)
    return 1


def _command(module: str) -> Command:
    """The command in the module `rpr.cli.MODULE`, which is imported when it is called."""
    def call(argv: list[str]) -> Any:
        return importlib.import_module(f"rpr.cli.{module}").main(argv)
    return call


def _t2t_command(module: str) -> Command:
    """The same for a command with T2T's flags: `main` takes arguments and logs."""
    def call(argv: list[str]) -> Any:
        from rpr.cli import launcher

        def imported_main(argv: list[str], logs: Any) -> Any:
            """Imports the command only after `launch` has prepared T2T."""
            return importlib.import_module(f"rpr.cli.{module}").main(argv, logs)

        return launcher.launch(module, argv, imported_main)
    return call


COMMANDS: dict[str, Command] = {
    **{name: _command(name) for name in ("run", "study", "report", "verify")},
    **{name: _t2t_command(name) for name in ("datagen", "train", "decode", "evaluate", "average",
                                             "bleu", "translate")},
    "score": _command("score"), "test-set": _command("test_set"),
    "list": _t2t_command("list")}


def _launcher(name: str, script: str) -> Callable[[], int]:
    def entry() -> int:
        return run_command(script, COMMANDS[name], sys.argv[1:])
    return entry


datagen = _launcher("datagen", "t2t-datagen")
train = _launcher("train", "t2t-trainer")
decode = _launcher("decode", "t2t-decoder")
evaluate = _launcher("evaluate", "t2t-eval")
average = _launcher("average", "t2t-avg-all")
bleu = _launcher("bleu", "t2t-bleu")
