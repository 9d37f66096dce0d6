"""Every state that a run's files go through: what a kill at that moment would leave."""

import hashlib
import os
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .conftest import ROOMS, Place, Written
from .waiting import Waiting

CHANGES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
State = dict[str, Written | None]  # by name; None is a folder


def at_each_change(folder: Path, act: Callable[[int], object]) -> None:
    """Have this process call `act(n)` before its n-th change below cache or results."""
    at_each_change_below([folder / name for name in ROOMS], act)


def at_each_change_below(folders: Sequence[Path], act: Callable[[int], object]) -> None:
    """Have this process call `act(n)` before its n-th change below the folders."""
    roots = tuple(map(str, folders))
    count = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count
        changes = event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if changes and isinstance(arguments[0], str | os.PathLike) and os.path.abspath(arguments[0]).startswith(roots):
            count += 1
            act(count)

    sys.addaudithook(hook)


def kill_at(last: int, n: int) -> None:
    """Kill this process before its change `last`."""
    if n == last:
        os.kill(os.getpid(), signal.SIGKILL)


def write_down(note: Path, n: int) -> None:
    """Keep the number of the latest change."""
    note.write_text(str(n))


@dataclass(frozen=True)
class States:
    """What the files below cache and results were before each change.

    Args:
        changes: how many there were.
        distinct: those states that differ in more than the names of temporary files, with the change that followed.
    """

    changes: int
    distinct: dict[int, State]


def states_of(place: Place, waiting: Waiting, start: dict[str, Written]) -> States:
    """Let a command run on some files, and return the states that these went through."""
    place.reset(start)
    note = place.folder / "states"
    ending = waiting.run(partial(_note_states, place.folder, note))
    assert ending.code == 0, ending.text
    contents: dict[str, bytes] = {}
    seen: dict[frozenset, int] = {}
    distinct: dict[int, State] = {}
    changes = 0
    for changes, files, added in _entries(note):
        contents.update(added)
        key = frozenset((re.sub(r"\.[0-9a-f]{12}(?=\.|$)", ".*", name), digest) for name, (digest, _) in files.items())
        if seen.setdefault(key, changes) == changes:
            distinct[changes] = {
                name: None if digest is None else Written(contents[digest], mtime)
                for name, (digest, mtime) in files.items()
            }
    note.unlink()
    return States(changes, distinct)


def _entries(note: Path) -> Iterator[tuple[int, dict, dict[str, bytes]]]:
    with note.open("rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except EOFError:
                return


def _note_states(folder: Path, note: Path) -> None:
    """Append the state of the files to a note before each change of this process."""
    at_each_change(folder, _Notes(folder, note.open("ab", buffering=0)))


@dataclass
class _Notes:
    folder: Path
    stream: object
    known: dict = field(default_factory=dict)

    def __call__(self, n: int) -> None:
        files, added = {}, {}
        for room in ROOMS:
            for parent, folders, names in os.walk(self.folder / room):
                within = parent[len(str(self.folder)) + 1 :]
                files.update({f"{within}/{name}": (None, 0) for name in folders})
                for name in names:
                    found = os.stat(f"{parent}/{name}")
                    stamp = found.st_ino, found.st_size, found.st_mtime_ns
                    name = f"{within}/{name}"
                    if self.known.get(name, (None,))[0] != stamp:
                        content = (self.folder / name).read_bytes()
                        self.known[name] = stamp, hashlib.sha256(content).hexdigest()
                        added[self.known[name][1]] = content
                    files[name] = self.known[name][1], found.st_mtime_ns
        self.stream.write(pickle.dumps((n, files, added)))
