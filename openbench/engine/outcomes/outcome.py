"""Where a run ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openbench.core.record import ResultRecord

Status = Literal["written", "skipped", "verified", "compared"]


@dataclass(frozen=True)
class RunOutcome:
    """The record in which a run ended, and what is printed above its numbers.

    Args:
        record: just made, or found.
        path: its file.
        status: written; skipped (the record existed); verified (it existed and was reproduced); or compared (the
            weights differ from the record's).
        notes: where the numbers come from, if this run did not make them.
        warnings: why they may not be what the user expects.
    """

    record: ResultRecord
    path: Path
    status: Status
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
