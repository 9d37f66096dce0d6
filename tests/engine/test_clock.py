import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from openbench.engine import provenance as module
from openbench.engine.provenance import Clock


class Time:
    """Stands still until it is told to pass: on a busy machine the real one passes anyhow."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch) -> Time:
    found = Time()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=found.perf_counter))
    return found


def test_nested_time_counts_for_the_nested_stage_alone(time):
    clock = Clock()
    with clock.stage("outer"):
        time.now += 2
        with clock.stage("inner"):
            time.now += 6
        time.now += 3
        with clock.stage("inner"):
            time.now += 1
    assert clock.seconds == {"outer": 5, "inner": 7}
    assert clock.peak_mib["inner"] > 0


def test_time_between_stages_counts_for_none(time):
    clock = Clock()
    with clock.stage("a"):
        time.now += 1
    time.now += 5
    with clock.stage("b"):
        time.now += 2
    assert clock.seconds == {"a": 1, "b": 2}


def test_time_until_an_error_counts(time):
    clock = Clock()
    with suppress(ValueError), clock.stage("a"):
        time.now += 3
        raise ValueError
    time.now += 5
    assert clock.seconds == {"a": 3}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_the_peak_is_the_memory_of_this_process_in_mib():
    clock = Clock()
    with clock.stage("one"):
        pass
    used = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    assert used / 2 < clock.peak_mib["one"] < 20 * used
