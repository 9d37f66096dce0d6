"""From the resolved `benchmark` config node to a Benchmark."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openbench.annotations import check_kinds, hints_of
from openbench.build import check_keys
from openbench.constraints import Seed
from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.class_names import check_distinct
from openbench.data.collection import arranged
from openbench.data.fingerprint import Fingerprint, fingerprint
from openbench.data.joined import join, joined_classes
from openbench.data.manifest import load_classes
from openbench.data.missing import SetStatus, missing_sets
from openbench.data.opening import Incomplete, Located, SetConfig, locate, missing_message, split_of, unread_split
from openbench.data.openset import class_split
from openbench.errors import ConfigError, DataError, did_you_mean

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
        member: its name among the ID sets that are joined; empty where one set is all of a part.
    """

    path: str
    role: Role
    node: Mapping[str, Any]
    member: str = ""


@dataclass(frozen=True, eq=False)
class OpenSet:
    """One data set of a benchmark, looked for.

    Args:
        entry: its node.
        config: the same, checked.
        located: what was found; None if it was not looked for, since nothing reads it.
    """

    entry: SetNode
    config: SetConfig
    located: Located | None

    @property
    def status(self) -> SetStatus | None:
        """What is missing of it; None if nothing is."""
        if self.located is None or 0 < self.located.wanted <= self.located.count:
            return None
        found = self.located
        return SetStatus(
            self.entry.path, self.config.name, self.entry.role, found.count, found.wanted, found.searched, ""
        )


def build_benchmark(
    node: Mapping[str, Any], reader: str | None = None, sampled: Fingerprint = fingerprint
) -> Benchmark:
    """Return the benchmark that a plain, resolved `benchmark` node describes.

    The node holds `name`, `classes` (a class list's name, or the names; or `openset`, see data.openset), `id` (`train`,
    `val`, `test`: each a set, or below `joined` several by name, whose class lists are then in `classes` under these
    names), `near`, `far`, `csid` (sets by name), `ood_val`, `ood_train` (one set each), `preprocess`, `declared` (the
    paths of all sets that make up the benchmark: one that is gone counts as dropped, one that is not listed as added),
    `disjoint` (pairs of roles), `known_overlap` (class names for which the published lists break that promise),
    `known_id_overlap` (ID classes that the published OOD test lists have too), `table` and `draw` (for other keys to
    refer to) and `incomplete` (`error` or `allow`). `collection` and `group` stand for `id`, `far`, `classes` and
    `declared`: see data.collection.

    Args:
        node: as above.
        reader: what reads the ID training images, for the message if they are missing, e.g. `method 'knn', which is
            fitted on it`; empty = nothing does, so they need not be there; None = not known, so they must be.
        sampled: picks the images of each set whose pixels enter its digest.

    Raises:
        ConfigError: an unknown or missing key.
        DataError: sets are missing or incomplete, all of them in one message, or one is unreadable.
        LeakageError: classes meet that must not.
    """
    given, node = node, _arranged(node)
    sets = list(set_nodes(node))
    own = _classes_by_member(node)
    classes = class_names(node)
    defined = {*node["declared"], *(f"id.{part}" for part in _ID)}
    dropped = [path for path in node["declared"] if path not in {s.path for s in sets}]
    opened: dict[str, Split] = {}
    members: dict[str, dict[str, Split]] = {}
    for found in _complete([_looked_for(entry, reader) for entry in sets], given, reader or ""):
        entry, config = found.entry, found.config
        if found.located is None:
            opened[entry.path] = unread_split(config, entry.role, classes)
            continue
        if found.located.count == 0:
            dropped.append(entry.path)
            continue
        where = f"benchmark.{entry.path}"
        split = split_of(config, found.located, entry.role, own.get(entry.member, classes), where, sampled=sampled)
        if entry.member:
            members.setdefault(entry.path.removesuffix(f".{entry.member}"), {})[entry.member] = split
        else:
            opened[entry.path] = split if entry.path in defined else _added(split)
    opened |= {path: join(parts, joined_classes(own)) for path, parts in members.items()}
    return Benchmark(
        name=node["name"],
        classes=classes,
        id_train=opened["id.train"],
        id_val=opened["id.val"],
        id_test=opened["id.test"],
        near=_group(opened, "near"),
        far=_group(opened, "far"),
        csid=_group(opened, "csid"),
        ood_val=opened.get("ood_val"),
        ood_train=opened.get("ood_train"),
        preprocess=build_preprocess(node["preprocess"]),
        disjoint=tuple(_pair(pair) for pair in node.get("disjoint") or ()),
        known_overlap=tuple(node.get("known_overlap") or ()),
        known_id_overlap=tuple(node.get("known_id_overlap") or ()),
        dropped=tuple(dropped),
    )


