"""Flags of the commands that do not take T2T's: errors in one line, numbers with ranges."""
import argparse
import contextlib
import dataclasses
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rpr.experiments import run_directory
from rpr.experiments.config import Run
from rpr.inference.file_checks import check_output
from rpr.utils.errors import InvalidPath, UserError, nearest
from rpr.utils.interfaces import ModelRequest
from rpr.utils.settings import Setting

# Of --cores, a flag of the commands that train the runs of a study.
CORES_HELP = ("train on cores and not on GPUs: at most this many, one per run (default: all cores, "
              "if there is no GPU)")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `UserError`s; flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        lines = (options.get("description") or "").splitlines()
        options["description"] = "\n".join(textwrap.fill(line, 96) for line in lines)
        super().__init__(**{"allow_abbrev": False,
                            "formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        unknown = re.fullmatch(r"unrecognized arguments: (--[\w-]+).*", message)
        near = nearest(unknown[1], self._option_string_actions) if unknown else ""
        if message.startswith("unrecognized arguments: ") and not unknown:
            near = "".join(f"; repeat {flag} for each value" for flag, action
                           in self._option_string_actions.items() if action.nargs == "+")
        raise UserError(f"{message.removeprefix('argument ')}{near} (--help lists the flags)")


def number(low: float, high: float | None = None, kind: type = int) -> Callable[[str], Any]:
    """The type of a flag: a number from `low` to `high`, a whole one or of another kind."""
    setting = Setting("", kind(), minimum=low, maximum=high)

    def parse(text: str) -> Any:
        value = None
        with contextlib.suppress(ValueError):
            value = kind(text)
        if not setting.accepts(value):
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: must be {setting.allowed()}")
        return value
    return parse


def output_file(text: str) -> str:
    """The type of a flag: a file that can be written, or a device such as /dev/stdout."""
    try:
        if not text.startswith("/dev/"):
            check_output(text)
    except InvalidPath as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def find_model(flags: object, words: Sequence[str]) -> tuple[Run | None, ModelRequest]:
    """The run, if any, and the model: that of the run directory in `words`, else of the flags."""
    given = ModelRequest.of(flags)
    for name in (word.partition("=")[0] for word in words if word.startswith("--hp_")):
        raise UserError(f"{name}: only rpr train takes it; give --hparams="
                        f"{name.removeprefix('--hp_')}=VALUE")
    if not words:
        if not given.output_dir and not getattr(flags, "ensemble", None):
            raise UserError("name a run directory, or a model by --output_dir, --problem, "
                            "--data_dir, --model and --hparams_set")
        return None, given
    if len(words) > 1:
        raise UserError(f"{words[1]!r}: only one run directory can be named")
    run, named = run_directory.find_model(words[0], given.data_dir, given.t2t_usr_dir)
    for name, value in vars(given).items():
        if value and name not in ("data_dir", "t2t_usr_dir", "hparams"):
            raise UserError(f"--{name}={value} is already set by run directory {words[0]}; leave "
                            "the flag or the directory out")
    return run, dataclasses.replace(named, hparams=given.hparams) if given.hparams else named
