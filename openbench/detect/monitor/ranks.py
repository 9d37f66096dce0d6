"""From scores or p-values that were made with one fixed calibration set to p-values that are independent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.digest import bytes_sha256
from openbench.errors import ConfigError, DataError
from openbench.metrics.curve import as_scores

_WHOLE = 0.02  # how far p·(n + 1) may be from a whole number; a p-value stored as float32 is that far off for n = 10⁵


@dataclass(frozen=True)
class Cells:
    """The n calibration scores as cells that an image falls into: each different score, and each gap between two.

    Cells are numbered from the lowest score upwards: 0 is the gap below all of them, 1 the lowest score itself, 2 the
    gap above it, and so on.

    Args:
        held: (2·m + 1,) how many calibration scores each cell holds; gaps hold none.
        values: (m,) the different scores, ascending; empty if only their number is known, in which case no two are
            equal.
    """

    held: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of_scores(cls, scores: ArrayLike) -> "Cells":
        """Return the cells of calibration scores (n,).

        Raises:
            MetricError: empty, NaN or not one-dimensional.
        """
        values, counts = np.unique(as_scores(scores, "calibration scores"), return_counts=True)
        held = np.zeros(2 * values.size + 1, dtype=np.int64)
        held[1::2] = counts
        return cls(held, np.asarray(values, dtype=np.float64))

    @classmethod
    def of_number(cls, n: int) -> "Cells":
        """Return the cells of n calibration scores of which no two are equal.

        Raises:
            ConfigError: n < 1.
        """
        if n < 1:
            raise ConfigError(f"calibration — found {n} images — allowed: a whole number ≥ 1")
        held = np.zeros(2 * n + 1, dtype=np.int64)
        held[1::2] = 1
        return cls(held, np.empty(0))

    @property
    def n(self) -> int:
        """How many calibration scores there are."""
        return int(self.held.sum())

    @property
    def tied(self) -> bool:
        """Whether two calibration scores are equal."""
        return bool((self.held > 1).any())

    @property
    def digest(self) -> str:
        """What tells this calibration from others."""
        return bytes_sha256(self.held.tobytes() + self.values.tobytes())[:16]

    def of(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Return the cells (k,) of scores (k,).

        Raises:
            DataError: only the number of calibration scores is known.
            MetricError: NaN, or not one-dimensional.
        """
        if not self.values.size:
            raise DataError(
                "scores cannot be placed — only the number of calibration images is known — give the monitor the "
                "calibration scores, or p-values"
            )
        found = as_scores(scores, "scores")
        if (self.values == self.values.astype(np.float32)).all():
            # Methods give float32; a text file holds their shortest decimals, which as float64 would equal none.
            found = found.astype(np.float32).astype(np.float64)
        left = np.searchsorted(self.values, found, side="left")
        right = np.searchsorted(self.values, found, side="right")
        return np.asarray(left + right, dtype=np.int64)

    def of_p_values(self, p: ArrayLike) -> NDArray[np.int64]:
        """Return the cells (k,) of marginal conformal p-values (k,), K/(n + 1) with K − 1 scores at or above.

        Raises:
            DataError: a value that is not such a p-value, or calibration scores that are equal: a p-value does not say
                whether the image's score equals them or lies below.
        """
        found, n = np.asarray(p, dtype=np.float64), self.n
        if found.ndim != 1:
            raise DataError(f"p-values — found an array of shape {found.shape} — allowed: one number per image, (k,)")
        if self.tied:
            raise DataError(
                f"p-values do not tell the images apart: {int((self.held > 1).sum())} scores occur more than once "
                f"among the {n} calibration scores — give scores: update_scores(scores), or the column `score`"
            )
        ranks = found * (n + 1)
        whole = np.rint(ranks)
        bad = ~((np.abs(ranks - whole) <= _WHOLE) & (whole >= 1) & (whole <= n + 1))
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"p-value {at} — found {found[at]} — allowed: K/{n + 1} for a whole number K from 1 to {n + 1}, as {n} "
                "calibration images give — take the column `p_value` of this detector, not the calibration-conditional "
                "one, nor that of another detector"
            )
        return np.asarray(2 * (n + 1 - whole), dtype=np.int64)


class OnlineRanks:
    """Independent uniform p-values of a stream, each image being compared with the calibration set and all before it.

    p = (#{above} + U·(#{equal} + 1)) / (#{all} + 1), counted over the calibration scores and the images before; U is
    uniform in (0, 1). *Equal* means: in the same cell. If calibration scores and stream are exchangeable, these values
    are independent and uniform, whatever the distribution of the scores and however many of them are equal. The
    p-values of one fixed calibration set are not: they all share its luck, and a stream that is long enough would
    reveal it as if it were a change.

    Ties are broken at random, so the seed enters the values; it never makes a false alarm more likely.

    Args:
        cells: of the calibration scores.
        seed: of the random numbers.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003, Theorem 1, for smoothed
        p-values. Images in the same gap between calibration scores are taken as equal, which lets the memory stay
        bounded: their order is exchangeable too, so drawing it at random gives the same joint distribution.
    """

    def __init__(self, cells: Cells, seed: int = 0):
        self.cells = cells
        self.random = np.random.Generator(np.random.PCG64(seed))
        self._held, self._total = cells.held.copy(), cells.n  # with the images of the stream

    @property
    def seen(self) -> NDArray[np.int64]:
        """How many images of the stream fell into each cell."""
        return np.asarray(self._held - self.cells.held)

    def next(self, cell: int) -> float:
        """Return the p-value of an image that falls into a cell, in (0, 1), and count the image."""
        above, equal = int(self._held[cell + 1 :].sum()), int(self._held[cell])
        draw = 1.0 - self.random.random()  # in (0, 1]
        p: float = (above + draw * (equal + 1)) / (self._total + 1)
        self._held[cell] += 1
        self._total += 1
        return p

    def restore(self, seen: Sequence[tuple[int, int]], state: dict[str, object]) -> None:
        """Go on where another stopped.

        Args:
            seen: pairs of a cell and how many images fell into it.
            state: of its random numbers.
        """
        for cell, count in seen:
            self._held[cell] += count
        self._total = int(self._held.sum())
        self.random.bit_generator.state = state
