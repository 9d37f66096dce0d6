"""Objects from plain config nodes: the class of `_target_`, checked keys and values, and the call."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from openbench.config.constraints import check_values, hints_of, name_of
from openbench.errors import ConfigError, OpenbenchError, check_known, did_you_mean
from openbench.public import TARGET, modules_defining
from openbench.source import note_maker

T = TypeVar("T")


def target_of(
    node: Mapping[str, Any], where: str = "config", kinds: tuple[type, ...] = (object,)
) -> Callable[..., Any]:
    """Import and return the callable of a node's `_target_`: a dotted path, or the public name of a shipped one.

    Args:
        node: with a `_target_`.
        where: the node's name in messages.
        kinds: what it should make; needed where several shipped classes have the same name.

    Raises:
        ConfigError: no `_target_`, a module that cannot be imported, or a name that it does not have.
    """
    path = node.get(TARGET)
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(
            f"{where}: `{TARGET}` is missing or not a dotted path, found {path!r} — write e.g. package.Class"
        )
    if "." not in path:
        return _shipped(path, where, kinds)
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        # The module itself is not there, rather than something that it imports.
        absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if absent and modules_defining(name) and path.startswith("openbench."):
            return _shipped(name, where, kinds)  # it was in another module in an earlier version
        way = " — start in the folder of its file, name that folder in PYTHONPATH, or install the package" * absent
        raise ConfigError(f"{where}: `{TARGET}: {path}` cannot be imported — {error}{way}") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{where}: module '{module_name}' has no '{name}'{did_you_mean(name, public)}")
    return getattr(module, name)


def _shipped(name: str, where: str, kinds: tuple[type, ...]) -> Callable[..., Any]:
    """The class or function of openbench with a public name."""
    every = [getattr(importlib.import_module(module), name) for module in modules_defining(name)]
    matches = [made_by for made_by in every if object in kinds or _makes(made_by, kinds)]
    if not matches:
        raise ConfigError(
            f"{where}: `{TARGET}: {name}` is not the name of anything that fits here in openbench — write the path to "
            "a class of your own, e.g. package.Class"
        )
    return matches[0]


def build(node: Mapping[str, Any], where: str = "config", kind: type | tuple[type, ...] = object, **extra: Any) -> Any:
    """Return `_target_(**keys)`; nested nodes with a `_target_` are built first, keys that start with `_` are left out.

    What a node names is looked up and its kind is checked before it is called, so that a config can only make what
    openbench expects there.

    Args:
        node: a plain, resolved mapping.
        where: the node's name in messages, e.g. `method`.
        kind: what the target must make, one class or several: itself a subclass, or a function that is annotated to
            return one; `object` takes any target, so it is for nodes that no config brings.
        **extra: values that the caller adds where the node, or one within it, leaves the key out or null; ignored if
            the target does not take them.

    Raises:
        ConfigError: a target of another kind, a key that it does not take, one that it needs and does not get, or a
            value that the parameter's annotation does not allow.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    target = target_of(node, where, kinds)
    named = f"{where}: `{TARGET}: {node[TARGET]}`"
    if object not in kinds and not _makes(target, kinds):
        names = " or ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        raise ConfigError(
            f"{named} is not a {names} — allowed: a subclass, or a function whose return annotation is one"
        )
    if object not in kinds and inspect.isabstract(target):
        raise ConfigError(f"{named} is an abstract base class — name a class that derives from it")
    keys = {key: value for key, value in node.items() if not key.startswith("_")}
    parameters, hints = inspect.signature(target).parameters, hints_of(target)
    keys |= {name: value for name, value in extra.items() if name in parameters and keys.get(name) is None}
    check_keys(keys, parameters, where)
    values = {key: _value(value, f"{where}.{key}", hints.get(key), extra) for key, value in keys.items()}
    check_values(values, hints, where)
    try:
        instance = target(**values)
    except OpenbenchError as error:
        prefix = f"{name_of(target)}."
        if not str(error).startswith(prefix):
            raise
        # A condition over two fields, in the words of a call from Python: say where in the config they stand.
        raise type(error)(f"{where}.{str(error).removeprefix(prefix)}") from error
    note_maker(instance, target, values.values())
    return instance


def _makes(target: Callable[..., Any], kinds: tuple[type, ...]) -> bool:
    """Whether a target is a subclass of one of `kinds`, or a function that is annotated to return one."""
    kind = target if inspect.isclass(target) else hints_of(target).get("return")
    return inspect.isclass(kind) and issubclass(kind, kinds)


def _classes(annotation: Any) -> Iterator[type]:
    """The classes in an annotation that are not Python's own."""
    if inspect.isclass(annotation) and annotation.__module__ not in ("builtins", "collections.abc", "types"):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def check_keys(keys: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], where: str) -> None:
    """Raise ConfigError unless `keys` fit a signature: none unknown, if it does not take any, and none missing."""
    any_more = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind not in any_more}
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_known(keys, named, where)
    missing = [n for n, p in named.items() if p.default is inspect.Parameter.empty and n not in keys]
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)} — the target needs them; add them to the yaml")


def from_node(cls: type[T], node: Mapping[str, Any], where: str) -> T:
    """Return an object of a dataclass made of a plain node; lists become tuples.

    Raises:
        ConfigError: a key that it does not have, one that it needs, or a value of another kind.
    """
    check_keys(node, inspect.signature(cls).parameters, where)
    check_values(node, hints_of(cls), where)
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in node.items()})


def _value(value: Any, where: str, annotation: Any, extra: Mapping[str, Any]) -> Any:
    """A value with the nodes in it built; each may make what its parameter's annotation names."""
    if isinstance(value, Mapping) and TARGET in value:
        kinds = tuple(_classes(annotation))
        if not kinds:
            raise ConfigError(
                f"{where}: found a node with `{TARGET}`, but the parameter is not annotated with a class — give a "
                "plain value, or annotate it"
            )
        return build(value, where, kinds, **extra)
    if isinstance(value, Mapping):
        return {key: _value(item, where, annotation, extra) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item, where, annotation, extra) for item in value]
    return value
