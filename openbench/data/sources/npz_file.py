"""Reading arrays from an `.npz` file that may hold anything."""

import io
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError
from openbench.memory import memory

_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # a password
    MemoryError,
    OverflowError,
    SyntaxError,  # a header that is not a Python literal
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def read_npz(path: Path, names: Collection[str], expected: str, whole: bytes | None = None) -> dict[str, NDArray[Any]]:
    """Return those of the arrays `names` that a file holds.

    Args:
        path: of the file.
        names: of the arrays to read.
        expected: what the file should be, for the message.
        whole: its bytes, where they have been read already.

    Raises:
        DataError: no such file, one that cannot be read or would not fit into memory, or arrays of Python objects.
    """
    try:
        check_unpacked_size(path, whole)
        with np.load(path if whole is None else io.BytesIO(whole), allow_pickle=False) as pack:
            return {name: _array(pack, name) for name in names if name in pack.files}
    except _UNREADABLE as error:
        raise DataError(f"'{path}' cannot be read — {error or type(error).__name__} — {expected}") from error


def _array(pack: "np.lib.npyio.NpzFile", name: str) -> NDArray[Any]:
    found: NDArray[Any] | bytes = pack[name]  # bytes of a member that does not begin as an array does
    if isinstance(found, bytes):
        raise ValueError(f"'{name}' is not an array")
    return found


def check_unpacked_size(path: Path, whole: bytes | None = None) -> None:
    """Check that what a zip file unpacks to is less than this machine's memory.

    Raises:
        ValueError: it is more.
        BadZipFile: it is not a zip file.
    """
    with zipfile.ZipFile(path if whole is None else io.BytesIO(whole)) as pack:
        size = sum(member.file_size for member in pack.infolist())
    if size > memory():
        raise ValueError(f"it unpacks to {size / 1e9:,.1f} GB, this machine has {memory() / 1e9:,.1f} GB of memory")
