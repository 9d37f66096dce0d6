"""Values that hold on some data only, `${by_data:0.95,{cifar100:0.5}}` in a config file, read without Hydra."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_PATTERN = re.compile(r"\$\{by_data:(.*),\{([^{}]*)\}\}")


def resolved(node: Any, data: str = "") -> Any:
    """Return a node of a config file with the value for some data in place of each such text.

    Args:
        node: as a yaml file has it.
        data: e.g. `cifar100`; the general value stands where there is none for it.
    """
    if isinstance(node, Mapping):
        return {key: resolved(value, data) for key, value in node.items()}
    if isinstance(node, list):
        return [resolved(value, data) for value in node]
    found = _PATTERN.fullmatch(node) if isinstance(node, str) else None
    if found is None:
        return node
    from openbench.config.plain_yaml import parse_yaml

    return parse_yaml(_others(found[2]).get(data, found[1]), "by_data")


def data_named(node: Any) -> Iterator[str]:
    """Yield the data for which a node has values of their own, as often as it has."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for child in children:
        yield from data_named(child)
    found = _PATTERN.fullmatch(node) if isinstance(node, str) else None
    yield from () if found is None else _others(found[2])


def _others(text: str) -> dict[str, str]:
    return {name.strip(): value for name, _, value in (part.partition(":") for part in text.split(","))}
