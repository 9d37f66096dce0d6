"""Limits of memory that a shell or a batch system sets, checked before loading anything that would abort under them."""

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from openbench.errors import OpenbenchError

# What a run of forty images takes, measured on Linux with PyTorch for the CPU; with less, its C++ ends the process.
_LEAST = (("RLIMIT_AS", 3 << 29, "ulimit -v"), ("RLIMIT_DATA", 1 << 29, "ulimit -d"))


def check_limits() -> None:
    """Refuse limits under which PyTorch cannot even be loaded.

    Raises:
        OpenbenchError: the address space or the data of a process may not grow to what is needed at the least.
    """
    if resource is None:
        return
    for name, least, command in _LEAST:
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and soft < least:
            raise OpenbenchError(
                f"not enough memory — `{command}` allows {soft >> 20:,} MiB — PyTorch needs {least >> 20:,} MiB before "
                f"the first image, and would end the process without a word — type `{command} unlimited`, or ask the "
                "batch system for more memory, and give the same command again"
            )
