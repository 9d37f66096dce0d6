"""A study as a picture: a panel for every column, ours beside the published figures, row by row."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes

from openbench.report.style import COLOURS, GRID, panels
from openbench.results.escape import plot
from openbench.results.tables.render import Estimate
from openbench.studies.cells import Cell
from openbench.studies.study import Study

_LINE = 0.21  # inches for a row
_EDGE = 1.1  # inches above and below the rows
_WIDTH = 3.1
_NAMES = 1.6  # inches for the names of the rows
_ACROSS = 4
_DPI = 130


def draw(study: Study, cells: Sequence[Sequence[Cell]], asked: str = "") -> bytes | None:
    """Return a PNG; None if no cell has a number.

    Rows and columns without any number are left out; a line says how many.

    Args:
        study: narrowed or not.
        cells: row by row.
        asked: overrides of the command line that change what is shown, for the title.
    """
    rows = [line for line in cells if any(_drawn(cell) for cell in line)]
    columns = [at for at in range(len(study.columns)) if any(line[at].ours is not None for line in rows)]
    if not columns:
        return None
    across = min(len(columns), _ACROSS)
    size = (_WIDTH + _NAMES / across, _EDGE + _LINE * len(rows))
    figure, all_axes = panels(len(columns), size, _ACROSS)
    for number, (at, axes) in enumerate(zip(columns, all_axes, strict=True)):
        _panel(axes, [line[at] for line in rows], named=number % across == 0, first=number == 0)
    figure.suptitle(plot(" · ".join(text for text in (study.title, asked) if text)), fontsize=10)
    figure.supxlabel(plot(" · ".join(_notes(rows, len(cells) - len(rows)))), fontsize=7.5)
    figure.patch.set_alpha(1.0)
    figure.patch.set_facecolor("white")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, metadata={"Software": None})
    return stream.getvalue()


def _notes(rows: Sequence[Sequence[Cell]], lacking: int) -> list[str]:
    """What bars and marks mean, and how many rows are not drawn."""
    every = [cell for line in rows for cell in line]
    found = ["bars: deviation over runs"] * any(c.ours is not None and c.ours.std is not None for c in every)
    found += ["bars of a single run: 95 % interval"] * any(c.ours is not None and c.ours.low is not None for c in every)
    found += ["† not the benchmark as defined"] * any(cell.deviations for cell in every)
    return found + [f"rows without a number: {lacking}, not drawn"] * (lacking > 0)


def _drawn(cell: Cell) -> bool:
    return cell.ours is not None


def _panel(axes: Axes, cells: Sequence[Cell], *, named: bool, first: bool) -> None:
    column = cells[0].column
    scale = 100.0 if column.kind == "percent" else 1.0
    places = range(len(cells))
    published = [(at, cell.printed.value) for at, cell in zip(places, cells, strict=True) if cell.printed is not None]
    ours = [(at, cell.ours) for at, cell in zip(places, cells, strict=True) if cell.ours is not None]
    _points(axes, published, scale, {"marker": "D", "color": COLOURS[1], "mfc": "white", "label": "published"})
    _points(axes, ours, scale, {"marker": "o", "color": COLOURS[0], "label": "here"})
    arrow = {"max": " ↑", "min": " ↓", "none": ""}[column.best]
    unit = " (%)" if column.kind == "percent" else ""
    title = " ".join(part for part in (column.group, column.name) if part)
    axes.set_title(plot(title) + unit + arrow, fontsize=9)
    names = [plot(cell.row.name) + ("†" if cell.deviations else "") for cell in cells]
    axes.set_yticks(list(places), names if named else [""] * len(names), fontsize=8)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if published and first:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)


def _points(axes: Axes, found: Sequence[tuple[int, Estimate]], scale: float, style: dict[str, str]) -> None:
    """Points with bars: the deviation over runs, or the interval of a single run."""
    if not found:
        return
    values = [scale * value.value for _, value in found]
    low = [scale * (value.value - _end(value, -1)) for _, value in found]
    high = [scale * (_end(value, 1) - value.value) for _, value in found]
    bars = {"linestyle": "none", "markersize": 4.5, "capsize": 2, "elinewidth": 1.0}
    axes.errorbar(values, [at for at, _ in found], xerr=[low, high], **bars, **style)  # type: ignore[arg-type]


def _end(value: Estimate, sign: int) -> float:
    if value.std is not None:
        return value.value + sign * value.std
    end = value.low if sign < 0 else value.high
    return value.value if end is None else end
