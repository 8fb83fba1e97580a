"""The Python API: `rpr.run`, `rpr.study`, `rpr.load`, `rpr.build`, `rpr.results`, `rpr.curves`.

TensorFlow and T2T are imported by the first call that needs them, not by `import rpr`.
"""
import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rpr.experiments import gin_files, pipeline, run_directory
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.settings import Setting

if TYPE_CHECKING:
    import numpy as np

    from rpr.api.models import LoadedModel
    from rpr.conformance.checks import Result
    from rpr.conformance.foreign import Attention
    from rpr.inference.language_model import LanguageModel
    from rpr.inference.model_session import ModelSession
    from rpr.report.results import StudyResults


def run(gin: str, run_dir: str, *, settings: Mapping[str, Any] | None = None, **flags: str
        ) -> dict[str, Any]:
    """Completes a run, as `rpr run` does, in processes of its own. The same call resumes it.

    Args:
      gin: the file that describes the run, or "recipe:NAME".
      run_dir: its directory.
      settings: {"run.NAME": value}; they override the file.
      **flags: further flags of `rpr run`, such as data_dir, t2t_usr_dir and training_of.

    Returns:
      What its scores.json holds: "bleu", "chrf" and "ter" with "score" and "signature", "step", ...

    Raises:
      rpr.utils.errors.UserError: it was refused or failed.
    """
    _check_paths(gin=gin, run_dir=run_dir)
    _run_command("run", gin, {"run_dir": run_dir, **flags}, settings)
    return run_directory.RunDirectory(os.path.expanduser(run_dir)).read_scores()


def study(gin: str, study_dir: str, *, settings: Mapping[str, Any] | None = None, **flags: Any
          ) -> list[dict[str, Any]]:
    """Completes the runs of a study, as `rpr study` does; see `run`.

    Args:
      gin: the file that describes the study, or "recipe:NAME".
      study_dir: its directory.
      settings: {"run.NAME" or "study.NAME": value}; they override the file.
      **flags: further flags of `rpr study`, such as devices=2 and smoke=True; a list repeats one.

    Returns:
      What `rows` returns for it; with dry_run=True nothing.

    Raises:
      rpr.utils.errors.UserError: it was refused, or a run failed.
    """
    _check_paths(gin=gin, study_dir=study_dir)
    _run_command("study", gin, {"study_dir": study_dir, **flags}, settings)
    if flags.get("dry_run"):
        return []
    study_dir = os.path.abspath(os.path.expanduser(study_dir))
    return rows(f"{study_dir}-smoke" if flags.get("smoke") else study_dir)


def _run_command(command: str, gin: str, flags: Mapping[str, Any],
                 settings: Mapping[str, Any] | None) -> None:
    """Runs `rpr run` or `rpr study`, and prints what it prints, also in a notebook."""
    if not isinstance(settings or {}, Mapping):
        raise InvalidValue("settings", settings, "must be a dict")
    texts = {name: os.fspath(value) if isinstance(value, os.PathLike) else value
             for name, value in (settings or {}).items()}
    given = [*flags.items(), *(("set", f"{name}={value!r}") for name, value in texts.items())]
    argv = [f"--{name}" if value is True else f"--{name}={value}" for name, values in given
            for value in (values if isinstance(values, list | tuple) else [values])
            if value is not None and value is not False]
    for arg in argv:
        _check_argument(command, arg)
    code, reason = pipeline.run_command([command, gin, *argv], {},
                                        show=lambda line: print(line, end=""))
    if code:
        raise UserError(reason or f"rpr {command} ended with exit code {code}")


