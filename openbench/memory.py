"""The memory of this machine and of this process, on Linux, macOS and Windows."""

import ctypes
import os
import sys

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


class _Machine(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 6),
    )


class _Process(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("rest", ctypes.c_size_t * 7),
    )


def memory() -> int:
    """Return the bytes of memory that this machine has."""
    if resource is not None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = _Machine(length=ctypes.sizeof(_Machine))
    _kernel().GlobalMemoryStatusEx(ctypes.byref(found))
    return found.total


def peak() -> int:
    """Return the peak resident memory of this process in bytes, pages of memory-mapped files included."""
    if resource is not None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)
    found = _Process(length=ctypes.sizeof(_Process))
    kernel = _kernel()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p  # a handle: as an int, half of it would be lost
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.length)
    return found.peak


def _kernel() -> ctypes.CDLL:
    library: ctypes.CDLL = ctypes.windll.kernel32  # type: ignore[attr-defined]
    return library
