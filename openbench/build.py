"""Objects from plain config nodes: import `_target_`, check the keys against its signature, then call it."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from openbench.errors import ConfigError, did_you_mean

TARGET = "_target_"


def target_of(node: Mapping[str, Any], where: str = "config") -> Callable[..., Any]:
    """Import and return the callable named by a node's `_target_`.

    Raises:
        ConfigError: no `_target_`, a module that cannot be imported, or a name that it does not have.
    """
    path = node.get(TARGET)
    if not isinstance(path, str) or "." not in path:
        raise ConfigError(
            f"{where}: `{TARGET}` is missing or no dotted path — found {path!r} — write e.g. package.Class"
        )
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        # The module itself is not there, rather than something that it imports.
        absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        way = " — start in the folder of its file, name that folder in PYTHONPATH, or install the package" * absent
        raise ConfigError(f"{where}: `{TARGET}: {path}` cannot be imported — {error}{way}") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{where}: module '{module_name}' has no '{name}'{did_you_mean(name, public)}")
    found: Callable[..., Any] = getattr(module, name)
    return found


def build(node: Mapping[str, Any], where: str = "config", **extra: Any) -> Any:
    """Return `_target_(**keys)`; nested nodes with a `_target_` are built first, keys that start with `_` are left out.

    Args:
        node: a plain, resolved mapping.
        where: the node's name in messages, e.g. `method`.
        **extra: values that the caller adds where the node, or one within it, leaves the key out or null; ignored if
            the target does not take them.

    Raises:
        ConfigError: a key that the target does not take, or one that it needs and does not get.
    """
    target = target_of(node, where)
    keys = {k: v for k, v in node.items() if not k.startswith("_")}
    parameters = inspect.signature(target).parameters
    for name, value in extra.items():
        if name in parameters and keys.get(name) is None:
            keys[name] = value
    check_keys(keys, parameters, where)
    return target(**{k: _value(v, f"{where}.{k}", extra) for k, v in keys.items()})


def check_keys(keys: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], where: str) -> None:
    """Raise ConfigError unless `keys` fit a signature: none unknown, none missing."""
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    allowed = list(parameters)
    for key in keys:
        if key not in parameters:
            raise ConfigError(f"{where} has no key '{key}'{did_you_mean(key, allowed)} — allowed: {', '.join(allowed)}")
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in keys]
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)} — the target needs them; add them to the yaml")


def _value(value: Any, where: str, extra: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping) and TARGET in value:
        return build(value, where, **extra)
    if isinstance(value, Mapping):
        return {k: _value(v, f"{where}.{k}", extra) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_value(v, where, extra) for v in value]
    return value
