"""The memory of this machine and of this process, on Linux, macOS and Windows."""

import sys

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def memory() -> int:
    """Return the bytes of memory that this machine has."""
    return int(psutil.virtual_memory().total)


def available() -> int:
    """Return the bytes of memory that programs of this machine can still get without swapping."""
    return int(psutil.virtual_memory().available)


def peak() -> int:
    """Return the peak resident memory of this process in bytes, pages of memory-mapped files included."""
    if resource is None:
        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)
