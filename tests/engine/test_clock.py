import time

from openbench.engine.clock import Clock


def test_nested_time_counts_for_the_nested_stage_alone():
    clock = Clock()
    with clock.stage("outer"):
        time.sleep(0.02)
        with clock.stage("inner"):
            time.sleep(0.06)
        time.sleep(0.02)
    assert clock.seconds["inner"] >= 0.06
    assert 0.04 <= clock.seconds["outer"] < clock.seconds["inner"] + 0.02
    assert clock.peak_mib["inner"] > 0


def test_time_between_stages_counts_for_none():
    clock = Clock()
    with clock.stage("a"):
        pass
    time.sleep(0.05)
    with clock.stage("b"):
        pass
    assert sum(clock.seconds.values()) < 0.05
