"""Pictures of results: near against far AUROC of a leaderboard, and the score histograms of one run."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import RecordError
from openbench.results.escape import plot
from openbench.results.leaderboard import plots as crowd
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.records.settings import NONE
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import Estimate
from openbench.results.tables.views import GROUPS
from openbench.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from collections.abc import Mapping
from typing import TYPE_CHECKING

from openbench.metrics.rank_ranges import RankRange

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Okabe and Ito's colours, told apart with every common colour blindness; black and yellow are left out for contrast.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
# Role → colour, line style, legend: no two differ by colour alone.
_SIDES: tuple[tuple[Role, str, str, str], ...] = (
    (Role.ID_TEST, "#0072B2", "-", "ID test"),
    (Role.CSID, "#56B4E9", ":", "csID"),
    (Role.NEAR, "#D55E00", "--", "near OOD"),
    (Role.FAR, "#009E73", "-.", "far OOD"),
)
_DPI = 150
_BINS = 60
_LABEL = 48  # characters
_MOST = 100  # rows in a picture
_CROWD = 12  # more methods than this are named in a list beside the picture
Families = Mapping[str, str]
Ranges = Mapping[tuple[str, ...], RankRange]
NONE_KNOWN: Families = MappingProxyType({})
NO_RANGES: Ranges = MappingProxyType({})


def draw_all(
    found: Iterable[Board], folder: Path, families: Families = NONE_KNOWN, scores: ScoreStore | None = None
) -> tuple[list[Path], list[str]]:
    """Draw a picture of every board that can have one: near against far AUROC, or a sorted list of the one that it has.

    Args:
        found: the boards.
        folder: of the PNGs, which are named by benchmark and ID side.
        families: method → what it reads.
        scores: the published ones, from which ranges of ranks follow.

    Returns:
        The files, and the names of boards without any AUROC.

    Raises:
        RecordError: a file cannot be written.
    """
    drawn: list[Path] = []
    without: list[str] = []
    for board in found:
        path = folder / f"{board.benchmark}{'_full_spectrum' if board.full_spectrum else ''}.png"
        if path in drawn:  # another version of the benchmark: its digest tells the pictures apart
            path = path.with_name(f"{path.stem}_{board.digest}.png")
        groups = [group for group in GROUPS if _drawable(board, (group,))[0]]
        if _drawable(board, GROUPS)[0]:
            ranges = ranges_of(board, scores) if scores is not None else NO_RANGES
            drawn.append(near_far(board, path, families, ranges))
        elif groups:
            drawn.append(sorted_dots(board, groups[0], path))
        else:
            without.append(path.stem)
    return drawn, without


def near_far(board: Board, path: Path, families: Families = NONE_KNOWN, ranges: Ranges = NO_RANGES) -> Path:
    """Draw near against far AUROC of every ranked method, with intervals or deviations, and return the file.

    Of more than twelve methods the best are named, and a list of all stands beside. Where nothing is ranked (a
    benchmark that is incomplete here), the unranked rows are drawn and the title says so.

    Args:
        board: one benchmark on one ID side.
        path: the PNG to write.
        families: method → what it reads, which decides its colour among many.
        ranges: run ids of a row → the ranks that it may have.

    Raises:
        RecordError: no row has both near and far AUROC, or the file cannot be written.
    """
    rows, note = _drawable(board, GROUPS)
    if not rows:
        raise RecordError(
            f"plot of '{board.benchmark}': no method has both near and far AUROC — found {len(board.ranked)} ranked "
            f"and {len(board.unranked)} other rows — run a method on a benchmark with near and far sets"
        )
    names = [_label(row, rows) for row in rows]
    if len(rows) > _CROWD:
        # Rows of the list need .13 inches each.
        with _figure(path, (13.0, max(6.0, 1.2 + 0.13 * len(rows))), 2) as axes:
            figure = axes.figure
            figure.suptitle(_title(board, note), fontsize=11)
            for panel in figure.axes:
                panel.grid(visible=True, color="0.9", linewidth=0.8)
                panel.set_axisbelow(True)
            crowd.dots(figure.axes[1], rows, names, families, ranges)
            crowd.scatter(axes, rows, names, families)
        return path
    legend = 0.35 + 0.06 * max(map(len, names))
    with _figure(path, (6.5 + legend, 5.5)) as axes:
        _points(axes, rows)
        axes.set(xlabel="far AUROC (%)", ylabel="near AUROC (%)", title=_title(board, note))
        axes.grid(visible=True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        # Beside the axes: labels at the points would lie on one another.
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)
    return path


def sorted_dots(board: Board, group: str, path: Path) -> Path:
    """Draw the AUROC of one group, a line per method, best on top, with intervals or deviations; return the file.

    Args:
        board: one benchmark on one ID side.
        group: `near` or `far`.
        path: the PNG to write.

    Raises:
        RecordError: no row has this AUROC, or the file cannot be written.
    """
    rows, note = _drawable(board, (group,))
    if not rows:
        raise RecordError(f"plot of '{board.benchmark}': no method has {group} AUROC — run one on it first")
    estimates = [value for row in rows if isinstance(value := row.values[f"{group} auroc"], Estimate)]
    with _figure(path, (8.0, 1.2 + 0.22 * len(rows))) as axes:
        for place, estimate in enumerate(estimates):
            axes.errorbar(
                100 * estimate.value,
                place,
                xerr=bars(estimate),
                fmt="o",
                color=COLOURS[0],
                markersize=5,
                elinewidth=1.0,
                capsize=2,
            )
        axes.set(xlabel=f"{group} AUROC (%)", title=_title(board, note), ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), [_label(row, rows) for row in rows], fontsize=8)
        axes.grid(visible=True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
    return path


def _drawable(board: Board, groups: Sequence[str]) -> tuple[list[Row], str]:
    """The rows that have the AUROC of all these groups, best first, and what the title must say of them.

    Ranked ones if there are any, else the unranked ones; of very many only the best, so that they stay readable.
    """
    ranked = [row for row in board.ranked if _has(row, groups)]
    rows = ranked or [row for row in board.unranked if _has(row, groups)]
    notes = [] if ranked else ["not ranked"]
    notes += [f"the best {_MOST} of {len(rows)}"] * (len(rows) > _MOST)
    return rows[:_MOST], "; ".join(notes)


def _title(board: Board, note: str) -> str:
    side = "full spectrum" if board.full_spectrum else "standard"
    return plot(f"{board.benchmark} ({', '.join(part for part in (side, note) if part)})")


def _points(axes: "Axes", rows: Sequence[Row]) -> None:
    """Draw each row's point with its bars."""
    styles = cycle((c, m) for m in MARKERS for c in COLOURS)
    for row, (colour, marker) in zip(rows, styles, strict=False):
        far, near = row.values["far auroc"], row.values["near auroc"]
        if isinstance(far, Estimate) and isinstance(near, Estimate):
            axes.errorbar(
                100 * far.value,
                100 * near.value,
                xerr=bars(far),
                yerr=bars(near),
                fmt=marker,
                color=colour,
                markeredgecolor="black",
                markeredgewidth=0.6,
                markersize=7,
                elinewidth=1.0,
                capsize=2,
                label=_label(row, rows),
            )


