"""Independent p-values of a stream (`OnlineRanks`), and test martingales that bet against them being uniform."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.config.constraints import Checked, Probability, Share
from openbench.digest import bytes_sha256
from openbench.errors import ConfigError, DataError
from openbench.metrics.curve import as_scores

Bets = Literal["mixture", "jumper", "both"]
Floats = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
POWERS, SHARES = (_NODES + 1) / 2, _WEIGHTS / 2  # κ in (0, 1), and the share of the capital on each; they sum to 1
_SIDES = np.array([-1.0, 0.0, 1.0])  # ε
_WHOLE = 0.02  # tolerance of p·(n + 1) as a whole number: a float32 p-value is that far off for n = 10⁵


@dataclass(frozen=True)
class Martingale(Checked):
    """A gambler's rules; the capital starts at 1 and is a martingale as long as p-values are uniform and independent.

    `mixture` bets κ·p^(κ−1), a share of the capital on each power κ in (0, 1): it grows where p-values are small.
    `jumper` bets 1 + ε·(p − ½) for ε in {−1, 0, 1} and moves a share `jump` of its capital between them before every
    bet: it grows where p-values are small or large. `both` puts half on each.

    A share `at_start` of the capital is bet from the first image on; after t images (1 − at_start)/log₂(t + 1) of it is
    still in reserve. A gambler without reserve loses while nothing changes, and needs ever longer to notice a late
    change; with it the delay grows with the logarithm of the time only.

    By Ville's inequality the capital ever reaches 1/level with probability at most `level`.

    Args:
        bets: `mixture`, `jumper` or `both`.
        jump: share of the jumper's capital that is moved per image.
        at_start: share of the capital that is bet from the first image on; 1 = the martingales of the papers.

    Raises:
        ConfigError: a value that is not allowed.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003 (power and simple mixture; the
        integral over κ is here the 16-point Gauss–Legendre rule, itself a martingale); Vovk et al., Retrain or not
        retrain: conformal test martingales for change-point detection, COPA 2021, arXiv 2102.10439 (simple jumper).
    """

    bets: Bets = "both"
    jump: Probability = 0.01
    at_start: Share = 0.5

    def started(self, streams: tuple[int, ...] = ()) -> "Capital":
        """Return the capital before the first image.

        Args:
            streams: shape of parallel streams; empty for one.
        """
        return Capital(np.full((*streams, POWERS.size + _SIDES.size), -np.inf), 0)

    def after(self, capital: "Capital", p: ArrayLike) -> "Capital":
        """Return the capital after one more image.

        Args:
            capital: before.
            p: p-value in (0, 1], one per stream.
        """
        values = np.asarray(p, dtype=np.float64)[..., None]
        of_powers, of_jumps = np.split(capital.log_staked, [POWERS.size], axis=-1)
        staked, t = self.reserve(capital.images) - self.reserve(capital.images + 1), capital.images + 1
        on_mixture = {"mixture": 1.0, "both": 0.5, "jumper": 0.0}[self.bets]
        whole = np.logaddexp.reduce(of_jumps, axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            of_jumps = np.logaddexp(of_jumps + np.log1p(-self.jump), whole + np.log(self.jump / _SIDES.size))
            of_powers = np.logaddexp(of_powers, np.log(staked * on_mixture * SHARES))
            of_jumps = np.logaddexp(of_jumps, np.log(staked * (1 - on_mixture) / _SIDES.size))
        of_powers = of_powers + np.log(POWERS) + (POWERS - 1) * np.log(values)
        of_jumps = of_jumps + np.log1p(_SIDES * (values - 0.5))
        return Capital(np.concatenate([of_powers, of_jumps], axis=-1), t)

    def reserve(self, images: int) -> float:
        """Return the share of the first capital that is not yet bet after a number of images."""
        return 1.0 if images == 0 else (1.0 - self.at_start) / math.log2(images + 1)

    def log_wealth(self, capital: "Capital") -> Floats:
        """Return the natural logarithm of all capital, with the reserve, one per stream."""
        reserve = self.reserve(capital.images)
        bet = np.logaddexp.reduce(capital.log_staked, axis=-1)
        return np.asarray(np.logaddexp(bet, math.log(reserve)) if reserve > 0 else bet)


@dataclass(frozen=True)
class Capital:
    """The capital of a gambler.

    Args:
        log_staked: (…, 19) logarithms of the capital on each power and on each ε.
        images: number of bets.
    """

    log_staked: Floats
    images: int


@dataclass(frozen=True)
class ScoreCells:
    """Cells of the real line: each of the n calibration scores, and each gap between two.

    Cells are numbered from the lowest score upwards: 0 is the gap below all of them, 1 the lowest score itself, 2 the
    gap above it, and so on.

    Args:
        counts: (2·m + 1,) calibration scores in each cell; 0 in gaps.
        values: (m,) the different scores, ascending; empty if only their number is known, and no two are equal.
    """

    counts: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of_scores(cls, scores: ArrayLike) -> "ScoreCells":
        """Return the cells of calibration scores (n,).

        Raises:
            MetricError: empty, NaN or not one-dimensional.
        """
        values, counts = np.unique(as_scores(scores, "calibration scores"), return_counts=True)
        cells = np.zeros(2 * values.size + 1, dtype=np.int64)
        cells[1::2] = counts
        return cls(cells, np.asarray(values, dtype=np.float64))

    @classmethod
    def of_number(cls, n: int) -> "ScoreCells":
        """Return the cells of n calibration scores of which no two are equal.

        Raises:
            ConfigError: n < 1.
        """
        if n < 1:
            raise ConfigError(f"calibration — found {n} images, allowed: a whole number ≥ 1")
        return replace(cls.of_scores(np.arange(n)), values=np.empty(0))

    @property
    def n(self) -> int:
        """The number of calibration scores."""
        return int(self.counts.sum())

    @property
    def digest(self) -> str:
        """The identity of this calibration."""
        return bytes_sha256(self.counts.tobytes() + self.values.tobytes())[:16]

    def of(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Return the cells (k,) of scores (k,).

        Raises:
            DataError: only the number of calibration scores is known.
            MetricError: NaN, or not one-dimensional.
        """
        if not self.values.size:
            raise DataError(
                "scores need calibration scores, and only the number of calibration images is known — give the monitor "
                "the calibration scores, or p-values"
            )
        stream = as_scores(scores, "scores")
        if (self.values == self.values.astype(np.float32)).all():
            # Methods give float32; a text file has their shortest decimals, which as float64 would equal none.
            stream = stream.astype(np.float32).astype(np.float64)
        left, right = (np.searchsorted(self.values, stream, side=side) for side in ("left", "right"))
        return np.asarray(left + right, dtype=np.int64)

    def of_p_values(self, p: ArrayLike) -> NDArray[np.int64]:
        """Return the cells (k,) of marginal conformal p-values (k,), K/(n + 1) with K − 1 scores at or above.

        Raises:
            DataError: a value that is not such a p-value, or equal calibration scores: a p-value does not tell whether
                the image's score equals them or is smaller.
        """
        values, n = np.asarray(p, dtype=np.float64), self.n
        if tied := int((self.counts > 1).sum()):
            raise DataError(
                f"p-values are ambiguous: {tied} scores occur more than once among the {n} "
                "calibration scores — give scores: update_scores(scores), or the column `score`"
            )
        ranks = values * (n + 1)
        whole = np.rint(ranks)
        bad = ~((np.abs(ranks - whole) <= _WHOLE) & (whole >= 1) & (whole <= n + 1))
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"p-value {at} is {values[at]}, but {n} calibration images give K/{n + 1} with a whole number K from 1 "
                f"to {n + 1} — take the column `p_value` of this detector, not the calibration-conditional one"
            )
        return np.asarray(2 * (n + 1 - whole), dtype=np.int64)


