"""`data new` killed at any of its file operations: the same command goes on and leaves nothing else."""

import os
import shutil
import signal
from functools import partial

import pytest

from .conftest import COUNTS, DEEP, Place, sampled
from .states import at_each_change_below, kill_at, write_down
from .test_full_disk_everywhere import full

# Every STRIDE-th change of files; each seed begins elsewhere.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "7"))
NEW = ["data", "new", "pets4", "--id", "photos", "--near", "birds=birds", "--to", "fourth"]


@pytest.fixture
def files(place: Place):
    """What the folder holds, whenever it is called."""
    folder = place.folder / "fourth"
    yield lambda: {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_killed_data_new_goes_on(place: Place, files):
    note, folder = place.folder / "count", place.folder / "fourth"
    counting = partial(at_each_change_below, [folder], partial(write_down, note))
    assert place.run(counting, NEW).code == 0
    expected, wrong = files(), []
    total = int(note.read_text())
    assert total >= STRIDE  # else a seed would try none
    for last in sampled(range(1, total + 1), STRIDE):
        COUNTS["operations stopped"] += 1
        shutil.rmtree(folder)
        killed = place.run(partial(at_each_change_below, [folder], partial(kill_at, last)), NEW)
        assert killed.code == -signal.SIGKILL
        again = place.run(command=NEW)
        if again.code != 0 or files() != expected:
            wrong.append((last, again, sorted(set(files()) ^ set(expected))))
    assert wrong == []


def test_a_data_new_that_could_not_print_may_be_given_again(place: Place, files):
    assert place.run(full, NEW).refused
    expected = files()
    again = place.run(command=NEW)
    assert again.code == 0, again.text
    assert files() == expected


def test_lists_that_somebody_changed_are_not_written_over(place: Place, files):
    assert place.run(command=NEW).code == 0
    changed = place.folder / "fourth/lists/pets4/id.val.csv"
    changed.write_text(changed.read_text() + "x,cat\n")
    before = files()
    assert place.run(command=NEW).refused
    assert files() == before
