"""Column files: NumPy arrays, written atomically and checked by digest."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from openbench.errors import CacheError
from openbench.storage.checksum import DAMAGED, content_digest
from openbench.storage.files import replacing, write_whole

NamedRows = Mapping[str, NDArray[np.float32]]  # column name → its rows


@dataclass(frozen=True)
class ColumnFile:
    """One column: the array, and its sidecar with digest and counts."""

    folder: Path
    name: str

    @property
    def array(self) -> Path:
        """The array."""
        return self.folder / f"{self.name}.npy"

    @property
    def sidecar(self) -> Path:
        """Its digest and counts."""
        return self.folder / f"{self.name}.json"

    def fault(self, rows: int) -> str | None:
        """Return what is wrong with the array, None if it is as it was written.

        Every byte is read, once for each state of the file that this process meets; see `storage.checksum`.
        """
        try:
            stated = json.loads(self.sidecar.read_text(encoding="utf-8"))["digest"]
            if content_digest(self.array) != stated:
                return f"'{self.array.name}' has changed since it was written"
            length = len(np.load(self.array, mmap_mode="r", allow_pickle=False))
        except FileNotFoundError as error:
            return f"'{Path(error.filename).name}' is missing"
        except DAMAGED as error:
            return f"'{self.name}' cannot be read ({error})"
        return None if length == rows else f"'{self.array.name}' has {length} rows instead of {rows}"

    def origin(self) -> str:
        """Return version, commit and time of the array, as its sidecar says."""
        return str(json.loads(self.sidecar.read_text(encoding="utf-8")).get("made", "an earlier version"))

    def open(self) -> Tensor:
        """The array, memory-mapped; writing to the tensor changes memory only, never the file."""
        return torch.from_numpy(np.load(self.array, mmap_mode="c", allow_pickle=False))


def faulty(folder: Path, rows: int, names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are missing in a folder or damaged."""
    return tuple(name for name in names if ColumnFile(folder, name).fault(rows) is not None)


def write_columns(folder: Path, count: int, parts: Iterable[NamedRows], about: Mapping[str, Any]) -> None:
    """Write columns, which appear together.

    Args:
        folder: is there.
        count: rows of each column.
        parts: consecutive rows of all columns.
        about: kept in the sidecars for human readers.

    Raises:
        CacheError: the folder cannot be written, or has no room.
    """
    streams: dict[str, BinaryIO] = {}
    with writing(folder):
        with ExitStack() as files:
            for part in parts:
                for name, rows in part.items():
                    if name not in streams:
                        streams[name] = files.enter_context(replacing(ColumnFile(folder, name).array))
                        # Not memory-mapped: a full disk is then an error, not a signal.
                        header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (count, *rows.shape[1:])}
                        np.lib.format.write_array_header_2_0(streams[name], header)
                    streams[name].write(np.ascontiguousarray(rows).data)
        for file in (ColumnFile(folder, name) for name in streams):
            size, array = file.array.stat().st_size, np.load(file.array, mmap_mode="r", allow_pickle=False)
            stated = {"shape": array.shape, "dtype": array.dtype.str, "size": size, "column": file.name}
            content = {**stated, "digest": content_digest(file.array), **about}
            write_whole(file.sidecar, json.dumps(content, indent=1).encode())


def cached(file: ColumnFile, count: int, parts: Iterator[NamedRows], about: Mapping[str, Any]) -> Tensor:
    """Return a column, computed now if it is missing or damaged; of several jobs, one computes it.

    Args:
        file: the column.
        count: its rows.
        parts: consecutive rows of it; nothing is taken from it where the column is complete.
        about: kept in the sidecar for human readers.

    Raises:
        CacheError: the folder cannot be written, or has no room.
    """
    if file.fault(count) is not None:
        with writing(file.folder):
            file.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(file.folder / ".lock"):
                if file.fault(count) is not None:  # another job may have written it meanwhile
                    write_columns(file.folder, count, parts, about)
    return file.open()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into one that says what to do.

    Raises:
        CacheError: no permission, no room, or not a folder.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"feature cache: cannot write in '{folder}' ({error.strerror or error}) — set OPENBENCH_CACHE"
        ) from error
