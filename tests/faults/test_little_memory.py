"""Limits of memory, from far too little to enough: exit 0 or 2, one message, no traceback."""

import ctypes
import faulthandler
import gc
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import openbench
from openbench.cli.process import limited as guard

from .conftest import RUN, Place, Written
from .waiting import Waiting

MEBI = 1 << 20
ROOT = Path(openbench.__file__).parent.parent


def limited(kind: int, size: int):
    """What limits a process that is about to begin."""
    return lambda: resource.setrlimit(kind, (size, size))


def ended(place: Place, kind: str, mebibytes: int, *command: str) -> tuple[int, str]:
    """Exit code and stderr of a command under a limit."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBENCH_CACHE": str(place.folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "openbench", *command],
        preexec_fn=limited(getattr(resource, kind), mebibytes * MEBI),
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


# Below the least of these, Python itself does not begin.
SIZES = {"RLIMIT_AS": (24, 60, 120, 400, 1000), "RLIMIT_DATA": (7, 11, 18, 26, 60, 128, 384, 500)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [(*RUN, "--config-dir", "pets"), ("evaluate", "none.csv"), ("leaderboard",)], ids=str
)
def test_a_limit_below_what_libraries_need_is_told_before_they_are_loaded(place: Place, command: tuple[str, ...]):
    wrong = []
    for kind, sizes in SIZES.items():
        for mebibytes in sizes:
            code, said = ended(place, kind, mebibytes, *command)
            if code != 2 or said.count("error: ") != 1 or "not enough memory" not in said or "Traceback" in said:
                wrong.append((kind, mebibytes, code, said[-300:]))
    assert wrong == []


DYING = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
from openbench.cli.process import limited
limited.prepare()
os.write(2, f"terminate called after throwing an instance of '{sys.argv[1]}'\\n  what():  {sys.argv[2]}\\n".encode())
os.abort()
"""


@pytest.mark.parametrize(
    ("thrown", "code", "blamed"),
    [
        (("std::bad_alloc", "std::bad_alloc"), 2, True),
        (("c10::Error", "DefaultCPUAllocator: can't allocate memory"), 2, True),
        (("std::logic_error", "a wrong shape"), -6, False),
    ],
)
def test_memory_is_not_blamed_for_another_exception_that_a_library_names(thrown, code: int, blamed: bool):
    done = subprocess.run(
        [sys.executable, "-c", DYING, *thrown],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "not enough memory" in done.stderr) == (code, blamed), done.stderr
    assert (thrown[1] in done.stderr) != blamed


def size_now() -> int:
    """The address space of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_growth(mebibytes: float) -> None:
    """Let this process's address space grow by so much from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # looking at the size takes memory
    resource.setrlimit(resource.RLIMIT_AS, (int(size_now() + mebibytes * MEBI), hard))


def fill_the_heap() -> None:
    """Take what this process gave back to its heap but not to the system, in blocks of 8 KiB and more.

    How much that is depends on what the process has done before, and it would be there beside any limit.
    """
    allocate = ctypes.CDLL(None).malloc  # which, unlike Python, leaves the memory untouched
    allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
    limit_growth(0)
    for size in (MEBI, MEBI >> 3, MEBI >> 5, MEBI >> 7):
        while allocate(size):
            pass


def begin_with(mebibytes: float) -> None:
    """Let a run have so much memory, as if it had been typed in a shell with a limit that leaves it so much."""
    faulthandler.disable()  # pytest's; it would print where the process died
    gc.collect()
    limit_growth(1024)  # a command looks for a limit before it has loaded anything
    guard.prepare()
    fill_the_heap()
    limit_growth(mebibytes)


@pytest.mark.slow_cases
@pytest.mark.parametrize("more", [0, 2, 8, 20, 24, 28, 32, 1 << 14])
def test_a_run_that_may_grow_by_so_many_mebibytes_ends_well_or_says_so(
    place: Place, waiting: Waiting, cold: Waiting, undisturbed: dict[str, Written], more: int
):
    """PyTorch's or Arrow's own code may die where it does not look whether it was given memory: nothing is lost.

    In a process where nothing has been run, since libraries take most when they are first used.
    """
    place.reset(undisturbed)
    expected = place.metrics
    place.reset({})
    ending = cold.run(partial(begin_with, more))
    assert ending.code == 0 or (ending.refused and "not enough memory" in ending.text), ending
    assert ending.code == (2 if more <= 2 else 0 if more >= 1 << 14 else ending.code), ending
    if ending.code:
        ending = waiting.run()
        assert ending.code == 0, ending
    assert place.metrics == expected
    place.reset({})
