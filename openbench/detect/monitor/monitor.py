"""A monitor: the p-values or scores of a stream in, an alarm out; its state can be saved and resumed."""

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
from openbench.detect.monitor.martingale import Bets, Capital, Cells, Martingale, OnlineRanks
from openbench.errors import ConfigError, DataError, OpenbenchError
from openbench.metrics.curve import as_floats
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Window:
    """Some consecutive images against the calibration images, by two-sample tests.

    The p-values hold for this window alone. They are looked at many times in a life and raise no alarm: alarms come
    from the martingale.

    Args:
        first: number of its first image, counted from 1.
        images: how many.
        flagged: share of them with p ≤ α.
        auroc: share of pairs of a window's and a calibration image in which the window's score is larger, ties ½; 0.5
            if nothing has changed.
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


def window_of(first: int, found: NDArray[np.int64], cells: Cells, alpha: float) -> Window:
    """Return the window of images that fell into the cells `found`.

    Args:
        first: number of the first image.
        found: (w,) cells.
        cells: of the calibration set.
        alpha: p-values at or below it count as flagged.
    """
    calibration = np.repeat(np.arange(cells.held.size), cells.held)
    at_or_above = cells.n - np.concatenate([[0], np.cumsum(cells.held)])[found]
    # Whole numbers: (K)/(n + 1) ≤ α with K = at_or_above + 1, where storing a decimal α rounds it.
    flagged = at_or_above + 1 <= alpha * (1 + 1e-12) * (cells.n + 1)
    ranks = mannwhitneyu(found, calibration, alternative="two-sided", method="asymptotic")
    steps = ks_2samp(found, calibration, method="asymp")
    constant = bool((found == found[0]).all() and (calibration == found[0]).all())
    return Window(
        first=first,
        images=int(found.size),
        flagged=float(flagged.mean()),
        auroc=float(ranks.statistic) / (found.size * cells.n),
        rank_p=1.0 if constant else float(ranks.pvalue),
        distance=float(steps.statistic),
        distance_p=float(steps.pvalue),
    )


_SIZE = (8.0, 2.3)  # inches of a panel of the picture
_FLOOR = -2.0  # of the capital's axis; lower values say nothing but: no change
_POINTS = 4096  # of the curve that is kept for pictures
_WINDOWS = 1000  # that are kept, the latest
_SCHEMA = 1  # of a saved state
_TABLES = 10_000  # digests of tables that were read, the latest


@dataclass(frozen=True)
class Rules(Checked):
    """What a monitor does with a stream.

    Args:
        level: the chance of ever raising an alarm while nothing changes, over the whole life of the monitor.
        bets: `mixture` notices p-values that become small, `jumper` small or large ones, `both` either.
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
class Curve:
    """The capital over a life that may be long, in at most so many points.

    Args:
        stride: every so many images a point is kept.
        log10: the points.
    """

    stride: int = 1
    log10: list[float] = field(default_factory=list)

    def add(self, images: int, value: float) -> None:
        """Keep the value after so many images if it is one of those to be kept."""
        if images % self.stride:
            return
        self.log10.append(value)
        if len(self.log10) >= _POINTS:
            self.log10, self.stride = self.log10[1::2], 2 * self.stride


