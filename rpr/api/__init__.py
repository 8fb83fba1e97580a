"""The Python API: `rpr.load`, `rpr.build` and `rpr.results`.

TensorFlow and T2T are imported by the first call that needs them, not by `import rpr`.
"""
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from rpr.experiments import gin_files, run_directory
from rpr.utils.errors import UserError

if TYPE_CHECKING:
    from rpr.api.models import LoadedModel
    from rpr.inference.model_session import ModelSession


def load(run: str, *, data_dir: str | None = None, usr_dir: str | None = None,
         beam_size: int | None = None, alpha: float | None = None, hparams: str = ""
         ) -> "LoadedModel":
    """Loads the trained model of a run directory.

    Args:
      run: a directory that `rpr run` or `rpr study` made; its averaged checkpoint is used if there
        is one, else its last one.
      data_dir: the vocabulary's directory; None: where `rpr run` and `rpr study` put the data.
      usr_dir: --t2t_usr_dir of the training, if there was one.
      beam_size: hypotheses that the search keeps; None: the run's.
      alpha: exponent of the length penalty; None: the run's.
      hparams: "name=value,...", for hparams that may change after training, such as rotary_base.

    Raises:
      rpr.utils.errors.UserError: there is no run, no data or no checkpoint.
    """
    _prepare(usr_dir)
    from rpr.api.models import LoadedModel
    settings, request = run_directory.find_model(run, data_dir, usr_dir)
    if hparams:
        request = dataclasses.replace(request, hparams=hparams)
    return LoadedModel(settings, request, beam_size, alpha)


def build(hparams_set: str, hparams: str = "", *, model: str = "rpr_transformer",
          vocabulary_size: int = 1000, checkpoint: str | None = None, beam_size: int = 4,
          alpha: float = 0.6, extra_length: int = 100, usr_dir: str | None = None, seed: int = 1
          ) -> "ModelSession":
    """Builds a model from a hparams set, to be run on arrays of symbol ids.

    Args:
      hparams_set: registered name (`rpr list hparams`).
      hparams: overrides, "name=value,...".
      model: registered name (`rpr list models`).
      vocabulary_size: symbols of source and target; 0 is padding, 1 ends a sentence.
      checkpoint: path without suffix; None initialises the weights randomly.
      beam_size, alpha, extra_length: see `rpr.inference.model_session.ModelSession`.
      usr_dir: as --t2t_usr_dir, a directory with hparams sets and models of your own.
      seed: seed of the random weights.

    Raises:
      rpr.utils.errors.UserError: a name is not registered, or a value is not allowed.
    """
    _prepare(usr_dir)
    from rpr.api import models
    return models.build(hparams_set, hparams, model, vocabulary_size, checkpoint, beam_size, alpha,
                        extra_length, seed)


def results(path: str) -> Any:
    """The runs of a study as a pandas DataFrame: one row per run, with the columns of `rows`.

    Args:
      path: a study's directory, or a directory of run directories.

    Raises:
      rpr.utils.errors.UserError: pandas is not installed, or there is no run.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise UserError("rpr.results needs pandas: pip install pandas (or the extra "
                        "rpr[pandas]); results.csv of rpr report has the same scores") from None
    return pandas.DataFrame(rows(path))


def rows(path: str) -> list[dict[str, Any]]:
    """The runs of a study, finished or not.

    Args:
      path: a study's directory, or a directory of run directories, each then an arm of its own.

    Returns:
      a dict per run, with the keys `arm`, one per setting that differs between arms (None where
      the arm does not use it), `seed`, `state`, `bleu` and `chrf` (sacreBLEU, 0 to 100), `exact`
      (percent), `loss` (development set, nats per sub-word), `parameters`, `steps`,
      `steps_per_second`, `train_minutes` and `directory`. Unknown values are None.

    Raises:
      UserError: there is no run.
    """
    from rpr.report import study_reader
    baseline = None
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "study.json")):
        # A directory of runs names no baseline, and rows need none: any run will do.
        baseline = next((name for name in sorted(os.listdir(path)) if os.path.exists(
            os.path.join(path, name, gin_files.RUN_FILE))), None)
    study = study_reader.read_study(path, baseline)
    settings = list(dict.fromkeys(name for arm in study.arms for name in arm.settings))
    found = []
    for arm in study.arms:
        for run in arm.runs:
            scores = {}
            if run.state == "done":
                scores = study_reader.run_directory_of(path, run).read_scores()
            found.append({
                "arm": arm.name, **{name: arm.settings.get(name) for name in settings},
                "seed": run.seed, "state": run.state, "bleu": run.bleu,
                "chrf": scores.get("chrf", {}).get("score"), "exact": run.exact, "loss": run.loss,
                "parameters": run.parameters, "steps": run.steps,
                "steps_per_second": run.steps_per_second, "train_minutes": run.train_minutes,
                "directory": os.path.join(path, run.path)})
    return found


def _prepare(usr_dir: str | None) -> None:
    """Registers names with T2T and silences the logs of TensorFlow and T2T."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf
    tf.logging.set_verbosity(tf.logging.ERROR)
    from rpr.t2t import compat
    compat.install()
    from rpr.t2t import registration  # imports T2T
    registration.register(usr_dir)
