"""Whether a repeated run reproduces a record: what must be equal to rounding, and what may move by a sample or two."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openbench.core.record import ResultRecord
from openbench.results.records.rounding import ROUNDING, SAMPLES, allowance, of_trial
from openbench.storage.plain_json import plain

# How a number was made may differ; the number may not.
_NOT_COMPARED = ("provenance",)
_REASON = "infeasible"  # of a trial: that there is one must be equal, its words may be put otherwise by a later version
_ABSENT = "absent"
_SHOWN = 5
Path = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """One value that differs from the recorded one.

    Args:
        key: where it stands in the record, dotted.
        old: the recorded value, or `absent`.
        new: the repeated value, or `absent`.
        allowed: by how much it may differ; 0 for what is not a number.
    """

    key: str
    old: Any
    new: Any
    allowed: float = 0.0

    def __str__(self) -> str:
        bound = f" (may differ by {self.allowed:.2g})" if self.allowed > ROUNDING else ""
        return f"{self.key}: {self.old!r} was recorded, {self.new!r} came out{bound}"

    @property
    def moved(self) -> str:
        """The two values and the bound, briefly."""
        return f"{self.key} {self.old:.6g} → {self.new:.6g} (±{self.allowed:.2g})"


@dataclass(frozen=True)
class Comparison:
    """A record beside its repetition.

    Args:
        equal: how many values are equal, numbers to rounding.
        moved: numbers that differ by no more than another processor can make them.
        differ: everything else; the record reproduces if there is none.
        added: metrics that only the repetition has, because openbench measures more by now.
    """

    equal: int
    moved: tuple[Difference, ...]
    differ: tuple[Difference, ...]
    added: tuple[str, ...]

    @property
    def reproduces(self) -> bool:
        """Whether nothing differs by more than it may."""
        return not self.differ

    def __str__(self) -> str:
        parts = [f"{self.equal} values equal to rounding"]
        if self.moved:
            parts.append(f"{len(self.moved)} moved within what {SAMPLES} samples can move: {_first(self.moved)}")
        if self.added:
            parts.append(f"{len(self.added)} new values, which the record does not have")
        return " · ".join(parts)


def _first(moved: tuple[Difference, ...]) -> str:
    more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
    return ", ".join(d.moved.removeprefix("metrics.") for d in moved[:_SHOWN]) + more


def compare(old: ResultRecord, new: ResultRecord) -> Comparison:
    """Return what a repetition reproduces of a record, provenance aside.

    Numbers agree if |a − b| ≤ 1e-6 · max(1, |a|). A metric that does not may have moved by its `allowance`, which
    follows from the number of samples it is computed from; so may a number of a tuning trial. Of a setting that is
    infeasible only that it is so is compared, not the wording of the reason. Everything else must be equal.

    Args:
        old: the record on disk.
        new: the repetition.
    """
    first, second = _leaves(plain(old.to_dict())), _leaves(plain(new.to_dict()))
    equal, moved, differ = 0, list[Difference](), list[Difference]()
    added = [path for path in second if path not in first and path[0] == "metrics"]
    for path in sorted((first.keys() | second.keys()) - set(added)):
        a, b = first.get(path, _ABSENT), second.get(path, _ABSENT)
        if not (_is_number(a) and _is_number(b)):
            same, within, allowed = type(a) is type(b) and a == b, False, 0.0
            same = same or (_is_reason(path) and path in first and path in second)
        else:
            allowed = max(_allowed(old, path), ROUNDING * max(1.0, abs(a)))
            same = abs(a - b) <= ROUNDING * max(1.0, abs(a))
            within = abs(a - b) <= allowed * (1 + 1e-9)
        if same:
            equal += 1
        else:
            (moved if within else differ).append(Difference(_dotted(path), a, b, allowed))
    return Comparison(equal, tuple(moved), tuple(differ), tuple(map(_dotted, added)))


def _allowed(record: ResultRecord, path: Path) -> float:
    if path[0] == "metrics" and len(path) == 3:
        return allowance(record, path[1], path[2])
    if path[0] == "trials" and len(path) == 3:
        return of_trial(record, int(path[1].strip("[]")), path[2])
    return 0.0


def _is_reason(path: Path) -> bool:
    return path[0] == "trials" and len(path) == 3 and path[2] == _REASON


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _dotted(path: Path) -> str:
    return re.sub(r"\.(\[\d+\])", r"\1", ".".join(path))


def _leaves(tree: Mapping[str, Any]) -> dict[Path, Any]:
    """Flatten a record to {path: scalar}; empty containers count as values."""
    found: dict[Path, Any] = {}
    pending: list[tuple[Path, Any]] = [((k,), v) for k, v in tree.items() if k not in _NOT_COMPARED]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, name), child) for name, child in value.items()]
        elif isinstance(value, list) and value:
            pending += [((*path, f"[{index}]"), child) for index, child in enumerate(value)]
        else:
            found[path] = value
    return found
