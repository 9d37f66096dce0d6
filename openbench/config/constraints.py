"""Types of parameters, declared once in annotations (`k: Count`), and the check of values against them by pydantic.

`check_value(value, annotation, where)` turns what pydantic finds into our error; `Checked` does so for every field of a
dataclass. Values are checked and kept as they were given: nothing is converted. `show method NAME` prints the ranges.
"""

import inspect
import types
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache, wraps
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Predicate
from pydantic import AllowInfNan, BeforeValidator, Strict, TypeAdapter, ValidationError

from openbench.errors import ConfigError, OpenbenchError, did_you_mean


@dataclass(frozen=True)
class OneOf:
    """Texts of a list that is made elsewhere; `Literal` says the same of one that is written down."""

    choices: tuple[str, ...]


Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(gt=0, lt=1)]
Share = Annotated[float, Interval(gt=0, le=1)]
Decay = Annotated[float, Interval(ge=0, lt=1)]  # the share of an average that is kept, or of a layer that is dropped
Percentage = Annotated[float, Interval(ge=0, le=100)]
Percentile = Annotated[float, Interval(ge=0, lt=100)]  # of which something is left above
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]  # what NumPy, scikit-learn and torch all take

_WORDS = {
    int: "a whole number (of 64 bits at most)",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    types.NoneType: "null",
}
_MAPPINGS: tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)
_LISTS: tuple[Any, ...] = (list, tuple, set, frozenset, abc.Sequence, abc.Collection)


def _number(value: Any) -> Any:
    """NumPy's whole numbers as Python's, which alone pydantic takes."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


_NO_NUL = Predicate(lambda value: "\0" not in str(value))  # no file has such a name
_STRICT: dict[Any, Any] = {
    int: Annotated[int, Strict(), Interval(ge=-(2**63), lt=2**63), BeforeValidator(_number)],
    float: Annotated[float, Strict(), AllowInfNan(False)],
    str: Annotated[str, Strict(), _NO_NUL],
    Path: Annotated[Path, _NO_NUL],
}


def hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of what is called, by parameter; empty if they name what does not exist."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (NameError, TypeError):
        return {}


def name_of(target: Callable[..., Any]) -> str:
    """What stands before a parameter's name in the messages of a class or function."""
    return getattr(target, "named", "") or target.__name__


def check_values(values: Mapping[str, Any], annotations: Mapping[str, Any], where: str) -> None:
    """Check values by name, each against the annotation of that name; one without annotation may be anything.

    Args:
        values: by name; nodes with a `_target_` among them have been built.
        annotations: by name, e.g. `hints_of(cls)`.
        where: what the names are keys of, for messages.

    Raises:
        ConfigError: a value does not fit.
    """
    for name, value in values.items():
        check_value(value, annotations.get(name, Any), f"{where}.{name}")


def check_value(value: Any, annotation: Any, where: str) -> None:
    """Check that a value is of the type, and in the range, that an annotation names.

    Strict: text, true and false are not numbers, NaN and infinity are not floats. A whole number is a
    float, a text is a path, and a list is taken for a tuple.

    Raises:
        ConfigError: it is not; the message says what was found and what is allowed.
    """
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError:
        allowed = described(annotation)
        choices = allowed.removeprefix("a list, each item ").split(", ")
        texts = value if isinstance(value, list | tuple | set | frozenset) else [value]
        unknown = next((text for text in texts if isinstance(text, str) and text not in choices), "")
        hint = did_you_mean(unknown, choices)
        raise ConfigError(f"{where} — found {_shown(value)}, allowed: {allowed}{hint}") from None


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_strict(annotation))


