"""Event files for TensorBoard's HParams plugin: `tensorboard --logdir DIR` compares the runs.

RUN/model already contains the scalars of the training. Here each run becomes a session of the
plugin with its test scores; sessions are grouped by arm, so that the plugin averages over seeds.
The event files are written without TensorFlow, which takes seconds to import.
"""
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams import summary_v2 as plugin
from tensorboard.summary.writer.record_writer import RecordWriter

from rpr.report.escaping import plain
from rpr.report.results import StudyResults
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
    for name in dict.fromkeys(name for arm in results.arms for name in arm.settings):
        columns[plain(name)] = _of_one_type([arm.settings.get(name) for arm in results.arms])
    hparams = [plugin.HParam(name, plugin.Discrete({*values} - {None}))
               for name, values in columns.items() if any(value is not None for value in values)]
    metrics = [plugin.Metric(tag, display_name=tag) for tag in METRICS]
    metrics.append(plugin.Metric("loss", "model/eval", display_name="development loss"))
    _write(path, plugin.hparams_config_pb(hparams, metrics, 0).value)
    for arm, *values in zip(results.arms, *columns.values(), strict=True):
        of_arm = {name: value for name, value in zip(columns, values, strict=True)
                  if value is not None}
        start = plugin.hparams_pb(of_arm, plain(arm.name), 0)
        for run in arm.runs:
            is_outside = run.path.startswith(os.pardir)   # compared with, but of another study
            if run.state in _STATUS and not is_outside:
                scores = [summary_pb2.Summary.Value(tag=tag, simple_value=getattr(run, field))
                          for tag, field in METRICS.items() if getattr(run, field) is not None]
                end = summary_pb2.Summary.Value(
                    tag=metadata.SESSION_END_INFO_TAG, tensor=metadata.NULL_TENSOR,
                    metadata=metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(
                        session_end_info=plugin_data_pb2.SessionEndInfo(
                            status=_STATUS[run.state]))))
                _write(os.path.join(path, run.path), [*start.value, *scores, end], arm.steps or 0)


def _of_one_type(values: Sequence[Any]) -> Sequence[Any]:
    """The values: True and False, or numbers as floats, or text."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return values
    if types <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else plain(str(value)) for value in values]


def _write(directory: str, values: Iterable[summary_pb2.Summary.Value], step: int = 0) -> None:
    """Writes one event file atomically."""
    target = os.path.join(directory, FILE)
    with files.atomic_path(target) as path, open(path, "wb") as out:
        writer = RecordWriter(out)
        for event in (event_pb2.Event(file_version="brain.Event:2"),
                      event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values))):
            writer.write(event.SerializeToString())
