"""Methods as they are given from Python: names, instances, lists and mappings of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openbench.api.methods import as_node
from openbench.config.overrides import NAME
from openbench.config.shipped import named_for
from openbench.core.method import Method
from openbench.errors import ConfigError
from openbench.public import name_of
from openbench.results.names import PART, is_part


@dataclass(frozen=True)
class Chosen:
    """One method of a call.

    Args:
        name: its key in the results.
        config: the name of its config; empty where an instance was given.
        instance: unfitted; None where a name was given.
    """

    name: str
    config: str = ""
    instance: Method | None = None

    @property
    def node(self) -> dict[str, Any]:
        """What a record's config says of an instance: its class and hyper-parameters; nothing is searched."""
        return {} if self.instance is None else {**as_node(self.instance), NAME: self.name}


def chosen_methods(methods: object) -> tuple[Chosen, ...]:
    """Return the methods of a call.

    Args:
        methods: as for `named_methods`.

    Raises:
        ConfigError: see `named_methods`; or an instance whose name no file can have.
    """
    return tuple(_chosen(name, value) for name, value in named_methods(methods))


def named_methods(methods: object) -> tuple[tuple[str, Any], ...]:
    """Return what a caller gives as `methods`, with the name of each in the results.

    Args:
        methods: a name, an instance, a list of names and instances, or a mapping from one's own names to them.

    Raises:
        ConfigError: none, something else, or two of one name.
    """
    if isinstance(methods, str | Method) or hasattr(methods, "as_method"):
        methods = [methods]
    if isinstance(methods, Mapping):
        pairs = tuple((str(key), value) for key, value in methods.items())
    elif isinstance(methods, list | tuple):
        pairs = tuple((value if isinstance(value, str) else _called(value), value) for value in methods)
    else:
        raise _unknown(methods)
    if not pairs:
        raise ConfigError("methods is empty — name at least one, e.g. methods=['msp', 'knn']")
    twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
    if twice:
        raise ConfigError(
            f"methods names '{twice[0]}' twice — each needs its own name — give a mapping, e.g. "
            f"methods={{'{twice[0]}': '{twice[0]}', '{twice[0]}_2': …}}"
        )
    return pairs


def check_name(name: str) -> None:
    """Check that records can be named by what a caller calls a method.

    Raises:
        ConfigError: they cannot.
    """
    if not is_part(name):
        raise ConfigError(f"methods: '{name}' cannot be the name of a method — allowed: {PART}")


def _chosen(name: str, value: object) -> Chosen:
    if isinstance(value, str):
        return Chosen(name, value)
    check_name(name)
    return Chosen(name, instance=_instance(value))


def _called(value: object) -> str:
    """What an instance is called: by the config of its class, else by its class."""
    return named_for(name_of(type(_instance(value))), "method")


def _instance(value: object) -> Method:
    """The unfitted method that a caller passes, or that `openbench.method` returned."""
    held = getattr(value, "as_method", None)
    found = held() if held is not None and not isinstance(value, type) else value
    if not isinstance(found, Method):
        raise _unknown(value)
    return found


def _unknown(value: object) -> ConfigError:
    if isinstance(value, type) and issubclass(value, Method):
        return ConfigError(f"methods has the class {value.__name__} — an instance expected — write {value.__name__}()")
    return ConfigError(
        f"methods has a {type(value).__name__} — allowed: names (python -m openbench list method), instances of "
        "Method, a list of these, or a mapping from your own names to them"
    )