def _strict(annotation: Any) -> Any:
    """An annotation for pydantic that converts no value: strict numbers and texts, instances of classes."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in _STRICT:
        return _STRICT[annotation]
    if origin is Literal:
        return _where(lambda value: any(type(value) is type(choice) and value == choice for choice in parts))
    if origin is Annotated:
        conditions = [Predicate(part.choices.__contains__) if isinstance(part, OneOf) else part for part in parts[1:]]
        return Annotated[(_strict(parts[0]), *conditions)]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_strict, parts))]  # noqa: UP007 - the parts are known only now
    if origin in _MAPPINGS or origin in _LISTS:
        return origin[tuple(part if part is ... else _strict(part) for part in parts)]
    if annotation in _MAPPINGS or annotation in _LISTS:
        return annotation
    try:
        isinstance(None, annotation)
    except TypeError:  # Any, a type variable, a protocol
        return Any
    return _where(lambda value: isinstance(value, annotation))


def _where(holds: Callable[[Any], bool]) -> Any:
    return Annotated[Any, Predicate(holds)]


def described(annotation: Any) -> str:
    """What an annotation allows, in words: `a whole number ≥ 1, or auto`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _constrained(parts[0], [part for part in parts[1:] if is_dataclass(part)])
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(map(described, parts)))
    if origin in _MAPPINGS:
        return f"a mapping from {described(parts[0])} to {described(parts[1])}"
    if origin is tuple and parts[-1] is not ...:
        return f"a list of {len(parts)}: {', '.join(map(described, parts))}"
    if origin in _LISTS:
        return f"a list, each item {described(parts[0])}"
    if annotation in _MAPPINGS:
        return "a mapping"
    if annotation in _LISTS:
        return "a list"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if annotation is Any or not inspect.isclass(annotation):
        return "anything"
    article = "an" if annotation.__name__[0] in "AEIOU" else "a"
    return f"a node with the `_target_` of {article} {annotation.__name__}"


def _constrained(kind: Any, constraints: list[Any]) -> str:
    """What a type with constraints allows, in words: `a number > 0 and ≤ 1`."""
    limits: dict[str, Any] = {}
    for constraint in constraints:
        limits |= {key: value for key, value in asdict(constraint).items() if value is not None}
    if "choices" in limits:
        return ", ".join(limits["choices"])
    words = {int: "a whole number", float: "a number"}.get(kind) or described(kind)
    if {"ge", "le"} <= limits.keys():
        words += f" from {limits['ge']} to {limits['le']}"
    else:
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        ends = [f"{sign} {limits[key]}" for key, sign in signs.items() if key in limits]
        words = " ".join([words, " and ".join(ends)]) if ends else words
    words += f", a multiple of {limits['multiple_of']}" if "multiple_of" in limits else ""
    words += " (not empty)" if limits.get("min_length") else ""
    return words + (f" ({limits['unit']})" if "unit" in limits else "")


def _shown(value: Any) -> str:
    """A value as it stands in a message: short, null for None."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


class Checked:
    """A base of dataclasses: each value given is of the type, and in the range, that its field's annotation names.

    The `__post_init__` of a subclass, e.g. with conditions over two fields, runs after that.
    """

    error: ClassVar[type[OpenbenchError]] = ConfigError
    named: ClassVar[str] = ""  # in messages; the class's own name where it is empty

    def __init_subclass__(cls, **rest: Any) -> None:
        """Check the fields before a `__post_init__` of the subclass."""
        super().__init_subclass__(**rest)
        init = vars(cls).get("__post_init__")
        if init is not None:
            cls.__post_init__ = _after_check(init)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            OpenbenchError: of the type `error`, for a value that its annotation does not allow.
        """
        cls = type(self)
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        try:
            check_values(given, hints_of(cls), name_of(cls))
        except ConfigError as error:
            raise self.error(str(error)) from None

    def require(self, condition: bool, parameter: str, allowed: str) -> None:
        """Raise an error unless `condition` holds for a field, one that an annotation cannot state.

        Raises:
            OpenbenchError: of the type `error`.
        """
        if not condition:
            value = getattr(self, parameter)
            raise self.error(f"{name_of(type(self))}.{parameter} — found {value!r}, allowed: {allowed}")


def _after_check(init: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(init)
    def checked(self: Any) -> None:
        Checked.__post_init__(self)
        init(self)

    return checked
