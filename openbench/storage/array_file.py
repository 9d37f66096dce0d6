"""Arrays of any size: written whole, row by row; read from a folder of `.npy` files or an `.npz`, memory-mapped."""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from openbench.digest import BlockHasher, digest
from openbench.errors import DataError
from openbench.storage.checksum import DAMAGED, content_digest, remember
from openbench.storage.files import replacing

_LOCAL = struct.Struct("<26xHH")  # of a zip member's own header: the lengths of its name and of what follows the name
_NPY = ".npy"
_UNREADABLE = (*DAMAGED, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError)


def open_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays below a folder, or in an `.npz`, by name: `near/svhn/features` for `near/svhn/features.npy`.

    Compressed members of an `.npz` are read into memory; all other arrays are memory-mapped, read-only.

    Raises:
        DataError: no such place, a file that cannot be read, or arrays of Python objects.
    """
    if path.is_dir():
        return {_name(file, path): _checked(file, lambda f=file: _loaded(f)) for file in sorted(path.rglob("*.npy"))}
    if not path.is_file():
        raise DataError(f"'{path}' not found — expected: an .npz file, or a folder of .npy files")
    return _checked(path, lambda: _members(path))  # type: ignore[no-any-return]


def arrays_digest(path: Path) -> str:
    """Return a digest of all arrays below a folder or in an `.npz`, 64 hex digits.

    Raises:
        DataError: a file cannot be read.
    """
    files = {_name(file, path): file for file in sorted(path.rglob("*.npy"))} if path.is_dir() else {"": path}
    return digest({name: _checked(f, lambda f=f: content_digest(f)) for name, f in files.items()}, length=64)


@contextmanager
def writing_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator["ArrayWriter"]:
    """Yield what appends rows to a new `.npy` file, which appears whole when the block ends without an exception.

    It is written from start to end, not into a map of an empty file: a full disk is then an error, not a signal.

    Args:
        path: the file.
        shape: of the whole array.
        dtype: of its numbers.
    """
    with replacing(path) as stream:
        writer = ArrayWriter(stream, shape, np.dtype(dtype))
        yield writer
    remember(path, writer.digest)


class ArrayWriter:
    """Appends rows to an array file."""

    def __init__(self, stream: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._stream, self._hasher = stream, BlockHasher()
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(stream, header)
        stream.seek(0)
        self._hasher.update(stream.read())

    @property
    def digest(self) -> str:
        """The digest of all bytes so far, as `content_digest` has it."""
        return self._hasher.hexdigest()

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows."""
        content = np.ascontiguousarray(rows, self.dtype).view(np.uint8).reshape(-1).data
        self._hasher.update(content)
        self._stream.write(content)

    def sync(self) -> int:
        """Have everything on the disk, and return how many bytes that is."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return self._stream.tell()


def _checked(file: Path, read: Any) -> Any:
    try:
        return read()
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"'{file}' cannot be read — {reason} — expected: arrays of numbers or text as numpy.save and numpy.savez "
            "write them"
        ) from error


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _loaded(file: Path) -> NDArray[Any]:
    found: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    return found


def _members(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz`; other files in it, such as a note to the reader, are left alone."""
    with zipfile.ZipFile(path) as pack, open(path, "rb") as stream:
        return {
            member.filename.removesuffix(_NPY): (
                _mapped(path, stream, member) if member.compress_type == zipfile.ZIP_STORED else _unpacked(pack, member)
            )
            for member in pack.infolist()
            if member.filename.endswith(_NPY)
        }


def _unpacked(pack: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """The array of a compressed member."""
    with pack.open(member) as stream:
        found: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return found


def _mapped(path: Path, stream: Any, member: zipfile.ZipInfo) -> NDArray[Any]:
    """The array of a member that is not compressed, where it lies in the file."""
    stream.seek(member.header_offset)
    begin = stream.seek(sum(_LOCAL.unpack(stream.read(_LOCAL.size))), 1)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError(f"'{member.filename}' holds Python objects")
    if stream.tell() - begin + math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"'{member.filename}' is too short for {shape} of {dtype}")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", stream.tell(), shape, "F" if fortran else "C")
