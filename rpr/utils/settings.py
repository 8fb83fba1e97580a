"""Declared settings: a name, a typed default, the allowed values and one line of help.

Hyperparameters, and the settings of runs and studies, are declared as `Setting`s. The same
declaration gives the default, the help text and the check of a value before anything is written.
"""
import dataclasses
import sys
from typing import Any

from rpr.utils.errors import InvalidValue

_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text",
          dict: "a dict", tuple: "a tuple"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
      name: such as "beam_size" or "run.seed".
      default: its value if it is not set. Its type is the setting's type; None where the default
        and the type are another library's.
      help: what it does, in one line.
      minimum: smallest allowed number.
      maximum: largest allowed number.
      above: the number must be larger than this.
      below: the number must be smaller than this.
      choices: the allowed values; empty: every value within the range.
      or_none: whether None is allowed too.
    """
    name: str
    default: Any
    help: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    or_none: bool = False

    def allowed(self) -> str:
        """The allowed values in words, for help texts and messages."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        kind = _KINDS.get(type(self.default), "a number" if self._is_bounded() else "any value")
        if self.minimum is not None and self.maximum is not None:
            return f"{kind} from {self.minimum:,} to {self.maximum:,}"
        bounds = [f"{words} {bound:,}" for words, bound in (
            ("at least", self.minimum), ("above", self.above), ("at most", self.maximum),
            ("below", self.below)) if bound is not None]
        return " ".join([kind, " and ".join(bounds)]).strip()

    def accepts(self, value: Any) -> bool:
        """Whether a value has the right type and lies in the range."""
        if value is None:
            return self.or_none or self.default is None and not self._is_bounded()
        if self.choices:
            return value in self.choices
        if self.default is not None and not _has_type(value, type(self.default)):
            return False
        if not self._is_bounded():
            return True
        return _has_type(value, float) and abs(value) <= sys.float_info.max and (
            (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below))

    def check(self, value: Any) -> None:
        """Refuses a value of another type or out of the range, with `InvalidValue`."""
        if not self.accepts(value):
            raise InvalidValue(self.name, value, f"must be {self.allowed()}")

    def error(self, value: Any) -> str | None:
        """One line that says what is wrong with a value; None if nothing is."""
        return None if self.accepts(value) else f"{self.name}={value}: must be {self.allowed()}"

    def _is_bounded(self) -> bool:
        return any(bound is not None
                   for bound in (self.minimum, self.maximum, self.above, self.below))


def _has_type(value: Any, kind: type) -> bool:
    if kind is float:                                        # an integer is a number as well
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
