"""Values that hold on some data only, as a config file writes them: `${by_data:0.95,{cifar100:0.5}}`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from openbench.storage.yaml_file import parse_yaml

_PATTERN = re.compile(r"\$\{by_data:(.*),\{([^{}]*)\}\}")


def by_data(general: Any, others: Mapping[str, Any], data: str) -> Any:
    """Return the value that `others` has for some data, else the general one.

    Args:
        general: what a paper takes in general.
        others: {data: what it takes there}, e.g. `{"cifar100": 0.5}`.
        data: whose classes are the ID classes; empty where no benchmark is known.
    """
    return others.get(data, general)


def resolved(node: Any, data: str = "") -> Any:
    """Return a node of a config file with the value for some data in place of each such text.

    Args:
        node: as a yaml file has it.
        data: as for `by_data`.
    """
    if isinstance(node, Mapping):
        return {key: resolved(value, data) for key, value in node.items()}
    if isinstance(node, list):
        return [resolved(value, data) for value in node]
    found = _parts(node)
    return node if found is None else parse_yaml(by_data(*found, data), "by_data")


def data_named(node: Any) -> Iterator[str]:
    """Yield the data for which a node has values of their own, as often as it has."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for child in children:
        yield from data_named(child)
    found = _parts(node)
    yield from () if found is None else found[1]


def _parts(node: Any) -> tuple[str, dict[str, str]] | None:
    """The general value and {data: value} as they are written; None of anything else."""
    found = _PATTERN.fullmatch(node) if isinstance(node, str) else None
    if found is None:
        return None
    others = (part.partition(":") for part in found[2].split(","))
    return found[1], {name.strip(): value for name, _, value in others}