class OnlineRanks:
    """Independent uniform p-values of a stream: each image against the calibration set and all images before it.

    p = (#{above} + U·(#{equal} + 1)) / (#{all} + 1), counted over the calibration scores and the images before; U is
    uniform in (0, 1). *Equal* means: in the same cell. If calibration scores and stream are exchangeable, these values
    are independent and uniform, for every distribution of the scores and any number of ties. The p-values of one fixed
    calibration set are not: they share its luck, which looks like a change in a long stream.

    Ties are broken at random; the seed never makes a false alarm more likely.

    Args:
        cells: of the calibration scores.
        seed: of the random numbers.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003, Theorem 1, for smoothed
        p-values. Images in the same gap between calibration scores are taken as equal, which lets the memory stay
        bounded: their order is exchangeable too, so drawing it at random gives the same joint distribution.
    """

    def __init__(self, cells: ScoreCells, seed: int = 0):
        self.cells = cells
        self.random = np.random.Generator(np.random.PCG64(seed))
        self._counts, self._total = cells.counts.copy(), cells.n  # with the images of the stream

    @property
    def seen(self) -> NDArray[np.int64]:
        """The number of images of the stream in each cell."""
        return np.asarray(self._counts - self.cells.counts)

    def next(self, cell: int) -> float:
        """Count an image in a cell, and return its p-value in (0, 1)."""
        above, equal = int(self._counts[cell + 1 :].sum()), int(self._counts[cell])
        draw = 1.0 - self.random.random()  # in (0, 1]
        p: float = (above + draw * (equal + 1)) / (self._total + 1)
        self._counts[cell] += 1
        self._total += 1
        return p

    def restore(self, seen: Sequence[tuple[int, int]], state: dict[str, object]) -> None:
        """Restore a saved state.

        Args:
            seen: pairs of a cell and its number of images.
            state: of the random numbers.
        """
        for cell, count in seen:
            self._counts[cell] += count
        self._total = int(self._counts.sum())
        self.random.bit_generator.state = state
