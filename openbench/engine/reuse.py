"""What is said about a record that is shown instead of being computed."""

from pathlib import Path

from openbench.core.record import SOURCES, ResultRecord
from openbench.engine.outcome import RunOutcome
from openbench.results.origin import made_by

_VERIFY = "add runtime.on_existing=verify"


def reused(record: ResultRecord, path: Path) -> RunOutcome:
    """Return the outcome of a run whose record is there, with who made it, when and from which version.

    Args:
        record: the record that was found; its run id says that it was made from the same sources.
        path: its file.
    """
    notes = [f"reused: nothing was computed — made by {made_by(record)} — to compute it again and compare, {_VERIFY}"]
    if record.provenance.get(SOURCES):
        notes.append(f"made from the same sources: {', '.join(record.provenance[SOURCES])}")
    return RunOutcome(record, path, "skipped", tuple(notes))
