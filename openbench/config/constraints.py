"""The values that a parameter takes, declared once, in its annotation: `k: Annotated[int, Interval(1)]`.

They are checked where a config is read and where a class is called; `show method NAME` prints them.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

Ends = Literal["[]", "[)", "(]", "()"]


class Constraint(ABC):
    """What is asked of a value besides its kind."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether a value of the right kind is allowed."""

    @abstractmethod
    def described(self, kind: str) -> str:
        """Return what is allowed, in words.

        Args:
            kind: what the values are without the constraint, e.g. `a number`.
        """


@dataclass(frozen=True)
class Interval(Constraint):
    """Numbers from `low` to `high`.

    Args:
        low: the lower end.
        high: the upper end; infinity where there is none.
        ends: which ends belong to it: `[` or `]` one that does, `(` or `)` one that does not.
    """

    low: float
    high: float = math.inf
    ends: Ends = "[]"

    def holds(self, value: Any) -> bool:
        """Whether a number lies in the interval."""
        above = self.low <= value if self.ends[0] == "[" else self.low < value
        below = value <= self.high if self.ends[1] == "]" else value < self.high
        return bool(above and below)

    def described(self, kind: str) -> str:
        """E.g. `a number > 0`, `a whole number from 1 to 10`."""
        if self.ends == "[]" and self.high < math.inf:
            return f"{kind} from {self.low} to {self.high}"
        low = f"{'≥' if self.ends[0] == '[' else '>'} {self.low}"
        high = f" and {'≤' if self.ends[1] == ']' else '<'} {self.high}" if self.high < math.inf else ""
        return f"{kind} {low}{high}"


@dataclass(frozen=True)
class Even(Constraint):
    """Multiples of two."""

    def holds(self, value: Any) -> bool:
        """Whether a number is even."""
        return bool(value % 2 == 0)

    def described(self, kind: str) -> str:
        """`…, even`."""
        return f"{kind}, even"


@dataclass(frozen=True)
class NotEmpty(Constraint):
    """Lists, mappings and texts with something in them."""

    def holds(self, value: Any) -> bool:
        """Whether there is at least one item."""
        return len(value) > 0

    def described(self, kind: str) -> str:
        """`… (not empty)`."""
        return f"{kind} (not empty)"


@dataclass(frozen=True)
class OneOf(Constraint):
    """Texts of a list that is made elsewhere; `Literal` says the same of one that is written down."""

    choices: tuple[str, ...]

    def holds(self, value: Any) -> bool:
        """Whether a text is among them."""
        return value in self.choices

    def described(self, kind: str) -> str:
        """The choices."""
        return ", ".join(self.choices)


@dataclass(frozen=True)
class Unit(Constraint):
    """Says in messages what a number is counted in; any is allowed."""

    words: str

    def holds(self, value: Any) -> bool:
        """True."""
        return True

    def described(self, kind: str) -> str:
        """E.g. `… (a fraction, not %)`."""
        return f"{kind} ({self.words})"


Count = Annotated[int, Interval(1)]
Positive = Annotated[float, Interval(0, ends="(]")]
NonNegative = Annotated[float, Interval(0)]
Probability = Annotated[float, Interval(0, 1)]
Fraction = Annotated[float, Interval(0, 1, "()")]
Share = Annotated[float, Interval(0, 1, "(]")]
Decay = Annotated[float, Interval(0, 1, "[)")]  # what is kept of an average, or dropped of a layer
Percentage = Annotated[float, Interval(0, 100)]
Percentile = Annotated[float, Interval(0, 100, "[)")]  # of which something is left above
Seed = Annotated[int, Interval(0, 2**32 - 1)]  # what NumPy, scikit-learn and torch all take