def histograms(scores: Sequence[SetScores], path: Path, title: str = "") -> Path:
    """Draw the score densities of ID test, csID, near and far OOD of one run, and return the file.

    The axis spans the middle 99.6 % of each group; what lies beyond is counted in the outermost bins.

    Args:
        scores: of one run; validation splits are left out.
        path: the PNG to write.
        title: e.g. method and benchmark.

    Raises:
        RecordError: there are no scores to draw, or the file cannot be written.
    """
    groups = [(_pooled(scores, role), colour, line, label) for role, colour, line, label in _SIDES]
    groups = [group for group in groups if group[0].size]
    finite = [values[np.isfinite(values)] for values, *_ in groups]
    if not any(values.size for values in finite):
        raise RecordError("histograms: no finite test scores — found none of ID test, csID, near and far — run first")
    edges = bin_edges([values for values in finite if values.size])
    with _figure(path, (8.0, 4.5)) as axes:
        for values, colour, line, label in groups:
            density = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / (values.size * np.diff(edges))
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.15)
            axes.stairs(
                density, edges, color=colour, linestyle=line, linewidth=1.8, label=f"{label} (n = {values.size})"
            )
        axes.set(xlabel="score (larger = more OOD)", ylabel="density", title=plot(title), xlim=(edges[0], edges[-1]))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return path


@contextmanager
def _figure(path: Path, size: tuple[float, float], panels: int = 1) -> "Iterator[Axes]":
    """The first axes of a figure of `panels`, saved as PNG without time and versions: equal results, equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    for panel in range(panels):
        figure.add_subplot(1, panels, panel + 1)
    yield figure.axes[0]
    try:
        with replacing(path) as stream:
            figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    except OSError as error:
        raise RecordError(
            f"picture '{path}' cannot be written — {error.strerror or error} — choose another path"
        ) from error


def _has(row: Row, groups: Sequence[str]) -> bool:
    return all(isinstance(row.values.get(f"{group} auroc"), Estimate) for group in groups)


def _label(row: Row, rows: Sequence[Row]) -> str:
    """The method, with as much of its setting as tells it from the other rows."""
    label = row.method
    for part in ("training", "augment", "outliers", "backbone", "settings", "tuned"):
        others = [r for r in rows if r is not row and r.method == row.method]
        if any(getattr(other, part) != getattr(row, part) for other in others) and getattr(row, part) != NONE:
            label += f" · {getattr(row, part)}"
    return plot(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…")


def _pooled(scores: Sequence[SetScores], role: Role) -> "np.ndarray[Any, np.dtype[np.float64]]":
    parts = [np.asarray(s.scores, np.float64) for s in scores if s.role == role]
    return np.concatenate(parts) if parts else np.empty(0)


def bin_edges(groups: "Sequence[np.ndarray[Any, np.dtype[np.float64]]]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return bin edges that hold the bulk of every group, so that a few extreme scores do not squeeze the rest."""
    low = min(float(np.quantile(values, 0.002)) for values in groups)
    high = max(float(np.quantile(values, 0.998)) for values in groups)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, _BINS + 1)


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
    _label_at(axes, points[front], [names[at] for at in front])
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


def _label_at(axes: "Axes", points: np.ndarray, names: Sequence[str]) -> None:
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
