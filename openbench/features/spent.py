"""Where the time of passes goes: to the network, or to waiting for images."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
_WAITS = 0.2  # share of the time that is worth a word


@dataclass
class Spent:
    """Wall seconds since this was made, and those of parts.

    Attributes:
        network: passing images, with their way to the device and that of the outputs back.
        images: waiting for batches that are read, decoded and resized.
    """

    network: float = 0.0
    images: float = 0.0
    _since: float = field(default_factory=lambda: time.perf_counter())

    @contextmanager
    def on(self, part: Literal["network", "images"]) -> Iterator[None]:
        """Count the body's time for a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)

    def waiting(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches, counting the time until each is there."""
        following = iter(batches)
        while True:
            with self.on("images"):
                batch = next(following, None)
            if batch is None:
                return
            yield batch

    def told(self, workers: int) -> str:
        """Return how the time was divided, in one line.

        Args:
            workers: threads that decode; where there are none and images are waited for, they are recommended.
        """
        total = max(time.perf_counter() - self._since, self.network + self.images, 1e-9)
        rest = total - self.network - self.images
        shares = [f"{part / total:.0%}" for part in (self.network, self.images, rest)]
        advice = " — runtime.workers=4 decodes while the network runs" * (not workers and self.images > _WAITS * total)
        return (
            f"of {total:.1f} s the network took {shares[0]}, waiting for images {shares[1]}, all else "
            f"{shares[2]}{advice}"
        )
