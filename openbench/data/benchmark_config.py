"""The `benchmark` config node, parsed: its sets, classes and promises.

A benchmark names its sets, takes them as a group of a collection in which sets take turns as ID and OOD, or splits the
classes of one set into known and unknown ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from openbench.config.build import from_node
from openbench.config.constraints import Checked, Count, OneOf, Seed, check_value
from openbench.core.benchmark import canonical, check_distinct
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.dataset import BenchmarkSet, Incomplete, SetConfig
from openbench.data.manifests import load_classes
from openbench.errors import ConfigError, check_known, not_found

_ID = {"train": Role.ID_TRAIN, "val": Role.ID_VAL, "test": Role.ID_TEST}
_SINGLE = {"ood_train": Role.OOD_TRAIN, "ood_val": Role.OOD_VAL}
_GROUPS = {"csid": Role.CSID, "near": Role.NEAR, "far": Role.FAR}
_Set = Mapping[str, Any]
_Names = Sequence[str | int]
_Role = Annotated[str, OneOf(tuple(Role))]


@dataclass(frozen=True, eq=False)
class _Node:
    """The keys of a `benchmark` node whose collection is expanded; see `BenchmarkConfig.parse`."""

    name: str
    id: Mapping[str, _Set]
    preprocess: Preprocess
    declared: Sequence[str]
    classes: str | _Names | Mapping[str, str | _Names] = ()
    openset: Mapping[str, Any] | None = None
    ood_train: _Set | None = None
    ood_val: _Set | None = None
    csid: Mapping[str, _Set] | None = None
    near: Mapping[str, _Set] | None = None
    far: Mapping[str, _Set] | None = None
    incomplete: Incomplete = "error"
    disjoint: Sequence[tuple[_Role, _Role]] = ()
    known_overlap: Sequence[str] = ()
    known_id_overlap: Sequence[str] = ()
    table: str = ""
    protocol: str = ""
    draw: Seed = 0

    def nodes(self) -> Iterator[tuple[str, Role, _Set, str]]:
        """Yield path, role, node and name among joined sets of each set, in the order of roles."""
        for part, role in _ID.items():
            for name, entry in self.id[part].get("joined", {"": self.id[part]}).items():
                yield f"id.{part}.{name}".removesuffix("."), role, entry, name
        for name, role in _SINGLE.items():
            if entry := getattr(self, name):
                yield name, role, entry, ""
        for group, role in _GROUPS.items():
            for name, entry in (getattr(self, group) or {}).items():
                yield f"{group}.{name}", role, entry, ""


@dataclass(frozen=True, eq=False)
class BenchmarkConfig(_Node):
    """A parsed `benchmark` node.

    Args:
        typed: what users type after `+benchmark=`.
        sets: every set, in the order of roles.
        class_names: the ID classes in label order.
        members: where several ID sets are joined, the classes of each.
    """

    typed: str = field(kw_only=True)
    sets: tuple[BenchmarkSet, ...] = field(kw_only=True)
    class_names: tuple[str, ...] = field(kw_only=True)
    members: Mapping[str, tuple[str, ...]] = field(kw_only=True)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "BenchmarkConfig":
        """Return a plain, resolved `benchmark` node parsed.

        Its keys are `name`, `classes` (a class list's name, or the names; or `openset`, see `class_split`), `id`
        (`train`, `val`, `test`: each is a set, or has several named sets below `joined`, and `classes` then has a class
        list for each of these names), `near`, `far`, `csid` (sets by name), `ood_val`, `ood_train` (one set each),
        `preprocess`, `declared` (the paths of all sets that make up the benchmark: a declared set that is absent counts
        as dropped, a set that is not declared as added), `disjoint` (pairs of roles), `known_overlap`,
        `known_id_overlap`, `table` and `draw` (for other keys to refer to) and `incomplete` (`error` or `allow`).
        `collection` and `group` stand for `id`, `far`, `classes` and `declared`: see `arranged`.

        Raises:
            ConfigError: an unknown or missing key, or a value of another kind.
        """
        keys = {key: value for key, value in arranged(raw).items() if value is not None}
        if "preprocess" in keys:
            keys["preprocess"] = from_node(Preprocess, keys["preprocess"], "benchmark.preprocess")
        node = from_node(_Node, keys, "benchmark")
        if bool(node.classes) == bool(node.openset):
            raise ConfigError("benchmark: give either `classes` or `openset`, not both")
        check_known(node.id, _ID, "benchmark.id")
        if missing := [f"id.{part}" for part in _ID if not node.id.get(part)]:
            raise ConfigError(f"benchmark: missing {', '.join(missing)}, which every benchmark has")
        parts = class_split(node.openset) if node.openset else {}
        sets, members = tuple(_set(*entry, parts) for entry in node.nodes()), dict[str, tuple[str, ...]]()
        if parts:
            classes = parts["known"]
        elif isinstance(node.classes, Mapping):
            members = {name: _class_names(of) for name, of in node.classes.items()}
            classes = tuple(name for names in joined_classes(members).values() for name in names)
        else:
            classes = _class_names(node.classes)
        return cls(**vars(node), typed=typed(raw), sets=sets, class_names=classes, members=members)

    @property
    def defined(self) -> frozenset[str]:
        """The paths of the sets that make up the benchmark; further ones are added to it."""
        return frozenset({*self.declared, *(f"id.{part}" for part in _ID)})

    @property
    def removed(self) -> list[str]:
        """The paths of declared sets that the node no longer has."""
        present = {entry.path for entry in self.sets}
        return [path for path in self.declared if path not in present]


def _set(path: str, role: Role, node: _Set, member: str, parts: Mapping[str, tuple[str, ...]]) -> BenchmarkSet:
    """A set; of an open-set benchmark, its `keep: known` or `keep: unknown` stands for the classes."""
    keep, where = node.get("keep"), f"benchmark.{path}"
    if parts and isinstance(keep, str):
        check_value(keep, Literal["known", "unknown"], f"{where}.keep")
        node = {**node, "keep": list(parts[keep])}
    return BenchmarkSet(where, role, SetConfig.from_node(node, where), member)


def typed(node: Mapping[str, Any]) -> str:
    """Return what users type after `+benchmark=`, e.g. `adbench benchmark.table=cardio`.

    Args:
        node: with its collection not yet expanded.
    """
    for key, choice in (
        ("table", node.get("table")),
        ("openset.seed", (node.get("openset") or {}).get("seed")),
        ("group", node.get("group")),
    ):
        if choice is not None and str(node["name"]).endswith(f"_{choice}"):
            return f"{str(node['name']).removesuffix(f'_{choice}')} benchmark.{key}={choice}"
    return str(node["name"])


def _class_names(classes: str | Sequence[object]) -> tuple[str, ...]:
    if isinstance(classes, str):
        return load_classes(classes)
    names = tuple(str(name) for name in classes)
    check_distinct(names, "benchmark.classes")
    return names


def joined_classes(classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the class names of each set; a name that several sets have gets its set's name added.

    Args:
        classes: the class names of each set, by the set's name, in label order.
    """
    counts = Counter(canonical(name) for names in classes.values() for name in names)
    return {
        of: tuple(f"{name} ({of})" if counts[canonical(name)] > 1 else name for name in names)
        for of, names in classes.items()
    }


@dataclass(frozen=True)
class Collection(Checked):
    """The config node `benchmark.collection`.

    Args:
        id: number of ID sets in a group.
        ood: number of OOD sets in a group.
        declared: the names of all sets of the collection.
        sets: the node of each set: a data set's, and `classes`; `manifest` is the name to which `/train`, `/val` and
            `/test` are appended, or has the three names under these keys.
    """

    named: ClassVar[str] = "benchmark.collection"

    id: Count
    ood: Count
    declared: Sequence[str]
    sets: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        """Check that every set is declared."""
        check_known(self.sets, self.declared, "benchmark.collection.sets")

    def groups(self) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
        """Return every choice of ID sets and of OOD sets among the others, in the order of `declared`, by its name.

        Names are e.g. `kmnist_vs_textures` or `kmnist+textures_vs_places365+tiny_imagenet`.
        """
        return {
            f"{'+'.join(inside)}_vs_{'+'.join(outside)}": (inside, outside)
            for inside in combinations(self.declared, self.id)
            for outside in combinations([name for name in self.declared if name not in inside], self.ood)
        }


def arranged(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a `benchmark` node with `id`, `far`, `classes` and `declared` for its group of its collection.

    The ID sets are joined (see `build.join`); the OOD sets become sets of `far`. An OOD set that was removed from
    `collection.sets` counts as dropped. A node without a collection is returned as it is.

    Args:
        node: with `collection` and `group`.

    Raises:
        ConfigError: an unknown or missing key, or a group that the collection does not have.
    """
    if not node.get("collection"):
        return node
    for key in ("id", "near", "far", "classes", "declared"):
        if node.get(key):
            raise ConfigError(f"benchmark: give either `{key}` or `collection`, not both")
    collection = from_node(Collection, node["collection"], "benchmark.collection")
    groups, group = collection.groups(), str(node.get("group"))
    if group not in groups:
        raise ConfigError(not_found(f"benchmark.group '{group}'", group, groups))
    inside, outside = groups[group]
    if absent := [name for name in inside if name not in collection.sets]:
        raise ConfigError(f"benchmark.group: ID set {', '.join(absent)} was dropped — choose a group without it as ID")
    rest = {key: value for key, value in node.items() if key not in ("collection", "group")}
    classes = {name: collection.sets[name].get("classes") for name in inside}
    alone = inside[0] if len(inside) == 1 else ""

    def id_part(part: str) -> Mapping[str, Any]:
        nodes = {name: _set_of(collection.sets[name], part) for name in inside}
        return nodes[alone] if alone else {"joined": nodes}

    return {
        **rest,
        "id": {part: id_part(part) for part in _ID},
        "far": {name: _set_of(collection.sets[name], "test") for name in outside if name in collection.sets},
        "classes": classes[alone] if alone else classes,
        "declared": [f"far.{name}" for name in outside],
    }


def _set_of(node: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    manifest = node.get("manifest")
    chosen = manifest.get(part) if isinstance(manifest, Mapping) else manifest and f"{manifest}/{part}"
    return {**{key: value for key, value in node.items() if key != "classes"}, "manifest": chosen}


@dataclass(frozen=True)
class _Drawing:
    of: str
    known: int
    seed: int = 0


def class_split(node: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the `known` and the `unknown` classes that a `benchmark.openset` node describes, in the list's order.

    The classes are put into the order of `numpy.random.default_rng(seed).permutation`; the first ones are known.

    Args:
        node: `of`, the name of a class list; `known`, how many are known; `seed`.

    Raises:
        ConfigError: a key that is not one of these, or a number of known classes that leaves none on one side.
    """
    drawing = from_node(_Drawing, node, "benchmark.openset")
    names = load_classes(drawing.of)
    if not 2 <= drawing.known < len(names):
        raise ConfigError(f"benchmark.openset.known is {drawing.known} — allowed: 2 to {len(names) - 1}")
    known = {names[i] for i in np.random.default_rng(drawing.seed).permutation(len(names))[: drawing.known]}
    return {
        "known": tuple(name for name in names if name in known),
        "unknown": tuple(name for name in names if name not in known),
    }
