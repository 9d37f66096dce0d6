"""Whether a repeated run reproduces a record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.plain import plain

# Digits that differ between BLAS versions or thread counts; a single pair of scores that changes places among
# 10,000 × 10,000 moves an AUROC by 1e-8.
TOLERANCE = 1e-6
# How a number was made may differ; the number may not.
_NOT_COMPARED = ("provenance",)
_ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """One value that a repetition did not reproduce.

    Args:
        key: where it stands in the record, dotted.
        old: the recorded value, or `absent`.
        new: the repeated value, or `absent`.
    """

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} was recorded, {self.new!r} came out"


def verify(old: ResultRecord, new: ResultRecord, tolerance: float = TOLERANCE) -> list[Difference]:
    """Return the values of two records that differ, provenance aside; empty = reproduced.

    Numbers a and b agree if |a − b| ≤ tolerance · max(1, |a|); everything else must be equal.

    Args:
        old: the record on disk.
        new: the repetition.
        tolerance: ≥ 0.

    Raises:
        RecordError: a negative tolerance.
    """
    if not tolerance >= 0:
        raise RecordError(f"tolerance of a comparison — found {tolerance} — allowed: 0 or more")
    first, second = _leaves(plain(old.to_dict())), _leaves(plain(new.to_dict()))
    keys = sorted(first.keys() | second.keys())
    pairs = ((key, first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in keys)
    return [Difference(key, a, b) for key, a, b in pairs if not _agree(a, b, tolerance)]


def _agree(a: Any, b: Any, tolerance: float) -> bool:
    if _is_number(a) and _is_number(b):
        return bool(abs(a - b) <= tolerance * max(1.0, abs(a)))
    return type(a) is type(b) and bool(a == b)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a record to {dotted key: scalar}; empty containers count as values."""
    found: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = [(k, v) for k, v in tree.items() if k not in _NOT_COMPARED]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [(f"{key}.{name}", child) for name, child in value.items()]
        elif isinstance(value, list) and value:
            pending += [(f"{key}[{index}]", child) for index, child in enumerate(value)]
        else:
            found[key] = value
    return found
