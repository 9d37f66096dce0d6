"""The memory of a machine and of a process where Windows is asked for it."""

import ctypes
from types import SimpleNamespace

from openbench import memory


class Function:
    """A function of kernel32: the attributes that ctypes lets one set, and a call."""

    def __init__(self, call):
        self.call = call

    def __call__(self, *arguments):
        return self.call(*arguments)


def write(at, pointer, value):
    """Put eight bytes into a structure, at the place where the documentation of Windows has the field."""
    there = ctypes.cast(pointer, ctypes.c_void_p).value + at
    ctypes.memmove(there, value.to_bytes(8, "little"), 8)


def test_windows_is_asked_in_the_form_that_it_documents(monkeypatch):
    handle = 1 << 40

    def of_machine(pointer):
        assert pointer._obj.length == 64  # sizeof(MEMORYSTATUSEX)
        write(8, pointer, 16 << 30)  # ullTotalPhys

    def of_process(process, pointer, size):
        assert (process, size, pointer._obj.length) == (handle, 72, 72)  # sizeof(PROCESS_MEMORY_COUNTERS), 64 bits
        write(8, pointer, 5 << 32)  # PeakWorkingSetSize

    kernel = SimpleNamespace(
        GlobalMemoryStatusEx=Function(of_machine),
        GetCurrentProcess=Function(lambda: handle),
        K32GetProcessMemoryInfo=Function(of_process),
    )
    monkeypatch.setattr(memory, "resource", None)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert (memory.memory(), memory.peak()) == (16 << 30, 5 << 32)
