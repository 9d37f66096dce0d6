"""Pictures of a study: its table as points with bars, and charts of curves with their points and areas."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openbench.results import escape
from openbench.results.plots import COLOURS, GRID, INK, finish, lines, panels, saved, thinned
from openbench.results.tables.render import Cell as TableCell, Column, Estimate, Table, to_csv
from openbench.studies._curves import GUARANTEED, Chart, Line, Panel
from openbench.studies.cells import Cell
from openbench.studies.study import Study

_POINTS = 50  # of a line in the table of points
_FACTS = ("panel", "line", "x", "y", "value", "published")
_SMALL = 1e-2  # below it x is drawn linear
_DIGITS = 5
_OWN_LEGEND = 8  # lines; more have one legend for all panels
_HIGH = 0.5  # lines that never come below it are shown from there


def files(chart: Chart) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the suffix and the function that makes the content, for each format of the picture and for its points."""
    yield ".png", lambda: saved(drawn(chart), "png")
    yield ".svg", lambda: saved(drawn(chart), "svg")
    yield ".csv", lambda: to_csv(points(chart)).encode()


def drawn(chart: Chart) -> Figure:
    """Return the picture of a chart: a panel each, lines of the same name alike in all of them."""
    figure, every = panels(len(chart.panels))
    styles = _styles(chart)
    for axes, panel in zip(every, chart.panels, strict=True):
        for line in panel.lines:
            marker: dict[str, Any] = {"marker": "o", "markersize": 3} if chart.ticks else {}
            x, y = (line.x, line.y) if chart.ticks else thinned(line.x, line.y)
            label = line.name if len(styles) > _OWN_LEGEND else _label(line)
            axes.plot(x, y, **styles[line.name], **marker, label=escape.plot(label))
        for at, (name, place) in enumerate(panel.marks.items()):
            axes.axvline(place, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
            side = "left" if place < 0.6 else "right"
            axes.text(place, 0.97 - 0.09 * at, f" {name} ", fontsize=6.5, ha=side, va="top", color=INK)
        _scaled(axes, chart, panel)
        axes.set(xlabel=chart.axes[0], ylabel=chart.axes[1])
        axes.set_title(escape.plot(panel.title), fontsize=9)
        finish(axes, "best" if len(styles) <= _OWN_LEGEND else None)
    if len(styles) > _OWN_LEGEND:
        handles = {
            name: handle for axes in every for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        names = [name for name in map(escape.plot, styles) if name in handles]
        look: Any = {"loc": "outside lower center", "ncols": 4, "fontsize": 7.5, "frameon": False}
        figure.legend([handles[name] for name in names], names, **look)
    return figure


def _scaled(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Set a linear scale for small x, names of positions, and limits of y that fit lines near 1."""
    if chart.log:
        axes.set_xscale("symlog", linthresh=_SMALL)
        axes.set_xlim(0, 1)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), list(map(escape.plot, chart.ticks)), rotation=90, fontsize=6)
    heights = np.concatenate([line.y[line.y > 0] for line in panel.lines])
    if heights.size and heights.min() > _HIGH and heights.max() <= 1:
        axes.set_ylim(heights.min() - 0.1 * (1 - heights.min()) - 1e-3, 1 + 0.1 * (1 - heights.min()))


def _styles(chart: Chart) -> dict[str, dict[str, Any]]:
    """{name of a line: how it is drawn}; the guaranteed rate is drawn as the measured one, but fainter."""
    styles: dict[str, dict[str, Any]] = {}
    fresh = lines()
    for name in dict.fromkeys(line.name for panel in chart.panels for line in panel.lines):
        measured = styles.get(name.removesuffix(GUARANTEED))
        styles[name] = next(fresh) if measured is None else {**measured, "linewidth": 0.8, "alpha": 0.6}
    return styles


def points(chart: Chart) -> Table:
    """Return the points of every line, up to 50 of each; thresholds that are marked have no y."""
    rows: list[tuple[TableCell, ...]] = []
    for panel in chart.panels:
        for line in panel.lines:
            x, y = thinned(line.x, line.y)
            for at in np.unique(np.linspace(0, x.size - 1, min(x.size, _POINTS)).round().astype(int)):
                place = chart.ticks[int(x[at])] if chart.ticks else _short(x[at])
                rows.append((panel.title, line.name, place, _short(y[at]), _short(line.value), line.published))
        rows += [(panel.title, f"threshold: {name}", _short(x), None, None, None) for name, x in panel.marks.items()]
    return Table(chart.title, Column.of(*_FACTS), tuple(rows))


def summary(chart: Chart) -> Table:
    """Return the area or mean of each line, with the published one in brackets where the paper prints it."""
    names = list(dict.fromkeys(line.name for panel in chart.panels for line in panel.lines))
    titles = [panel.title for panel in chart.panels]
    by_place = {(panel.title, line.name): line for panel in chart.panels for line in panel.lines}
    grid = [[_cell(by_place.get((title, name))) for name in names] for title in titles]
    rows, columns = (titles, names) if len(names) < len(titles) else (names, titles)
    if rows is names:
        grid = [list(column) for column in zip(*grid, strict=True)]
    notes = ["of the first run of each row"] * (not chart.ticks)
    for panel in chart.panels:
        marks = ", ".join(f"{name} at {place:.3f}" for name, place in panel.marks.items())
        notes += [f"{panel.title}: thresholds {marks}"] * bool(marks)
    notes += [f"without, since their scores are not kept: {', '.join(chart.without)}"] * bool(chart.without)
    notes += [f"without, since scores are infinite or all the same: {', '.join(chart.unable)}"] * bool(chart.unable)
    notes += ["in brackets: as published"] * any(line.published is not None for line in by_place.values())
    heads = (Column(""), *(Column(title, "number") for title in columns))
    cells = tuple((row, *line) for row, line in zip(rows, grid, strict=True))
    return Table(f"{chart.title}: {chart.value}", heads, cells, notes=tuple(notes))


def _cell(line: Line | None) -> str | None:
    if line is None or line.value is None:
        return None
    return f"{line.value:.4f}" + (f" ({line.published:.3f})" if line.published is not None else "")


def _label(line: Line) -> str:
    name = line.name + (f" {line.value:.3f}" if line.value is not None else "")
    return name + (f" (paper {line.published:.3f})" if line.published is not None else "")


def _short(value: float | None) -> str:
    return "" if value is None else f"{float(value):.{_DIGITS}g}"


_LINE = 0.21  # inches for a row
_EDGE = 1.1  # inches above and below the rows
_WIDTH = 3.1
_NAMES = 1.6  # inches for the names of the rows
_ACROSS = 4


def draw(study: Study, cells: Sequence[Sequence[Cell]], overrides: str = "") -> bytes:
    """Return a PNG of a table with a number; rows and columns without any are left out, and a line says how many.

    Args:
        study: narrowed or not.
        cells: row by row.
        overrides: those of the command line, for the title.
    """
    rows = [line for line in cells if any(cell.ours is not None for cell in line)]
    columns = [at for at in range(len(study.columns)) if any(line[at].ours is not None for line in rows)]
    across = min(len(columns), _ACROSS)
    size = (_WIDTH + _NAMES / across, _EDGE + _LINE * len(rows))
    figure, all_axes = panels(len(columns), size, _ACROSS)
    for number, (at, axes) in enumerate(zip(columns, all_axes, strict=True)):
        _panel(axes, [line[at] for line in rows], named=number % across == 0, first=number == 0)
    figure.suptitle(escape.plot(" · ".join(filter(None, (study.title, overrides)))), fontsize=10)
    figure.supxlabel(escape.plot(" · ".join(_notes(rows, len(cells) - len(rows)))), fontsize=7.5)
    return saved(figure, "png")


def _notes(rows: Sequence[Sequence[Cell]], lacking: int) -> list[str]:
    """What bars and marks mean, and how many rows are not drawn."""
    every = [cell for line in rows for cell in line]
    notes = ["bars: deviation over runs"] * any(c.ours is not None and c.ours.std is not None for c in every)
    notes += ["bars of a single run: 95 % interval"] * any(c.ours is not None and c.ours.low is not None for c in every)
    notes += ["† not the benchmark as defined"] * any(cell.deviations for cell in every)
    return notes + [f"rows without a number: {lacking}, not drawn"] * (lacking > 0)


def _panel(axes: Axes, cells: Sequence[Cell], *, named: bool, first: bool) -> None:
    column = cells[0].column
    scale = 100.0 if column.kind == "percent" else 1.0
    published = [(at, cell.published.value) for at, cell in enumerate(cells) if cell.published is not None]
    ours = [(at, cell.ours) for at, cell in enumerate(cells) if cell.ours is not None]
    _points(axes, published, scale, {"marker": "D", "color": COLOURS[1], "mfc": "white", "label": "published"})
    _points(axes, ours, scale, {"marker": "o", "color": COLOURS[0], "label": "here"})
    arrow = {"max": " ↑", "min": " ↓", "none": ""}[column.direction]
    unit = " (%)" if column.kind == "percent" else ""
    title = " ".join(part for part in (column.group, column.name) if part)
    axes.set_title(escape.plot(title) + unit + arrow, fontsize=9)
    names = [escape.plot(cell.row.name) + ("†" if cell.deviations else "") for cell in cells]
    axes.set_yticks(range(len(cells)), names if named else [""] * len(names), fontsize=8)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if published and first:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)


def _points(axes: Axes, values: Sequence[tuple[int, Estimate]], scale: float, style: dict[str, str]) -> None:
    """Points with bars: the deviation over runs, or the interval of a single run."""
    if not values:
        return
    middle = [scale * value.value for _, value in values]
    bars = scale * np.array([value.bars for _, value in values]).T
    look: Any = {"linestyle": "none", "markersize": 4.5, "capsize": 2, "elinewidth": 1.0, **style}
    axes.errorbar(middle, [at for at, _ in values], xerr=bars, **look)
