"""Values as strict JSON: what a record may hold, and its one spelling on disk."""

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from openbench.errors import RecordError


def plain(value: Any, key: str = "") -> Any:
    """Return a value as JSON types: enums by value, NumPy scalars as Python numbers, tuples as lists.

    Args:
        value: a tree of mappings, sequences and scalars.
        key: the dotted name of the value, for messages.

    Raises:
        RecordError: a number is not finite, a mapping has a key that is no string, or a type has no JSON form.
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
            raise RecordError(
                f"{where} cannot be recorded — found {float(value)} — allowed: finite numbers; "
                "a metric without a value is the string 'unable'"
            )
        return float(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise RecordError(f"{where} cannot be recorded — found the key {name!r} — allowed: strings as keys")
        return {str(name): plain(child, f"{key}.{name}" if key else name) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child, f"{key}[{index}]") for index, child in enumerate(value)]
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return plain(value.item(), key)
    raise RecordError(
        f"{where} cannot be recorded — found a {type(value).__name__} — allowed: numbers, strings, lists, mappings"
    )


def dumps(value: Any) -> str:
    """Return the one JSON spelling of a value: sorted keys, floats that read back bit for bit, a final newline.

    Raises:
        RecordError: the value has no strict JSON form.
    """
    return json.dumps(plain(value), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def loads(text: str, where: str) -> Any:
    """Return parsed JSON, refusing the NaN and Infinity that Python's parser would accept.

    Args:
        text: a whole document.
        where: the file's name, for messages.

    Raises:
        RecordError: not JSON, or not strict.
    """

    def refuse(constant: str) -> float:
        raise RecordError(f"{where}: found {constant} — JSON knows finite numbers only; the file was edited")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise RecordError(
            f"{where}: not valid JSON — {error} — restore the file, or delete it and repeat the run"
        ) from error
