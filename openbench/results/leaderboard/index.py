"""What tables need of each record, kept in the cache, so that thousands of records are not parsed each time.

The index holds nothing that the records do not, and may be deleted at any time. There is a sealed file for each folder
of records; an entry counts as long as the record's file is in the state that it was read in (device, inode, size, both
time stamps), and as long as openbench's code and config files are what they were when the entry was made.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from openbench import paths
from openbench.core.record import Value
from openbench.digest import bytes_sha256, digest
from openbench.errors import OpenbenchError, RecordError
from openbench.results.leaderboard.runs import Keep, Run, Shared, run_of
from openbench.results.records.store import OnError, RecordStore
from openbench.results.records.superseded import Made
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

_UNABLE = "unable"
_LENGTH = struct.Struct("<Q")
_RECENT = 2 * 10**9  # nanoseconds in which a file could change without its time stamps telling
_TUPLES = ("deviations", "problems", "measured")
_OF_RUN = tuple(f.name for f in fields(Run) if f.name not in ("run_id", "metrics", "made"))
_OF_MADE = tuple(f.name for f in fields(Made) if f.name != "run_id")

State = tuple[int, int, int, int, int]
# Places among all numbers; of each set or group its keys, and whether they are whole.
_Wanted = tuple[list[int], list[tuple[str, list[tuple[str, bool]]]]]
# The sets and groups of a record with their keys, in its order, and which of all numbers are whole.
Layout = tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[int, ...]]


def indexed_runs(records: RecordStore, keep: Sequence[Keep], on_error: OnError) -> Iterator[Run]:
    """Yield what `runs_of` yields for every record, reading only those that are new or have changed.

    Args:
        records: of a results folder.
        keep: each, given a set or group and a key, says whether it needs the number.
        on_error: receives an error for each file that is not a record.
    """
    kept, texts, shared = _Kept(keep), _Texts(), Shared((_everything,))
    for folder, files in groupby(records.paths(on_error), key=lambda path: path.parent):
        room = _Room.read(folder, texts)
        found, fresh = _Room(folder, texts), False
        for path in files:
            state = _state(path)
            known = room.entries.get(path.name)
            if known is not None and known[0] == state:
                found.entries[path.name] = known
                yield room.run(path.name, kept)
                continue
            try:
                record = records.read(path)
            except RecordError as error:
                on_error(error)
                continue
            run = run_of(record, shared)
            if state is not None and state == _state(path) and time.time_ns() - max(state[3:]) > _RECENT:
                fresh |= found.add(path.name, state, run)
            yield _only(run, kept)
        if fresh or len(found.entries) < len(room.entries):
            found.take_over(room)
            found.write()


@dataclass
class _Texts:
    """Values by their JSON text, so that equal ones of many records are parsed and kept once."""

    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, text: str) -> Any:
        if text not in self.values:
            self.values[text] = json.loads(text)
        return self.values[text]


class _Kept:
    """Which numbers of a layout somebody needs; found out once for each layout."""

    def __init__(self, keep: Sequence[Keep]) -> None:
        self.keep = keep
        self._of: dict[int, tuple[Layout, _Wanted]] = {}  # by identity: to hash a layout takes longer than to use it
        self._equal: dict[Layout, _Wanted] = {}

    def wants(self, name: str, key: str) -> bool:
        """Whether a number is needed."""
        return any(keep(name, key) for keep in self.keep)

    def of(self, layout: Layout) -> "_Wanted":
        """What is needed of a layout."""
        if id(layout) not in self._of:
            if layout not in self._equal:
                self._equal[layout] = self._found(layout)
            self._of[id(layout)] = layout, self._equal[layout]
        return self._of[id(layout)][1]

    def _found(self, layout: Layout) -> _Wanted:
        at, whole, places, found = 0, set(layout[1]), list[int](), []
        for name, keys in layout[0]:
            own = [at + n for n, key in enumerate(keys) if self.wants(name, key)]
            if own:
                found.append((sys.intern(name), [(sys.intern(keys[n - at]), n in whole) for n in own]))
            places += own
            at += len(keys)
        return places, found


# Of an entry: the state of its file, its layout, its numbers, and the JSON texts of everything else.
_Entry = tuple[State, Layout, np.ndarray[Any, np.dtype[np.float64]], tuple[str, ...]]


class _Room:
    """The entries of one folder of records.

    Args:
        folder: of the records.
        texts: what many records have in common.
    """

    def __init__(self, folder: Path, texts: _Texts) -> None:
        self.folder, self.texts = folder, texts
        self.entries: dict[str, _Entry] = {}

    @classmethod
    def read(cls, folder: Path, texts: _Texts) -> "_Room":
        """The entries that were kept; none if there are none, or they are of another state of the code."""
        found, file = cls(folder, texts), _file(folder)
        if file is None:
            return found
        try:
            content = read_sealed(file)
        except (DamagedError, FileNotFoundError):
            return found
        (length,) = _LENGTH.unpack_from(content)
        header = json.loads(content[_LENGTH.size : _LENGTH.size + length])
        if header["code"] != code_digest() or header["folder"] != str(folder.absolute()):
            return found
        layouts, numbers, start = [], [], _LENGTH.size + length
        for names, whole, rows in header["layouts"]:
            layout = tuple((name, tuple(keys)) for name, keys in names), tuple(whole)
            width = sum(len(keys) for _, keys in layout[0])
            layouts.append(layout)
            numbers.append(np.frombuffer(content, np.float64, rows * width, start).reshape(rows, width))
            start += 8 * rows * width
        table = header["texts"]
        for name, state, which, row, values in header["entries"]:
            texts_of = tuple(table[at] for at in values)
            found.entries[name] = (tuple(state), layouts[which], numbers[which][row], texts_of)
        return found

    def add(self, name: str, state: State, run: Run) -> bool:
        """Add a record, and return whether its numbers can be kept."""
        layout, numbers = _laid_out(run.metrics)
        if layout is None:
            return False
        values = [*(getattr(run, key) for key in _OF_RUN), *(getattr(run.made, key) for key in _OF_MADE)]
        self.entries[name] = (state, layout, numbers, tuple(json.dumps(value) for value in values))
        return True

    def take_over(self, other: "_Room") -> None:
        """Copy what was taken from another room, whose memory can then be given back."""
        for name, (state, layout, numbers, texts) in self.entries.items():
            if name in other.entries:
                self.entries[name] = state, layout, numbers.copy(), texts

    def run(self, name: str, kept: _Kept) -> Run:
        """The run of an entry with the numbers that somebody needs."""
        _, layout, numbers, texts = self.entries[name]
        values = [self.texts[text] for text in texts]
        about = dict(zip(_OF_RUN, values, strict=False))
        for key in _TUPLES:
            about[key] = tuple(about[key])
        run_id = name.removesuffix(".json")
        made = Made(run_id, **dict(zip(_OF_MADE, values[len(_OF_RUN) :], strict=True)))
        places, sets = kept.of(layout)
        plain = iter(numbers[places].tolist())
        metrics = {name: {key: _value(next(plain), whole=whole) for key, whole in keys} for name, keys in sets}
        return Run(run_id=run_id, metrics=metrics, made=made, **about)

    def write(self) -> None:
        """Keep the entries; where the cache cannot be written, records are read again next time."""
        file = _file(self.folder)
        if file is None:
            return
        table: dict[str, int] = {}
        rows: dict[Layout, list[Any]] = {}
        entries = []
        for name, (state, layout, numbers, texts) in self.entries.items():
            own = rows.setdefault(layout, [])
            which = list(rows).index(layout)
            entries.append([name, state, which, len(own), [table.setdefault(text, len(table)) for text in texts]])
            own.append(numbers)
        header = {
            "code": code_digest(),
            "folder": str(self.folder.absolute()),
            "texts": list(table),
            "layouts": [[names, whole, len(own)] for (names, whole), own in rows.items()],
            "entries": entries,
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        numbers_of = b"".join(np.asarray(own, np.float64).tobytes() for own in rows.values())
        with suppress(OSError):
            write_sealed(file, _LENGTH.pack(len(text)) + text + numbers_of)


def _laid_out(metrics: Mapping[str, Mapping[str, Value]]) -> tuple[Layout | None, Any]:
    """The layout and the numbers of a record; None if a float64 cannot hold one of them."""
    flat = [value for values in metrics.values() for value in values.values()]
    if not all(value == _UNABLE if isinstance(value, str) else float(value) == value for value in flat):
        return None, None
    whole = tuple(at for at, value in enumerate(flat) if type(value) is int)
    layout = tuple((name, tuple(values)) for name, values in metrics.items()), whole
    return layout, np.array([np.nan if isinstance(value, str) else value for value in flat], np.float64)


def _value(number: float, *, whole: bool) -> Value:
    """A number as the record has it: no record holds NaN, which stands for `unable`."""
    if number != number:
        return _UNABLE
    return int(number) if whole else number


def _only(run: Run, kept: _Kept) -> Run:
    metrics = {
        name: own
        for name, values in run.metrics.items()
        if (own := {k: v for k, v in values.items() if kept.wants(name, k)})
    }
    return Run(**{f.name: getattr(run, f.name) for f in fields(Run)} | {"metrics": metrics})


def _everything(name: str, key: str) -> bool:
    return True


def _state(path: Path) -> State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _file(folder: Path) -> Path | None:
    """Where the entries of a folder are kept; None if there is no cache."""
    return kept_file(f"{digest(str(folder.absolute()), 32)}.index")


def kept_file(name: str) -> Path | None:
    """Return where something that is found again and again is kept; None if there is no cache."""
    try:
        return paths.cache_dir() / "records" / name
    except OpenbenchError:
        return None


@cache
def code_digest() -> str:
    """Return a digest of openbench's own files and Python's version, on which it depends what is kept of records.

    An augmentation, for instance, has the name of its file.
    Files count by their content: packages that are built reproducibly give files of every version the same time stamp.
    """
    folders = (Path(paths.__file__).parent, "*.py"), (paths.config_dir(), "*.yaml")
    files = [(folder, file) for folder, form in folders for file in sorted(folder.rglob(form))]
    found = [(str(file.relative_to(folder)), bytes_sha256(file.read_bytes())) for folder, file in files]
    return digest([found, sys.version_info[:3]], 32)
