"""JSON: strict values for records, with one spelling, and lenient ones for people."""

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
_LENGTH = 60  # characters of the fault in a message


def plain(value: Any, key: str = "") -> Any:
    """Return a value as JSON types: enums by value, NumPy scalars as Python numbers, tuples as lists.

    Args:
        value: a tree of mappings, sequences and scalars.
        key: the dotted name of the value, for messages.

    Raises:
        RecordError: a number is not finite, a key is not a string, or a type has no JSON form.
    """
    where = key or "the record"
    if isinstance(value, Enum):
        return plain(value.value, key)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError(f"{where} cannot be recorded: {float(value)} — a metric without a value is 'unable'")
        return float(value)
    if isinstance(value, Mapping):
        if keys := [name for name in value if not isinstance(name, str)]:
            raise RecordError(f"{where} cannot be recorded: the key {keys[0]!r} is not a string")
        return {str(name): plain(child, f"{key}.{name}" if key else name) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child, f"{key}[{index}]") for index, child in enumerate(value)]
    if _is_scalar_array(value):
        return plain(value.item(), key)
    raise RecordError(f"{where} cannot be recorded: a {type(value).__name__} has no JSON form")


def readable(value: Any) -> Any:
    """Return a value as JSON types for people: numbers that are not finite become text, e.g. `inf`.

    A dataclass becomes a mapping with the public name of its class; other objects become their text.

    Args:
        value: a tree of mappings, sequences, dataclasses and scalars.
    """
    return json.loads(json.dumps(value, default=_readable), parse_constant=lambda text: str(float(text)))


def _readable(value: Any) -> object:
    """What stands for an object that JSON does not have."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {TARGET: name_of(type(value))} | {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if _is_scalar_array(value) else str(value)


def _is_scalar_array(value: Any) -> bool:
    """Whether this is a number of NumPy or of another array library."""
    return hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0


def dumps(value: Any) -> str:
    """Return the one JSON spelling of a value: sorted keys, floats that read back bit for bit, a final newline.

    Raises:
        RecordError: the value has no strict JSON form.
    """
    text = json.dumps(plain(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RecordError("the record cannot be written: it has text that is not Unicode") from error
    return text


def loads(text: str, where: str) -> Any:
    """Return strict JSON: no NaN, Infinity or 1e400, and no key twice in an object.

    Args:
        text: a whole document.
        where: the file's name, for messages.

    Raises:
        RecordError: not JSON, or not strict.
    """

    def refuse(constant: str) -> float:
        raise RecordError(f"{where} has {constant[:_LENGTH]} for a number — the file was edited; restore it")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits)

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise RecordError(f"{where} has the key {twice[:_LENGTH]!r} twice — the file was edited; restore it")
        return values

    try:
        value = json.loads(text, parse_constant=refuse, parse_float=number, object_pairs_hook=mapping)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError as error:
        raise RecordError(f"{where}: nested too deeply for a record — restore the file, or delete it") from error
    except ValueError as error:
        raise RecordError(f"{where}: not valid JSON ({error}) — restore the file, or repeat the run") from error
