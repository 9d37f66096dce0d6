"""A pass in portions, each a file that appears whole: a kill loses at most one, and several jobs may share them."""

import logging
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from openbench.core.benchmark import Split
from openbench.digest import digest
from openbench.errors import CacheError
from openbench.features.arrays import NamedRows, faulty, write_columns, writing
from openbench.progress import Advance
from openbench.storage.checksum import DAMAGED
from openbench.storage.files import delete_old, replacing

logger = logging.getLogger(__name__)

FOLDER = "portions"
_LARGE = 10**9  # bytes of a column whose size is told beforehand


@dataclass(frozen=True)
class Portions:
    """The portions of a pass over a split: whole batches, so that jobs pass the same batches through the network.

    A file lock says who works on a portion; it ends with its process.

    Args:
        folder: of the columns.
        split: all images.
        names: of the columns; passes for others have portions of their own.
        size: images of a portion.
    """

    folder: Path
    split: Split
    names: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def border(self, at: int) -> tuple[int, int]:
        """The first row of a portion, and the one behind its last."""
        return at * self.size, min((at + 1) * self.size, len(self.split))

    def lock(self, at: int, timeout: float) -> FileLock:
        """The lock of a portion.

        Args:
            at: which.
            timeout: seconds to wait for it; −1: as long as it takes.

        Raises:
            CacheError: the folder cannot be written.
        """
        with writing(self.folder):
            self._place.mkdir(parents=True, exist_ok=True)
        return FileLock(self._file(at).with_suffix(".lock"), timeout=timeout)

    def missing(self, at: int) -> bool:
        """Whether a portion is still to be made; none is once the columns are whole."""
        return not self._file(at).exists() and bool(faulty(self.folder, len(self.split), self.names))

    def write(self, at: int, parts: Iterator[NamedRows], advance: Advance) -> None:
        """Write a portion.

        Args:
            at: which.
            parts: consecutive rows from its first one on, whole batches; no more are taken than it needs.
            advance: is called with the number of rows of each part.

        Raises:
            CacheError: the folder cannot be written or has no room, or there are too few rows.
        """
        start, stop = self.border(at)
        taken: list[NamedRows] = []
        rows = 0
        while rows < stop - start and (part := next(parts, None)) is not None:
            if not taken:
                self._check_room(part, first=at == 0)
            taken.append(part)
            added = len(next(iter(part.values())))
            rows += added
            advance(added)
        if rows != stop - start:
            raise CacheError(
                f"split '{self.split.name}': {rows} rows were extracted of {stop - start} from row {start} on — the "
                "loader lost images; nothing was cached"
            )
        with writing(self.folder), replacing(self._file(at)) as stream:
            columns: Any = {name: np.concatenate([part[name] for part in taken]) for name in self.names}
            np.savez(stream, **columns)

    def join(self, about: dict[str, Any]) -> None:
        """Put the columns in place, made of all portions in their order; the caller holds the lock of the columns.

        Raises:
            CacheError: a portion is damaged, or the folder cannot be written.
        """
        write_columns(self.folder, len(self.split), map(self._read, range(len(self))), about)
        shutil.rmtree(self._place, ignore_errors=True)
        delete_old(self._place.parent, "*")  # of jobs that were killed and wanted other columns
        with suppress(OSError):
            self._place.parent.rmdir()

    def _read(self, at: int) -> NamedRows:
        file = self._file(at)
        try:
            with np.load(file, allow_pickle=False) as pack:  # the checksums of its members are compared
                return {name: pack[name] for name in self.names}
        except (*DAMAGED, zipfile.BadZipFile) as error:
            file.unlink(missing_ok=True)
            raise CacheError(
                f"feature cache: '{file}' is damaged ({error}) — give the same command again, which makes it again"
            ) from error

    def _check_room(self, part: NamedRows, *, first: bool) -> None:
        """Raise CacheError if the disk has no room for portions and columns."""
        sizes = {name: rows[0].nbytes * len(self.split) for name, rows in part.items()}
        for name, size in sizes.items():
            if first and (part[name].ndim > 2 or size > _LARGE):
                shape = (len(self.split), *part[name].shape[1:])
                taken = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
                logger.info(f"cache: {name} of {self.split.name}, {shape} {part[name].dtype.name}, take {taken}")
        with writing(self.folder):
            free = shutil.disk_usage(self.folder).free
            made = sum(file.stat().st_size for file in self._place.glob("*.npz"))
        if (needed := 2 * sum(sizes.values()) - made) > free:
            raise CacheError(
                f"feature cache: columns {', '.join(self.names)} of '{self.split.name}' take {needed / 1e9:.1f} GB "
                f"while they are made — '{self.folder}' has {free / 1e9:.1f} GB free — set OPENBENCH_CACHE or "
                "runtime.cache to a folder with more room"
            )

    @property
    def _place(self) -> Path:
        return self.folder / FOLDER / digest(sorted(self.names))

    def _file(self, at: int) -> Path:
        return self._place / "{}-{}.npz".format(*self.border(at))
