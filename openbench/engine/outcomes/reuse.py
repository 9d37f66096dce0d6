"""The lines above a table that say what made it: what was reused, foreign code, uncommitted changes."""

from pathlib import Path

from openbench.core.record import PROBE, REUSED, SOURCES, UNCOMMITTED, ResultRecord
from openbench.engine.outcomes.outcome import RunOutcome
from openbench.results.records.origin import made_by
from openbench.results.records.store import RecordStore
from openbench.results.records.superseded import superseding
from openbench.source import unknown_sources

_VARIANT = (
    "a network of the same class, sources, weights and preprocessing made other outputs of the same images before: "
    "something else that it or its preprocess reads has changed, so this is another network, with results of its own"
)
_VERIFY = "add runtime.on_existing=verify"


def reused(record: ResultRecord, path: Path, records: RecordStore) -> RunOutcome:
    """Return the outcome of a run whose record is there, with who made it, when and from which version.

    Args:
        record: the record that was found; its run id says that it was made from the same sources.
        path: its file.
        records: where it was found.
    """
    first = f"reused: nothing was computed — made by {made_by(record)} — to compute it again and compare, {_VERIFY}"
    return RunOutcome(record, path, "skipped", (first, *made_from(record, records)))


def made_from(record: ResultRecord, records: RecordStore) -> tuple[str, ...]:
    """Return a line for each special thing about the code that made a record; none for openbench's committed code.

    Args:
        record: just made, or found.
        records: where the others of its setting are.
    """
    sources, changed = record.provenance.get(SOURCES) or {}, record.provenance.get(UNCOMMITTED) or {}
    unknown = unknown_sources(sources)
    known = [name for name in sources if name not in unknown]
    lines = [f"made from uncommitted changes in {', '.join(changed)}: reused only by the same sources"] * bool(changed)
    lines += [f"made from sources that are not openbench's: {', '.join(known)}"] * bool(known)
    lines += [f"{name} has no file to read: what it makes is never reused" for name in unknown]
    lines += [f"reused {what}: made by {by}" for what, by in (record.provenance.get(REUSED) or {}).items()]
    if (record.provenance.get(PROBE) or {}).get("variant"):
        lines.append(_VARIANT)
    supersedes, by = superseding(record, records)
    lines += [f"supersedes {one}" for one in supersedes]
    return (*lines, *([by] if by else []))
