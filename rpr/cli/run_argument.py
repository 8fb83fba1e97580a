"""`rpr decode RUN` and `rpr evaluate RUN`: a run directory in place of T2T's flags."""
from collections.abc import Sequence
from typing import Any

from rpr.experiments import run_directory
from rpr.experiments.config import Run
from rpr.utils.errors import UserError


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
