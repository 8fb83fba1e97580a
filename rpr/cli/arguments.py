"""Flags of the commands that do not take T2T's: errors in one line, numbers with ranges."""
import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rpr.experiments import run_directory
from rpr.experiments.config import Run
from rpr.utils.errors import UserError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `UserError`s; flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False,
                            "formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')} (--help lists the flags)")


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """The type of a flag: a whole number from `low` to `high`."""
    return _number(int, "a whole number", low, high)


def number(low: float, high: float | None = None) -> Callable[[str], float]:
    """The type of a flag: a number from `low` to `high`."""
    return _number(float, "a number", low, high)


def _number(kind: type, name: str, low: float, high: float | None) -> Callable[[str], Any]:
    allowed = f"{name}, {f'at least {low}' if high is None else f'from {low} to {high}'}"

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= (math.inf if high is None else high) or math.isinf(value):
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: it must be {allowed}")
        return value
    return parse


def fill_flags(flags: Any, words: Sequence[str]) -> Run | None:
    """Sets T2T's flags to the trained model of a run directory, if one is named.

    Args:
      flags: T2T's, parsed; the model's problem, hparams, data and checkpoint are set.
      words: what the command line has besides flags.

    Returns:
      the configuration of the run; None if `words` is empty.

    Raises:
      UserError: there is no run, or a flag contradicts it.
    """
    if not words:
        return None
    if len(words) > 1:
        raise UserError(f"{words[1]!r}: only one run directory can be named")
    run, named = run_directory.trained_model_flags(words[0], flags.data_dir,
                                                   flags.t2t_usr_dir)
    for name, value in vars(named).items():
        if name in ("data_dir", "t2t_usr_dir"):       # given, or found next to the run
            flags[name].value = value
        elif flags[name].present:
            raise UserError(f"--{name}={flags[name].value}: the run directory {words[0]} decides "
                            "it; leave the flag or the directory out")
        else:
            flags[name].value = value
    return run
