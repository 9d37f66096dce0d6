"""The config files that openbench ships, as plain values with their defaults merged in, without Hydra."""

from collections.abc import Mapping
from typing import Any

from openbench.config.by_data import resolved
from openbench.paths import config_dir
from openbench.public import TARGET, public_name
from openbench.storage.yaml_file import read_yaml


def shipped(group: str, name: str) -> dict[str, Any] | None:
    """Return the node that `group=name` means where no benchmark is known, or None if openbench does not ship it.

    A file may begin with `defaults` that name others of its group, or of another one as `/group@key: name`; later ones
    and the file itself override them.
    """
    path = config_dir() / group / f"{name}.yaml"
    if not path.is_file():
        return None
    own = resolved(read_yaml(path))
    result: dict[str, Any] = {}
    for entry in own.pop("defaults", ["_self_"]):
        result = merged(result, own if entry == "_self_" else _named(group, entry))
    return result


def named_for(target: str, group: str) -> str:
    """Return what is typed for a class: the first shipped file that names it, else the class's own name in lower case.

    Args:
        target: its public name.
        group: of configs.
    """
    for file in sorted((config_dir() / group).glob("*.yaml")):
        if public_name(str(read_yaml(file).get(TARGET))) == target:
            return file.stem
    return target.rpartition(".")[2].lower()


def _named(group: str, entry: str | Mapping[str, str]) -> dict[str, Any]:
    """What an entry of a file's defaults brings in."""
    if isinstance(entry, str):
        return shipped(group, entry) or {}
    (place, name), *_ = entry.items()
    other, _, key = place.lstrip("/").partition("@")
    return {key: shipped(other, name) or {}}


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return `first` overridden by `second`: mappings key by key, anything else as a whole."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
