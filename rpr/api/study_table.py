"""A study's runs as rows, for a pandas DataFrame. TensorFlow is not imported."""
import os
from typing import Any

from rpr.experiments import gin_files
from rpr.report import study_reader
from rpr.utils.errors import UserError


def results(path: str) -> Any:
    """See `rpr.api.results`."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise UserError("rpr.results needs pandas: pip install pandas (or the extra "
                        "rpr[pandas]); results.csv of rpr report has the same scores") from None
    return pandas.DataFrame(rows(path))


def rows(path: str) -> list[dict[str, Any]]:
    """The runs of a study, finished or not.

    Args:
      path: a study's directory, or a directory of run directories, each of which is an arm then.

    Returns:
      a dict per run, with the keys `arm`, one per setting that differs between arms (None where
      the arm does not use it), `seed`, `state`, `bleu` and `chrf` (sacreBLEU, 0 to 100), `exact`
      (percent), `loss` (development set, nats per sub-word), `parameters`, `steps`,
      `steps_per_second`, `train_minutes` and `directory`. Unknown values are None.

    Raises:
      UserError: there is no run.
    """
    study = study_reader.read_study(path, _any_baseline(path))
    settings = list(dict.fromkeys(name for arm in study.arms for name in arm.settings))
    return [{"arm": arm.name, **{name: arm.settings.get(name) for name in settings},
             "seed": run.seed, "state": run.state, "bleu": run.bleu, "chrf": _chrf(path, run),
             "exact": run.exact, "loss": run.loss, "parameters": run.parameters,
             "steps": run.steps, "steps_per_second": run.steps_per_second,
             "train_minutes": run.train_minutes, "directory": os.path.join(path, run.path)}
            for arm in study.arms for run in arm.runs]


def _any_baseline(path):
    """A directory of runs names no baseline, and rows need none: the first run stands in."""
    if os.path.exists(os.path.join(path, "study.json")) or not os.path.isdir(path):
        return None
    return next((name for name in sorted(os.listdir(path)) if os.path.exists(
        os.path.join(path, name, gin_files.RUN_FILE))), None)


def _chrf(path, run):
    scores = study_reader.run_directory_of(path, run).read_scores()
    return scores.get("chrf", {}).get("score") if run.state == "done" else None
