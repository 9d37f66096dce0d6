"""The config files that openbench ships, as plain values with their defaults merged in, without Hydra.

A value may hold on some data only: `${by_data:0.95,{cifar100:0.5}}`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openbench.config.folders import Folder, read_config
from openbench.paths import config_dir
from openbench.public import TARGET, public_name
from openbench.storage.yaml_file import parse_yaml

_BY_DATA = re.compile(r"\$\{by_data:(.*),\{([^{}]*)\}\}")
_OWN = "_self_"  # in a list of defaults: the file itself


def shipped(group: str, name: str, data: str = "", places: Sequence[Folder] = ()) -> dict[str, Any] | None:
    """Return the node that `group=name` means, or None if openbench does not ship it.

    A file may begin with `defaults` that name others of its group, or of another one as `/group@key: name`; later ones
    and the file itself override them. References to other keys, `${.name}`, stay as they are written.

    Args:
        group: a folder of configs.
        name: of a file in it.
        data: whose classes are the ID classes, e.g. `cifar100`; empty where no benchmark is known.
        places: folders to look into, the first first; empty = that of openbench.
    """
    node = _file(group, name, places)
    if node is None:
        return None
    values = resolved(node, data)
    result: dict[str, Any] = {}
    entries = values.pop("defaults", [])
    for entry in entries if _OWN in entries else [*entries, _OWN]:  # as Hydra does
        result = merged(result, values if entry == _OWN else _named(group, entry, data, places))
    return result


def names(group: str) -> list[str]:
    """Return the names of the files that a group ships, sorted."""
    return sorted(file.stem for file in (config_dir() / group).glob("*.yaml"))


def data_of(group: str, name: str) -> list[str]:
    """Return the data on which a file of a group has values of its own, sorted."""
    return sorted(set(data_named(_file(group, name))))


def named_for(target: str, group: str) -> str:
    """Return what is typed for a class: the first shipped file that names it, else the class's own name in lower case.

    Args:
        target: its public name.
        group: of configs.
    """
    same = (name for name in names(group) if public_name(str((_file(group, name) or {}).get(TARGET))) == target)
    return next(same, target.rpartition(".")[2].lower())


def _file(group: str, name: str, places: Sequence[Folder] = ()) -> dict[str, Any] | None:
    files = (root / group / f"{name}.yaml" for root in ([place.path for place in places] or [config_dir()]))
    path = next((file for file in files if file.is_file()), None)
    return None if path is None else dict(read_config(path) or {})


def _named(group: str, entry: str | Mapping[str, str], data: str, places: Sequence[Folder]) -> dict[str, Any]:
    """What an entry of a file's defaults brings in."""
    if isinstance(entry, str):
        return shipped(group, entry, data, places) or {}
    (place, name), *_ = entry.items()
    other, _, key = place.lstrip("/").partition("@")
    return {key: shipped(other, name, data, places) or {}}


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return `first` overridden by `second`: mappings key by key, anything else as a whole."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def resolved(node: Any, data: str = "") -> Any:
    """Return a node of a config file with the value for some data in place of each such text.

    Args:
        node: as a yaml file has it.
        data: whose classes are the ID classes; empty where no benchmark is known.
    """
    if isinstance(node, Mapping):
        return {key: resolved(value, data) for key, value in node.items()}
    if isinstance(node, list):
        return [resolved(value, data) for value in node]
    parts = _parts(node)
    return node if parts is None else parse_yaml(parts[1].get(data, parts[0]), "by_data")


def data_named(node: Any) -> Iterator[str]:
    """Yield the data for which a node has values of their own, as often as it has."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for child in children:
        yield from data_named(child)
    parts = _parts(node)
    yield from () if parts is None else parts[1]


def _parts(node: Any) -> tuple[str, dict[str, str]] | None:
    """The general value and {data: value} as they are written; None of anything else."""
    match = _BY_DATA.fullmatch(node) if isinstance(node, str) else None
    if match is None:
        return None
    others = (part.partition(":") for part in match[2].split(","))
    return match[1], {name.strip(): value for name, _, value in others}
