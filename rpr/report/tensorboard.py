"""Event files for TensorBoard's HParams plugin: `tensorboard --logdir DIR` compares the runs.

RUN/model already contains the scalars of the training. Here each run becomes a session of the
plugin with its test scores; sessions are grouped by arm, so that the plugin averages over seeds.
The event files are written without TensorFlow, which takes seconds to import.
"""
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from rpr.report.escaping import plain
from rpr.report.results import ArmResult, RunResult, StudyResults
from rpr.utils import files

FILE = "events.out.tfevents.0.hparams"                # TensorBoard looks for tfevents
METRICS = {"test/BLEU": "bleu", "test/chrF": "chrf", "steps_per_second": "steps_per_second"}
_STATUS = {"done": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE,
           "running": api_pb2.STATUS_RUNNING}


def write_events(results: StudyResults, path: str) -> None:
    """Writes DIR/events.* for the study, and RUN/events.* for each run that has started.

    Args:
      results: with scores.
      path: the study's directory.
    """
    columns: dict[str, Sequence[Any]] = {"arm": [plain(arm.name) for arm in results.arms]}
    columns |= {name: [arm.settings.get(name) for arm in results.arms]
                for name in dict.fromkeys(name for arm in results.arms for name in arm.settings)}
    infos = []
    for name, values in columns.items():
        kind, columns[name] = _typed(values)
        infos.append(api_pb2.HParamInfo(name=plain(name), type=kind))
        infos[-1].domain_discrete.extend(
            value for value in dict.fromkeys(columns[name]) if value is not None)
    measured = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag)
                for tag in METRICS]
    measured.append(api_pb2.MetricInfo(name=api_pb2.MetricName(group="model/eval", tag="loss"),
                                       display_name="development loss"))
    _write(path, [_plugin(metadata.EXPERIMENT_TAG, experiment=api_pb2.Experiment(
        description=plain(results.title), hparam_infos=infos, metric_infos=measured))])
    for arm, *values in zip(results.arms, *columns.values(), strict=True):
        hparams = dict(zip(columns, values, strict=True))
        for run in arm.runs:
            is_outside = run.path.startswith(os.pardir)   # compared with, but of another study
            if run.state in _STATUS and not is_outside:
                _write(os.path.join(path, run.path), list(_session(arm, run, hparams)),
                       arm.steps or 0)


def _typed(values: Sequence[Any]) -> tuple[int, Sequence[Any]]:
    """The plugin's type for these values; values of mixed types become text."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return api_pb2.DATA_TYPE_BOOL, values
    if types <= {int, float}:
        return api_pb2.DATA_TYPE_FLOAT64, values
    return (api_pb2.DATA_TYPE_STRING,
            [None if value is None else plain(str(value)) for value in values])


def _session(arm: ArmResult, run: RunResult,
             hparams: dict[str, Any]) -> Iterator[summary_pb2.Summary.Value]:
    """The summary values of a run."""
    start = plugin_data_pb2.SessionStartInfo(group_name=plain(arm.name))
    for name, value in hparams.items():
        if value is not None:
            field = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(start.hparams[plain(name)], field, value)
    yield _plugin(metadata.SESSION_START_INFO_TAG, session_start_info=start)
    for tag, field in METRICS.items():
        if getattr(run, field) is not None:
            yield summary_pb2.Summary.Value(tag=tag, simple_value=getattr(run, field))
    yield _plugin(metadata.SESSION_END_INFO_TAG,
                  session_end_info=plugin_data_pb2.SessionEndInfo(status=_STATUS[run.state]))


def _plugin(tag: str, **data: Any) -> summary_pb2.Summary.Value:
    """A summary value that contains only plugin data."""
    return summary_pb2.Summary.Value(
        tag=tag, tensor=metadata.NULL_TENSOR,
        metadata=metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**data)))


def _write(directory: str, values: Iterable[summary_pb2.Summary.Value], step: int = 0) -> None:
    """Writes one event file atomically."""
    target = os.path.join(directory, FILE)
    with files.atomic_path(target) as path, open(path, "wb") as out:
        writer = RecordWriter(out)
        for event in (event_pb2.Event(file_version="brain.Event:2"),
                      event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values))):
            writer.write(event.SerializeToString())
