"""Column files: NumPy arrays that grow by appending, appear whole or not at all, and are checked when opened."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.digest import BlockHasher, file_digest
from openbench.errors import CacheError
from openbench.storage.checksum import DAMAGED, DamagedError, content_digest, read_sealed, remember, write_sealed
from openbench.storage.files import write_whole

_CHUNK = 1 << 22
_FLOAT32 = np.dtype(np.float32).str
_STATED = {"shape", "dtype", "size", "digest"}


@dataclass(frozen=True)
class ColumnFile:
    """The paths of one column: the finished array, its sidecar with hash and counts, and the growing file."""

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

        Every byte is read, once for each state of the file that this process meets; see `storage.checksum`.
        """
        try:
            stated = json.loads(self.sidecar.read_text(encoding="utf-8"))
            size = self.array.stat().st_size
            array = np.load(self.array, mmap_mode="r", allow_pickle=False)
            digest = content_digest(self.array)
        except FileNotFoundError as error:  # also of a shard that another job joins meanwhile
            return f"'{Path(error.filename).name}' is missing"
        except DAMAGED as error:
            return f"'{self.array.name}' cannot be read ({error})"
        if not isinstance(stated, dict) or not stated.keys() >= _STATED:
            return f"'{self.sidecar.name}' is not what was written"
        if array.shape != tuple(stated["shape"]) or array.dtype.str != stated["dtype"] or len(array) != rows:
            return f"'{self.array.name}' holds {array.dtype} {array.shape}, {rows} rows were written"
        if size != stated["size"]:
            return f"'{self.array.name}' has {size} bytes, {stated['size']} were written"
        if digest != stated["digest"]:
            return f"'{self.array.name}' has changed since it was written"
        return None

    def made(self) -> str:
        """Return by which version, commit and when the array was made, as its sidecar says."""
        try:
            return str(json.loads(self.sidecar.read_text(encoding="utf-8"))["made"])
        except (OSError, ValueError, KeyError, TypeError):
            return "an earlier version"

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
        file: the paths.
        shape: the finished array's.
        kept: what an earlier writer flushed; this one continues there and cuts off what follows.
        dtype: of the rows; that of `kept` if there is one.
    """

    def __init__(
        self, file: ColumnFile, shape: tuple[int, ...], kept: "Flushed | None" = None, dtype: str = _FLOAT32
    ) -> None:
        self.file, self.shape = file, shape
        self.dtype = dtype if kept is None else kept.dtype
        self._hasher = BlockHasher()
        self.rows = 0 if kept is None else kept.rows
        # A writer outlives any one block: it is closed by `close` or `finish`.
        self._stream: BinaryIO = open(file.growing, "w+b" if kept is None else "r+b")  # noqa: SIM115
        try:
            self._begin(kept)
        except BaseException:  # e.g. no memory for a chunk
            self._stream.close()
            raise

    def _begin(self, kept: "Flushed | None") -> None:
        """Write the header, or cut off what follows `kept`, and take the digest of what is there."""
        if kept is None:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(self.dtype)), "fortran_order": False}
            np.lib.format.write_array_header_2_0(self._stream, {**header, "shape": self.shape})
        size = self._stream.tell() if kept is None else kept.size
        self._stream.truncate(size)
        self._stream.seek(0)
        while chunk := self._stream.read(_CHUNK):
            self._hasher.update(chunk)

    def append(self, rows: NDArray[np.float32]) -> None:
        """Append rows."""
        content = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        self._hasher.update(content)
        self._stream.write(content)
        self.rows += len(rows)

    def flush(self) -> "Flushed":
        """Flush everything so far to disk, and return what that is."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return Flushed(self.rows, self._stream.tell(), self._hasher.hexdigest(), self.shape, self.dtype)

    def close(self) -> None:
        """Release the file; it may be resumed."""
        self._stream.close()

    def finish(self, about: dict[str, Any]) -> None:
        """Put the sidecar and then the array in place; `about` is kept in the sidecar for human readers."""
        self.put_in_place(self.seal(about))

    def seal(self, about: dict[str, Any]) -> str:
        """Put the sidecar in place, and return the digest of the array."""
        whole = self.flush()
        self.close()
        stated = {
            "shape": self.shape,
            "dtype": self.dtype,
            "size": whole.size,
            "digest": whole.digest,
            **about,
        }
        write_whole(self.file.sidecar, json.dumps(stated, indent=1).encode())
        return whole.digest

    def put_in_place(self, digest: str) -> None:
        """Give the array, whose sidecar is there, its name."""
        os.replace(self.file.growing, self.file.array)
        remember(self.file.array, digest)


@dataclass(frozen=True)
class Flushed:
    """What a growing column held when it was last flushed.

    Args:
        rows: whole rows.
        size: bytes, header included.
        digest: of these bytes.
        shape: the finished array's.
        dtype: the array's.
    """

    rows: int
    size: int
    digest: str
    shape: tuple[int, ...]
    dtype: str = _FLOAT32

    def intact(self, file: ColumnFile) -> bool:
        """Whether the growing column still begins with these bytes."""
        try:
            return file_digest(file.growing, self.size) == self.digest
        except (OSError, ValueError):
            return False


def save_progress(path: Path, flushed: dict[str, Flushed]) -> None:
    """Note what each growing column holds."""
    write_sealed(path, json.dumps({name: asdict(state) for name, state in flushed.items()}).encode())


def load_progress(path: Path) -> dict[str, Flushed]:
    """Return what `save_progress` noted; empty if there is nothing usable, or another version noted other things."""
    try:
        noted = json.loads(read_sealed(path))
        return {name: Flushed(**{**state, "shape": tuple(state["shape"])}) for name, state in noted.items()}
    except (FileNotFoundError, DamagedError, KeyError, TypeError, AttributeError):
        return {}


def check_room(file: ColumnFile, shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes that a column will take, after checking that the disk has room for them.

    Raises:
        CacheError: it has not.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    with writing(file.folder):
        free = shutil.disk_usage(file.folder).free
    if size > free:
        raise CacheError(
            f"feature cache: column '{file.name}' {shape} takes {size / 1e9:.1f} GB — '{file.folder}' has "
            f"{free / 1e9:.1f} GB free — set OPENBENCH_CACHE or runtime.cache to a folder with more room"
        )
    return size


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
