"""Array files: a folder of `.npy` files or an `.npz`, read as named arrays."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.digest import digest
from openbench.errors import DataError
from openbench.storage.checksum import content_digest


def open_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays below a folder, or in an `.npz`, by name: `near/svhn/features` for `near/svhn/features.npy`.

    The files of a folder are memory-mapped, read-only; an `.npz` is read into memory.

    Raises:
        DataError: no such file or folder, a file that cannot be read, or arrays of Python objects.
    """
    if path.is_dir():
        return {_name(file, path): _mapped(file) for file in sorted(path.rglob("*.npy"))}
    if not path.is_file():
        raise DataError(f"'{path}' not found — name an .npz file or a folder of .npy files")
    with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as pack:
        # Other files in it, such as a README, are bytes to NumPy.
        return {name: array for name, array in pack.items() if isinstance(array, np.ndarray)}


def arrays_digest(path: Path) -> str:
    """Return a digest of all arrays below a folder or in an `.npz`, 64 hex digits.

    Raises:
        DataError: a file cannot be read.
    """
    files = {_name(file, path): file for file in sorted(path.rglob("*.npy"))} if path.is_dir() else {"": path}
    with reading(path):
        return digest({name: content_digest(file) for name, file in files.items()}, length=64)


@contextmanager
def reading(file: Path, advice: str = "write numbers with numpy.save or numpy.savez") -> Iterator[None]:
    """Turn the errors of a block that reads a file, which may be damaged, into one that names the file.

    Raises:
        DataError: any error, of any kind, in the block.
    """
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"'{file}' cannot be read ({reason}) — {advice}") from error


def _mapped(file: Path) -> NDArray[Any]:
    with reading(file):
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        return array


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()
