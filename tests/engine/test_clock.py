from contextlib import suppress
from types import SimpleNamespace

from openbench.engine import provenance
from openbench.engine.provenance import Clock


def test_time_counts_for_the_innermost_stage_alone_until_its_error(monkeypatch):
    # Stands still until it is told to pass: on a busy machine the real one passes anyhow.
    clock, time = Clock(), SimpleNamespace(now=100.0, perf_counter=lambda: time.now)
    monkeypatch.setattr(provenance, "time", time)
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
