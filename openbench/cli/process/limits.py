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


_LIMITS = (("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d"))


def limits_set() -> dict[str, int]:
    """Return the limits on the memory of this process that are set, bytes, by the shell's command for them."""
    if resource is None:
        return {}
    found = {command: resource.getrlimit(getattr(resource, name))[0] for name, command in _LIMITS}
    return {command: soft for command, soft in found.items() if soft != resource.RLIM_INFINITY}


def check_limits(least: Least) -> None:
    """Refuse limits under which the libraries of a command cannot even be loaded.

    Args:
        least: what the command needs.

    Raises:
        OpenbenchError: the address space or the data of a process may not grow to what is needed at the least.
    """
    needed = {"ulimit -v": least.address_space, "ulimit -d": least.data}
    for command, soft in limits_set().items():
        size = needed[command]
        if soft < size:
            raise OpenbenchError(
                f"not enough memory — `{command}` allows {soft >> 20:,} MiB — {least.who} needs {size >> 20:,} MiB "
                f"{least.when}, and would end the process without a word — type `{command} unlimited`, or ask the "
                "batch system for more memory, and give the same command again"
            )
