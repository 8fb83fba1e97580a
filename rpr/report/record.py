"""Reads results.json, the record of a study, without the runs that it was made from."""
import dataclasses
import json
import os
import typing
from typing import Any

from rpr.evaluation.significance import ArmScore, Comparison
from rpr.report.length_buckets import Bucket
from rpr.report.results import ArmPair, ArmResult, RunResult, Sample, StudyResults
from rpr.utils.errors import UserError

RECORD_FILE = "results.json"


def load_record(path: str) -> StudyResults:
    """The results in PATH/results.json, as `rpr report` wrote them.

    Raises:
      UserError: the file is damaged, or of another version of this program.
    """
    file = os.path.join(path, RECORD_FILE)
    try:
        with open(file, encoding="utf-8") as text:
            results = _study(json.load(text))
        if not any(arm.name == results.baseline for arm in results.arms):
            raise ValueError(f"no arm is called {results.baseline!r}")
        return results
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise UserError(f"{file} is damaged, or of another version: {error}") from None


def _study(record: dict[str, Any]) -> StudyResults:
    lists = {"buckets": lambda item: _make(Bucket, item), "samples": lambda item:
             _make(Sample, item), "arms": _arm, "pairs": _pair}
    return _make(StudyResults, {name: [lists[name](item) for item in value] if name in lists
                                else value for name, value in record.items()})


def _arm(record: dict[str, Any]) -> ArmResult:
    arm = _make(ArmResult, record)
    arm.runs = [_make(RunResult, run) for run in record["runs"]]
    for name, kind in (("bleu", ArmScore), ("chrf", ArmScore), ("bleu_difference", Comparison),
                       ("chrf_difference", Comparison)):
        if record.get(name) is not None:
            setattr(arm, name, _make(kind, record[name]))
    return arm


def _pair(record: dict[str, Any]) -> ArmPair:
    return ArmPair(record["first"], record["second"], _make(Comparison, record["comparison"]))


def _make(kind: Any, record: dict[str, Any]) -> Any:
    """A data class from a JSON object; refuses text where a number, a list or a dict belongs."""
    for field in dataclasses.fields(kind):
        expected = typing.get_origin(field.type) or field.type
        value = record.get(field.name)
        if value is not None and expected in (str, int, float, list, dict) and not isinstance(
                value, (int, float) if expected is float else expected):
            raise ValueError(f"{field.name} is of type {type(value).__name__}")
    return kind(**record)
