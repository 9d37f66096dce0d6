"""Which files the classes of a method come from that openbench does not ship, and what they hold."""

import sys
from collections.abc import Iterator
from pathlib import Path

from openbench.core.composite import Composite
from openbench.core.method import Method
from openbench.digest import file_sha256


def foreign_classes(method: Method) -> list[type]:
    """Return the classes of a method, of its bases and of its parts that come from outside openbench and Python.

    Args:
        method: any.
    """
    known = {"openbench", *sys.stdlib_module_names}
    found = (cls for part in _with_parts(method) for cls in type(part).__mro__)
    return list(dict.fromkeys(cls for cls in found if cls.__module__.partition(".")[0] not in known))


def source_of(cls: type) -> Path | None:
    """Return the file that defines a class; None for one that was typed into a session."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def foreign_sources(method: Method) -> dict[str, str]:
    """Return {module: SHA-256 of its file} for the foreign classes of a method; empty for a method of ours.

    What these files import is not covered.

    Args:
        method: any.
    """
    files = {cls.__module__: source_of(cls) for cls in foreign_classes(method)}
    return {module: file_sha256(file) for module, file in sorted(files.items()) if file is not None}


def _with_parts(method: Method) -> Iterator[Method]:
    yield method
    if isinstance(method, Composite):
        for part in method.parts.values():
            yield from _with_parts(part)
