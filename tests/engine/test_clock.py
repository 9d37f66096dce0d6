from contextlib import suppress
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


def test_time_counts_for_the_innermost_stage_alone_until_its_error(time):
    clock = Clock()
    with clock.stage("outer"):
        time.now += 2
        with clock.stage("inner"):
            time.now += 6
        time.now += 3
        with suppress(ValueError), clock.stage("inner"):
            time.now += 1
            raise ValueError
    time.now += 5
    assert clock.seconds == {"outer": 5, "inner": 7}
    assert clock.peak_mib["inner"] > 0
