"""Reads results.json, the record of a study, without the runs that it was made from."""
import dataclasses
import json
import os
import types
import typing
from collections.abc import Callable
from typing import Any

from rpr.evaluation.significance import ArmScore, Comparison
from rpr.report.length_buckets import Bucket
from rpr.report.results import ArmPair, ArmResult, RunResult, Sample, StudyResults
from rpr.utils.errors import UserError
from rpr.utils.schema import mismatch

RECORD_FILE = "results.json"


def load_record(path: str) -> StudyResults:
    """The results in PATH/results.json, as `rpr report` wrote them.

    Raises:
      UserError: the file is damaged, or of another version of this program.
    """
    file = os.path.join(path, RECORD_FILE)
    try:
        with open(file, encoding="utf-8") as text:
            record = json.load(text)
        problem = mismatch(record, _schema(StudyResults))
        if problem:
            raise ValueError(problem)
        results = _study(record)
        _check_references(results)
        return results
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise UserError(f"{file} is damaged, or of another version: {error}") from None


def _study(record: dict[str, Any]) -> StudyResults:
    kinds: dict[str, Callable[[dict[str, Any]], Any]] = {
        "buckets": lambda item: Bucket(**item), "samples": lambda item: Sample(**item),
        "arms": _arm, "pairs": _pair}
    values: dict[str, Any] = {name: [kinds[name](item) for item in value] if name in kinds
                              else value for name, value in record.items()}
    return StudyResults(**values)


def _arm(record: dict[str, Any]) -> ArmResult:
    arm = ArmResult(**record)
    arm.runs = [RunResult(**run) for run in record["runs"]]
    for name, kind in (("bleu", ArmScore), ("chrf", ArmScore), ("bleu_difference", Comparison),
                       ("chrf_difference", Comparison)):
        if record.get(name) is not None:
            setattr(arm, name, kind(**record[name]))
    return arm


def _pair(record: dict[str, Any]) -> ArmPair:
    return ArmPair(record["first"], record["second"], Comparison(**record["comparison"]))


def _check_references(results: StudyResults) -> None:
    """Names of arms, indices and points that a report follows."""
    names = {arm.name for arm in results.arms}
    for name in (results.baseline, *(pair.first for pair in results.pairs),
                 *(pair.second for pair in results.pairs)):
        if name not in names:
            raise ValueError(f"no arm is called {name!r}")
    for run in (run for arm in results.arms for run in arm.runs):
        if not 0 <= (run.environment or 0) < max(len(results.environments), 1):
            raise ValueError(f"{run.path}: there is no environment {run.environment}")
        if any(len(point) != 2 for curve in (run.train_losses, run.dev_losses, run.dev_bleu)
               for point in curve):
            raise ValueError(f"{run.path}: a point of a curve has a step and a value")


def _schema(kind: Any) -> Any:
    """The `rpr.utils.schema` of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        types_ = typing.get_type_hints(kind)
        return {field.name + ("" if _is_required(field) else "?"): _schema(types_[field.name])
                for field in dataclasses.fields(kind)}
    if origin is list:
        return [_schema(arguments[0])]
    if origin is dict:
        return {"*": _schema(arguments[1])}
    if origin in (typing.Union, types.UnionType):
        return tuple(map(_schema, arguments))
    if origin is typing.Literal:
        return arguments
    if kind is types.NoneType:
        return None
    return object if kind is Any else kind


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING
