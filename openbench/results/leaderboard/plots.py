"""Pictures of boards: near against far AUROC of the rows of a benchmark."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from openbench.metrics.rank_ranges import RankRange
from openbench.results.escape import plot as plain
from openbench.results.leaderboard.matrix import Matrix
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.plots import COLOURS, INK, lines, panels, saved, shortened
from openbench.results.records.settings import NONE
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import Estimate
from openbench.results.tables.views import GROUPS
from openbench.storage.files import write_whole

# Family of methods → colour and marker: no two differ by colour alone.
STYLES = {
    "logits": ("#0072B2", "o"),
    "features": ("#D55E00", "s"),
    "features and classifier": ("#009E73", "D"),
    "layers": ("#CC79A7", "^"),
    "gradients or images": ("#E69F00", "P"),
    "text": ("#56B4E9", "X"),
    "": ("#777777", "o"),
}
_ROWS = 100  # in the picture of a board
_ALL = 12  # rows that are all shown in a scatter
_APART = 9.0  # points between two labels
_MARGIN = 0.06  # of the range, beyond the rows that are shown
Families = Mapping[str, str]
Ranges = Mapping[tuple[str, ...], RankRange]


def draw_boards(
    boards: Iterable[Board], folder: Path, families: Families, scores: ScoreStore
) -> tuple[list[Path], list[str]]:
    """Write a PNG for every board that has AUROCs; return the files, and the names of boards without.

    Args:
        boards: of any benchmarks.
        folder: of the PNGs, which are named by benchmark and ID side.
        families: method → what it reads, one of STYLES.
        scores: the published ones, from which ranges of ranks follow.
    """
    drawn: list[Path] = []
    without: list[str] = []
    for board in boards:
        path = folder / f"{board.benchmark}{'_full_spectrum' * board.full_spectrum}.png"
        if path in drawn:  # another version of the benchmark: its digest tells the pictures apart
            path = path.with_name(f"{path.stem}_{board.digest}.png")
        if (figure := board_picture(board, families, ranges_of(board, scores))) is None:
            without.append(path.stem)
        else:
            write_whole(path, saved(figure, "png"))
            drawn.append(path)
    return drawn, without


def board_picture(board: Board, families: Families, ranges: Ranges) -> Figure | None:
    """Return near against far AUROC with a list of all rows; the list alone if one of the two is missing.

    Bars are deviations over runs, or intervals. Where nothing is ranked (a benchmark that is incomplete here), the
    unranked rows are drawn and the title says so. None if no row has an AUROC.

    Args:
        board: one benchmark on one ID side.
        families: method → what it reads, which decides its colour.
        ranges: run ids of a row → the ranks that it may have.
    """
    for groups in (GROUPS, *((group,) for group in GROUPS)):
        rows, note = _drawable(board, groups)
        if not rows:
            continue
        # Rows of the list need .13 inches each, and the scatter a height of its own.
        figure, every = panels(len(groups), (6.5, max(5.0 if len(groups) > 1 else 2.5, 1.2 + 0.13 * len(rows))))
        side = "full spectrum" if board.full_spectrum else "standard"
        subtitle = ", ".join(part for part in (side, note) if part)
        figure.suptitle(plain(f"{board.benchmark} ({subtitle})"), fontsize=11, color=INK)
        _list(every[-1], rows, groups[0], families, ranges)
        if len(groups) > 1:
            _scatter(every[0], rows, families)
        present = {families.get(row.method, "") for row in rows}
        handles = [
            Line2D([], [], linestyle="none", color=colour, marker=marker, label=family or "other")
            for family, (colour, marker) in STYLES.items()
            if family in present
        ]
        # Below the axes: within them it would lie on points.
        figure.legend(handles=handles, loc="outside lower left", ncols=len(STYLES), fontsize=8, frameon=False)
        return figure
    return None


def _drawable(board: Board, groups: Sequence[str]) -> tuple[list[Row], str]:
    """The rows that have the AUROC of all these groups, best first, and what the title must say of them.

    Ranked ones if there are any, else the unranked ones; of very many only the best, so that they stay readable.
    """

    def has(row: Row) -> bool:
        return all(isinstance(row.values.get(f"{group} auroc"), Estimate) for group in groups)

    ranked = [row for row in board.ranked if has(row)]
    rows = ranked or [row for row in board.unranked if has(row)]
    notes = [] if ranked else ["not ranked"]
    notes += [f"the best {_ROWS} of {len(rows)}"] * (len(rows) > _ROWS)
    return rows[:_ROWS], "; ".join(notes)


def _label(row: Row, rows: Sequence[Row]) -> str:
    """The method, with the settings in which it differs from its other rows."""
    label = row.method
    others = [other for other in rows if other is not row and other.method == row.method]
    for part in ("training", "augment", "outliers", "backbone", "settings", "tuned"):
        if any(getattr(other, part) != getattr(row, part) for other in others) and getattr(row, part) != NONE:
            label += f" · {getattr(row, part)}"
    return shortened(label)


def _scatter(axes: Axes, rows: Sequence[Row], families: Families) -> None:
    """Near against far AUROC; of many rows the best two thirds on both axes, with the names of the Pareto front."""
    points = np.array([[100 * _auroc(row, group).value for group in ("far", "near")] for row in rows])
    front = on_front(points)
    for family, (colour, marker) in STYLES.items():
        members = [at for at, row in enumerate(rows) if families.get(row.method, "") == family]
        if members:
            x, y = points[members].T
            axes.scatter(x, y, c=colour, marker=marker, s=34, alpha=0.85, zorder=2)
    few = len(rows) <= _ALL
    low, high = np.quantile(points, 0 if few else 1 / 3, axis=0), points.max(axis=0)
    margin = _MARGIN * np.maximum(high - low, 0.1)
    axes.set(xlim=(low[0] - margin[0], high[0] + 2.5 * margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    for at in front:
        bars: Any = {axis: _bars(_auroc(rows[at], group)) for axis, group in (("xerr", "far"), ("yerr", "near"))}
        colour, marker = STYLES[families.get(rows[at].method, "")]
        look: Any = {"fmt": marker, "color": colour, "capsize": 2, "elinewidth": 0.8, "markeredgecolor": "black"}
        axes.errorbar(points[at, 0], points[at, 1], **bars, **look)
    axes.step(*points[front].T, where="pre", color="0.4", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    _label_at(axes, points[front], [_label(rows[at], rows) for at in front])
    outside = int(((points < low - margin).any(axis=1)).sum())
    notes = ["best two thirds"] * (not few) + [f"{outside} rows lie outside"] * bool(outside)
    axes.set(xlabel="far AUROC (%)", ylabel="near AUROC (%)")
    axes.set_title(" · ".join([*notes, "named: beaten by no other row on both"]), fontsize=8.5, loc="left")


def _list(axes: Axes, rows: Sequence[Row], group: str, families: Families, ranges: Ranges) -> None:
    """The AUROC of every row in order, with its bars and the ranks that it may have on other test images."""
    label_style: Any = {"xycoords": ("axes fraction", "data"), "fontsize": 6, "annotation_clip": False}
    for place, row in enumerate(rows):
        auroc, (colour, marker) = _auroc(row, group), STYLES[families.get(row.method, "")]
        look: Any = {"fmt": marker, "color": colour, "markersize": 4, "elinewidth": 0.9}
        axes.errorbar(100 * auroc.value, place, xerr=_bars(auroc), **look)
        if (ranks := ranges.get(row.runs)) is not None:
            best, worst = ranks.on_networks or (ranks.best, ranks.worst)
            axes.annotate(f"{best}" if best == worst else f"{best}–{worst}", (1.01, place), va="center", **label_style)
    if any(row.runs in ranges for row in rows):
        axes.annotate("ranks", (1.01, -1.2), **label_style)
    axes.set(xlabel=f"{group} AUROC (%)", ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [_label(row, rows) for row in rows], fontsize=6.5)
    axes.tick_params(axis="y", length=0)


def on_front(points: np.ndarray) -> list[int]:
    """Return which points (n, 2) no other beats on both axes, from left to right.

    A point is beaten if another is at least as large on both axes and larger on one.
    """
    beaten = [((points >= point).all(axis=1) & (points > point).any(axis=1)).any() for point in points]
    return sorted(np.flatnonzero(~np.array(beaten, bool)), key=lambda at: (points[at, 0], -points[at, 1]))


def _label_at(axes: Axes, points: np.ndarray, names: Sequence[str]) -> None:
    """Name points, from the lowest upwards, each label so far above the one below that none lies on another."""
    height = axes.get_window_extent().height / axes.figure.dpi * 72  # points
    bottom, top = axes.get_ylim()
    last = -np.inf
    for at in np.argsort(points[:, 1], kind="stable"):
        height_at = (points[at, 1] - bottom) * height / (top - bottom)
        last = max(height_at, last + _APART)
        arrow = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.5} if last > height_at + 1 else None
        place: Any = {"xytext": (8, last - height_at), "textcoords": "offset points", "va": "center"}
        axes.annotate(names[at], points[at], fontsize=7.5, arrowprops=arrow, **place)


def _auroc(row: Row, group: str) -> Estimate:
    return cast(Estimate, row.values[f"{group} auroc"])  # rows without are not drawn


def _bars(number: Estimate) -> list[list[float]] | None:
    """Lengths of the error bars in percent, (2, 1); None for a number without a deviation and an interval."""
    return [[100 * length] for length in number.bars] if any(number.bars) else None


def accuracy_picture(matrix: Matrix) -> Figure:
    """Return a metric of every method against the ID accuracy of the networks; the best by mean rank have lines.

    Args:
        matrix: of networks, whose accuracy is known.
    """
    k, n = matrix.compared
    accuracy = 100 * np.array([network.accuracy for network in matrix.networks[:n]])
    values, order = 100 * matrix.values[:k, :n], np.argsort(accuracy, kind="stable")
    figure, (axes,) = panels(1, (6.4, 4.6))
    for style, name, line in zip(lines(), matrix.methods, values[: len(COLOURS)], strict=False):
        axes.plot(accuracy[order], line[order], **style, marker="o", markersize=4, label=shortened(name))
    if k > len(COLOURS):
        others = values[len(COLOURS) :]
        axes.plot(np.tile(accuracy, len(others)), others.ravel(), "o", color="0.6", markersize=2.5, zorder=1)
        # A few methods that fail would squeeze the others into a line.
        axes.set_ylim(bottom=float(np.quantile(values, 0.1)) - 1)
    grey = f"; grey: the other {k - len(COLOURS)}, of which the worst tenth lies below" * (k > len(COLOURS))
    axes.set_title(plain(f"lines: best mean ranks{grey}"), fontsize=8.5, loc="left")
    axes.set(xlabel="ID accuracy of the network (%)", ylabel=plain(f"{matrix.name} (%)"))
    figure.legend(loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure
