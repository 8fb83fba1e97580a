"""`rpr track`: sends what runs have recorded to Weights & Biases, MLflow or Aim.

Each tracker is used through its public API and configured by its own environment variables, such as
WANDB_MODE=offline and MLFLOW_TRACKING_URI.
"""
import dataclasses
import glob
import importlib
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from rpr.cli.arguments import Parser
from rpr.evaluation import ALL_METRICS
from rpr.experiments import gin_files, studies
from rpr.experiments.run_directory import RunDirectory
from rpr.utils import files, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import InvalidPath, InvalidValue

_SENT = {"*": {"id": str, "events": int, "scores": ({"*": float}, float, None)}}
_NOT_VALUES = ("event", "step", "time")


class _Tracked(NamedTuple):
    """A run of a tracker: its id, what logs values of a step, and what ends it."""
    id: str
    log: Callable[[dict[str, float], int], None]
    end: Callable[[], None]


def _wandb(library: Any, project: str, name: str, settings: dict[str, Any], known: str | None
           ) -> _Tracked:
    """A run of Weights & Biases: a new one, or that of the known id. The others do the same."""
    run = library.init(project=project, name=name, config=settings, id=known,
                       resume="allow" if known else None)
    return _Tracked(run.id, lambda values, step: run.log(values, step=step), run.finish)


def _mlflow(library: Any, project: str, name: str, settings: dict[str, Any], known: str | None
            ) -> _Tracked:
    client, run_id = library.MlflowClient(), known
    if run_id is None:
        experiment = client.get_experiment_by_name(project)
        experiment_id = (experiment.experiment_id if experiment
                         else client.create_experiment(project))
        run_id = client.create_run(experiment_id, run_name=name).info.run_id
        for setting, value in settings.items():
            client.log_param(run_id, setting, value)

    def log(values: dict[str, float], step: int) -> None:
        for metric, value in values.items():
            client.log_metric(run_id, metric, value, step=step)

    return _Tracked(run_id, log, lambda: client.set_terminated(run_id))


def _aim(library: Any, project: str, name: str, settings: dict[str, Any], known: str | None
         ) -> _Tracked:
    run = library.Run(run_hash=known, experiment=project)
    run.name, run["settings"] = name, settings

    def log(values: dict[str, float], step: int) -> None:
        for metric, value in values.items():
            run.track(value, name=metric, step=step)

    return _Tracked(run.hash, log, run.close)


_TRACKERS: dict[str, Callable[..., _Tracked]] = {"wandb": _wandb, "mlflow": _mlflow, "aim": _aim}


def main(argv: list[str]) -> None:
    """`rpr track DIR --to=wandb|mlflow|aim [--project=NAME]`."""
    args = main_parser().parse_args(argv)
    try:
        library = importlib.import_module(args.to)
    except ModuleNotFoundError:
        raise InvalidValue("to", args.to, f"needs {args.to}: pip install -e '.[{args.to}]'"
                           ) from None
    path = os.path.abspath(args.directory)
    patterns = ["runs/*"] if studies.is_study(path) else [".", "*"]
    found = sorted(os.path.normpath(os.path.join(path, os.path.dirname(config)))
                   for pattern in patterns for config in glob.glob(
                       os.path.join(pattern, gin_files.RUN_FILE), root_dir=path))
    if not found:
        raise InvalidPath(args.directory, f"contains no run ({gin_files.RUN_FILE} is missing)")
    for directory in found:
        count = _send(RunDirectory(directory), args.to, library,
                      args.project or os.path.basename(path))
        say(f"{os.path.relpath(directory)}: {count} records sent to {args.to}")


def _send(run_dir: RunDirectory, tracker: str, library: Any, project: str) -> int:
    """Sends the records of a run that were not sent yet; returns their number."""
    run_dir.refuse_links()
    note = run_dir.file("tracked.json")
    sent = files.read_json(note, _SENT)
    before = sent.get(tracker, {"id": None, "events": 0, "scores": None})
    events = list(metrics_log.events(run_dir.metrics))
    scores = run_dir.read_scores()
    final = {f"test/{name}": scores[name]["score"] for name in ALL_METRICS
             if name in scores and "step" in scores} or None
    new = events[before["events"]:]
    if not new and final == before["scores"]:
        return 0
    settings = dataclasses.asdict(gin_files.load_run(run_dir.config))
    run = _TRACKERS[tracker](library, project, os.path.basename(run_dir.path), settings,
                             before["id"])
    step = 0
    for index, event in enumerate(events):
        step = event.get("step", step)
        if event["event"] == "eval":                  # older ones have the mean of batches' means
            event = event | {"loss": metrics_log.loss_of(event)}
        values = {f"{event['event']}/{name}": value for name, value in event.items()
                  if name not in _NOT_VALUES and isinstance(value, int | float)
                  and math.isfinite(value)}
        if index >= before["events"] and values:
            run.log(values, step)
    if final and final != before["scores"]:
        run.log(final, scores["step"])
    run.end()
    sent[tracker] = {"id": run.id, "events": len(events), "scores": final}
    files.write_json(note, sent)
    return len(new) + (final != before["scores"])


def main_parser() -> Parser:
    """The flags of `rpr track`."""
    parser = Parser(
        prog="rpr track", description="Sends losses, speed, evaluations and scores of runs to a "
        "tracker, which has to be installed.\nRepeat the command to send what is new.")
    parser.add_argument("directory", help="a run, a study, or a directory of runs")
    parser.add_argument("--to", required=True, choices=sorted(_TRACKERS), help="the tracker; its "
                        "own environment variables configure it, such as WANDB_MODE=offline")
    parser.add_argument("--project", metavar="NAME", help="the tracker's project or experiment "
                        "(default: the name of the directory)")
    return parser
