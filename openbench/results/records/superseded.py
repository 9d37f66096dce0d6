"""Which records are superseded by a later one of the same setting, because the code has changed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord
from openbench.digest import digest
from openbench.results.records.store import RecordStore, unheard

_SHOWN = 3


@dataclass(frozen=True)
class Made:
    """By which code a record was made, and when.

    Args:
        run_id: of the record.
        setting: what it shares with the records that it may supersede.
        version: of the method.
        sources: {module: SHA-256} of code that openbench does not ship.
        uncommitted: {file: SHA-256} of openbench's files that differed from the commit.
        utc: when.
    """

    run_id: str
    setting: str
    version: int
    sources: Mapping[str, str]
    uncommitted: Mapping[str, str]
    utc: str

    @classmethod
    def of(cls, record: ResultRecord, setting: str) -> "Made":
        """Return what a record says."""
        made = record.provenance
        sources, uncommitted = made.get(SOURCES) or {}, made.get(UNCOMMITTED) or {}
        return cls(
            record.run_id, setting, int(record.method.get("version", 0)), sources, uncommitted, str(made.get("utc", ""))
        )

    @property
    def made_with(self) -> tuple[int, Mapping[str, str], Mapping[str, str]]:
        """What tells its code from another's."""
        return self.version, self.sources, self.uncommitted

    @property
    def code(self) -> str:
        """A digest of the code."""
        return digest(self.made_with)

    @property
    def rank(self) -> tuple[bool, int, str, str]:
        """Committed before uncommitted, then the higher version, then the later one."""
        return not self.uncommitted, self.version, self.utc, self.run_id


def superseded(made: Iterable[Made]) -> dict[str, str]:
    """Return {run id: by which record it is superseded, and why}; records made by the same code stand side by side.

    Args:
        made: of any number of settings.
    """
    settings: dict[str, list[Made]] = {}
    for one in made:
        settings.setdefault(one.setting, []).append(one)
    found = {}
    for alike in settings.values():
        latest = max(alike, key=lambda one: one.rank)
        for one in alike:
            if one.made_with != latest.made_with:
                found[one.run_id] = f"superseded by {latest.run_id}: {_why(one, latest)}"
    return found


def superseding(record: ResultRecord, results: RecordStore) -> tuple[list[str], str]:
    """Return the run ids of records that a record supersedes, each with why, and by which it is superseded itself.

    Args:
        record: any, in its store or not.
        results: where the others are.
    """
    benchmark, backbone, method = (str(part.get("name")) for part in (record.benchmark, record.backbone, record.method))
    others = {other.run_id: other for other, _ in results.beside(benchmark, backbone, method, unheard)}
    alike = [other for other in {**others, record.run_id: record}.values() if _setting(other) == _setting(record)]
    found = superseded(Made.of(other, "") for other in alike)
    own = [f"{run_id} ({why.partition(': ')[2]})" for run_id, why in found.items() if f"by {record.run_id}:" in why]
    return sorted(own), found.get(record.run_id, "")


def _setting(record: ResultRecord) -> str:
    """What two records share if only the code may have made them differ."""
    config = {key: node for key, node in record.config.items() if key != "benchmark"}
    return digest([config, record.benchmark.get("digest"), record.backbone.get("training")])


def _why(old: Made, new: Made) -> str:
    if old.uncommitted != new.uncommitted:
        if old.uncommitted:
            return f"it was made from uncommitted changes in {_listed(old.uncommitted)}"
        return f"openbench has uncommitted changes since, in {_listed(new.uncommitted)}"
    if old.version != new.version:
        return f"made by version {old.version} of the method, which is now at {new.version}"
    names = sorted({*old.sources, *new.sources})
    return (
        f"made before a change of {_listed(name for name in names if old.sources.get(name) != new.sources.get(name))}"
    )


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
