"""Items that are rows of numbers, read a batch at a time from arrays of any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Array(Protocol):
    """What rows are read from: an array in memory, a memory-mapped one, or an object that reads a file."""

    @property
    def shape(self) -> Sequence[int]:
        """(N, k)."""
        ...

    def __getitem__(self, index: Any) -> Any:
        """Rows: a slice, or an array of row numbers."""
        ...


@dataclass(frozen=True, eq=False)
class RowItems:
    """Rows of one array, or of several side by side; nothing but the batch that is read is copied.

    Args:
        parts: arrays (N, k) of numbers; an item is a row of the first, then of the second, and so on.
        rows: (n,) which rows, in manifest order; None = all.
    """

    parts: tuple[Array, ...]
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.parts[0].shape[0]) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row: NDArray[np.float32] = self.gather(index, index + 1)[0]
        return row

    def gather(self, start: int, stop: int) -> NDArray[np.float32]:
        """Items [start, stop) as one new array (stop − start, k) float32."""
        index: Any = slice(start, stop)
        if self.rows is not None:
            chosen = self.rows[start:stop]
            consecutive = len(chosen) and bool((np.diff(chosen) == 1).all())
            index = slice(int(chosen[0]), int(chosen[-1]) + 1) if consecutive else chosen
        with np.errstate(over="ignore"):  # a number that float32 does not hold is infinite, and refused as such
            parts = [np.asarray(part[index]).astype(np.float32) for part in self.parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
