"""gin at the edge: a file becomes an `experiment.Run`, or that and a `study.Study`."""
import dataclasses
import os

import gin
from rpr.experiments.run import Run
from rpr.experiments.study import Study
from rpr.utils.errors import UserError

_configured_run = gin.external_configurable(Run, name="run")
_configured_study = gin.external_configurable(Study, name="study")


def load_run(path, bindings=()):
    """The run that a gin file describes.

    Args:
      path: a file of lines `run.NAME = VALUE`, the names being the fields of `experiment.Run`.
      bindings: further lines, which win over the file.

    Raises:
      UserError: no such file, an unknown name, a value that is missing or not allowed.
    """
    return _load(path, bindings, study=False)[0]


def load_study(path, bindings=()):
    """The study that a gin file describes, and the run that its arms change.

    Args:
      path: a file of lines `run.NAME = VALUE` and `study.NAME = VALUE`, the names being the fields
        of `experiment.Run` and `study.Study`.
      bindings: further lines, which win over the file.

    Returns:
      `study.Study`, `experiment.Run`.

    Raises:
      UserError: as `load_run` does.
    """
    run, study = _load(path, bindings, study=True)
    return study, run


def _load(path, bindings, study):
    if not os.path.exists(path):
        raise UserError(f"{path}: there is no such gin file")
    gin.clear_config()
    gin.add_config_file_search_path(os.path.dirname(os.path.abspath(path)))
    try:
        gin.parse_config_files_and_bindings([path], list(bindings))
        if _describes_a_study() != study:
            raise UserError("it describes a study: rpr study runs it" if not study else
                            "it describes a single run: rpr run runs it")
        return _configured_run(), _configured_study() if study else None
    except Exception as error:                        # gin raises whatever the text provokes
        line = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
        raise UserError(f"{path}: {line}") from None


def _describes_a_study():
    for field in dataclasses.fields(Study):
        try:
            gin.query_parameter(f"study.{field.name}")
            return True
        except ValueError:
            pass
    return False


def as_gin(described, name="run"):
    """The resolved configuration of a run or a study as gin lines."""
    return "".join(f"{name}.{field} = {value!r}\n"
                   for field, value in dataclasses.asdict(described).items())
