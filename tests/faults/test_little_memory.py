"""Limits of memory, from far too little to enough: exit 0 or 2, one message, no traceback."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import openbench

from .conftest import RUN, Place, Written
from .waiting import Waiting

MEBI = 1 << 20
DEATHS = (-signal.SIGSEGV, -signal.SIGABRT)
ROOT = Path(openbench.__file__).parent.parent


def limited(kind: int, size: int):
    """What limits a process that is about to begin."""
    return lambda: resource.setrlimit(kind, (size, size))


@pytest.mark.parametrize("mebibytes", [60, 80, 120, 200, 400, 1000, 1400])
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_below_what_pytorch_needs_is_told_before_it_is_loaded(place: Place, kind: str, mebibytes: int):
    if kind == "RLIMIT_DATA":
        mebibytes //= 3
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBENCH_CACHE": str(place.folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "openbench", *RUN, "--config-dir", "pets"],
        preexec_fn=limited(getattr(resource, kind), mebibytes * MEBI),
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("error: "), done.stdout) == (2, 1, ""), done.stderr
    assert "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


def size_now() -> int:
    """The address space of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("more", [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
def test_a_run_that_may_grow_by_so_many_mebibytes_ends_well_or_says_so(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written], more: int
):
    """PyTorch's own code may die where it does not look whether it was given memory; then nothing is lost."""
    place.reset(undisturbed)
    expected = place.metrics
    place.reset({})
    ending = place.run(lambda: limited(resource.RLIMIT_AS, size_now() + more * MEBI)())
    if ending.code in DEATHS:
        ending = waiting.run()
        assert ending.code == 0, ending
        assert place.metrics == expected
    assert ending.code == 0 or ending.refused, ending
    if ending.code:
        assert "not enough memory" in ending.text
    place.reset({})