class Monitor:
    """Watches a stream of images through their conformal p-values, and raises an alarm when the stream has changed.

    While calibration images and stream are exchangeable, the chance that it ever raises an alarm, however long it
    runs, is at most `level`. It promises nothing on how fast a change is noticed. Images that depend on one another,
    such as consecutive frames of a video, are not exchangeable: thin them out first.

    p-values of one fixed calibration set are not independent, so every image is compared with the calibration set and
    with all images before it (see `OnlineRanks`); bets on those values make a test martingale (see `Martingale`), and
    the alarm is raised when its value reaches 1/level. It then stays raised: `reset` begins a new life.

    Example:
        >>> monitor = Monitor(999, level=0.01)  # p-values of a detector that was calibrated on 999 images
        >>> monitor.update(0.25)
        False

    Args:
        calibration: the calibration scores (n,), with which ties are handled exactly; or how many there were, in which
            case p-values can be given but no scores, and scores are taken to be all different.
        level: chance of a false alarm over the whole life.
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
        self.rules = Rules(level, bets, window, alpha, seed)
        number = isinstance(calibration, int | np.integer) and not isinstance(calibration, bool)
        self.cells = Cells.of_number(int(calibration)) if number else Cells.of_scores(calibration)  # type: ignore[arg-type]
        if self.cells.n < math.ceil(1 / alpha) - 1:
            raise ConfigError(
                f"alpha — found {alpha}, which {self.cells.n} calibration images cannot reach: the smallest p-value is "
                f"1/{self.cells.n + 1} — calibrate on at least {math.ceil(1 / alpha) - 1} images, or choose a larger"
            )
        self.martingale = Martingale(bets)
        self.tables: list[str] = []  # digests of the tables that were read
        self._begin(OnlineRanks(self.cells, seed))

    def _begin(self, ranks: OnlineRanks) -> None:
        self.ranks = ranks
        self.capital: Capital = self.martingale.started()
        self.alarm_at: int | None = None
        self.log10_peak = 0.0
        self.curve = Curve()
        self.windows: list[Window] = []
        self.pending: list[int] = []  # cells of the window that is not full yet

    @property
    def images(self) -> int:
        """How many images were seen in this life."""
        return self.capital.images

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised in this life."""
        return self.alarm_at is not None

    @property
    def log10_wealth(self) -> float:
        """Decimal logarithm of the martingale's value now; 2 means: evidence of 100 to 1 for a change."""
        return float(self.martingale.log_wealth(self.capital)) / math.log(10)

    def update(self, p: float | ArrayLike) -> bool:
        """Take in marginal conformal p-values of the detector, in the order of the images.

        Args:
            p: one, or (k,) of them.

        Returns:
            Whether the alarm is raised.

        Raises:
            DataError: a value that this calibration set cannot give, or a calibration set with equal scores, where
                scores must be given.
            MetricError: no numbers.
        """
        return self._take(self.cells.of_p_values(np.atleast_1d(as_floats(p, "p-values"))))

    def update_scores(self, scores: float | ArrayLike) -> bool:
        """Take in scores of the detector, in the order of the images.

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
        """Begin a new life: the alarm is taken back, the capital is 1, the images so far are forgotten.

        Each life may raise a false alarm with the chance `level`. All lives share the calibration images, and with them
        their luck: after one false alarm the next is likelier than that. Calibrate again to be rid of it.
        """
        fresh = OnlineRanks(self.cells)
        fresh.random = self.ranks.random
        self._begin(fresh)

    def status(self) -> dict[str, Any]:
        """Return what there is to know, as plain values for JSON.

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
        """Write the state whole or not at all, under its digest.

        Raises:
            OSError: it cannot be written; an older state is then still there.
        """
        made, seen = self.cells, self.ranks.seen
        content = {
            "schema": _SCHEMA,
            "rules": asdict(self.rules),
            "calibration": {"images": made.n, "scores": bool(made.values.size), "digest": made.digest},
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
        """Return a monitor that goes on where the saved one stopped, as if it had never stopped.

        Args:
            path: of the state.
            calibration: the calibration scores, if it was made with scores.

        Raises:
            DataError: no such file, it has changed since it was written, or it belongs to other calibration scores.
        """
        place = path_of(path, "path")
        try:
            content = json.loads(read_sealed(place))
        except FileNotFoundError:
            raise DataError(f"state '{place}' not found — save(path) writes one") from None
        except (DamagedError, ValueError) as error:
            raise DataError(f"{error} — restore it, or delete it and begin a new life of the monitor") from error
        if content.get("schema") != _SCHEMA:
            raise DataError(f"'{place}': schema {content.get('schema')!r} — this version reads schema {_SCHEMA}")
        made = content["calibration"]
        if made["scores"] and calibration is None:
            raise DataError(
                f"'{place}' belongs to a monitor with calibration scores — found none — load(path, calibration=scores)"
            )
        given: Any = calibration if made["scores"] else int(made["images"])
        try:
            monitor = cls(given, **content["rules"])
        except OpenbenchError as error:
            raise DataError(f"'{place}': {error}") from error
        if monitor.cells.digest != made["digest"]:
            raise DataError(
                f"'{place}' belongs to other calibration scores: {made['images']} images, digest {made['digest']} — "
                f"found {monitor.cells.n} images, digest {monitor.cells.digest} — give the scores that it was made "
                "with, or begin a new life with another file"
            )
        monitor.ranks.restore(content["seen"], content["random"])
        staked = [-np.inf if value is None else value for value in content["log_staked"]]
        monitor.capital = Capital(np.array(staked, dtype=np.float64), content["images"])
        monitor.alarm_at, monitor.log10_peak = content["alarm_at"], content["log10_peak"]
        monitor.curve = Curve(**content["curve"])
        monitor.windows = [Window(**window) for window in content["windows"]]
        monitor.pending, monitor.tables = content["pending"], content["tables"]
        return monitor

    def note_table(self, digest: str) -> None:
        """Remember that a table was read.

        Raises:
            DataError: it was read before: its images would count twice.
        """
        if digest in self.tables:
            raise DataError(
                "this table was read before — its images would count twice — give the table of the images that came "
                "since, or another --state"
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
                found = np.array(self.pending, dtype=np.int64)
                first = self.images - self.rules.window + 1
                self.windows = [*self.windows, window_of(first, found, self.cells, self.rules.alpha)][-_WINDOWS:]
                self.pending = []
        return self.alarm


def _picture(monitor: Monitor) -> "Figure":
    """Three panels over the number of images: the capital, each window's AUROC, each window's flagged share."""
    from openbench.results.plots import COLOURS, finish, panels  # which loads matplotlib

    figure, (capital, order, share) = panels(3, _SIZE, across=1)
    figure.patch.set(alpha=1.0, facecolor="white")
    rules, curve, limit = monitor.rules, monitor.curve, -math.log10(monitor.rules.level)
    dashed: dict[str, Any] = {"color": "0.4", "linewidth": 0.9, "linestyle": "--"}
    x = [0, *curve.stride * np.arange(1, len(curve.log10) + 1), monitor.images]
    capital.plot(x, [0.0, *curve.log10, monitor.log10_wealth], color=COLOURS[0], linewidth=1.3)
    capital.axhline(limit, label=f"alarm at 1/level = {10**limit:,.6g}", **dashed)
    # From the alarm on it may grow without end, and the way there would not be seen.
    top = 3 * limit if monitor.alarm else max(1.3 * limit, monitor.log10_peak + 0.3)
    capital.set(ylabel="evidence of a change\n(log₁₀ of the capital)", ylim=(min(_FLOOR, -0.5 * limit), top))
    told = f"{monitor.images:,} images · chance of a false alarm in the whole life ≤ {100 * rules.level:g} %"
    capital.set_title(told, fontsize=9)
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
