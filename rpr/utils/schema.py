"""Reads JSON and checks every number, text and structure; errors say where.

| schema | matches |
| --- | --- |
| `int` | a whole number from 0 |
| `float`, `AnyFloat` | a number; the latter may be infinite or NaN, as a loss that diverged |
| `str`, `bool`, `dict`, `None`, `Any` | a value of this type |
| `"done"` | this text |
| `[s]`, `list[s]` | a list whose items match s |
| `{"name": s, "other?": t, "*": u}` | an object with `name`, perhaps `other`; other keys match u |
| `dict[str, s]` | an object whose values match s |
| `(s, t)`, `s | t`, `Literal[s, t]` | s or t |
| a dataclass | an object with its fields and no others, which becomes an instance |

Keys that a schema does not name are allowed, unless it has `*`, because records grow.
"""
import contextlib
import dataclasses
import json
import math
import re
import sys
import types
import typing
from typing import Any

Schema = Any

_LIMIT = 2**63                                        # whole numbers must be smaller
_DEEPEST = 100                                        # objects and lists within each other
_UNUSABLE = re.compile("[\0\ud800-\udfff]")           # in a path, and in UTF-8


class AnyFloat:
    """Schema: a number that may be infinite or NaN."""


_NAMES: dict[Any, str] = {
    int: "a whole number from 0", float: "a number", AnyFloat: "a number", str: "text",
    bool: "true or false", dict: "an object"}


def parse(text: str) -> Any:
    """The value of a JSON text. NUL and halves of surrogate pairs become U+FFFD.

    Raises:
      ValueError: not JSON, nested too deeply, a number that is not finite, or an integer of more
        than 63 bits.
    """
    try:
        return _usable(json.loads(text, parse_constant=_refuse_constant,
                                  parse_int=lambda digits: int(_below(digits, _LIMIT)),
                                  parse_float=lambda digits: float(_below(digits, math.inf))),
                       _DEEPEST)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _below(text: str, limit: float) -> str:
    if not abs(float(text)) < limit:
        raise ValueError(f"the number {_shortened(text)} is too large")
    return text


def _usable(value: Any, depth: int) -> Any:
    if not depth:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return _UNUSABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_usable(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {_usable(name, depth): _usable(item, depth - 1) for name, item in value.items()}
    return value


def convert(value: Any, schema: Schema, at: str = "") -> Any:
    """Checks a value as `parse` returns it, and makes instances where the schema has a dataclass.

    Raises:
      ValueError: the value differs from the schema; one phrase that says where (below `at`).
    """
    origin, arguments = typing.get_origin(schema), typing.get_args(schema)
    if dataclasses.is_dataclass(schema):
        return _instance(value, schema, at)
    if isinstance(schema, tuple) or origin in (typing.Union, types.UnionType, typing.Literal):
        return _one_of(value, arguments or schema, at)
    if isinstance(schema, list) or origin is list:
        if not isinstance(value, list):
            raise _differs(value, at, "a list")
        kind = arguments[0] if origin else schema[0]
        return [convert(item, kind, f"{at}[{index}]") for index, item in enumerate(value)]
    if isinstance(schema, dict) or origin is dict:
        return _object(value, {"*": arguments[1]} if origin else schema, at)
    if not _is(value, schema):
        raise _differs(value, at, _name(schema))
    return value


def _one_of(value: Any, schemas: tuple[Schema, ...], at: str) -> Any:
    if value is None and (None in schemas or types.NoneType in schemas):
        return None
    others = [schema for schema in schemas if schema not in (None, types.NoneType)]
    if len(others) == 1:
        return convert(value, others[0], at)
    for schema in others:
        with contextlib.suppress(ValueError):
            return convert(value, schema, at)
    raise _differs(value, at, " or ".join(map(_name, others)))


def _object(value: Any, schema: dict[str, Schema], at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _differs(value, at, "an object")
    for name in schema:
        if not name.endswith("?") and name != "*" and name not in value:
            raise ValueError(f"{at + ': ' if at else ''}{name!r} is missing")
    return {name: convert(item, schema.get(name, schema.get(f"{name}?", schema.get("*", Any))),
                          f"{at}.{name}" if at else name) for name, item in value.items()}


def _instance(value: Any, kind: Any, at: str) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name + ("" if field.default is field.default_factory is dataclasses.MISSING
                            else "?"): hints[field.name] for field in dataclasses.fields(kind)}
    found = _object(value, fields, at)
    for name in found:
        if name not in hints:
            raise ValueError(f"{at + ': ' if at else ''}{_shortened(repr(name))} is unknown")
    return kind(**found)


def _is(value: Any, schema: Schema) -> bool:
    if schema is Any or isinstance(schema, str):
        return schema is Any or value == schema
    if schema is int:
        return type(value) is int and 0 <= value < _LIMIT
    if schema is AnyFloat and type(value) is float:
        return True
    if schema in (float, AnyFloat):
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return isinstance(value, schema)


def _name(schema: Schema) -> str:
    if isinstance(schema, str):
        return repr(schema)
    return _NAMES.get(schema if isinstance(schema, type) else dict, "a value")


def _differs(value: Any, at: str, wanted: str) -> ValueError:
    return ValueError(f"{at or 'it'} is {_shortened(repr(value))}, where {wanted} is needed")


def _shortened(text: str) -> str:
    return f"{text[:40]}{'...' if len(text) > 40 else ''}"
