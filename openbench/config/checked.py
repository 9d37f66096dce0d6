"""Dataclasses whose fields are checked against their annotations when they are made."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ClassVar

from openbench.config.annotations import check_kinds, hints_of
from openbench.errors import ConfigError, OpenbenchError


class Checked:
    """A base of dataclasses: the values given are of the kind, and in the range, that each field's annotation names.

    The `__post_init__` of a subclass, e.g. with conditions over two fields, runs after that. Values are kept as they
    were given.
    """

    error: ClassVar[type[OpenbenchError]] = ConfigError
    named: ClassVar[str] = ""  # in messages; the class's own name where it is empty

    def __init_subclass__(cls, **rest: Any) -> None:
        """Check the fields before a `__post_init__` of the subclass."""
        super().__init_subclass__(**rest)
        own = vars(cls).get("__post_init__")
        if own is not None:
            cls.__post_init__ = _after_check(own)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            OpenbenchError: of the kind `error`, for a value that its annotation does not allow.
        """
        cls = type(self)
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        try:
            check_kinds(given, hints_of(cls), name_of(cls))
        except ConfigError as error:
            raise self.error(str(error)) from None

    def require(self, condition: bool, parameter: str, allowed: str) -> None:
        """Raise an error unless `condition` holds for a field, one that an annotation cannot state.

        Raises:
            OpenbenchError: of the kind `error`.
        """
        if not condition:
            found = getattr(self, parameter)
            raise self.error(f"{name_of(type(self))}.{parameter} — found {found!r} — allowed: {allowed}")


def name_of(target: Callable[..., Any]) -> str:
    """What stands before a field's name in the messages of a class or function."""
    named: str = getattr(target, "named", "") or target.__name__
    return named


def _after_check(own: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(own)
    def checked(self: Any) -> None:
        Checked.__post_init__(self)
        own(self)

    return checked
