"""Array files: a folder of `.npy` files or an `.npz`, read as named arrays."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.digest import digest
from openbench.errors import DataError
from openbench.storage.checksum import DAMAGED, content_digest

_UNREADABLE = (*DAMAGED, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def open_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays below a folder, or in an `.npz`, by name: `near/svhn/features` for `near/svhn/features.npy`.

    The files of a folder are memory-mapped, read-only; an `.npz` is read into memory.

    Raises:
        DataError: no such file or folder, a file that cannot be read, or arrays of Python objects.
    """
    if path.is_dir():
        return {
            _name(file, path): _checked(file, lambda f=file: np.load(f, mmap_mode="r", allow_pickle=False))
            for file in sorted(path.rglob("*.npy"))
        }
    if not path.is_file():
        raise DataError(f"'{path}' not found — name an .npz file or a folder of .npy files")
    return _checked(path, lambda: _members(path))


def arrays_digest(path: Path) -> str:
    """Return a digest of all arrays below a folder or in an `.npz`, 64 hex digits.

    Raises:
        DataError: a file cannot be read.
    """
    files = {_name(file, path): file for file in sorted(path.rglob("*.npy"))} if path.is_dir() else {"": path}
    return digest({name: _checked(f, lambda f=f: content_digest(f)) for name, f in files.items()}, length=64)


def _checked(file: Path, read: Any) -> Any:
    try:
        return read()
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"'{file}' cannot be read ({reason}) — write numbers with numpy.save or numpy.savez") from error


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _members(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz`; other files in it, such as a README, are bytes to NumPy."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as pack:
        return {name: array for name, array in pack.items() if isinstance(array, np.ndarray)}
