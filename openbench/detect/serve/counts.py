"""What a server counts, in Prometheus' text format."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass
class Histogram:
    """How many values were at most each of some bounds.

    Args:
        bounds: ascending.
        counts: of values at most each bound and above the one before; the last are those above all.
        total: sum of the values.
    """

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Begin with zeros."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.total += value
        self.counts[sum(value > bound for bound in self.bounds)] += 1

    def lines(self, name: str) -> list[str]:
        """Return the samples of the histogram."""
        found, below = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*found, f"{name}_sum {self.total}", f"{name}_count {below}"]


@dataclass
class Counts:
    """Everything that is counted; labels have the server's own values only, so that nobody can make them many.

    Args:
        requests: (path, status) → how many.
        images: that were scored.
        ood: of these, called OOD.
        seconds: from when a request for a prediction begins until it is answered.
        batches: images per batch.
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    images: int = 0
    ood: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(_IMAGES))

    def text(self, waiting: int) -> str:
        """Return all of it in the text format, version 0.0.4.

        Args:
            waiting: images that wait now.
        """
        lines = _head("openbench_requests_total", "counter", "HTTP requests by path and status.")
        lines += [
            f'openbench_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        for name, kind, value, told in (
            ("openbench_images_total", "counter", self.images, "Images scored."),
            ("openbench_ood_total", "counter", self.ood, "Images called OOD at alpha."),
            ("openbench_waiting_images", "gauge", waiting, "Images that wait for the network."),
        ):
            lines += [*_head(name, kind, told), f"{name} {value}"]
        for name, histogram, told in (
            ("openbench_request_seconds", self.seconds, "Seconds from the beginning of a prediction to its answer."),
            ("openbench_batch_images", self.batches, "Images per forward pass."),
        ):
            lines += [*_head(name, "histogram", told), *histogram.lines(name)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
