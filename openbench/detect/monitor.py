"""Monitors of a stream of scores, with an alarm at a change: independent p-values, and bets against them."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import ks_2samp, mannwhitneyu

from openbench.api.arguments import path_of
from openbench.config.constraints import Checked, Count, Fraction, Seed
from openbench.digest import bytes_sha256
from openbench.errors import ConfigError, DataError
from openbench.metrics.curve import Floats, as_scores
from openbench.storage.checksum import read_sealed, write_sealed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bets = Literal["mixture", "jumper", "both"]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
POWERS, SHARES = (_NODES + 1) / 2, _WEIGHTS / 2  # κ in (0, 1), and the share of the capital on each; they sum to 1
_SIDES = np.array([-1.0, 0.0, 1.0])  # ε
_SIZE = (8.0, 2.3)  # inches of a panel of the picture
_FLOOR = -2.0  # of the capital's axis
_POINTS = 4096  # of the curve in a state
_WINDOWS = 1000  # latest windows in a state
_SCHEMA = 1  # of a state
_AS_IT_IS = ("alarm_at", "log10_peak", "pending", "tables")  # in a state, of a monitor's attributes
_TABLES = 10_000  # digests of the latest tables in a state


class Martingale:
    """The capital of a gambler: 1 at first, and a martingale as long as p-values are uniform and independent.

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
        streams: shape of parallel streams; empty for one.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003 (power and simple mixture; the
        integral over κ is here the 16-point Gauss–Legendre rule, itself a martingale); Vovk et al., Retrain or not
        retrain: conformal test martingales for change-point detection, COPA 2021, arXiv 2102.10439 (simple jumper).
    """

    def __init__(
        self, bets: Bets = "both", jump: float = 0.01, at_start: float = 0.5, streams: tuple[int, ...] = ()
    ) -> None:
        self.on_mixture = {"mixture": 1.0, "both": 0.5, "jumper": 0.0}[bets]
        self.jump, self.at_start, self.images = jump, at_start, 0
        # (…, 19) logarithms of the capital on each power and on each ε.
        self.log_staked = np.full((*streams, POWERS.size + _SIDES.size), -np.inf)

    def bet(self, p: ArrayLike) -> None:
        """Bet on one more image; `p` is its p-value in (0, 1], one per stream."""
        values = np.asarray(p, dtype=np.float64)[..., None]
        of_powers, of_jumps = np.split(self.log_staked, [POWERS.size], axis=-1)
        reserve = self.reserve
        self.images += 1
        staked = reserve - self.reserve
        whole = np.logaddexp.reduce(of_jumps, axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            of_jumps = np.logaddexp(of_jumps + np.log1p(-self.jump), whole + np.log(self.jump / _SIDES.size))
            of_powers = np.logaddexp(of_powers, np.log(staked * self.on_mixture * SHARES))
            of_jumps = np.logaddexp(of_jumps, np.log(staked * (1 - self.on_mixture) / _SIDES.size))
        of_powers = of_powers + np.log(POWERS) + (POWERS - 1) * np.log(values)
        of_jumps = of_jumps + np.log1p(_SIDES * (values - 0.5))
        self.log_staked = np.concatenate([of_powers, of_jumps], axis=-1)

    @property
    def reserve(self) -> float:
        """The share of the first capital that is not yet bet."""
        return 1.0 if self.images == 0 else (1.0 - self.at_start) / math.log2(self.images + 1)

    @property
    def log_wealth(self) -> Floats:
        """The natural logarithm of all capital, with the reserve, one per stream."""
        bet = np.logaddexp.reduce(self.log_staked, axis=-1)
        return np.asarray(np.logaddexp(bet, math.log(self.reserve)) if self.reserve > 0 else bet)


class OnlineRanks:
    """Independent uniform p-values of a stream: each image against the calibration set and all images before it.

    p = (#{above} + U·(#{equal} + 1)) / (#{all} + 1), counted over the calibration scores and the images before; U is
    uniform in (0, 1). *Equal* means: in the same cell. If calibration scores and stream are exchangeable, these values
    are independent and uniform, for every distribution of the scores and any number of ties. The p-values of one fixed
    calibration set are not: they share its luck, which looks like a change in a long stream.

    Cells are each of the m different calibration scores and each gap between two, numbered from the lowest score
    upwards: 0 is the gap below all of them, 1 the lowest score itself, 2 the gap above it, and so on.

    Ties are broken at random; the seed never makes a false alarm more likely.

    Args:
        calibration: scores (n,).
        seed: of the random numbers.

    Raises:
        MetricError: scores that are empty, NaN or not one-dimensional.

    Reference: Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, ICML 2003, Theorem 1, for smoothed
        p-values. Images in the same gap between calibration scores are taken as equal, which lets the memory stay
        bounded: their order is exchangeable too, so drawing it at random gives the same joint distribution.
    """

    def __init__(self, calibration: ArrayLike, seed: int = 0) -> None:
        self.values, counts = np.unique(as_scores(calibration, "calibration scores"), return_counts=True)
        self.calibration = np.zeros(2 * self.values.size + 1, dtype=np.int64)  # scores in each cell; 0 in gaps
        self.calibration[1::2] = counts
        self.counts = self.calibration.copy()  # with the images of the stream
        self.random = np.random.Generator(np.random.PCG64(seed))

    @property
    def n(self) -> int:
        """The number of calibration scores."""
        return int(self.calibration.sum())

    @property
    def digest(self) -> str:
        """The identity of the calibration scores."""
        return bytes_sha256(self.calibration.tobytes() + self.values.tobytes())[:16]

    def cells(self, scores: ArrayLike) -> NDArray[np.int64]:
        """Return the cells (k,) of scores (k,).

        Raises:
            MetricError: NaN, or not one-dimensional.
        """
        stream = as_scores(scores, "scores")
        if (self.values == self.values.astype(np.float32)).all():
            # Methods give float32; a text file has their shortest decimals, which as float64 would equal none.
            stream = stream.astype(np.float32).astype(np.float64)
        left, right = (np.searchsorted(self.values, stream, side=side) for side in ("left", "right"))
        return np.asarray(left + right, dtype=np.int64)

    def next(self, cell: int) -> float:
        """Count an image in a cell, and return its p-value in (0, 1)."""
        above, equal, total = (int(part.sum()) for part in (self.counts[cell + 1 :], self.counts[cell], self.counts))
        draw = 1.0 - self.random.random()  # in (0, 1]
        self.counts[cell] += 1
        return float((above + draw * (equal + 1)) / (total + 1))


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

    @classmethod
    def of(cls, first: int, cells: NDArray[np.int64], counts: NDArray[np.int64], alpha: float) -> Self:
        """Return the window of some images.

        Args:
            first: number of the first image.
            cells: (w,) of the images.
            counts: calibration scores in each cell.
            alpha: p-values at or below it count as flagged.
        """
        calibration, n = np.repeat(np.arange(counts.size), counts), int(counts.sum())
        at_or_above = n - np.concatenate([[0], np.cumsum(counts)])[cells]
        # K/(n + 1) ≤ α with K = at_or_above + 1; the factor allows for the rounding of a decimal α.
        flagged = at_or_above + 1 <= alpha * (1 + 1e-12) * (n + 1)
        ranks = mannwhitneyu(cells, calibration, alternative="two-sided", method="asymptotic")
        steps = ks_2samp(cells, calibration, method="asymp")
        constant = bool((cells == cells[0]).all() and (calibration == cells[0]).all())
        auroc, rank_p = float(ranks.statistic) / (cells.size * n), 1.0 if constant else float(ranks.pvalue)
        of_steps = float(steps.statistic), float(steps.pvalue)
        return cls(first, cells.size, float(flagged.mean()), auroc, rank_p, *of_steps)


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


class Monitor:
    """Watches the scores of a stream of images, and raises an alarm when the stream has changed.

    While calibration images and stream are exchangeable, the probability that it ever raises an alarm is at most
    `level`. There is no guarantee on the delay. Images that depend on one another, such as consecutive frames of a
    video, are not exchangeable: thin them out first.

    Every image is compared with the calibration set and all images before it (see `OnlineRanks`), which gives
    independent p-values; bets on them make a test martingale (see `Martingale`), and the alarm is raised when its value
    reaches 1/level. It stays raised until `reset` starts a new life.

    Example:
        >>> monitor = Monitor(range(999), level=0.01)  # the calibration scores of a detector
        >>> monitor.update_scores(250)
        False

    Args:
        calibration: the calibration scores (n,).
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
        calibration: ArrayLike,
        *,
        level: float = 0.01,
        bets: Bets = "both",
        window: int = 500,
        alpha: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.rules = MonitorRules(level, bets, window, alpha, seed)
        self.ranks = OnlineRanks(calibration, seed)
        if self.ranks.n < math.ceil(1 / alpha) - 1:
            what = f"alpha = {alpha} is below 1/{self.ranks.n + 1}, the smallest p-value of {self.ranks.n}"
            needed = math.ceil(1 / alpha) - 1
            raise ConfigError(f"{what} calibration images — calibrate on at least {needed} images, or choose a larger")
        self.tables: list[str] = []  # digests of the tables that were read
        self.reset()

    def reset(self) -> None:
        """Start a new life: no alarm, a capital of 1, no images.

        Each life may raise a false alarm with probability `level`. All lives share the calibration images: after one
        false alarm the next is more likely, unless you calibrate again.
        """
        self.ranks.counts = self.ranks.calibration.copy()
        self.martingale = Martingale(self.rules.bets)
        self.alarm_at: int | None = None
        self.log10_peak = 0.0
        self.stride, self.curve = 1, list[float]()  # images per point of the capital's curve, and the points
        self.windows: list[Window] = []
        self.pending: list[int] = []  # cells of the window that is not full yet

    @property
    def images(self) -> int:
        """The number of images of this life."""
        return self.martingale.images

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised in this life."""
        return self.alarm_at is not None

    @property
    def log10_wealth(self) -> float:
        """Decimal logarithm of the martingale's value; 2 = evidence of 100 to 1 for a change."""
        return float(self.martingale.log_wealth) / math.log(10)

    def update_scores(self, scores: float | ArrayLike) -> bool:
        """Add scores of the detector, in the order of the images.

        Args:
            scores: one, or (k,) of them; larger = more OOD.

        Returns:
            Whether the alarm is raised.

        Raises:
            MetricError: NaN.
        """
        for cell in self.ranks.cells(np.atleast_1d(np.asarray(scores))).tolist():
            self.martingale.bet(self.ranks.next(cell))
            wealth = float(self.martingale.log_wealth)
            self.log10_peak = max(self.log10_peak, wealth / math.log(10))
            if wealth >= -math.log(self.rules.level) and self.alarm_at is None:
                self.alarm_at = self.images
            if self.images % self.stride == 0:
                self.curve.append(wealth / math.log(10))
            if len(self.curve) == _POINTS:
                self.curve, self.stride = self.curve[1::2], 2 * self.stride
            self.pending.append(cell)
            if len(self.pending) == self.rules.window:
                first, cells = self.images - self.rules.window + 1, np.array(self.pending)
                window = Window.of(first, cells, self.ranks.calibration, self.rules.alpha)
                self.windows, self.pending = [*self.windows, window][-_WINDOWS:], []
        return self.alarm

    def status(self) -> dict[str, Any]:
        """Return the status as plain values for JSON.

        `alarm`; `alarm_at`, the number of the image that raised it, or None; `images`; `log10_wealth` and its largest
        value `log10_peak`; `level`; `window`, the latest full one, or None.
        """
        keys = ("alarm", "alarm_at", "images", "log10_wealth", "log10_peak")
        window = asdict(self.windows[-1]) if self.windows else None
        return {key: getattr(self, key) for key in keys} | {"level": self.rules.level, "window": window}

    def save(self, path: str | Path) -> None:
        """Write the state atomically, with its digest.

        Raises:
            OSError: it cannot be written; an older state is then still there.
        """
        seen = self.ranks.counts - self.ranks.calibration
        calibration = {"images": self.ranks.n, "scores": True, "digest": self.ranks.digest}
        content = {"schema": _SCHEMA, "rules": asdict(self.rules), "calibration": calibration, "images": self.images}
        content["seen"] = [[int(cell), int(seen[cell])] for cell in np.flatnonzero(seen)]
        content["random"] = self.ranks.random.bit_generator.state
        content["log_staked"] = [float(v) if np.isfinite(v) else None for v in self.martingale.log_staked]
        content["curve"] = {"stride": self.stride, "log10": self.curve}
        content["windows"] = [asdict(window) for window in self.windows]
        content |= {name: getattr(self, name) for name in _AS_IT_IS}
        write_sealed(path_of(path, "path"), json.dumps(content, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path, calibration: ArrayLike) -> Self:
        """Return a saved monitor.

        Args:
            path: of the state.
            calibration: the calibration scores.

        Raises:
            DataError: no such file, it has changed since it was written, or it belongs to other calibration scores.
        """
        place = path_of(path, "path")
        try:
            content = json.loads(read_sealed(place))
        except (FileNotFoundError, ValueError) as error:
            raise DataError(f"state '{place}' cannot be read: {error} — restore it, or delete it") from error
        if content.get("schema") != _SCHEMA:
            raise DataError(f"'{place}': schema {content.get('schema')!r} — this version reads schema {_SCHEMA}")
        saved, monitor = content["calibration"], cls(calibration, **content["rules"])
        if monitor.ranks.digest != saved["digest"]:
            what = f"belongs to {saved['images']} other calibration scores (found {monitor.ranks.n})"
            raise DataError(f"'{place}' {what} — give those, or start a new life with another file")
        for cell, count in content["seen"]:
            monitor.ranks.counts[cell] += count
        monitor.ranks.random.bit_generator.state = content["random"]
        monitor.martingale.images = content["images"]
        monitor.martingale.log_staked = np.array([-np.inf if v is None else v for v in content["log_staked"]])
        monitor.stride, monitor.curve = content["curve"]["stride"], content["curve"]["log10"]
        monitor.windows = [Window(**window) for window in content["windows"]]
        vars(monitor).update({name: content[name] for name in _AS_IT_IS})
        return monitor

    def note_table(self, digest: str) -> None:
        """Note the digest of a table.

        Raises:
            DataError: it was noted before.
        """
        if digest in self.tables:
            raise DataError("this table was read before — give the table of newer images, or another --state")
        self.tables = [*self.tables, digest][-_TABLES:]

    def plot(self) -> "Figure":
        """Return three panels over the number of images of this life: the capital, each window's AUROC, its flags."""
        from openbench.results.plots import COLOURS, finish, panels  # which loads matplotlib

        figure, (capital, order, share) = panels(3, _SIZE, across=1)
        figure.patch.set(alpha=1.0, facecolor="white")
        limit, alpha = -math.log10(self.rules.level), 100 * self.rules.alpha
        dashed: dict[str, Any] = {"color": "0.4", "linewidth": 0.9, "linestyle": "--"}
        x = [0, *self.stride * np.arange(1, len(self.curve) + 1), self.images]
        capital.plot(x, [0.0, *self.curve, self.log10_wealth], color=COLOURS[0], linewidth=1.3)
        capital.axhline(limit, label=f"alarm at 1/level = {10**limit:,.6g}", **dashed)
        # After the alarm it may grow without bound, and hide the part before.
        top = 3 * limit if self.alarm else max(1.3 * limit, self.log10_peak + 0.3)
        capital.set(ylabel="evidence of a change\n(log₁₀ of the capital)", ylim=(min(_FLOOR, -0.5 * limit), top))
        title = f"{self.images:,} images · chance of a false alarm in the whole life ≤ {100 * self.rules.level:g} %"
        capital.set_title(title, fontsize=9)
        order.axhline(0.5, label="no change: 0.5", **dashed)
        order.set(ylabel="AUROC of window\nover calibration", ylim=(-0.02, 1.02))
        share.axhline(alpha, label=f"no change: at most {alpha:g} % on average", **dashed)
        share.set(ylabel=f"flagged at α = {self.rules.alpha:g}\n(% of window)", xlabel="images seen", ylim=(-2, 102))
        at = [w.first + (w.images - 1) / 2 for w in self.windows]
        for axes, values in (
            (order, [w.auroc for w in self.windows]),
            (share, [100 * w.flagged for w in self.windows]),
        ):
            axes.plot(at, values, marker="o", markersize=3, linewidth=0.9, color=COLOURS[0])
        for axes in (capital, order, share):
            axes.set_xlim(0, max(self.images, 1))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            if self.alarm_at is not None:
                label = f"alarm at image {self.alarm_at:,}" if axes is capital else None
                axes.axvline(self.alarm_at, color=COLOURS[1], linewidth=1.2, label=label)
            finish(axes, "upper left")
        return figure
