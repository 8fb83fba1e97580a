"""Declarations of settings: type, default, range and meaning in one place.

A setting is a field of a dataclass, declared by `setting`. The checks and `--help` read the same
declaration.
"""
import dataclasses
import math
import textwrap
import typing
from collections.abc import Iterable
from typing import Any

from rpr.utils.console import printable
from rpr.utils.errors import UserError

LONGEST_TEXT = 10_000                                 # characters
_KINDS = {str: "text", int: "whole number", float: "number", dict: "dict", tuple: "tuple"}


def setting(meaning: str, default: Any = dataclasses.MISSING, *, low: float | None = None,
            high: float | None = None) -> Any:
    """A field of a dataclass of settings.

    Args:
      meaning: for `--help`.
      default: its default; a setting without one must be given.
      low, high: smallest and largest number allowed.
    """
    more: dict[str, Any] = {"metadata": {"meaning": meaning, "low": low, "high": high}}
    if isinstance(default, dict):
        more["default_factory"] = dict
    elif default is not dataclasses.MISSING:
        more["default"] = default
    return dataclasses.field(**more)


def check_types_and_ranges(settings: Any, prefix: str) -> None:
    """Refuses a value of a wrong type or out of its range.

    Args:
      settings: an instance of a dataclass whose fields are declared by `setting`.
      prefix: the name before the dot, "run" or "study".
    """
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        kind = _kind(field)
        name = f"{prefix}.{field.name}"
        if kind is tuple and isinstance(value, list):
            value = tuple(value)
            object.__setattr__(settings, field.name, value)   # the dataclass is frozen
        if not _has_kind(value, kind):
            raise UserError(f"{name} = {shown(value)}: {_article(kind)} is needed")
        if kind is str:
            check_text(value, name)
        if kind in (int, float):
            check_range(value, name, field.metadata["low"], field.metadata["high"])


def check_range(value: float, name: str, low: float | None, high: float | None) -> None:
    """Refuses a number that is not finite or not from `low` to `high`."""
    allowed = _range(low, high)
    if not math.isfinite(value) or (low is not None and value < low) or (
            high is not None and value > high):
        raise UserError(f"{name} = {shown(value)}: it must be {allowed or 'finite'}")


def check_text(value: str, name: str, longest: int = LONGEST_TEXT) -> None:
    """Refuses text with control characters, or longer than `longest` characters."""
    if printable(value) != value:
        raise UserError(f"{name} = {shown(value)}: it contains control characters")
    if len(value) > longest:
        raise UserError(f"{name} = {shown(value)}: at most {longest:,} characters, it has "
                        f"{len(value):,}")


def shown(value: Any) -> str:
    """A value for an error message: one line, not too long."""
    text = printable(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def describe(kinds: Iterable[tuple[str, type]]) -> str:
    """All settings as lines for `--help`.

    Args:
      kinds: pairs of a prefix ("run") and a dataclass of settings.
    """
    lines = ["settings of the gin file, and of --set:"]
    for prefix, kind in kinds:
        for field in dataclasses.fields(kind):
            allowed = _range(field.metadata["low"], field.metadata["high"])
            default = "required" if _is_required(field) else f"default {_default(field)!r}"
            facts = ", ".join(filter(None, (_KINDS[_kind(field)], allowed, default)))
            lines += [f"  {prefix}.{field.name} ({facts})",
                      textwrap.fill(field.metadata["meaning"], 96, initial_indent=" " * 6,
                                    subsequent_indent=" " * 6)]
    return "\n".join(lines)


def changed(settings: Any) -> dict[str, Any]:
    """{name: value} of the settings that differ from their defaults."""
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
            if _is_required(field) or getattr(settings, field.name) != _default(field)}


def _kind(field: dataclasses.Field) -> type:
    return typing.get_origin(field.type) or field.type    # type: ignore[return-value]


def _is_required(field: dataclasses.Field) -> bool:
    return (field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING)


def _has_kind(value: Any, kind: type) -> bool:
    return type(value) is kind or kind is float and type(value) is int


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "" if low is None else f"at least {low:,}"
    return f"from {low:,} to {high:,}"


def _article(kind: type) -> str:
    return f"a {_KINDS[kind]}" if kind is not str else "text"
