"""Which of Hydra's settings a user's config file may set: sweeps and launchers, nothing that loads classes."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openbench.compose.flags import LAUNCHERS
from openbench.compose.interpolations import calls
from openbench.errors import ConfigError
from openbench.public import TARGET
from openbench.storage.yaml_file import parse_yaml

_HYDRA = re.compile(r"((override|optional)\s+)*/?(.*@)?(_global_\.)?hydra\b.*")
_PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.MULTILINE)
# Of a launcher: how much of a machine a job gets. Others, such as `setup`, become lines of a shell script.
_OF_LAUNCHERS = frozenset(
    (
        *("timeout_min", "cpus_per_task", "gpus_per_node", "gpus_per_task", "tasks_per_node", "nodes", "mem_gb"),
        *("mem_per_cpu", "mem_per_gpu", "cpus_per_gpu", "partition", "qos", "account", "constraint", "exclude", "gres"),
        *("array_parallelism", "signal_delay_s", "max_num_timeout", "n_jobs", "prefer", "verbose", "pre_dispatch"),
    )
)
_ALLOWED = (
    f"hydra.sweeper.params, hydra.launcher.KEY with KEY one of {', '.join(sorted(_OF_LAUNCHERS))}, and in the defaults "
    f"'override /hydra/launcher: {'|'.join(LAUNCHERS)}' — type other keys of a launcher yourself"
)


def check_file(file: Path, relative: Path) -> None:
    """Refuse a config file that sets up Hydra itself, whose settings build any class and hold lines for a shell.

    Args:
        file: of the user's folder.
        relative: where it lies in it.

    Raises:
        ConfigError: it sets what it must not.
    """
    found = next(_wrong(file, relative), None)
    if found is not None:
        raise ConfigError(
            f"'{file}' sets up Hydra itself, which can run any program — found {found} — allowed: {_ALLOWED}"
        )


def _wrong(file: Path, relative: Path) -> Iterator[str]:
    if relative.parts[0] == "hydra":
        yield f"a file of the group '{relative.parent.as_posix()}'"
    try:
        text = file.read_text(encoding="utf-8")
        content = parse_yaml(text, f"'{file}'")
    except (OSError, ValueError, ConfigError):
        return  # what is chosen is read once more, with a message of its own
    yield from (f"'@package {name}'" for name in _PACKAGE.findall(text) if _HYDRA.fullmatch(name))
    if not isinstance(content, Mapping):
        return
    defaults = content.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        for key, value in entry.items() if isinstance(entry, Mapping) else ((entry, None),):
            launcher = re.fullmatch(r"override\s+/?hydra/launcher", str(key)) and value in LAUNCHERS
            if (_HYDRA.fullmatch(str(key)) and not launcher) or calls(str(key)) or calls(value):
                yield f"'{key}' in its defaults"
    for key, node in content.items():
        if str(key) == "hydra" and isinstance(node, Mapping):
            yield from (f"'hydra.{place}'" for place in _set(node))
        elif re.match(r"hydra\b", str(key)):
            yield f"'{key}'"


def _set(node: Mapping[Any, Any]) -> Iterator[str]:
    """What a node `hydra` sets that it must not."""
    for name, child in node.items():
        for key, value in child.items() if isinstance(child, Mapping) else ((None, None),):
            place = f"{name}.{key}" if key is not None else str(name)
            free = name == "launcher" and key in _OF_LAUNCHERS and not isinstance(value, Mapping | list)
            if not (place == "sweeper.params" or free) or _has_target(value) or _reads(value):
                yield place


def _reads(node: Any) -> bool:
    """Whether a value calls a resolver, which may read the environment, or is text of several lines."""
    values = list(node.values()) if isinstance(node, Mapping) else [node]
    return any(calls(str(value)) or len(str(value).splitlines()) > 1 for value in values)


def _has_target(node: Any) -> bool:
    pending, seen = [node], set[int]()  # aliases may make of a few lines more than can be gone through
    while pending:
        found = pending.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, Mapping):
            if TARGET in found:
                return True
            pending += found.values()
        elif isinstance(found, list):
            pending += found
    return False
