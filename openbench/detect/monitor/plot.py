"""The life of a monitor as a picture."""

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openbench.results.plots import COLOURS, finish, panels

if TYPE_CHECKING:
    from openbench.detect.monitor.monitor import Monitor

_SIZE = (8.0, 2.3)  # inches of a panel
_FLOOR = -2.0  # of the capital's axis; lower values say nothing but: no change


def picture(monitor: "Monitor") -> Figure:
    """Return three panels over the number of images: the capital, each window's AUROC, each window's flagged share."""
    figure, (capital, order, share) = panels(3, _SIZE, across=1)
    figure.patch.set_alpha(1.0)
    figure.patch.set_facecolor("white")
    _capital(capital, monitor)
    at = np.array([(w.first + (w.images - 1) / 2) for w in monitor.windows])
    _windows(order, at, np.array([w.auroc for w in monitor.windows]))
    order.axhline(0.5, color="0.4", linewidth=0.9, linestyle="--", label="no change: 0.5")
    order.set(ylabel="AUROC of window\nover calibration", ylim=(-0.02, 1.02))
    _windows(share, at, np.array([100 * w.flagged for w in monitor.windows]))
    alpha = 100 * monitor.rules.alpha
    share.axhline(alpha, color="0.4", linewidth=0.9, linestyle="--", label=f"no change: at most {alpha:g} % on average")
    share.set(ylabel=f"flagged at α = {monitor.rules.alpha:g}\n(% of window)", xlabel="images seen")
    share.set_ylim(-2, 102)
    for axes in (capital, order, share):
        axes.set_xlim(0, max(monitor.images, 1))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if monitor.alarm_at is not None:
            axes.axvline(monitor.alarm_at, color=COLOURS[1], linewidth=1.2, label=_alarm(axes is capital, monitor))
        finish(axes, "upper left")
    return figure


def _capital(axes: Axes, monitor: "Monitor") -> None:
    curve, limit = monitor.curve, -math.log10(monitor.rules.level)
    at = curve.stride * np.arange(1, len(curve.log10) + 1)
    x, y = np.append(0, at), np.append(0.0, curve.log10)
    axes.plot(np.append(x, monitor.images), np.append(y, monitor.log10_wealth), color=COLOURS[0], linewidth=1.3)
    axes.axhline(limit, color="0.4", linewidth=0.9, linestyle="--", label=f"alarm at 1/level = {10**limit:,.6g}")
    # From the alarm on it may grow without end, and the way there would not be seen.
    top = 3 * limit if monitor.alarm else max(1.3 * limit, monitor.log10_peak + 0.3)
    axes.set(ylabel="evidence of a change\n(log₁₀ of the capital)", ylim=(min(_FLOOR, -0.5 * limit), top))
    axes.set_title(
        f"{monitor.images:,} images · chance of a false alarm in the whole life ≤ {100 * monitor.rules.level:g} %",
        fontsize=9,
    )


def _windows(axes: Axes, at: np.ndarray, values: np.ndarray) -> None:
    axes.plot(at, values, marker="o", markersize=3, linewidth=0.9, color=COLOURS[0])


def _alarm(named: bool, monitor: "Monitor") -> str | None:
    return f"alarm at image {monitor.alarm_at:,}" if named else None
