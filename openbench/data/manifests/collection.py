"""A collection of data sets that take turns at being ID and OOD: which of them are ID and which OOD in one group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from openbench.config.constraints import Checked, Count, check_values, hints_of
from openbench.errors import ConfigError, check_known, did_you_mean

AGAINST = "_vs_"
AND = "+"
_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Collection(Checked):
    """The config node `benchmark.collection`.

    Args:
        id: how many sets are ID together.
        ood: how many are OOD together.
        declared: the names of all sets of the collection.
        sets: the node of each set: a data set's, and `classes`; `manifest` is the name to which `/train`, `/val` and
            `/test` are appended, or holds the three names under these keys.
    """

    id: Count
    ood: Count
    declared: Sequence[str]
    sets: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        """Check that there are groups, and that every set is declared."""
        if self.id + self.ood > len(self.declared):
            raise ConfigError(
                f"benchmark.collection — found {self.id} ID and {self.ood} OOD sets — allowed: together at most "
                f"the {len(self.declared)} of the collection"
            )
        for name in self.sets:
            if name not in self.declared:
                raise ConfigError(
                    f"benchmark.collection.sets has '{name}'{did_you_mean(name, self.declared)} — allowed: the sets "
                    f"declared, {', '.join(self.declared)}"
                )

    def groups(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Every choice of ID sets and of OOD sets among the others, in the order of `declared`."""
        for inside in combinations(self.declared, self.id):
            rest = [name for name in self.declared if name not in inside]
            yield from ((inside, outside) for outside in combinations(rest, self.ood))


def group_name(inside: Sequence[str], outside: Sequence[str]) -> str:
    """Return the name of a group, e.g. `kmnist_vs_textures` or `kmnist+textures_vs_places365+tiny_imagenet`."""
    return AGAINST.join(AND.join(names) for names in (inside, outside))


def arranged(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a `benchmark` node with `id`, `far`, `classes` and `declared` for its group of its collection.

    The sets that are ID together are joined (see data.joined). Those that are OOD together are sets of `far`; its
    pooled values are computed on the pooled sets. A set that is OOD in the group and was taken out of
    `collection.sets` counts as dropped. A node without a collection is returned as it is.

    Args:
        node: with `collection` and `group`.

    Raises:
        ConfigError: an unknown or missing key, or a group that the collection does not have.
    """
    if not node.get("collection"):
        return node
    given = node["collection"]
    allowed = [f.name for f in fields(Collection)]
    check_known(given, allowed, "benchmark.collection")
    if missing := [key for key in allowed if key not in given]:
        raise ConfigError(f"benchmark.collection: missing {', '.join(missing)} — every collection has them")
    for key in ("id", "near", "far", "classes", "declared"):
        if node.get(key):
            raise ConfigError(
                f"benchmark.{key} and benchmark.collection both say what is {key} — leave one of them out"
            )
    check_values(given, hints_of(Collection), "benchmark.collection")
    collection = Collection(**given)
    inside, outside = _members(node.get("group"), collection)
    if absent := [name for name in inside if name not in collection.sets]:
        raise ConfigError(f"benchmark.group: ID set {', '.join(absent)} was dropped — choose a group without it as ID")
    rest = {key: value for key, value in node.items() if key not in ("collection", "group")}
    return {
        **rest,
        "id": {part: _id_part(collection, inside, part) for part in _PARTS},
        "far": {name: _set(collection.sets[name], "test") for name in outside if name in collection.sets},
        "classes": _classes(collection, inside),
        "declared": [f"far.{name}" for name in outside],
    }


def _members(group: object, collection: Collection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ID and the OOD sets of a group, which may be written in any order."""
    sides = str(group).split(AGAINST)
    named = [tuple(side.split(AND)) for side in sides]
    for name in (name for side in named for name in side):
        if name not in collection.declared:
            raise ConfigError(
                f"benchmark.group '{group}': set '{name}' not found{did_you_mean(name, collection.declared)} — "
                f"{_groups_line(collection)}"
            )
    if len(named) != 2 or (frozenset(named[0]), frozenset(named[1])) not in {
        (frozenset(inside), frozenset(outside)) for inside, outside in collection.groups()
    }:
        raise ConfigError(f"benchmark.group — found '{group}' — {_groups_line(collection)}")
    inside, outside = (tuple(name for name in collection.declared if name in side) for side in named)
    return inside, outside


def _groups_line(collection: Collection) -> str:
    names = [group_name(*group) for group in collection.groups()]
    first = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return (
        f"allowed: {collection.id} of {', '.join(collection.declared)} against {collection.ood} others, joined by "
        f"'{AND}': {len(names)} groups, {first}"
    )


def _id_part(collection: Collection, inside: Sequence[str], part: str) -> Mapping[str, Any]:
    nodes = {name: _set(collection.sets[name], part) for name in inside}
    return nodes[inside[0]] if len(inside) == 1 else {"joined": nodes}


def _classes(collection: Collection, inside: Sequence[str]) -> Any:
    found = {name: collection.sets[name].get("classes") for name in inside}
    if lacking := [name for name, classes in found.items() if not classes]:
        raise ConfigError(f"benchmark.collection.sets.{lacking[0]}: `classes` is missing — name the set's class list")
    return found[inside[0]] if len(inside) == 1 else found


def _set(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    manifest = node.get("manifest")
    chosen = manifest.get(part) if isinstance(manifest, Mapping) else manifest and f"{manifest}/{part}"
    return {**{key: value for key, value in node.items() if key != "classes"}, "manifest": chosen}