def load(run: str, *, data_dir: str | None = None, t2t_usr_dir: str | None = None,
         beam_size: int | None = None, alpha: float | None = None, hparams: str = ""
         ) -> "LoadedModel | LanguageModel":
    """Loads the trained model of a run directory; that of a language model has other methods.

    Args:
      run: a directory that `rpr run` or `rpr study` made; its averaged checkpoint is used if there
        is one, else its last one.
      data_dir: the vocabulary's directory; None: where `rpr run` and `rpr study` put the data.
      t2t_usr_dir: --t2t_usr_dir of the training, if there was one.
      beam_size: hypotheses that the search keeps; None: the run's.
      alpha: exponent of the length penalty; None: the run's.
      hparams: "name=value,...", for hparams that may change after training, such as rotary_base.

    Raises:
      rpr.utils.errors.UserError: there is no run, no data or no checkpoint.
    """
    _check_paths(run=run, data_dir=data_dir or "", t2t_usr_dir=t2t_usr_dir or "")
    Setting("hparams", "").check(hparams)
    _prepare(t2t_usr_dir)
    from rpr.api.models import LoadedModel
    from rpr.inference.language_model import LanguageModel
    from rpr.t2t.trained_model import find_trained_model
    settings, request = run_directory.find_model(os.path.expanduser(run), data_dir, t2t_usr_dir)
    if hparams:
        request = dataclasses.replace(request, hparams=hparams)
    if settings.is_language_model:
        for name, value in (("beam_size", beam_size), ("alpha", alpha)):
            if value is not None:
                raise InvalidValue(name, value, "a language model has no beam search")
        return LanguageModel(find_trained_model(request))
    return LoadedModel(settings, request, beam_size, alpha)


def build(hparams_set: str, hparams: str = "", *, model: str = "rpr_transformer",
          vocabulary_size: int = 1000, checkpoint: str | None = None, beam_size: int = 4,
          alpha: float = 0.6, extra_length: int = 100, t2t_usr_dir: str | None = None, seed: int = 1
          ) -> "ModelSession":
    """Builds a model from an hparams set, to be run on arrays of symbol ids.

    Args:
      hparams_set: registered name (`rpr list hparams`).
      hparams: overrides, "name=value,...".
      model: registered name (`rpr list models`).
      vocabulary_size: symbols of source and target; 0 is padding, 1 ends a sentence.
      checkpoint: path without suffix; None initialises the weights randomly.
      beam_size, alpha, extra_length: see `rpr.inference.model_session.ModelSession`.
      t2t_usr_dir: as --t2t_usr_dir, a directory with hparams sets and models of your own.
      seed: seed of the random weights.

    Raises:
      rpr.utils.errors.UserError: a name is not registered, or a value is not allowed.
    """
    _check_paths(checkpoint=checkpoint or "", t2t_usr_dir=t2t_usr_dir or "")
    _prepare(t2t_usr_dir)
    from tensor2tensor.data_generators import problem_hparams

    from rpr.api.models import check_search
    from rpr.inference.model_session import ModelSession
    from rpr.t2t import preflight, registration
    Setting("vocabulary_size", 0, minimum=2, maximum=10_000_000).check(vocabulary_size)
    Setting("extra_length", 0, minimum=0).check(extra_length)
    Setting("seed", 0, minimum=0, maximum=2**32 - 1).check(seed)
    check_search(beam_size, alpha)
    checkpoint = None if checkpoint is None else os.path.expanduser(checkpoint)
    if checkpoint is not None and not os.path.exists(f"{checkpoint}.index"):
        raise UserError(f"checkpoint={checkpoint}: there is no checkpoint of this name")
    for name, text in (("hparams_set", hparams_set), ("hparams", hparams), ("model", model)):
        Setting(name, "").check(text)
    registration.check_registered("model", model)
    values = registration.registered_hparams(hparams_set)
    preflight.parse_hparams(values, hparams)
    values = preflight.check_supported(model, values)
    for name in ("pretrained_source_embeddings", "pretrained_target_embeddings"):
        if values.get(name) and checkpoint is None:
            raise UserError(f"{name}={values.get(name)}: rpr.build has no vocabulary, so it cannot "
                            f"read the vectors; give {name}= (empty) or a checkpoint")
    values.problem_hparams = problem_hparams.test_problem_hparams(vocabulary_size, vocabulary_size,
                                                                  values)
    return ModelSession(model, values, checkpoint, beam_size, alpha, extra_length, seed)


