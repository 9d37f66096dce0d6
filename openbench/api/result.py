"""What an evaluation returns: one result per method, each with its record, its scores and its tables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores


@dataclass(frozen=True)
class Result:
    """One method on one benchmark with one backbone.

    Args:
        record: every number and what it was made from.
        scores: per sample, a container per set; empty where they were not kept.
        path: the record's file; None for what was computed from arrays and written nowhere.
        notes: where the numbers come from if they were not computed now, e.g. that a record was reused.
        warnings: why they may not be what the user expects.
    """

    record: ResultRecord
    scores: tuple[SetScores, ...] = field(default=(), repr=False)
    path: Path | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float | int | str]]:
        """Set or group → metric → value; rates are fractions in [0, 1]."""
        return self.record.metrics


class Results(Mapping[str, Result]):
    """The results of several methods, in the order in which they were asked for."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)
