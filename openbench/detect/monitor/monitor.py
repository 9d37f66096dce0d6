"""Monitors of a stream of scores or p-values, with an alarm at a change; their state can be saved and resumed."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import ks_2samp, mannwhitneyu

from openbench.api.arguments import path_of
from openbench.config.constraints import Checked, Count, Fraction, Seed
from openbench.detect.monitor.martingale import Bets, Capital, Martingale, OnlineRanks, ScoreCells
from openbench.errors import ConfigError, DataError
from openbench.metrics.curve import as_floats
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Window:
    """Consecutive images against the calibration images, by two-sample tests.

    The p-values hold for this window alone and raise no alarm: alarms come from the martingale.

    Args:
        first: number of its first image, counted from 1.
        images: number of images.
        flagged: share of them with p ≤ α.
        auroc: share of pairs of an image of the window and of calibration in which the former has the larger score,
            ties ½; 0.5 if nothing has changed.
        rank_p: two-sided p-value of Mann and Whitney's test of 0.5.
        distance: largest difference of the two distribution functions (Kolmogorov and Smirnov).
        distance_p: two-sided p-value of no difference.
    """

    first: int
    images: int
    flagged: float
    auroc: float
    rank_p: float
    distance: float
    distance_p: float


def window_of(first: int, images: NDArray[np.int64], cells: ScoreCells, alpha: float) -> Window:
    """Return the window of some images.

    Args:
        first: number of the first image.
        images: (w,) their cells.
        cells: of the calibration set.
        alpha: p-values at or below it count as flagged.
    """
    calibration = np.repeat(np.arange(cells.counts.size), cells.counts)
    at_or_above = cells.n - np.concatenate([[0], np.cumsum(cells.counts)])[images]
    # K/(n + 1) ≤ α with K = at_or_above + 1; the factor allows for the rounding of a decimal α.
    flagged = at_or_above + 1 <= alpha * (1 + 1e-12) * (cells.n + 1)
    ranks = mannwhitneyu(images, calibration, alternative="two-sided", method="asymptotic")
    steps = ks_2samp(images, calibration, method="asymp")
    constant = bool((images == images[0]).all() and (calibration == images[0]).all())
    return Window(
        first=first,
        images=int(images.size),
        flagged=float(flagged.mean()),
        auroc=float(ranks.statistic) / (images.size * cells.n),
        rank_p=1.0 if constant else float(ranks.pvalue),
        distance=float(steps.statistic),
        distance_p=float(steps.pvalue),
    )


_SIZE = (8.0, 2.3)  # inches of a panel of the picture
_FLOOR = -2.0  # of the capital's axis
_POINTS = 4096  # of the curve in a state
_WINDOWS = 1000  # latest windows in a state
_SCHEMA = 1  # of a state
_TABLES = 10_000  # digests of the latest tables in a state


@dataclass(frozen=True)
class MonitorRules(Checked):
    """The rules of a monitor.

    Args:
        level: probability of ever raising an alarm while nothing changes, over the whole life of the monitor.
        bets: `mixture` notices small p-values, `jumper` small or large ones, `both` either.
        window: images per window of the two-sample view.
        alpha: p-values at or below it count as flagged in that view.
        seed: of the random numbers that break ties.
    """

    named = "monitor"

    level: Fraction = 0.01
    bets: Bets = "both"
    window: Count = 500
    alpha: Fraction = 0.05
    seed: Seed = 0


@dataclass
class CapitalCurve:
    """The capital over a life, in a bounded number of points.

    Args:
        stride: images per point.
        log10: the points.
    """

    stride: int = 1
    log10: list[float] = field(default_factory=list)

    def add(self, images: int, value: float) -> None:
        """Add the value after a number of images, if it is a multiple of the stride."""
        if images % self.stride:
            return
        self.log10.append(value)
        if len(self.log10) >= _POINTS:
            self.log10, self.stride = self.log10[1::2], 2 * self.stride


class Monitor:
    """Watches a stream of images through their conformal p-values, and raises an alarm when the stream has changed.

    While calibration images and stream are exchangeable, the probability that it ever raises an alarm is at most
    `level`. There is no guarantee on the delay. Images that depend on one another, such as consecutive frames of a
    video, are not exchangeable: thin them out first.

    Every image is compared with the calibration set and all images before it (see `OnlineRanks`), which gives
    independent p-values; bets on them make a test martingale (see `Martingale`), and the alarm is raised when its value
    reaches 1/level. It stays raised until `reset` starts a new life.

    Example:
        >>> monitor = Monitor(999, level=0.01)  # p-values of a detector that was calibrated on 999 images
        >>> monitor.update(0.25)
        False

    Args:
        calibration: the calibration scores (n,), with which ties are handled exactly; or their number, for p-values
            only, where no two scores are equal.
        level: probability of a false alarm over the whole life.
        bets: `mixture`, `jumper` or `both`.
        window: images per window of the two-sample view.
        alpha: p-values at or below it count as flagged in that view.
        seed: of the random numbers that break ties.

    Raises:
        ConfigError: a value that is not allowed.
        MetricError: calibration scores that cannot be used.
    """

    def __init__(
        self,
        calibration: int | ArrayLike,
        *,
        level: float = 0.01,
        bets: Bets = "both",
        window: int = 500,
        alpha: float = 0.05,
        seed: int = 0,
    ):
        self.rules = MonitorRules(level, bets, window, alpha, seed)
        number = isinstance(calibration, int | np.integer) and not isinstance(calibration, bool)
        self.cells = ScoreCells.of_number(int(calibration)) if number else ScoreCells.of_scores(calibration)  # type: ignore[arg-type]
        if self.cells.n < math.ceil(1 / alpha) - 1:
            raise ConfigError(
                f"alpha = {alpha} is below 1/{self.cells.n + 1}, the smallest p-value with {self.cells.n} calibration "
                f"images — calibrate on at least {math.ceil(1 / alpha) - 1} images, or choose a larger"
            )
        self.martingale = Martingale(bets)
        self.tables: list[str] = []  # digests of the tables that were read
        self._begin(OnlineRanks(self.cells, seed))

    def _begin(self, ranks: OnlineRanks) -> None:
        self.ranks = ranks
        self.capital: Capital = self.martingale.started()
        self.alarm_at: int | None = None
        self.log10_peak = 0.0
        self.curve = CapitalCurve()
        self.windows: list[Window] = []
        self.pending: list[int] = []  # cells of the window that is not full yet

    @property
    def images(self) -> int:
        """The number of images of this life."""
        return self.capital.images

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised in this life."""
        return self.alarm_at is not None

    @property
    def log10_wealth(self) -> float:
        """Decimal logarithm of the martingale's value; 2 = evidence of 100 to 1 for a change."""
        return float(self.martingale.log_wealth(self.capital)) / math.log(10)

    def update(self, p: float | ArrayLike) -> bool:
        """Add marginal conformal p-values of the detector, in the order of the images.

        Args:
            p: one, or (k,) of them.

        Returns:
            Whether the alarm is raised.

        Raises:
            DataError: a value that this calibration set cannot give, or a calibration set with equal scores, which
                needs scores.
            MetricError: not numbers.
        """
        return self._take(self.cells.of_p_values(np.atleast_1d(as_floats(p, "p-values"))))

    def update_scores(self, scores: float | ArrayLike) -> bool:
        """Add scores of the detector, in the order of the images.

        Args:
            scores: one, or (k,) of them; larger = more OOD.

        Returns:
            Whether the alarm is raised.

        Raises:
            DataError: only the number of calibration images is known.
            MetricError: NaN.
        """
        return self._take(self.cells.of(np.atleast_1d(np.asarray(scores))))

    def reset(self) -> None:
        """Start a new life: no alarm, a capital of 1, no images.

        Each life may raise a false alarm with probability `level`. All lives share the calibration images: after one
        false alarm the next is more likely, unless you calibrate again.
        """
        fresh = OnlineRanks(self.cells)
        fresh.random = self.ranks.random
        self._begin(fresh)

    def status(self) -> dict[str, Any]:
        """Return the status as plain values for JSON.

        `alarm`; `alarm_at`, the number of the image that raised it, or None; `images`; `log10_wealth` and its largest
        value `log10_peak`; `level`; `window`, the latest full one, or None.
        """
        return {
            "alarm": self.alarm,
            "alarm_at": self.alarm_at,
            "images": self.images,
            "log10_wealth": self.log10_wealth,
            "log10_peak": self.log10_peak,
            "level": self.rules.level,
            "window": asdict(self.windows[-1]) if self.windows else None,
        }

    def plot(self) -> "Figure":
        """Return the picture of this life: the capital, and each window beside the calibration set."""
        return _picture(self)

    def save(self, path: str | Path) -> None:
        """Write the state atomically, with its digest.

        Raises:
            OSError: it cannot be written; an older state is then still there.
        """
        cells, seen = self.cells, self.ranks.seen
        content = {
            "schema": _SCHEMA,
            "rules": asdict(self.rules),
            "calibration": {"images": cells.n, "scores": bool(cells.values.size), "digest": cells.digest},
            "seen": [[int(cell), int(seen[cell])] for cell in np.flatnonzero(seen)],
            "random": self.ranks.random.bit_generator.state,
            "images": self.images,
            "log_staked": [float(value) if np.isfinite(value) else None for value in self.capital.log_staked],
            "alarm_at": self.alarm_at,
            "log10_peak": self.log10_peak,
            "curve": asdict(self.curve),
            "windows": [asdict(window) for window in self.windows],
            "pending": self.pending,
            "tables": self.tables,
        }
        write_sealed(path_of(path, "path"), json.dumps(content, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path, calibration: ArrayLike | None = None) -> Self:
        """Return a saved monitor.

        Args:
            path: of the state.
            calibration: the calibration scores, if it has some.

        Raises:
            DataError: no such file, it has changed since it was written, or it belongs to other calibration scores.
        """
        place = path_of(path, "path")
        try:
            content = json.loads(read_sealed(place))
        except (FileNotFoundError, DamagedError, ValueError) as error:
            raise DataError(
                f"state '{place}' cannot be read: {error} — restore it, or delete it to start a new life"
            ) from error
        if content.get("schema") != _SCHEMA:
            raise DataError(f"'{place}': schema {content.get('schema')!r} — this version reads schema {_SCHEMA}")
        saved = content["calibration"]
        monitor = cls(saved["images"] if calibration is None else calibration, **content["rules"])
        if monitor.cells.digest != saved["digest"]:
            raise DataError(
                f"'{place}' belongs to {saved['images']} other calibration scores (found {monitor.cells.n}) — give "
                "those, or start a new life with another file"
            )
        monitor.ranks.restore(content["seen"], content["random"])
        staked = [-np.inf if value is None else value for value in content["log_staked"]]
        monitor.capital = Capital(np.array(staked, dtype=np.float64), content["images"])
        monitor.alarm_at, monitor.log10_peak = content["alarm_at"], content["log10_peak"]
        monitor.curve = CapitalCurve(**content["curve"])
        monitor.windows = [Window(**window) for window in content["windows"]]
        monitor.pending, monitor.tables = content["pending"], content["tables"]
        return monitor

    def note_table(self, digest: str) -> None:
        """Note the digest of a table.

        Raises:
            DataError: it was noted before.
        """
        if digest in self.tables:
            raise DataError(
                "this table was read before, and its images would count twice — give the table of newer images, or "
                "another --state"
            )
        self.tables = [*self.tables, digest][-_TABLES:]

    def _take(self, cells: NDArray[np.int64]) -> bool:
        limit = -math.log(self.rules.level)
        for cell in cells.tolist():
            self.capital = self.martingale.after(self.capital, self.ranks.next(cell))
            wealth = float(self.martingale.log_wealth(self.capital))
            self.log10_peak = max(self.log10_peak, wealth / math.log(10))
            if wealth >= limit and self.alarm_at is None:
                self.alarm_at = self.images
            self.curve.add(self.images, wealth / math.log(10))
            self.pending.append(cell)
            if len(self.pending) == self.rules.window:
                first, images = self.images - self.rules.window + 1, np.array(self.pending, dtype=np.int64)
                self.windows = [*self.windows, window_of(first, images, self.cells, self.rules.alpha)][-_WINDOWS:]
                self.pending = []
        return self.alarm


def _picture(monitor: Monitor) -> "Figure":
    """Return three panels over the number of images: the capital, each window's AUROC and flagged share."""
    from openbench.results.plots import COLOURS, finish, panels  # which loads matplotlib

    figure, (capital, order, share) = panels(3, _SIZE, across=1)
    figure.patch.set(alpha=1.0, facecolor="white")
    rules, curve, limit = monitor.rules, monitor.curve, -math.log10(monitor.rules.level)
    dashed: dict[str, Any] = {"color": "0.4", "linewidth": 0.9, "linestyle": "--"}
    x = [0, *curve.stride * np.arange(1, len(curve.log10) + 1), monitor.images]
    capital.plot(x, [0.0, *curve.log10, monitor.log10_wealth], color=COLOURS[0], linewidth=1.3)
    capital.axhline(limit, label=f"alarm at 1/level = {10**limit:,.6g}", **dashed)
    # After the alarm it may grow without bound, and hide the part before.
    top = 3 * limit if monitor.alarm else max(1.3 * limit, monitor.log10_peak + 0.3)
    capital.set(ylabel="evidence of a change\n(log₁₀ of the capital)", ylim=(min(_FLOOR, -0.5 * limit), top))
    title = f"{monitor.images:,} images · chance of a false alarm in the whole life ≤ {100 * rules.level:g} %"
    capital.set_title(title, fontsize=9)
    at = [w.first + (w.images - 1) / 2 for w in monitor.windows]
    order.axhline(0.5, label="no change: 0.5", **dashed)
    order.set(ylabel="AUROC of window\nover calibration", ylim=(-0.02, 1.02))
    alpha = 100 * rules.alpha
    share.axhline(alpha, label=f"no change: at most {alpha:g} % on average", **dashed)
    share.set(ylabel=f"flagged at α = {rules.alpha:g}\n(% of window)", xlabel="images seen", ylim=(-2, 102))
    auroc, flagged = [w.auroc for w in monitor.windows], [100 * w.flagged for w in monitor.windows]
    for axes, values in ((order, auroc), (share, flagged)):
        axes.plot(at, values, marker="o", markersize=3, linewidth=0.9, color=COLOURS[0])
    for axes in (capital, order, share):
        axes.set_xlim(0, max(monitor.images, 1))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if monitor.alarm_at is not None:
            label = f"alarm at image {monitor.alarm_at:,}" if axes is capital else None
            axes.axvline(monitor.alarm_at, color=COLOURS[1], linewidth=1.2, label=label)
        finish(axes, "upper left")
    return figure