def results(path: str) -> Any:
    """The runs of a study, or of a directory of runs, as a pandas DataFrame: a row per run.

    The columns are the keys of `rows`.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise UserError("rpr.results needs pandas: pip install pandas; results.csv of rpr report "
                        "has the same scores") from None
    return pandas.DataFrame(rows(path))


def rows(path: str) -> list[dict[str, Any]]:
    """The runs, finished or not, of a study or of a directory of runs, each then an arm of its own.

    Returns:
      a dict per run, with the keys `arm`, one per setting that differs between arms (None where
      the arm does not use it), `seed`, `state`, the metrics of the runs (`bleu`, `chrf` and
      `ter`, 0 to 100, or those of `run.metrics`), `exact` (percent), `loss` (development set, nats
      per sub-word), `parameters`, `steps`, `steps_per_second`, `model_tflops` (model TFLOP/s),
      `mfu`, `train_minutes` and `directory`. Unknown values are None.
    """
    results = _read(path)
    settings = list(dict.fromkeys(name for arm in results.arms for name in arm.settings))
    metrics = dict.fromkeys([*results.metrics, *(
        name for arm in results.arms for run in arm.all_runs for name in run.scores)])
    found = []
    for arm in results.arms:
        for run in arm.all_runs:
            found.append({
                "arm": arm.name, **{name: arm.settings.get(name) for name in settings}, **run.tuned,
                "seed": run.seed, "state": run.state, **metrics,
                **run.scores, "exact": run.exact, "loss": run.loss,
                "parameters": run.parameters, "steps": run.steps,
                "steps_per_second": run.steps_per_second, "model_tflops": run.model_tflops,
                "mfu": run.mfu, "train_minutes": run.train_minutes,
                "directory": os.path.join(os.path.expanduser(path), run.path)})
    return found


def curves(path: str) -> dict[str, "np.ndarray"]:
    """The learning curves of a study or of a directory of runs, each then an arm of its own.

    Returns:
      Columns of one length, an entry per record, for `pandas.DataFrame(...)` or NumPy: `arm`,
      `seed`, `curve` ("training loss" or "development loss", nats per sub-word, or "development
      BLEU", 0 to 100), `step` and `value`. At most 200 records of a training are taken, evenly
      spaced.
    """
    import numpy as np
    records = [(arm.name, run.seed, curve, step, value) for arm in _read(path).arms
               for run in arm.runs for curve, points in (
                   ("training loss", run.train_losses), ("development loss", run.dev_losses),
                   ("development BLEU", run.dev_bleu)) for step, value in points]
    names = ("arm", "seed", "curve", "step", "value")
    columns = zip(*records, strict=True) if records else [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def check_attention(function: "Attention", position: str, hparams: str = "", heads: int = 4,
                    depth: int = 8) -> "list[Result]":
    """Audits attention of any library against a scheme; see `rpr.conformance.foreign`."""
    _prepare(None)
    from rpr.conformance import foreign
    return foreign.check_attention(function, position, hparams, heads, depth)


def _read(path: str) -> "StudyResults":
    """The runs of a study, or of a directory of runs, without their scores."""
    from rpr.report import study_reader
    _check_paths(path=path)
    path, baseline = os.path.expanduser(path), None
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "study.json")):
        # A directory of runs names no baseline, and none is needed: any run will do.
        baseline = next((name for name in sorted(os.listdir(path)) if os.path.exists(
            os.path.join(path, name, gin_files.RUN_FILE))), None)
    return study_reader.read_study(path, baseline)


def _check_paths(**paths: Any) -> None:
    for name, path in paths.items():
        if not isinstance(path, str | os.PathLike):
            raise InvalidValue(name, path, "must be a path")
        _check_argument(name, os.fspath(path))


def _check_argument(name: str, text: str | bytes) -> None:
    """Refuses what can be no part of a command or a path: a null, or half a surrogate pair."""
    try:
        is_usable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_usable = False
    if not is_usable:
        raise InvalidValue(name, repr(text), "must be text that a path can have")


def _prepare(usr_dir: str | None) -> None:
    """Registers names with T2T and silences the logs of TensorFlow and T2T."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf
    tf.logging.set_verbosity(tf.logging.ERROR)
    from rpr.t2t import compat
    compat.install()
    from rpr.t2t import registration  # imports T2T
    registration.register(usr_dir)
