"""Whether a record's word that its benchmark is as defined holds, as far as that can be told without the images."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.core.record import UNCOMMITTED, ResultRecord
from openbench.data.manifests import load_manifest
from openbench.digest import digest
from openbench.errors import DataError
from openbench.public import public
from openbench.results.tables.views import GROUPS
from openbench.studies.wanted import Wanted, definition

_ROLES = ("csid", "near", "far")  # of which a benchmark has sets by name
_PARTS = ("id", "classes", "ood_val", "preprocess", *_ROLES)  # of which a benchmark that has them cannot do without
_CHOICE = ("manifest", "limit", "keep")  # which images a set has; one that is not written is none
_TESTED = ("id_test", "id_val", "ood_val", "csid", "near", "far")
_FREE = ("name", "incomplete", "declared", "at", "file", "folder")  # where images are, and what follows from the sets
_JUDGES = ("openbench/core/", "openbench/data/")  # code that says whether a benchmark is as defined
_SHOWN = 3


@dataclass(frozen=True)
class Claim:
    """What a record that calls its benchmark as defined says of it.

    Args:
        node: of its config.
        counts: {role/set: how many images it says the set has by definition}.
        contradictions: what in the record itself speaks against it.
    """

    node: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: ResultRecord) -> "Claim | None":
        """Return what a record claims; None if it does not call its benchmark as defined."""
        if record.benchmark.get("pristine") is not True:
            return None
        stated = list(map(str, record.benchmark.get("deviations") or ()))
        found = [f"it names deviations: {'; '.join(stated[:_SHOWN])}"] * bool(stated)
        changed = [name for name in record.provenance.get(UNCOMMITTED) or {} if str(name).startswith(_JUDGES)]
        found += [f"made by a changed copy of openbench ({', '.join(sorted(changed)[:_SHOWN])})"] * bool(changed)
        node = public(record.config.get("benchmark")) or {}
        counts = {key: int(count["expected"]) for key, count in record.counts.items()}
        return cls(node, counts, tuple(found))

    def doubts(self, wanted: Wanted, config_dir: Path | None) -> tuple[str, ...]:
        """Return why the benchmark is not, or need not be, the one that a study asks for; empty if nothing says so.

        Sets, their lists and limits must be those of the benchmark's file, and the counts those of the lists. Which
        images were read cannot be told without them: records of one table have one digest of them.

        Args:
            wanted: a run that the record fits.
            config_dir: the user's folder of group files.
        """
        if not any(role in self.node for role in ("id", "collection")):
            return (*self.contradictions, "it does not say of which sets")
        asked = definition(wanted.names["benchmark"], config_dir)
        differing = list(dict.fromkeys(_differing(self.node, asked, wanted.values)))
        return (*self.contradictions, *differing[:_SHOWN], *(() if differing else self._miscounted()))

    def _miscounted(self) -> Iterator[str]:
        """Sets of which it says another number of images than their lists have, and OOD sets of which it says none."""
        sets = [f"{group}/{name}" for group in GROUPS for name in self.node.get(group) or {}]
        yield from (f"{key.replace('/', '.')} was not measured" for key in sets if key not in self.counts)
        for key, expected in self.counts.items():
            role, _, name = key.partition("/")
            node = self._set(role, name)
            size = _length(str(node.get("manifest"))) if role in _TESTED and not node.get("keep") else None
            size = size if size is None or node.get("limit") is None else min(size, int(node["limit"]))
            if size is not None and size != expected:
                yield f"{role}.{name} has {size} images by definition, not {expected}"

    def _set(self, role: str, name: str) -> Mapping[str, Any]:
        if role.startswith("id_"):
            return (self.node.get("id") or {}).get(role.removeprefix("id_")) or {}
        node = self.node.get(role) or {}
        return (node.get(name) or {}) if role in _ROLES else node


def _differing(found: Any, asked: Any, values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What of a benchmark's node is not as its file has it; of keys that one of both lacks, what says which images."""
    if isinstance(found, Mapping) and isinstance(asked, Mapping):
        sets, needed = path in ("id", *_ROLES), () if path else _PARTS
        chosen = _CHOICE if "manifest" in asked else ()
        for key in [key for key in (*asked, *(key for key in chosen if key not in asked)) if key not in _FREE]:
            at = f"{path}.{key}" if path else str(key)
            if key in found or key in chosen:
                yield from _differing(found.get(key), asked.get(key), values, at)
            elif sets or key in needed:
                yield f"{at} is missing"
        yield from (f"{path}.{key} is not part of it" for key in found if sets and key not in asked)
    elif f"benchmark.{path}" not in values and not _same(found, asked):
        yield f"{path} is {found}, by definition {asked}"


def _same(found: Any, asked: Any) -> bool:
    """Whether two values are the same; a reference to another key may be any."""
    return (isinstance(asked, str) and "${" in asked) or digest(found) == digest(asked)


@lru_cache(maxsize=256)
def _length(manifest: str) -> int | None:
    """How many images a list has that openbench ships; None for rules, and for what is not a list."""
    if not (paths.manifest_dir() / f"{manifest}.txt").is_file():
        return None
    try:
        return len(load_manifest(manifest))
    except DataError:
        return None
