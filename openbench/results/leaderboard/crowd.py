"""A picture of many methods: near against far AUROC by family, the best named, and all of them in order beside it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from openbench.metrics.rank_ranges import RankRange
from openbench.results.leaderboard.ranking import Row
from openbench.results.tables.table import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Family → colour and marker: no two differ by colour alone.
STYLES = {
    "logits": ("#0072B2", "o"),
    "features": ("#D55E00", "s"),
    "features and classifier": ("#009E73", "D"),
    "layers": ("#CC79A7", "^"),
    "gradients or images": ("#E69F00", "P"),
    "text": ("#56B4E9", "X"),
    "": ("#777777", "o"),
}
Families = Mapping[str, str]
Ranges = Mapping[tuple[str, ...], RankRange]
_APART = 9.0  # points between two labels
_GONE = 0.06  # of the range, beyond the rows that are shown


def scatter(axes: "Axes", rows: Sequence[Row], names: Sequence[str], families: Families) -> None:
    """Draw near against far AUROC: the best two thirds of the rows on both axes, those that no other beats named.

    Args:
        axes: to draw into.
        rows: with both numbers.
        names: of the rows.
        families: method → family, one of STYLES; methods without one are grey.
    """
    points = np.array([[100 * _value(row, "far"), 100 * _value(row, "near")] for row in rows])
    front = on_front(points)
    for family, (colour, marker) in STYLES.items():
        own = [at for at, row in enumerate(rows) if families.get(row.method, "") == family]
        if own:
            x, y = points[own].T
            axes.scatter(x, y, c=colour, marker=marker, s=34, alpha=0.85, label=family or "other", zorder=2)
    low, high = np.quantile(points, 1 / 3, axis=0), points.max(axis=0)
    margin = _GONE * np.maximum(high - low, 0.1)
    axes.set(xlim=(low[0] - margin[0], high[0] + 2.5 * margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    for at in front:
        colour, marker = STYLES[families.get(rows[at].method, "")]
        far, near = rows[at].values["far auroc"], rows[at].values["near auroc"]
        x, y = points[at]
        drawn: Any = {"xerr": bars(far), "yerr": bars(near), "fmt": marker, "color": colour, "markeredgecolor": "black"}
        axes.errorbar(x, y, capsize=2, elinewidth=0.8, **drawn)
    axes.step(*points[front].T, where="pre", color="0.4", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    _label(axes, points[front], [names[at] for at in front])
    outside = int(((points < low - margin).any(axis=1)).sum())
    note = f" · {outside} rows lie outside" if outside else ""
    axes.set(xlabel="far AUROC (%)", ylabel="near AUROC (%)")
    axes.set_title(f"best two thirds{note} · named: beaten by no other row on both", fontsize=8.5, loc="left")
    # Below the axes: within them it would lie on points.
    axes.figure.legend(loc="outside lower left", ncols=len(STYLES), fontsize=8, frameon=False)


def dots(axes: "Axes", rows: Sequence[Row], names: Sequence[str], families: Families, ranges: Ranges) -> None:
    """Draw the near AUROC of every row in order, with intervals and the ranks that it may have on other test images.

    Args:
        axes: to draw into.
        rows: best first.
        names: of the rows.
        families: as for `scatter`.
        ranges: run ids of a row → the ranks that it may have.
    """
    for place, row in enumerate(rows):
        colour, marker = STYLES[families.get(row.method, "")]
        near = row.values["near auroc"]
        style: Any = {"fmt": marker, "color": colour, "markersize": 4, "elinewidth": 0.9, "capsize": 0}
        axes.errorbar(100 * _value(row, "near"), place, xerr=bars(near), **style)
        found = ranges.get(row.runs)
        if found is not None:
            best, worst = found.on_networks or (found.best, found.worst)
            text = f"{best}" if best == worst else f"{best}–{worst}"
            axes.annotate(
                text, (1.01, place), xycoords=("axes fraction", "data"), fontsize=6, va="center", annotation_clip=False
            )
    if any(row.runs in ranges for row in rows):
        axes.annotate("ranks", (1.01, -1.2), xycoords=("axes fraction", "data"), fontsize=6, annotation_clip=False)
    axes.set(xlabel="near AUROC (%)", ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), names, fontsize=6.5)
    axes.tick_params(axis="y", length=0)


def on_front(points: np.ndarray) -> list[int]:
    """Return which points (n, 2) no other beats on both axes, from left to right.

    A point is beaten if another is at least as large on both axes and larger on one.
    """
    found = []
    for at, point in enumerate(points):
        better = (points >= point).all(axis=1) & (points > point).any(axis=1)
        if not better.any():
            found.append(at)
    return sorted(found, key=lambda at: (points[at, 0], -points[at, 1]))


def _label(axes: "Axes", points: np.ndarray, names: Sequence[str]) -> None:
    """Name points, from the lowest upwards, each label so far above the one below that none lies on another."""
    height = axes.get_window_extent().height / axes.figure.dpi * 72  # points
    bottom, top = axes.get_ylim()
    scale = height / (top - bottom)
    last = -np.inf
    for at in np.argsort(points[:, 1], kind="stable"):
        wanted = (points[at, 1] - bottom) * scale
        placed = max(wanted, last + _APART)
        last = placed
        axes.annotate(
            names[at],
            points[at],
            xytext=(8, placed - wanted),
            textcoords="offset points",
            fontsize=7.5,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5} if placed > wanted + 1 else None,
        )


def _value(row: Row, group: str) -> float:
    found = row.values.get(f"{group} auroc")
    return found.value if isinstance(found, Estimate) else float("nan")


def bars(found: Estimate | str | None) -> list[list[float]] | None:
    """Lengths of the error bars in percent, (2, 1): deviation over runs, else the interval, else none."""
    if not isinstance(found, Estimate):
        return None
    if found.std is not None:
        return [[100 * found.std], [100 * found.std]]
    if found.low is not None and found.high is not None:
        return [[max(0.0, 100 * (found.value - found.low))], [max(0.0, 100 * (found.high - found.value))]]
    return None
