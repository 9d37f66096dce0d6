"""Public names: classes that openbench ships, without their module."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

TARGET = "_target_"
DETECTOR = "detector"  # key of a method: a class of another library
_PACKAGE = Path(__file__).resolve().parent
_OURS = f"{_PACKAGE.name}."


def public_name(target: str) -> str:
    """Return `KNN` for `openbench.methods.knn.KNN`; paths of other packages as they are."""
    return target.rpartition(".")[2] if target.startswith(_OURS) else target


def name_of(made_by: Callable[..., Any]) -> str:
    """Return the public name of a class or function: its own name if openbench ships it, else the path to it."""
    return public_name(f"{made_by.__module__}.{made_by.__qualname__}")


def public(node: Any) -> Any:
    """Return a plain config in which every `_target_` is a public name.

    Args:
        node: any plain value; not changed.
    """
    if isinstance(node, Mapping):
        return {
            key: public_name(value) if key == TARGET and isinstance(value, str) else public(value)
            for key, value in node.items()
        }
    return [public(value) for value in node] if isinstance(node, list | tuple) else node


def targets(node: Any) -> Iterator[str]:
    """Yield every `_target_` and detector of a plain config, at any depth."""
    if isinstance(node, Mapping):
        yield from (str(node[key]) for key in (TARGET, DETECTOR) if key in node)
        node = tuple(node.values())
    for child in node if isinstance(node, list | tuple) else ():
        yield from targets(child)


def foreign_targets(node: Any) -> list[str]:
    """Return the classes of a plain config that are not openbench's: a record may come from anybody."""
    return sorted({target for target in targets(public(node)) if "." in target})


@cache
def modules_defining(name: str) -> tuple[str, ...]:
    """Return the modules of openbench that define a class or function at their top level; nothing is imported."""
    defined = re.compile(rf"^(?:class|def) {re.escape(name)}\b", re.MULTILINE)
    modules = []
    for file in sorted(_PACKAGE.rglob("*.py")):
        if defined.search(file.read_text(encoding="utf-8")):
            parts = file.relative_to(_PACKAGE.parent).with_suffix("").parts
            modules.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return tuple(modules)
