"""A run that is killed at any of its file operations: the same command then ends with the same numbers and files."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .conftest import Place, Written

# Every how-manieth operation is the last one; 1 = each of them.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "23"))
SEED = int(os.environ.get("OPENBENCH_TEST_SEED", "0"))
CHANGES = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def at_each_change(place: Place, act: Callable[[int], None]) -> Callable[[], None]:
    """Return what sets up a process so that `act(n)` is called before its n-th change below cache or results."""
    return at_each_change_below((place.folder / "cache", place.folder / "results"), act)


def at_each_change_below(folders: Sequence[Path], act: Callable[[int], None]) -> Callable[[], None]:
    """Return what sets up a process so that `act(n)` is called before its n-th change below the folders."""

    def begin() -> None:
        roots = tuple(map(str, folders))
        count = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal count
            changes = event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
            if (
                changes
                and isinstance(arguments[0], str | os.PathLike)
                and os.path.abspath(arguments[0]).startswith(roots)
            ):
                count += 1
                act(count)

        sys.addaudithook(hook)

    return begin


def changes_of(place: Place) -> int:
    """How many changes an undisturbed run makes."""
    note = place.folder / "count"
    place.reset({})
    ending = place.run(at_each_change(place, lambda n: note.write_text(str(n)) and None))
    assert ending.code == 0, ending.text
    return int(note.read_text())


def test_a_run_killed_at_any_change_ends_as_if_nothing_had_happened(place: Place, undisturbed: dict[str, Written]):
    place.reset(undisturbed)
    expected = place.metrics
    total = changes_of(place)
    assert total > 100
    wrong = []
    for last in range(1 + SEED % STRIDE, total + 1, STRIDE):

        def kill(n: int, last: int = last) -> None:
            if n == last:
                os.kill(os.getpid(), signal.SIGKILL)

        place.reset({})
        assert place.run(at_each_change(place, kill)).code == -signal.SIGKILL
        ending = place.run()
        if ending.code != 0:
            wrong.append((last, ending.code, ending.text[-500:]))
        elif place.metrics != expected:
            wrong.append((last, "other numbers"))
        elif set(place.written) != set(undisturbed):
            wrong.append((last, sorted(set(place.written) ^ set(undisturbed))))
    assert wrong == []
