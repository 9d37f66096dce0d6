"""Limits of memory that a shell or a batch system sets, checked before loading anything that would abort under them."""

from dataclasses import dataclass

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from openbench.errors import OpenbenchError


@dataclass(frozen=True)
class Least:
    """The least memory with which something works, measured on Linux with two cores.

    Args:
        who: needs it.
        when: it needs it.
        address_space: `ulimit -v`, bytes.
        data: `ulimit -d`, bytes.
    """

    who: str
    when: str
    address_space: int
    data: int


# A run of forty images, with PyTorch for the CPU; with less, its C++ ends the process.
PYTORCH = Least("PyTorch", "before the first image", 3 << 29, 1 << 29)
# `evaluate` of four rows; with less, OpenBLAS ends the process or waits for ever, and Arrow blames the file.
LIBRARIES = Least("NumPy with Arrow", "before the first row", 1 << 30, 1 << 29)


def check_limits(least: Least) -> None:
    """Refuse limits under which the libraries of a command cannot even be loaded.

    Args:
        least: what the command needs.

    Raises:
        OpenbenchError: the address space or the data of a process may not grow to what is needed at the least.
    """
    if resource is None:
        return
    needed = (("RLIMIT_AS", least.address_space, "ulimit -v"), ("RLIMIT_DATA", least.data, "ulimit -d"))
    for name, size, command in needed:
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and soft < size:
            raise OpenbenchError(
                f"not enough memory — `{command}` allows {soft >> 20:,} MiB — {least.who} needs {size >> 20:,} MiB "
                f"{least.when}, and would end the process without a word — type `{command} unlimited`, or ask the "
                "batch system for more memory, and give the same command again"
            )
