"""Which records are superseded by a later one of the same setting, because the code has changed."""

from collections.abc import Iterable

from openbench.core.record import ResultRecord
from openbench.errors import listed
from openbench.results.frame import Run, run_of
from openbench.results.records.store import RecordStore, ignore


def superseded(runs: Iterable[Run]) -> dict[str, str]:
    """Return {run id: by which record it is superseded, and why}; records made by the same code stand side by side.

    Args:
        runs: of one benchmark, of any number of settings.
    """
    settings: dict[str, list[Run]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    reasons = {}
    for alike in settings.values():
        latest = max(alike, key=_rank)
        for run in alike:
            if run.code != latest.code:
                reasons[run.run_id] = f"superseded by {latest.run_id}: {_why(run, latest)}"
    return reasons


def superseding(record: ResultRecord, results: RecordStore) -> tuple[list[str], str]:
    """Return the run ids of records that a record supersedes, each with why, and by which it is superseded itself.

    Args:
        record: any, in its store or not.
        results: where the others are.
    """
    run = run_of(record)
    neighbours = results.of_method(run.benchmark, run.backbone, run.method, ignore)
    runs = {other.run_id: run_of(other) for other, _ in neighbours} | {run.run_id: run}
    alike = [r for r in runs.values() if (r.setting, r.seed, r.digest) == (run.setting, run.seed, run.digest)]
    reasons = superseded(alike)
    others = [f"{run_id} ({why.partition(': ')[2]})" for run_id, why in reasons.items() if f"by {run.run_id}:" in why]
    return sorted(others), reasons.get(run.run_id, "")


def _rank(run: Run) -> tuple[bool, int, str, str]:
    """Committed before uncommitted, then the higher version, then the later one."""
    return not run.uncommitted, run.version, run.utc, run.run_id


def _why(old: Run, new: Run) -> str:
    if old.uncommitted != new.uncommitted:
        if old.uncommitted:
            return f"it was made from uncommitted changes in {listed(old.uncommitted)}"
        return f"openbench has uncommitted changes since, in {listed(new.uncommitted)}"
    if old.version != new.version:
        return f"made by version {old.version} of the method, which is now at {new.version}"
    names = sorted({*old.sources, *new.sources})
    return f"made before a change of {listed(name for name in names if old.sources.get(name) != new.sources.get(name))}"
