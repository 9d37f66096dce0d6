"""A disk that is full at any moment of a run: one message; with room, the numbers and files of an undisturbed run."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from .conftest import COUNTS, Place, Written, sampled
from .waiting import Waiting

# Every how-manieth size is tried; 1 = each of them.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "29"))
PAGE = 4096


def up_to(size: int) -> None:
    """No file of this process may become larger; a write beyond that fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def wrong_after(place: Place, waiting: Waiting, undisturbed: dict[str, Written], expected: object) -> list[object]:
    """What the same command does otherwise than an undisturbed run, now that there is room."""
    ending = waiting.run()
    if ending.code != 0:
        return [ending.code, ending.text[-500:]]
    if place.metrics != expected:
        return ["other numbers"]
    return sorted(set(place.written) ^ set(undisturbed))


@pytest.mark.slow
def test_a_run_whose_files_may_not_grow_says_so_and_then_ends_as_if_nothing_had_happened(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written]
):
    place.reset(undisturbed)
    expected = place.metrics
    lengths = sorted(
        {size for file in undisturbed.values() for size in (len(file.content) - 1, len(file.content) // 2)}
    )
    wrong = []
    for size in sampled([0, *lengths], STRIDE):
        COUNTS["disks filled"] += 1
        place.reset({})
        ending = waiting.run(partial(up_to, size))
        if not ending.refused:
            wrong.append((size, ending.code, ending.text[-500:]))
        elif after := wrong_after(place, waiting, undisturbed, expected):
            wrong.append((size, "afterwards", after))
    assert wrong == []


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of its own in place of a folder; the content is copied out at the end, as if it had been made larger."""
    folder.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True)
    if found.returncode:
        pytest.skip(f"no file system can be mounted here: {found.stderr.decode().strip()}")
    COUNTS["disks filled"] += 1
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cache", "results"])
def test_a_full_disk_is_told_and_then_the_run_ends_as_if_nothing_had_happened(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written], name: str
):
    place.reset(undisturbed)
    expected = place.metrics
    pages = sum(-(-len(f.content) // PAGE) for n, f in undisturbed.items() if n.startswith(name))
    wrong = []
    for size in sampled(range(1, pages), STRIDE if name == "cache" else 1):
        place.reset({})
        with disk(place.folder / name, size * PAGE):
            ending = waiting.run()
            left = place.written
        if not ending.refused:
            wrong.append((size, ending.code, ending.text[-500:]))
        place.reset(left)
        if after := wrong_after(place, waiting, undisturbed, expected):
            wrong.append((size, "afterwards", after))
    assert wrong == []


NEW = "data new pets2 --id photos --near birds=birds --to other"
BOARD = "leaderboard"


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("command", "folder"),
    [(NEW, "other"), (BOARD, "results/leaderboard"), (f"{BOARD} --every-number all.csv", "all.csv")],
)
def test_a_command_that_writes_tables_or_lists_leaves_no_part_of_a_file(
    place: Place, undisturbed: dict[str, Written], command: str, folder: str
):
    place.reset(undisturbed)
    target = place.folder / folder

    def files() -> dict[str, bytes]:
        found = [target] if target.is_file() else target.rglob("*")
        return {str(p.relative_to(place.folder)): p.read_bytes() for p in found if p.is_file()}

    ending = place.run(command=command.split())
    assert ending.code == 0, ending.text
    expected, wrong = files(), []
    for size in sorted({0, *(len(content) - 1 for content in expected.values())}):
        subprocess.run(["rm", "-rf", str(target)], check=True)
        ending = place.run(partial(up_to, size), command.split())
        parts = {name for name, content in files().items() if expected.get(name) != content}
        if not ending.refused or parts or (command == NEW and files()):
            wrong.append((size, ending, sorted(parts)))
        again = place.run(command=command.split())
        if again.code != 0 or files() != expected:
            wrong.append((size, "afterwards", again))
    subprocess.run(["rm", "-rf", str(target)], check=True)
    assert wrong == []


def no_room_for_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def test_a_full_disk_behind_the_output_is_told(place: Place, waiting: Waiting, undisturbed: dict[str, Written]):
    place.reset(undisturbed)
    ending = waiting.run(no_room_for_output)
    assert ending.refused, ending