def _arranged(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A benchmark node with the sets of its group, each value of the right kind."""
    check_kinds(node, _KINDS, "benchmark")
    return arranged(node)


def _looked_for(entry: SetNode, reader: str | None) -> OpenSet:
    """A set and what was found of it; one that nothing reads is used only if all of it is there, or not at all."""
    config = SetConfig.from_node(entry.node, f"benchmark.{entry.path}")
    unread = entry.path == "id.train" and reader == ""
    if unread and config.digest_of == "list" and config.limit is None:
        return OpenSet(entry, config, None)
    found = OpenSet(entry, config, locate(config))
    return OpenSet(entry, config, None) if unread and found.status else found


def _complete(sets: Sequence[OpenSet], node: Mapping[str, Any], reader: str) -> Sequence[OpenSet]:
    """Return the sets if those that are missing may be.

    Raises:
        DataError: sets are missing.
    """
    incomplete = node.get("incomplete", "error")
    statuses = [found.status for found in sets]
    gaps = [status for status in statuses if status is not None]
    if incomplete == "allow":
        gaps = [gap for gap in gaps if not gap.found and gap.path.startswith("id.")]
    if gaps:
        raise DataError(missing_sets(gaps, len(sets), typed(node), reader))
    return sets


def survey(node: Mapping[str, Any]) -> list[SetStatus]:
    """Return what is found of every set of a benchmark node, without refusing anything that is missing.

    Raises:
        ConfigError: an unknown or missing key.
    """
    given, node = node, _arranged(node)
    result = []
    for entry in set_nodes(node):
        where = f"benchmark.{entry.path}"
        config = SetConfig.from_node(entry.node, where)
        try:
            located = locate(config)
        except DataError as error:
            result.append(SetStatus(entry.path, config.name, entry.role, 0, 0, (), str(error)))
            continue
        wanted = located.wanted
        message = missing_message(config, located, where, typed(given)) if located.count < wanted else ""
        result.append(SetStatus(entry.path, config.name, entry.role, located.count, wanted, located.searched, message))
    return result


def set_nodes(node: Mapping[str, Any]) -> Iterator[SetNode]:
    """Yield the sets of a benchmark node after checking its keys.

    Raises:
        ConfigError: an unknown or missing key.
    """
    node = _arranged(node)
    _check_keys(node)
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


def class_names(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ID classes of a benchmark node in label order."""
    node = _arranged(node)
    if node.get("openset"):
        return class_split(node["openset"]).known
    if isinstance(node["classes"], Mapping):
        return tuple(name for names in joined_classes(_classes_by_member(node)).values() for name in names)
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


def typed(node: Mapping[str, Any]) -> str:
    """Return what users type after `+benchmark=` for a node: the name, less the choice that it ends in, and that.

    Args:
        node: as it is configured; a group is not known any more once its collection is arranged.
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
        ConfigError: a key that it does not have, or a missing one.
    """
    check_keys(node, inspect.signature(Preprocess).parameters, where)
    check_kinds(node, hints_of(Preprocess), where)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in node.items()}
    return Preprocess(**values)


def _added(split: Split) -> Split:
    """A further set moves the means over sets: that is another benchmark."""
    return replace(split, deviations=(*split.deviations, "not part of the benchmark as defined"))


def _group(opened: Mapping[str, Split], group: str) -> dict[str, Split]:
    return {path.partition(".")[2]: split for path, split in opened.items() if path.startswith(f"{group}.")}


def _pair(pair: Sequence[str]) -> tuple[Role, Role]:
    allowed = [role.value for role in Role]
    for name in pair:
        if name not in allowed:
            raise ConfigError(f"benchmark.disjoint: no role '{name}'{did_you_mean(name, allowed)} — allowed: {allowed}")
    if len(pair) != 2:
        raise ConfigError(f"benchmark.disjoint: found {list(pair)} — pairs of roles expected, e.g. [ood_val, near]")
    return Role(pair[0]), Role(pair[1])


def _check_keys(node: Mapping[str, Any]) -> None:
    allowed = (*_REQUIRED, "classes", *_SINGLE, *_GROUPS, *_OPTIONAL)
    for key in node:
        if key not in allowed:
            raise ConfigError(
                f"benchmark has no key '{key}'{did_you_mean(key, allowed)} — allowed: {', '.join(allowed)}"
            )
    missing = [key for key in _REQUIRED if node.get(key) is None]
    if (node.get("classes") is None) == (node.get("openset") is None):
        raise ConfigError(
            "benchmark: one of `classes` and `openset` is needed, and only one — both say which the ID classes are"
        )
    missing += [f"id.{part}" for part in _ID if not (node.get("id") or {}).get(part)]
    if missing:
        raise ConfigError(
            f"benchmark: missing {', '.join(missing)} — every benchmark has them; choose one with +benchmark=NAME. "
            "Training images need not be on disk for a method that is not fitted on them"
        )
    for part in node["id"]:
        if part not in _ID:
            raise ConfigError(f"benchmark.id has no key '{part}'{did_you_mean(part, _ID)} — allowed: {', '.join(_ID)}")
