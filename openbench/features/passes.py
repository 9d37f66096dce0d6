"""One pass over the images of a split: columns grow in steps that outlive a kill, and appear whole."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openbench import __version__
from openbench.backbones.base import Backbone
from openbench.checkout import made_now
from openbench.core.benchmark import Split
from openbench.data.decoded_cache import packed
from openbench.errors import CacheError
from openbench.features.arrays import (
    ColumnFile,
    ColumnWriter,
    Flushed,
    check_room,
    load_progress,
    save_progress,
    writing,
)
from openbench.features.extract import NamedRows, rest_of
from openbench.features.spent import Spent
from openbench.progress import reporting
from openbench.say import Say, silent

_FLUSH_SECONDS = 15.0
_LARGE = 10**9  # bytes of a column whose size is told beforehand


@dataclass(frozen=True)
class How:
    """How a pass is made; nothing of it may change a number.

    Args:
        flush_after: images after which columns are flushed to disk, or after 15 seconds if that is sooner.
        workers: decode small images.
        progress: whether it is reported.
        images: folder of decoded images; None: every pass decodes its own.
        say: receives a line where images are decoded.
        spent: is told the seconds that this takes.
    """

    flush_after: int
    workers: int
    progress: bool
    images: Path | None
    say: Say = silent
    spent: Spent = field(default_factory=Spent)


@dataclass(frozen=True)
class Source:
    """Where columns come from.

    Args:
        read: names of the columns that are wanted.
        kept: names of the other columns that the same pass yields, and then of these: a killed job is resumed as long
            as one of these is missing.
        rows: makes a pass over some items for some names, batch by batch.
        divisible: whether any run of whole batches may be passed, not only the last ones.
    """

    read: tuple[str, ...]
    kept: tuple[str, ...]
    rows: Callable[[Split, tuple[str, ...]], Iterator[NamedRows]]
    divisible: bool = True


def faulty(folder: Path, rows: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are missing in a folder, or are not what was written."""
    return tuple(name for name in names if ColumnFile(folder, name).fault(rows) is not None)


def about(backbone: Backbone, split: Split) -> dict[str, str]:
    """Return what a column's sidecar tells a reader."""
    return {
        "backbone": backbone.name,
        "architecture": backbone.architecture,
        "split": split.name,
        "role": str(split.role),
        "package": __version__,
        "made": made_now(),
    }


@dataclass
class Pass:
    """One extraction under the lock: resumes what an interrupted job left, appends, puts the columns in place.

    Args:
        how: what does not change a number.
        folder: of the columns.
        backbone: with weights.
        split: the images that are passed.
        names: the columns that are made.
        rows: makes the pass.
        title: what it is called in reports.
    """

    how: How
    folder: Path
    backbone: Backbone
    split: Split
    names: tuple[str, ...]
    rows: Callable[[Split, tuple[str, ...]], Iterator[NamedRows]]
    title: str = ""

    def run(self) -> None:
        """Extract all columns.

        Raises:
            DataError: see `extract`; what is on disk so far stays for the next attempt.
        """
        writers = self._resumed()
        start = next(iter(writers.values())).rows if writers else 0
        title = self.title or f"{self.backbone.name} on {self.split.name} ({self.split.role})"
        try:
            with reporting(title, len(self.split), done=start, show=self.how.progress) as advance:
                self._append(writers, start, advance)
            self._finish(writers)
        finally:
            for writer in writers.values():
                writer.close()

    def _append(self, writers: dict[str, ColumnWriter], start: int, advance: Callable[[int], None]) -> None:
        unsafe, last = 0, time.monotonic()
        if start == len(self.split):
            return
        images = self.split
        if self.how.images is not None:  # small files are decoded once for all backbones
            with self.how.spent.on("images"):
                images = packed(images, self.how.images, self.how.workers, self.how.say)
        rest = rest_of(images, start)
        for rows in self.rows(rest, self.names):
            with writing(self.folder):
                for name, array in rows.items():
                    if name not in writers:
                        writers[name] = self._begun(name, (len(self.split), *array.shape[1:]), array.dtype.str)
                    writers[name].append(array)
                count = len(next(iter(rows.values())))
                unsafe += count
                if unsafe >= self.how.flush_after or time.monotonic() - last >= _FLUSH_SECONDS:
                    save_progress(self._progress, {name: writer.flush() for name, writer in writers.items()})
                    unsafe, last = 0, time.monotonic()
            advance(count)

    def _begun(self, name: str, shape: tuple[int, ...], dtype: str) -> ColumnWriter:
        """A new column, whose size is told before it is written if it is one of the large ones."""
        file = ColumnFile(self.folder, name)
        size = check_room(file, shape, dtype)
        if len(shape) > 2 or size > _LARGE:
            taken = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
            self.how.say(f"cache: {name} of {self.split.name}, {shape} {np.dtype(dtype).name}, take {taken}")
        return ColumnWriter(file, shape, dtype=dtype)

    def _resumed(self) -> dict[str, ColumnWriter]:
        """Writers that continue an interrupted job; none if its columns differ or changed since it stopped."""
        noted = load_progress(self._progress)
        files = {name: ColumnFile(self.folder, name) for name in self.names}
        kept: dict[str, Flushed] = {}
        for name, file in files.items():
            state = noted.get(name)
            if state is None or state.shape[0] != len(self.split) or not state.intact(file):
                return {}
            kept[name] = state
        if len({state.rows for state in kept.values()}) != 1:
            return {}
        return {name: ColumnWriter(files[name], state.shape, state) for name, state in kept.items()}

    def _finish(self, writers: dict[str, ColumnWriter]) -> None:
        short = {name: w.rows for name, w in writers.items() if w.rows != len(self.split)}
        if short or len(writers) != len(self.names):
            raise CacheError(
                f"split '{self.split.name}': {short or 'no'} rows were extracted — {len(self.split)} expected — "
                "the loader lost images; nothing was cached"
            )
        told = about(self.backbone, self.split)
        with writing(self.folder):
            digests = {name: writers[name].seal({"column": name, **told}) for name in self.names}
            *others, last = self.names
            for name in others:
                writers[name].put_in_place(digests[name])
            # Before the last column, without which the next job looks at what a killed one left here.
            self._progress.unlink(missing_ok=True)
            writers[last].put_in_place(digests[last])

    @property
    def _progress(self) -> Path:
        return self.folder / "progress.json"
