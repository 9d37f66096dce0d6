"""Where the time and the memory of a run go, stage by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from openbench.memory import peak


@dataclass
class Clock:
    """Wall seconds per stage, exclusive: time inside a nested stage counts for that stage alone.

    Attributes:
        seconds: stage → seconds so far.
        peak_mib: stage → the process's peak resident memory in MiB when the stage last ended.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, int] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Attribute the time in the `with` block to `name`."""
        self._settle()
        self._stack.append(name)
        try:
            yield
        finally:
            self._settle()
            self._stack.pop()
            self.peak_mib[name] = peak_mib()

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._stack:
            top = self._stack[-1]
            self.seconds[top] = self.seconds.get(top, 0.0) + now - self._since
        self._since = now


def peak_mib() -> int:
    """Return the peak resident memory of this process in MiB, file-backed pages of memory-mapped columns included."""
    return peak() >> 20
