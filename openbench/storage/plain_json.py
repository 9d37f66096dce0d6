"""Values as JSON: strict ones, which a record may hold, in their one spelling on disk; and ones for people to read."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from openbench.errors import RecordError
from openbench.public import TARGET, name_of

LARGEST = 1 << 24  # bytes of a record's file that are read; records have some ten thousand
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a pair can be written as an escape only
_SHOWN = 60  # characters of what is wrong in a message


def plain(value: Any, key: str = "") -> Any:
    """Return a value as JSON types: enums by value, NumPy scalars as Python numbers, tuples as lists.

    Args:
        value: a tree of mappings, sequences and scalars.
        key: the dotted name of the value, for messages.

    Raises:
        RecordError: a number is not finite, a mapping has a key that is not a string, or a type has no JSON form.
    """
    where = key or "the record"
    if isinstance(value, Enum):
        return plain(value.value, key)
    if isinstance(value, str):
        return _encodable(value, where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError(
                f"{where} cannot be recorded — found {float(value)} — allowed: finite numbers; "
                "a metric without a value is the string 'unable'"
            )
        return float(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise RecordError(f"{where} cannot be recorded — found the key {name!r} — allowed: strings as keys")
        return {
            _encodable(str(name), where): plain(child, f"{key}.{name}" if key else name)
            for name, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(child, f"{key}[{index}]") for index, child in enumerate(value)]
    if _is_scalar_array(value):
        return plain(value.item(), key)
    raise RecordError(
        f"{where} cannot be recorded — found a {type(value).__name__} — allowed: numbers, strings, lists, mappings"
    )


def readable(value: Any) -> Any:
    """Return a value as JSON types, for files that people read; numbers that are not finite become text, e.g. `inf`.

    A dataclass becomes a mapping with the public name of its class; what else has no JSON form becomes its text.

    Args:
        value: a tree of mappings, sequences, dataclasses and scalars.
    """
    if isinstance(value, Enum):
        return readable(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name: readable(getattr(value, field.name)) for field in fields(value)}
        return {TARGET: name_of(type(value)), **own}
    if isinstance(value, Mapping):
        return {str(name): readable(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [readable(child) for child in value]
    return readable(value.item()) if _is_scalar_array(value) else str(value)


def _is_scalar_array(value: object) -> bool:
    """Whether this is a number of NumPy or of another array library."""
    return hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0


def _encodable(text: str, where: str) -> str:
    if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
        raise RecordError(
            f"{where[:_SHOWN]!r} cannot be recorded — found half of a surrogate pair — allowed: Unicode text"
        )
    return text


def dumps(value: Any) -> str:
    """Return the one JSON spelling of a value: sorted keys, floats that read back bit for bit, a final newline.

    Raises:
        RecordError: the value has no strict JSON form.
    """
    return json.dumps(plain(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str, where: str) -> Any:
    """Return parsed JSON, refusing what Python's parser would accept: NaN, Infinity, 1e400, and a key that comes twice.

    Args:
        text: a whole document.
        where: the file's name, for messages.

    Raises:
        RecordError: not JSON, or not strict.
    """

    def refuse(constant: str) -> float:
        raise RecordError(f"{where}: found {constant[:_SHOWN]} — JSON knows finite numbers only; the file was edited")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits)

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise RecordError(f"{where}: key {twice[:_SHOWN]!r} comes twice in one object — the file was edited")
        return found

    try:
        found = json.loads(text, parse_constant=refuse, parse_float=number, object_pairs_hook=mapping)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise RecordError(f"{where}: nested too deeply for a record — restore the file, or delete it") from error
    except ValueError as error:
        raise RecordError(
            f"{where}: not valid JSON — {error} — restore the file, or delete it and repeat the run"
        ) from error
