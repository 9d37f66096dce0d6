"""Whether a plain value, as yaml gives it, is of the kind, and in the range, that an annotation names."""

import inspect
import types
from collections import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from openbench.config.constraints import Constraint, OneOf, Seed
from openbench.errors import ConfigError, did_you_mean

_LARGEST = {int: 2**63, float: 2**1023}
_WORDS = {
    int: "a whole number (of 64 bits at most)",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    types.NoneType: "null",
}
_SHORT = {int: "a whole number", float: "a number"}  # where the range says that it is finite
_MAPPINGS: tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)
_SEQUENCES: tuple[Any, ...] = (list, abc.Sequence, abc.Iterable, abc.Collection, frozenset, set)


def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of what is called, by parameter; empty if they name what does not exist."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError):
        return {}


def check_kinds(values: Mapping[str, Any], annotations: Mapping[str, Any], where: str) -> None:
    """Check that each value is of the kind that its annotation names; one without annotation may be anything.

    A value named `seed` must also be in the range that every random generator takes, or null where that is allowed.

    Args:
        values: by name; nodes with a `_target_` among them have been built.
        annotations: by name.
        where: what the names are keys of, for messages.

    Raises:
        ConfigError: a value does not fit.
    """
    for name, value in values.items():
        check_kind(value, annotations.get(name, Any), f"{where}.{name}")
        if name == "seed" and value is not None:
            check_seed(value, f"{where}.{name}")


def check_kind(value: Any, annotation: Any, where: str) -> None:
    """Check that a value is of the kind that an annotation names, and holds to the constraints in it.

    A whole number is a float, true and false are not numbers, NaN and infinity are not floats. Anything fits an
    annotation that is not a class, a Literal, a union, a sequence or a mapping.

    Raises:
        ConfigError: it is not.
    """
    if fits(value, annotation):
        return
    choices = _choices(annotation)
    texts = value if _listed(value) else [value]
    unknown = next((text for text in texts if isinstance(text, str) and text not in choices), "")
    hint = did_you_mean(unknown, choices)
    raise ConfigError(f"{where} — found {_shown(value)}{hint} — allowed: {described(annotation)}")


def check_seed(value: Any, where: str) -> None:
    """Check that a value is a seed: NumPy's generators take none below 0, scikit-learn's none of more than 32 bits.

    Raises:
        ConfigError: it is not.
    """
    check_kind(value, Seed, where)


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of the kind that an annotation names, and holds to the constraints in it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return fits(value, parts[0]) and all(constraint.holds(value) for constraint in _constraints(annotation))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in parts)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin in _MAPPINGS:
        return isinstance(value, Mapping) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if origin is tuple and parts[-1] is not ...:
        return _listed(value) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is tuple or origin in _SEQUENCES:
        return _listed(value) and all(fits(item, parts[0]) for item in value)
    return _is(value, annotation)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a class; anything fits what is not a class."""
    if kind in (float, int):
        number = isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
        return number and -_LARGEST[kind] <= value < _LARGEST[kind]
    if kind in (str, Path):
        return isinstance(value, str | Path if kind is Path else str) and "\0" not in str(value)
    if kind is None:
        return value is None
    if kind in _MAPPINGS:
        return isinstance(value, Mapping)
    if kind is tuple or kind in _SEQUENCES:
        return _listed(value)
    try:
        return isinstance(value, kind)
    except TypeError:  # Any, a type variable, a protocol
        return True


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


def described(annotation: Any) -> str:
    """What an annotation allows, in words: `a whole number ≥ 1, or auto`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = _SHORT.get(parts[0]) or described(parts[0])
        for constraint in _constraints(annotation):
            words = constraint.described(words)
        return words
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(map(described, parts)))
    if origin in _MAPPINGS:
        return f"a mapping from {described(parts[0])} to {described(parts[1])}"
    if origin is tuple and parts[-1] is not ...:
        return f"a list of {len(parts)}: {', '.join(map(described, parts))}"
    if origin is tuple or origin in _SEQUENCES:
        return f"a list, each item {described(parts[0])}"
    if annotation in _MAPPINGS:
        return "a mapping"
    if annotation in _SEQUENCES or annotation is tuple:
        return "a list"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if not inspect.isclass(annotation):
        return "anything"
    article = "an" if annotation.__name__[0] in "AEIOU" else "a"
    return f"a node with the `_target_` of {article} {annotation.__name__}"


def _choices(annotation: Any) -> Collection[str]:
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if isinstance(choice, str)]
    if isinstance(annotation, OneOf):
        return annotation.choices
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _constraints(annotation: Any) -> Iterable[Constraint]:
    return (part for part in annotation.__metadata__ if isinstance(part, Constraint))


def _shown(value: Any) -> str:
    """A value as it stands in a message: short, null for None."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
