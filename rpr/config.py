"""gin at the edge: a file that describes a run becomes an `experiment.Run`."""
import dataclasses
import os

import gin
from rpr.errors import UserError
from rpr.experiment import Run

_configured_run = gin.external_configurable(Run, name="run")


def load_run(path, bindings=()):
    """The run that a gin file describes.

    Args:
      path: a file of lines `run.NAME = VALUE`, the names being the fields of `experiment.Run`.
      bindings: further lines, which win over the file.

    Raises:
      UserError: no such file, an unknown name, a value that is missing or not allowed.
    """
    if not os.path.exists(path):
        raise UserError(f"{path}: there is no such gin file")
    gin.clear_config()
    gin.add_config_file_search_path(os.path.dirname(os.path.abspath(path)))
    try:
        gin.parse_config_files_and_bindings([path], list(bindings))
        return _configured_run()
    except Exception as error:                        # gin raises whatever the text provokes
        line = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
        raise UserError(f"{path}: {line}") from None


def as_gin(run):
    """The resolved configuration as a gin file."""
    return "".join(f"run.{name} = {value!r}\n" for name, value in dataclasses.asdict(run).items())
