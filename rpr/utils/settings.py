"""Declared settings: a name, a typed default, the allowed values and one line of help.

Hyperparameters and the settings of runs and studies are `Setting`s. One declaration gives the
default, the help text and the check of a value.
"""
import dataclasses
import numbers
import operator
import sys
from collections.abc import Callable
from typing import Any

from rpr.utils.errors import InvalidValue

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text",
          dict: "a dict", tuple: "a tuple"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting; its type is that of its default."""
    name: str                                         # such as "beam_size" or "run.seed"
    default: Any                                      # None: another library has it
    help: str = ""                                    # what it does, in one line
    minimum: float | None = None                      # inclusive bounds of a number
    maximum: float | None = None
    above: float | None = None                        # exclusive bounds of a number
    below: float | None = None
    choices: tuple[Any, ...] = ()                     # empty: every value within the bounds
    or_none: bool = False                             # whether None is allowed too
    after_training: bool = False                      # whether decoding may take another value

    def allowed(self) -> str:
        """The allowed values in words, for help texts and messages."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        bounds = [f"{words} {bound:,}" for words, bound, _ in self._bounds()]
        kind = _KINDS.get(type(self.default), "a number" if bounds else "any value")
        if self.minimum is not None and self.maximum is not None:
            return f"{kind} from {self.minimum:,} to {self.maximum:,}"
        comma = "," if bounds and bounds[0].startswith("at ") else ""
        return f"{kind}{comma} {' and '.join(bounds)}".strip()

    def accepts(self, value: Any) -> bool:
        """Whether a value has the right type and lies within the bounds."""
        bounds = self._bounds()
        if value is None:
            return self.or_none or self.default is None and not bounds
        if self.choices:
            return value in self.choices
        if self.default is not None and not _has_type(value, type(self.default)):
            return False
        return not bounds or (_has_type(value, float) and abs(value) <= sys.float_info.max
                              and all(holds(value, bound) for _, bound, holds in bounds))

    def required(self, value: Any) -> str:
        """What a value must be that is not allowed, with an example where it is not a tuple."""
        is_item = isinstance(self.default, tuple) and isinstance(value, int | float | str)
        example = f", such as ({value!r},)" if is_item and len(repr(value)) <= 40 else ""
        return f"must be {self.allowed()}{example}"

    def check(self, value: Any) -> None:
        """Raises `InvalidValue` for a value that is not allowed; NumPy's numbers count as Python's.
        """
        is_numpy = isinstance(value, numbers.Number) and hasattr(value, "item")
        if not self.accepts(value.item() if is_numpy else value):
            raise InvalidValue(self.name, value, self.required(value))

    def error(self, value: Any) -> str | None:
        """One line that says what is wrong with a value; None if it is allowed."""
        return None if self.accepts(value) else f"{self.name}={value}: must be {self.allowed()}"

    def _bounds(self) -> list[tuple[str, Any, Callable[[Any, Any], bool]]]:
        bounds = (("at least", self.minimum, operator.ge), ("above", self.above, operator.gt),
                  ("at most", self.maximum, operator.le), ("below", self.below, operator.lt))
        return [each for each in bounds if each[1] is not None]


def _has_type(value: Any, kind: type) -> bool:
    if isinstance(value, bool):                       # which Python takes for an int
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
