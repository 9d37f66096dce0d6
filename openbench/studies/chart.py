"""A chart of curves as files: a picture, its points, and a table of what it says of each line."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openbench.results import escape
from openbench.results.escape import plot
from openbench.results.plots import COLOURS, GRID, INK, finish, lines, panels, save, thinned
from openbench.results.tables.render import Column, Estimate, Table
from openbench.studies.cells import Cell
from openbench.studies.curves import GUARANTEED, Chart, Line, Panel
from openbench.studies.study import Study

_POINTS = 50  # of a line in the table of points
_FACTS = ("panel", "line", "x", "y", "value", "published")
_SMALL = 1e-2  # below it x is drawn linear
_DIGITS = 5
_PICTURES = ("png", "svg")
_OWN_LEGEND = 8  # lines; more have one legend for all panels
_HIGH = 0.5  # lines that never come below it are shown from there


def files(chart: Chart) -> Iterator[tuple[str, bytes]]:
    """Yield (suffix, content) of the picture in every form, and of its points."""
    for form in _PICTURES:
        stream = io.BytesIO()
        save(drawn(chart), stream, form)
        yield f".{form}", stream.getvalue()
    yield ".csv", points(chart).encode()


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
        drawn_lines = {
            name: handle for axes in every for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        names = [name for name in map(escape.plot, styles) if name in drawn_lines]
        handles = [drawn_lines[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=7.5, frameon=False)
    return figure


def _scaled(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Small x drawn apart, names of positions, and y from where lines that stay near 1 begin."""
    if chart.log:
        axes.set_xscale("symlog", linthresh=_SMALL)
        axes.set_xlim(0, 1)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), list(map(escape.plot, chart.ticks)), rotation=90, fontsize=6)
    heights = np.concatenate([line.y[line.y > 0] for line in panel.lines])
    if heights.size and heights.min() > _HIGH and heights.max() <= 1:
        axes.set_ylim(heights.min() - 0.1 * (1 - heights.min()) - 1e-3, 1 + 0.1 * (1 - heights.min()))


def _styles(chart: Chart) -> dict[str, dict[str, Any]]:
    """{name of a line: how it is drawn}; a line that belongs to another one is drawn as it is, but fainter."""
    found: dict[str, dict[str, Any]] = {}
    names = dict.fromkeys(line.name for panel in chart.panels for line in panel.lines)
    fresh = lines()
    for name in names:
        whole = name.removesuffix(GUARANTEED)
        if whole == name or whole not in found:
            found[name] = next(fresh)
            continue
        found[name] = {**found[whole], "linewidth": 0.8, "alpha": 0.6}
    return found


def points(chart: Chart) -> str:
    """Return the points of every line as CSV, up to 50 of each; thresholds that are marked have no y."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_FACTS)
    for panel in chart.panels:
        for line in panel.lines:
            x, y = thinned(line.x, line.y)
            kept = np.unique(np.linspace(0, x.size - 1, min(x.size, _POINTS)).round().astype(int))
            for at in kept:
                place = chart.ticks[int(x[at])] if chart.ticks else _short(x[at])
                writer.writerow(
                    escape.csv_row([panel.title, line.name, place, _short(y[at]), _short(line.value), line.published])
                )
        for name, mark in panel.marks.items():
            writer.writerow(escape.csv_row([panel.title, f"threshold: {name}", _short(mark), None, None, None]))
    return stream.getvalue()


def summary(chart: Chart) -> Table:
    """Return what the chart says of each line in one number, the published one beside it where the paper prints it."""
    names = list(dict.fromkeys(line.name for panel in chart.panels for line in panel.lines))
    found = {(panel.title, line.name): line for panel in chart.panels for line in panel.lines}
    titles = [panel.title for panel in chart.panels]
    across, down = (names, titles) if len(names) < len(titles) else (titles, names)
    rows = []
    for row in down:
        places = [(row, other) if down is titles else (other, row) for other in across]
        rows.append((row, *(_cell(found.get(place)) for place in places)))
    columns = (Column(""), *(Column(title, "number") for title in across))
    notes = ["of the first run of each row"] * (not chart.ticks)
    notes += [f"{panel.title}: thresholds {_told(panel)}" for panel in chart.panels if panel.marks]
    notes += [f"without, since their scores are not kept: {', '.join(chart.without)}"] * bool(chart.without)
    notes += [f"without, since scores are infinite or all the same: {', '.join(chart.unable)}"] * bool(chart.unable)
    notes += ["in brackets: as published"] * any(line.published is not None for line in found.values())
    return Table(f"{chart.title}: {chart.value}", columns, tuple(rows), notes=tuple(notes))


def _cell(line: Line | None) -> str | None:
    if line is None or line.value is None:
        return None
    return f"{line.value:.4f}" + (f" ({line.published:.3f})" if line.published is not None else "")


def _told(panel: Panel) -> str:
    return ", ".join(f"{name} at {place:.3f}" for name, place in panel.marks.items())


def _label(line: Line) -> str:
    found = line.name + (f" {line.value:.3f}" if line.value is not None else "")
    return found + (f" (paper {line.published:.3f})" if line.published is not None else "")


def _short(value: float | None) -> str:
    return "" if value is None else f"{float(value):.{_DIGITS}g}"


_LINE = 0.21  # inches for a row
_EDGE = 1.1  # inches above and below the rows
_WIDTH = 3.1
_NAMES = 1.6  # inches for the names of the rows
_ACROSS = 4


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
    stream = io.BytesIO()
    save(figure, stream, "png")
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
