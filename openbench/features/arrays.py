"""Column files: NumPy arrays that grow by appending, appear whole or not at all, and are checked when opened."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.digest import file_sha256
from openbench.errors import CacheError

_HASH_CHUNK = 1 << 22
_STATED = {"shape", "dtype", "size", "mtime_ns", "sha256"}


@dataclass(frozen=True)
class ColumnFile:
    """The places of one column: the array, its sidecar with hash and counts, and the file that grows meanwhile."""

    folder: Path
    name: str

    @property
    def array(self) -> Path:
        """The finished array."""
        return self.folder / f"{self.name}.npy"

    @property
    def sidecar(self) -> Path:
        """What the array must be."""
        return self.folder / f"{self.name}.json"

    @property
    def growing(self) -> Path:
        """The unfinished array."""
        return self.folder / f"{self.name}.npy.part"

    def fault(self, rows: int) -> str | None:
        """Return what is wrong with the finished array, None if it is as it was written.

        Size and header are always checked, the content's hash whenever the file's time stamp is another than the
        writer's: a copied cache is hashed once, an altered one is found out.
        """
        try:
            stated = json.loads(self.sidecar.read_text())
            status = self.array.stat()
            array = np.load(self.array, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError as error:
            return f"'{Path(error.filename).name}' is missing"
        except (OSError, ValueError, EOFError) as error:
            return f"'{self.array.name}' cannot be read ({error})"
        if not isinstance(stated, dict) or not stated.keys() >= _STATED:
            return f"'{self.sidecar.name}' is not what was written"
        if array.shape != tuple(stated["shape"]) or array.dtype.str != stated["dtype"] or len(array) != rows:
            return f"'{self.array.name}' holds {array.dtype} {array.shape}, {rows} rows were written"
        if status.st_size != stated["size"]:
            return f"'{self.array.name}' has {status.st_size} bytes, {stated['size']} were written"
        if status.st_mtime_ns != stated["mtime_ns"]:
            if file_sha256(self.array) != stated["sha256"]:
                return f"'{self.array.name}' has another content than was written"
            with suppress(OSError):  # a cache that may only be read is hashed again next time
                write_whole(self.sidecar, json.dumps({**stated, "mtime_ns": status.st_mtime_ns}, indent=1))
        return None

    def open(self) -> Tensor:
        """The finished array, memory-mapped; writing to the tensor changes memory only, never the file."""
        return torch.from_numpy(np.load(self.array, mmap_mode="c", allow_pickle=False))

    def remove(self) -> None:
        """Delete the column: the array first, so that no reader meets one without its sidecar."""
        for path in (self.array, self.sidecar, self.growing):
            path.unlink(missing_ok=True)


class ColumnWriter:
    """Appends rows to a growing column; rows that were flushed survive the process.

    Args:
        file: the places.
        shape: the finished array's.
        kept: what an earlier writer flushed and this one goes on from; what lies behind is cut off.
    """

    def __init__(self, file: ColumnFile, shape: tuple[int, ...], kept: "Flushed | None" = None) -> None:
        self.file, self.shape = file, shape
        self._hash = hashlib.sha256()
        self.rows = 0 if kept is None else kept.rows
        # A writer outlives any one block: it is closed by `close` or `finish`.
        self._stream: BinaryIO = open(file.growing, "w+b" if kept is None else "r+b")  # noqa: SIM115
        if kept is None:
            descr = np.lib.format.dtype_to_descr(np.dtype(np.float32))
            np.lib.format.write_array_header_2_0(self._stream, {"descr": descr, "fortran_order": False, "shape": shape})
        size = self._stream.tell() if kept is None else kept.size
        self._stream.truncate(size)
        _hash_into(self._hash, self._stream, size)

    def append(self, rows: NDArray[np.float32]) -> None:
        """Write rows behind those that are there."""
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        self._hash.update(content)
        self._stream.write(content)
        self.rows += len(rows)

    def flush(self) -> "Flushed":
        """Have everything so far on disk when this returns, and say what that is."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return Flushed(self.rows, self._stream.tell(), self._hash.hexdigest(), self.shape)

    def close(self) -> None:
        """Release the file; it may be resumed."""
        self._stream.close()

    def finish(self, about: dict[str, Any]) -> None:
        """Put the sidecar and then the array in place; `about` is kept in the sidecar for human readers."""
        whole = self.flush()
        self.close()
        status = self.file.growing.stat()
        stated = {
            "shape": self.shape,
            "dtype": np.dtype(np.float32).str,
            "size": whole.size,
            "mtime_ns": status.st_mtime_ns,
            "sha256": whole.sha256,
            **about,
        }
        write_whole(self.file.sidecar, json.dumps(stated, indent=1))
        os.replace(self.file.growing, self.file.array)


@dataclass(frozen=True)
class Flushed:
    """What a growing column held when it was last flushed.

    Args:
        rows: whole rows.
        size: bytes, header included.
        sha256: of these bytes.
        shape: the finished array's.
    """

    rows: int
    size: int
    sha256: str
    shape: tuple[int, ...]

    def intact(self, file: ColumnFile) -> bool:
        """Whether the growing column still begins with these bytes."""
        hasher = hashlib.sha256()
        try:
            with open(file.growing, "rb") as stream:
                return _hash_into(hasher, stream, self.size) and hasher.hexdigest() == self.sha256
        except OSError:
            return False


def save_progress(path: Path, flushed: dict[str, Flushed]) -> None:
    """Note what each growing column holds."""
    write_whole(path, json.dumps({name: asdict(state) for name, state in flushed.items()}))


def load_progress(path: Path) -> dict[str, Flushed]:
    """Return what `save_progress` noted; empty if there is nothing usable."""
    try:
        noted = json.loads(path.read_text())
        return {name: Flushed(**{**state, "shape": tuple(state["shape"])}) for name, state in noted.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says what to do.

    Raises:
        CacheError: no permission, no room, or not a folder.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"feature cache: cannot write in '{folder}' — {error.strerror or error} — give a folder that can be "
            "written and has room: set OPENBENCH_CACHE or runtime.cache"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that readers see the old content or the new, nothing between."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(part, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)


def _hash_into(hasher: Any, stream: BinaryIO, size: int) -> bool:
    """Hash the first `size` bytes and stand behind them; False if there are fewer."""
    stream.seek(0)
    left = size
    while left and (chunk := stream.read(min(left, _HASH_CHUNK))):
        hasher.update(chunk)
        left -= len(chunk)
    return left == 0
