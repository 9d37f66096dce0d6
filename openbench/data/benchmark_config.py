"""The `benchmark` config node, parsed once: its sets, classes and promises, for everything that reads it."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openbench.config.build import check_keys
from openbench.config.constraints import Seed, check_values, hints_of
from openbench.core.benchmark import check_distinct
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.dataset import Incomplete
from openbench.data.joined import joined_classes
from openbench.data.manifests.collection import arranged
from openbench.data.manifests.manifest import load_classes
from openbench.data.manifests.openset import class_split
from openbench.errors import ConfigError, check_known, did_you_mean

_ID = {"train": Role.ID_TRAIN, "val": Role.ID_VAL, "test": Role.ID_TEST}
_SINGLE = {"ood_train": Role.OOD_TRAIN, "ood_val": Role.OOD_VAL}
_GROUPS = {"csid": Role.CSID, "near": Role.NEAR, "far": Role.FAR}
_REQUIRED = ("name", "id", "preprocess", "declared")
_OPTIONAL = ("incomplete", "disjoint", "known_overlap", "known_id_overlap", "table", "protocol", "draw", "openset")
_Sets = Mapping[str, Mapping[str, Any]]
_Names = Sequence[str | int]
_KINDS: Mapping[str, Any] = {
    "name": str,
    "classes": str | _Names | Mapping[str, str | _Names] | None,
    "id": _Sets | None,
    "preprocess": Mapping[str, Any] | None,
    "declared": Sequence[str] | None,
    "incomplete": Incomplete,
    **dict.fromkeys(_SINGLE, Mapping[str, Any] | None),
    **dict.fromkeys(_GROUPS, _Sets | None),
    "disjoint": Sequence[Sequence[str]] | None,
    **dict.fromkeys(("known_overlap", "known_id_overlap"), Sequence[str] | None),
    **dict.fromkeys(("table", "protocol", "group"), str | None),
    "draw": Seed | None,
    **dict.fromkeys(("openset", "collection"), Mapping[str, Any] | None),
}


@dataclass(frozen=True)
class SetNode:
    """One data set of a benchmark node.

    Args:
        path: where it stands below `benchmark`, e.g. `far.svhn`.
        role: what it is for.
        node: its config.
        member: its name where several ID sets are joined; empty where a part is one set.
    """

    path: str
    role: Role
    node: Mapping[str, Any]
    member: str = ""


@dataclass(frozen=True, eq=False)
class BenchmarkConfig:
    """A `benchmark` node, checked.

    Args:
        name: the benchmark's.
        typed: what users type after `+benchmark=`.
        sets: every set of it, in the order of roles.
        classes: the ID classes in label order.
        members: where several ID sets are joined, the classes of each as its manifests name them.
        preprocess: how its images become input.
        declared: the paths of all sets that make up the benchmark.
        disjoint: pairs of roles whose classes must not meet.
        known_overlap: class names for which the published lists break that promise.
        known_id_overlap: ID classes that the published OOD test lists have too.
        incomplete: what happens where sets are missing.
    """

    name: str
    typed: str
    sets: tuple[SetNode, ...]
    classes: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]]
    preprocess: Preprocess
    declared: tuple[str, ...]
    disjoint: tuple[tuple[Role, Role], ...]
    known_overlap: tuple[str, ...]
    known_id_overlap: tuple[str, ...]
    incomplete: Incomplete

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "BenchmarkConfig":
        """Check a plain, resolved `benchmark` node and return what it says.

        It holds `name`, `classes` (a class list's name, or the names; or `openset`, see manifests.openset), `id`
        (`train`, `val`, `test`: each is a set, or has several named sets below `joined`, and `classes` then has a class
        list for each of these names), `near`, `far`, `csid` (sets by name), `ood_val`, `ood_train` (one set each),
        `preprocess`, `declared` (the paths of all sets that make up the benchmark: a declared set that is absent counts
        as dropped, a set that is not declared as added), `disjoint` (pairs of roles), `known_overlap`,
        `known_id_overlap`, `table` and `draw` (for other keys to refer to) and `incomplete` (`error` or `allow`).
        `collection` and `group` stand for `id`, `far`, `classes` and `declared`: see manifests.collection.

        Raises:
            ConfigError: an unknown or missing key, or a value of another kind.
        """
        check_values(given, _KINDS, "benchmark")
        node = arranged(given)
        _check_keys(node)
        members = _classes_by_member(node)
        return cls(
            name=node["name"],
            typed=typed(given),
            sets=tuple(_sets(node)),
            classes=_class_names(node, members),
            members=members,
            preprocess=build_preprocess(node["preprocess"]),
            declared=tuple(node["declared"]),
            disjoint=tuple(_pair(pair) for pair in node.get("disjoint") or ()),
            known_overlap=tuple(node.get("known_overlap") or ()),
            known_id_overlap=tuple(node.get("known_id_overlap") or ()),
            incomplete=node.get("incomplete", "error"),
        )

    @property
    def defined(self) -> frozenset[str]:
        """The paths of the sets that make up the benchmark; further ones are added to it."""
        return frozenset({*self.declared, *(f"id.{part}" for part in _ID)})

    @property
    def removed(self) -> list[str]:
        """The paths of declared sets that the node no longer has."""
        present = {entry.path for entry in self.sets}
        return [path for path in self.declared if path not in present]


def typed(node: Mapping[str, Any]) -> str:
    """Return what users type after `+benchmark=`: the name, and as an override the choice that the name ends in.

    Args:
        node: as it is configured; once its collection is arranged, the group is no longer known.
    """
    for key, choice in (
        ("table", node.get("table")),
        ("openset.seed", (node.get("openset") or {}).get("seed")),
        ("group", node.get("group")),
    ):
        if choice is not None and str(node["name"]).endswith(f"_{choice}"):
            return f"{str(node['name']).removesuffix(f'_{choice}')} benchmark.{key}={choice}"
    return str(node["name"])


def build_preprocess(node: Mapping[str, Any], where: str = "benchmark.preprocess") -> Preprocess:
    """Return the Preprocess of a config node.

    Raises:
        ConfigError: an unknown or missing key.
    """
    check_keys(node, inspect.signature(Preprocess).parameters, where)
    check_values(node, hints_of(Preprocess), where)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in node.items()}
    return Preprocess(**values)


def _sets(node: Mapping[str, Any]) -> Iterator[SetNode]:
    """The sets of a node whose keys are checked."""
    for part, role in _ID.items():
        joined = node["id"][part].get("joined")
        if joined is None:
            yield _set_node(f"id.{part}", role, node["id"][part], node)
        for name, entry in (joined or {}).items():
            yield replace(_set_node(f"id.{part}.{name}", role, entry, node), member=name)
    for name, role in _SINGLE.items():
        if node.get(name):
            yield _set_node(name, role, node[name], node)
    for group, role in _GROUPS.items():
        for name, entry in (node.get(group) or {}).items():
            yield _set_node(f"{group}.{name}", role, entry, node)


def _set_node(path: str, role: Role, entry: Mapping[str, Any], node: Mapping[str, Any]) -> SetNode:
    """A set, with the classes that `keep` stands for in an open-set benchmark."""
    if node.get("openset") and isinstance(entry.get("keep"), str):
        entry = {**entry, "keep": list(class_split(node["openset"]).keep(entry["keep"], f"benchmark.{path}"))}
    return SetNode(path, role, entry)


def _class_names(node: Mapping[str, Any], members: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The ID classes of a node in label order."""
    if node.get("openset"):
        return class_split(node["openset"]).known
    if members:
        return tuple(name for names in joined_classes(members).values() for name in names)
    return _listed(node["classes"])


def _classes_by_member(node: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The classes of each of the ID sets that are joined, as their manifests name them."""
    classes = node.get("classes")
    return {name: _listed(of) for name, of in classes.items()} if isinstance(classes, Mapping) else {}


def _listed(classes: str | Sequence[object]) -> tuple[str, ...]:
    if isinstance(classes, str):
        return load_classes(classes)
    names = tuple(str(name) for name in classes)
    check_distinct(names, "benchmark.classes")
    return names


def _pair(pair: Sequence[str]) -> tuple[Role, Role]:
    allowed = [role.value for role in Role]
    for name in pair:
        if name not in allowed:
            raise ConfigError(
                f"benchmark.disjoint: role '{name}' not found{did_you_mean(name, allowed)} — allowed: {allowed}"
            )
    if len(pair) != 2:
        raise ConfigError(f"benchmark.disjoint: found {list(pair)} — pairs of roles expected, e.g. [ood_val, near]")
    return Role(pair[0]), Role(pair[1])


def _check_keys(node: Mapping[str, Any]) -> None:
    allowed = (*_REQUIRED, "classes", *_SINGLE, *_GROUPS, *_OPTIONAL)
    check_known(node, allowed, "benchmark")
    missing = [key for key in _REQUIRED if node.get(key) is None]
    if (node.get("classes") is None) == (node.get("openset") is None):
        raise ConfigError("benchmark: give either `classes` or `openset`, not both — each says which classes are ID")
    missing += [f"id.{part}" for part in _ID if not (node.get("id") or {}).get(part)]
    if missing:
        raise ConfigError(
            f"benchmark: missing {', '.join(missing)} — every benchmark has them; choose one with +benchmark=NAME. "
            "Training images need not be on disk for a method that is not fitted on them"
        )
    check_known(node["id"], _ID, "benchmark.id")
