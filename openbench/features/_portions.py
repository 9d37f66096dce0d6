"""Portions of a pass, each an atomic file: a kill loses at most one, and several jobs can share a pass."""

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
from openbench.features._arrays import NamedRows, faulty, write_columns, writing
from openbench.progress import Advance
from openbench.storage.checksum import DAMAGED
from openbench.storage.files import delete_old, replacing

FOLDER = "portions"


@dataclass(frozen=True)
class Portions:
    """The portions of a pass over a split, of whole batches, so that results do not depend on who makes them.

    A process locks the portion that it works on; the lock ends with the process.

    Args:
        folder: of the columns.
        split: all images.
        names: of the columns; passes for other columns have separate portions.
        size: images of a portion.
    """

    folder: Path
    split: Split
    names: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def border(self, at: int) -> tuple[int, int]:
        """Return the first row of a portion, and the end of its rows."""
        return at * self.size, min((at + 1) * self.size, len(self.split))

    def lock(self, at: int, timeout: float) -> FileLock:
        """Return the lock of portion `at`; `timeout` is in seconds, −1 waits without end.

        Raises:
            CacheError: the folder cannot be written.
        """
        with writing(self.folder):
            self._subfolder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._file(at).with_suffix(".lock"), timeout=timeout)

    def missing(self, at: int) -> bool:
        """Whether a portion is still to be made; none is once the columns are complete."""
        return not self._file(at).exists() and bool(faulty(self.folder, len(self.split), self.names))

    def write(self, at: int, parts: Iterator[NamedRows], advance: Advance) -> None:
        """Write a portion.

        Args:
            at: which.
            parts: consecutive rows from its first one on, whole batches; no more are taken than it needs.
            advance: is called with the number of rows of each part.

        Raises:
            CacheError: the folder cannot be written or has no room.
        """
        start, stop = self.border(at)
        portion: list[NamedRows] = []
        rows = 0
        while rows < stop - start:
            portion.append(next(parts))
            count = len(portion[-1][self.names[0]])
            rows += count
            advance(count)
        with writing(self.folder), replacing(self._file(at)) as stream:
            columns: Any = {name: np.concatenate([part[name] for part in portion]) for name in self.names}
            np.savez(stream, **columns)

    def join(self, about: dict[str, Any]) -> None:
        """Write the columns from all portions in their order; the caller holds the lock of the columns.

        Raises:
            CacheError: a portion is damaged, or the folder cannot be written.
        """
        write_columns(self.folder, len(self.split), map(self._read, range(len(self))), about)
        shutil.rmtree(self._subfolder, ignore_errors=True)
        delete_old(self._subfolder.parent, "*")  # of killed jobs for other columns
        with suppress(OSError):
            self._subfolder.parent.rmdir()

    def _read(self, at: int) -> NamedRows:
        file = self._file(at)
        try:
            with np.load(file, allow_pickle=False) as pack:  # which compares the checksums of its members
                return {name: pack[name] for name in self.names}
        except (*DAMAGED, zipfile.BadZipFile) as error:
            file.unlink(missing_ok=True)
            raise CacheError(f"feature cache: '{file}' is damaged ({error}) — give the same command again") from error

    @property
    def _subfolder(self) -> Path:
        return self.folder / FOLDER / digest(sorted(self.names))

    def _file(self, at: int) -> Path:
        return self._subfolder / "{}-{}.npz".format(*self.border(at))
