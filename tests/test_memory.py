"""The memory of a machine and of a process."""

from types import SimpleNamespace

import psutil

from openbench import memory


def test_a_machine_has_what_its_system_says(monkeypatch):
    assert 0 < memory.available() <= memory.memory() == psutil.virtual_memory().total
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=7, available=5, free=3))
    assert (memory.memory(), memory.available()) == (7, 5)


def test_the_peak_is_in_bytes():
    assert psutil.Process().memory_info().rss / 2 < memory.peak() < memory.memory()


def test_where_there_are_no_unix_limits_the_peak_is_that_of_the_working_set(monkeypatch):
    found = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=5 << 32))
    monkeypatch.setattr(memory, "resource", None)
    monkeypatch.setattr(psutil, "Process", lambda: found)
    assert memory.peak() == 5 << 32
