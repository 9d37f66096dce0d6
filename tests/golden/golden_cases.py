"""What has golden values: every class of openbench of a kind, each with cases that are computed one by one."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One result of one class.

    Args:
        version: of the class with its parts; None where the result enters digests itself and so needs none.
        compute: returns the numbers, or raises an OpenbenchError, which is a result too.
        least: values → differences that are no change: a grey level for pixels.
    """

    version: int | None
    compute: Callable[[], Any]
    least: Callable[[Values], Values] = np.zeros_like


@dataclass(frozen=True)
class Entry:
    """A class, or what stands in for one, with its cases by name.

    Args:
        name: `<kind>/<name>`: where its values lie below tests/golden/values.
        file: of its source, from the root of the repository.
        cases: at least one.
    """

    name: str
    file: str
    cases: Mapping[str, Case]


def classes_of(package: ModuleType, kinds: tuple[type, ...]) -> list[type]:
    """Every class defined in a package that can be made and is one of `kinds`, by name."""
    found = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for cls in vars(importlib.import_module(module.name)).values():
            own = inspect.isclass(cls) and cls.__module__ == module.name
            if own and issubclass(cls, kinds) and is_dataclass(cls) and not inspect.isabstract(cls):
                found[cls.__qualname__] = cls
    return [found[name] for name in sorted(found)]


def variants(cls: type, given: Mapping[str, Any], space: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Parameters that differ from those given in one place: each choice of a word, both of a bool, the values searched,
    and another one of a number that is not.

    Args:
        cls: a dataclass.
        given: its parameters.
        space: parameter → values that a search tries, of which at most six are taken.
    """
    hints = get_type_hints(cls)
    for f in fields(cls):
        now = given.get(f.name, f.default)
        values = [*_spaced(space.get(f.name, ())), *_choices(hints[f.name])]
        if not values and isinstance(now, float) and now > 0:
            values = [float(f"{now * 0.75:.6g}")]
        # A choice that is written 1 is not the one that is written true.
        distinct = {repr(value): value for value in values if repr(value) != repr(now)}
        yield from ({f.name: value} for value in distinct.values())


def _spaced(values: Sequence[Any]) -> list[Any]:
    picked = np.unique(np.linspace(0, len(values) - 1, min(6, len(values))).round().astype(int)) if values else []
    return [values[i] for i in picked]


def _choices(hint: Any) -> list[Any]:
    if hint is bool:
        return [False, True]
    return list(get_args(hint)) if get_origin(hint) is Literal else []


def named(options: Mapping[str, Any]) -> str:
    """`k=5 index=ivf`."""
    return " ".join(f"{key}={value}" for key, value in options.items())


def version_with_parts(value: Any) -> int:
    """The version of a dataclass's class, raised with that of any dataclass in its fields."""
    total = getattr(type(value), "version", 1)
    for part in (getattr(value, f.name) for f in fields(value)):
        members = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple | list) else [part]
        total += sum(version_with_parts(m) - 1 for m in members if is_dataclass(m) and not isinstance(m, type))
    return int(total)


def file_of(thing: Any) -> str:
    """The source file of a class or function, from the root of the repository."""
    module = thing if inspect.ismodule(thing) else inspect.getmodule(thing)
    return str(module.__name__).replace(".", "/") + ".py"
