"""Content digests of values, arrays and files: the only hashing in the project."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 1 << 22
# Metadata key of a dataclass field that is left out of digests while it has its default: digests from before the field
# was added stay valid.
OMIT_IF_DEFAULT = "openbench.later"
_PLAIN = frozenset({type(None), bool, int, str})


def digest(value: Any, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of a value's canonical JSON form.

    Mappings are ordered by key, sets by content; dataclasses become mappings (with the `version` of their class, once
    it is above 1), arrays become their dtype, shape and bytes. So equal values have equal digests in every process and
    on every machine.

    Raises:
        TypeError: a part of `value` has no canonical form (a function, an open file, …).
    """
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def generator_of(*parts: Any) -> np.random.Generator:
    """Return a random generator whose draws depend on these values alone."""
    return np.random.default_rng(int(digest(parts), 16))


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hex digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def bytes_sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes as 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: str | Path) -> str:
    """Return the block digest of a long file: SHA-256 over the SHA-256 of each 4 MiB, with a thread per processor.

    Raises:
        OSError: the file cannot be read.
    """

    def block(start: int) -> bytes:
        with open(path, "rb") as stream:
            stream.seek(start)
            return hashlib.sha256(stream.read(_BLOCK)).digest()

    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="digest") as pool:
        blocks = pool.map(block, range(0, os.path.getsize(path), _BLOCK))
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def array_sha256(array: np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of an array's dtype, shape and C-ordered bytes as 64 hex digits."""
    array = np.ascontiguousarray(array)
    hasher = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    hasher.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
    return hasher.hexdigest()


def row_digests(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the first 16 bytes of the SHA-256 of each row of an array (n, k), as (n, 16) uint8."""
    content = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    digests = b"".join(hashlib.sha256(row.data).digest()[:16] for row in content)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16)


def _canonical(value: Any) -> Any:
    if type(value) is dict:  # first what configs are made of
        return {k if type(k) is str else str(_canonical(k)): _canonical(v) for k, v in value.items()}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        # 1.0 and 1 are the same hyper-parameter, however a user types it.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Enum):
        return _canonical(value.value)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, np.generic):
        return _canonical(value.item())
    if isinstance(value, np.ndarray):
        return {"__array__": array_sha256(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if not still_as_before(value, f)}
        return {"__type__": type(value).__qualname__, **_raised_version(type(value)), **_canonical(fields)}
    if isinstance(value, Mapping):
        return {str(_canonical(k)): _canonical(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_canonical(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    if isinstance(value, list | tuple):
        return [v if type(v) is str else _canonical(v) for v in value]  # manifests have a million keys
    raise TypeError(f"digest: a {type(value).__name__} has no canonical form")


def _raised_version(cls: type) -> dict[str, int]:
    """The `version` of a dataclass if it is not a field and above 1."""
    version = getattr(cls, "version", 1)
    has_field = any(f.name == "version" for f in dataclasses.fields(cls))
    return {} if has_field or version == 1 else {"__version__": version}


def still_as_before(value: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a dataclass's field is marked OMIT_IF_DEFAULT and has its default, so that digests leave it out."""
    return bool(field.metadata.get(OMIT_IF_DEFAULT)) and getattr(value, field.name) == field.default
