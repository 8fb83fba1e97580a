"""Declarations of the settings of runs and studies: type, default, range and meaning in one place.

A setting is a field of a dataclass, declared by `setting`. The checks and `--help` read the same
declaration.
"""
import dataclasses
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from rpr.utils.console import printable
from rpr.utils.errors import UserError
from rpr.utils.settings import Setting

LONGEST_TEXT = 10_000                                 # characters


def setting(meaning: str, default: Any = dataclasses.MISSING, *, low: float | None = None,
            high: float | None = None) -> Any:
    """A field of a dataclass of settings.

    Args:
      meaning: for `--help`.
      default: its default; a setting without one must be given.
      low, high: smallest and largest number allowed.
    """
    more: dict[str, Any] = {"metadata": {"help": meaning, "minimum": low, "maximum": high}}
    if isinstance(default, dict):
        more["default_factory"] = dict
    elif default is not dataclasses.MISSING:
        more["default"] = default
    return dataclasses.field(**more)


def declarations(kind: type, prefix: str) -> dict[str, Setting]:
    """{name: declaration} of the settings of a dataclass.

    Args:
      kind: a dataclass whose fields are declared by `setting`.
      prefix: the name before the dot, "run" or "study".
    """
    return {declared.name: declared for _, declared in _declared(kind, prefix)}


def check_types_and_ranges(settings: Any, prefix: str) -> None:
    """Refuses a value of a wrong type or out of its range.

    Args:
      settings: an instance of a dataclass whose fields are declared by `setting`.
      prefix: the name before the dot, "run" or "study".
    """
    for field, declared in _declared(type(settings), prefix):
        value = with_tuple(getattr(settings, field.name), declared)
        object.__setattr__(settings, field.name, value)       # the dataclass is frozen
        check_value(value, declared)


def with_tuple(value: Any, declared: Setting) -> Any:
    """The value; a list as a tuple where the setting is one."""
    is_list = isinstance(declared.default, tuple) and isinstance(value, list)
    return tuple(value) if is_list else value


def check_value(value: Any, declared: Setting) -> None:
    """Refuses a value of a wrong type or out of its range, and text with control characters."""
    if not declared.accepts(value):
        raise UserError(f"{declared.name} = {shown(value)}: it must be {declared.allowed()}")
    if isinstance(value, str):
        check_text(value, declared.name)


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
        for field, declared in _declared(kind, prefix):
            default = "required" if _is_required(field) else f"default {declared.default!r}"
            lines += [f"  {declared.name} ({declared.allowed()}, {default})",
                      textwrap.fill(declared.help, 96, initial_indent=" " * 6,
                                    subsequent_indent=" " * 6)]
    return "\n".join(lines)


def changed(settings: Any) -> dict[str, Any]:
    """{name: value} of the settings that differ from their defaults."""
    return {field.name: getattr(settings, field.name)
            for field, declared in _declared(type(settings), "")
            if _is_required(field) or getattr(settings, field.name) != declared.default}


def _declared(kind: type, prefix: str) -> Iterator[tuple[dataclasses.Field, Setting]]:
    """The fields of a dataclass with their declarations; a required one has an empty default."""
    for field in dataclasses.fields(kind):
        empty: Any = typing.get_origin(field.type) or field.type
        factory = empty if _is_required(field) else field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        yield field, Setting(f"{prefix}.{field.name}", default, **field.metadata)


def _is_required(field: dataclasses.Field) -> bool:
    return (field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING)
