"""The runs of a report for TensorBoard's HParams view: `tensorboard --logdir DIR` compares them.

The scalars of a training lie in RUN/model already. Here every run becomes a session of the plugin,
grouped by arm so that the view takes the mean over seeds, with its scores on the test set as
scalars of the run. The protos are written without TensorFlow, which would take seconds to import.
"""
import os

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

FILE = "events.out.tfevents.0.hparams"                # TensorBoard reads what has tfevents in it
METRICS = {"test/BLEU": "bleu", "test/chrF": "chrf", "steps_per_second": "steps_per_second"}
_STATUS = {"done": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE,
           "running": api_pb2.STATUS_RUNNING}


def write(record, path):
    """Writes DIR/events.*, the experiment, and RUN/events.* of every run that has begun.

    Args:
      record: a `Record`.
      path: the report's directory.
    """
    columns = {"arm": [arm.name for arm in record.arms]}
    columns |= {name: [arm.settings[name] for arm in record.arms]
                for name in record.arms[0].settings}
    infos = []
    for name, values in columns.items():
        kind, columns[name] = _typed(values)
        infos.append(api_pb2.HParamInfo(name=name, type=kind))
        infos[-1].domain_discrete.extend(
            value for value in dict.fromkeys(columns[name]) if value is not None)
    measured = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag)
                for tag in METRICS]
    measured.append(api_pb2.MetricInfo(name=api_pb2.MetricName(group="model/eval", tag="loss"),
                                       display_name="development loss"))
    _write(path, [_plugin(metadata.EXPERIMENT_TAG, experiment=api_pb2.Experiment(
        description=record.title, hparam_infos=infos, metric_infos=measured))])
    for arm, *values in zip(record.arms, *columns.values(), strict=True):
        hparams = dict(zip(columns, values, strict=True))
        for run in arm.runs:
            if run.state in _STATUS:
                _write(os.path.join(path, run.path), list(_session(arm, run, hparams)),
                       arm.steps or 0)


def _typed(values):
    """A type of the plugin, and the values in it: all of one, else as text."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return api_pb2.DATA_TYPE_BOOL, values
    if types <= {int, float}:
        return api_pb2.DATA_TYPE_FLOAT64, values
    return (api_pb2.DATA_TYPE_STRING,
            [None if value is None else str(value) for value in values])


def _session(arm, run, hparams):
    """The summary values of a run."""
    start = plugin_data_pb2.SessionStartInfo(group_name=arm.name)
    for name, value in hparams.items():
        if value is not None:
            field = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(start.hparams[name], field, value)
    yield _plugin(metadata.SESSION_START_INFO_TAG, session_start_info=start)
    for tag, field in METRICS.items():
        if getattr(run, field) is not None:
            yield summary_pb2.Summary.Value(tag=tag, simple_value=getattr(run, field))
    yield _plugin(metadata.SESSION_END_INFO_TAG,
                  session_end_info=plugin_data_pb2.SessionEndInfo(status=_STATUS[run.state]))


def _plugin(tag, **data):
    """A summary value that only carries the plugin's data."""
    return summary_pb2.Summary.Value(
        tag=tag, tensor=metadata.NULL_TENSOR,
        metadata=metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**data)))


def _write(directory, values, step=0):
    """Writes one event file, whole or not at all."""
    target = os.path.join(directory, FILE)
    with open(target + ".part", "wb") as out:
        writer = RecordWriter(out)
        for event in (event_pb2.Event(file_version="brain.Event:2"),
                      event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values))):
            writer.write(event.SerializeToString())
    os.replace(target + ".part", target)
