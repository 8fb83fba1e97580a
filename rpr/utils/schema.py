"""Structure of JSON records, as plain data, and a check that says where a record differs.

| schema | matches |
| --- | --- |
| `int`, `float`, `str`, `bool`, `dict`, `None` | a value of this type; `float` also integers |
| `"done"` | this text |
| `[s]` | a list whose items match s |
| `{"name": s, "other?": t, "*": u}` | an object with `name`, perhaps `other`; other keys match u |
| `(s, t)` | s or t |

Keys that a schema does not name are allowed, unless it has `*`: records grow.
"""
from typing import Any

Schema = Any

_NAMES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false",
    dict: "an object", list: "a list", None: "null"}


def mismatch(value: Any, schema: Schema, at: str = "") -> str | None:
    """Where a value differs from a schema.

    Args:
      value: as `json.load` returns it.
      schema: see above.
      at: where the value is, for the message.

    Returns:
      One phrase, or None if the value matches.
    """
    if isinstance(schema, tuple):
        if any(mismatch(value, choice, at) is None for choice in schema):
            return None
        return _differs(value, at, " or ".join(map(_name, schema)))
    if isinstance(schema, list):
        if not isinstance(value, list):
            return _differs(value, at, "a list")
        items = ((f"{at}[{index}]", item) for index, item in enumerate(value))
        return next(filter(None, (mismatch(item, schema[0], place) for place, item in items)), None)
    if isinstance(schema, dict):
        return _object_mismatch(value, schema, at)
    return None if _is(value, schema) else _differs(value, at, _name(schema))


def _object_mismatch(value: Any, schema: dict[str, Schema], at: str) -> str | None:
    if not isinstance(value, dict):
        return _differs(value, at, "an object")
    known = {name.rstrip("?"): (name, kind) for name, kind in schema.items() if name != "*"}
    for name, (key, kind) in known.items():
        if name not in value:
            if not key.endswith("?"):
                return f"{at + ': ' if at else ''}{name!r} is missing"
            continue
        problem = mismatch(value[name], kind, f"{at}.{name}" if at else name)
        if problem:
            return problem
    for name, item in value.items():
        if "*" in schema and name not in known:
            problem = mismatch(item, schema["*"], f"{at}.{name}" if at else name)
            if problem:
                return problem
    return None


def _is(value: Any, schema: Schema) -> bool:
    if schema is None or isinstance(schema, str):
        return value == schema
    if isinstance(value, bool) and schema in (int, float):
        return False
    return isinstance(value, (int, float) if schema is float else schema)


def _name(schema: Schema) -> str:
    kind = type(schema) if isinstance(schema, dict | list) else schema
    return _NAMES.get(kind) or repr(kind)


def _differs(value: Any, at: str, wanted: str) -> str:
    shown = repr(value)
    return (f"{at or 'it'} is {shown[:40]}{'...' if len(shown) > 40 else ''}, where {wanted} is "
            "needed")
