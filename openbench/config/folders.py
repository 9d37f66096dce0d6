"""The folders of config files: openbench's, those of installed packages, of `OPENBENCH_CONFIG_DIR`, and a user's.

A package names its folder by an entry point: `mypkg = "mypkg.configs"` in the group `openbench.configs`. Nothing of a
package is imported to find it. Files are plain values with their defaults merged in, without Hydra. A value may hold on
some data only: `${by_data:0.95,{cifar100:0.5}}`.
"""

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.errors import ConfigError
from openbench.paths import config_dir
from openbench.public import TARGET, public_name
from openbench.storage.yaml_file import parse_yaml, read_yaml

logger = logging.getLogger(__name__)
ENTRY_POINTS = "openbench.configs"
PACKAGE = "package "  # begins the key of a package in the sources of a record, whose value is its version
_VARIABLE = "OPENBENCH_CONFIG_DIR"


@dataclass(frozen=True)
class Folder:
    """A folder of config groups.

    Args:
        path: that holds e.g. `method/mine.yaml`.
        package: name of the distribution that installed it; empty if none did.
        version: of the package.
        module: the package's top-level module.
    """

    path: Path
    package: str = ""
    version: str = ""
    module: str = ""

    @property
    def origin(self) -> str:
        """Where its files are from: package and version, else the folder."""
        return f"{self.package} {self.version}".strip() or str(self.path)


def config_folders(config_dir: Path | None = None) -> list[Folder]:
    """Return all folders, each once, in the order in which they are searched; openbench's is the first.

    Args:
        config_dir: the user's folder, from the command line.

    Raises:
        ConfigError: the user's folder is missing, or two folders have a file of the same name, of which Hydra would
            silently take the first.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir '{config_dir}' is not a folder — give one that holds e.g. method/mine.yaml")
    ours = Folder(paths.config_dir(), "openbench")
    added = _added(tuple(sys.path), os.environ.get(_VARIABLE, ""), Path.cwd())
    every = [ours, *added, *([] if config_dir is None else [Folder(config_dir)])]
    folders = list({folder.path.resolve(): folder for folder in reversed(every)}.values())[::-1]
    for folder in folders[1:]:
        for file in sorted(folder.path.glob("*/**/*.yaml")):
            name = file.relative_to(folder.path)
            owners = [other.origin for other in folders if (other.path / name).exists()]
            if owners[1:]:
                group, _, entry = name.with_suffix("").as_posix().partition("/")
                raise ConfigError(
                    f"{group} '{entry}' is the name of several configs, from {' and from '.join(owners)} — uninstall "
                    "one package, or rename your own file"
                )
    return folders


@cache
def _added(path: tuple[str, ...], named: str, here: Path) -> tuple[Folder, ...]:
    """The folders of packages and of the environment variable; one that is not there is a warning."""
    found = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        package, version = (entry.dist.name, entry.dist.version) if entry.dist else (entry.name, "")
        module, *below = entry.value.partition(":")[0].strip().split(".")
        places = [Path(place, *below) for place in _places(module)]
        if place := next((place for place in places if place.is_dir()), None):
            found.append(Folder(place, package, version, module))
        else:
            logger.warning(
                f"package {package} {version} is left out: {entry.value!r}, its folder of configs, is not there — "
                f"install it again, or: pip uninstall {package}"
            )
    for place in (here / Path(text).expanduser() for text in named.split(os.pathsep) if text):
        if place.is_dir():
            found.append(Folder(place))
        else:
            logger.warning(f"{_VARIABLE}: '{place}' is left out, as it is not a folder — correct the variable")
    return tuple(found)


def _places(module: str) -> Iterable[str]:
    """The folders of a top-level package, which is not imported; none if it is not there."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return ()
    return (spec and spec.submodule_search_locations) or ()


def read_config(path: Path) -> Any:
    """Return the plain values of a config file.

    Raises:
        ConfigError: as `read_yaml`; the message also names the package that the file is from.
    """
    try:
        return read_yaml(path)
    except ConfigError as error:
        raise ConfigError(with_package(str(error))) from error


def with_package(message: str) -> str:
    """Return a message about a file of a package with the package in front, others as they are."""
    named = [folder.origin for folder in config_folders()[1:] if folder.package and str(folder.path) in message]
    return f"package {named[0]}: {message}" if named else message


def packages_of(modules: Iterable[str]) -> dict[str, str]:
    """Return {package: version} of the packages with config files that some modules are part of.

    Args:
        modules: dotted names.
    """
    tops = {name.partition(".")[0] for name in modules}
    return {f"{PACKAGE}{folder.package}": folder.version for folder in config_folders() if folder.module in tops}


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
    others = re.findall(r"\$\{by_data:.*?,\{([^{}]*)\}\}", str(_file(group, name)))
    return sorted({part.partition(":")[0].strip() for text in others for part in text.split(",")})


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
    match = _BY_DATA.fullmatch(node) if isinstance(node, str) else None
    if match is None:
        return node
    others = {name.strip(): value for name, _, value in (part.partition(":") for part in match[2].split(","))}
    return parse_yaml(others.get(data, match[1]), "by_data")
