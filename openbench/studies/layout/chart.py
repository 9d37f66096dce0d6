"""A chart of curves as files: a picture, its points, and a table of what it says of each line."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openbench.report.style import INK, finish, lines, panels, save, thinned
from openbench.results import escape
from openbench.results.tables.render import Column, Table
from openbench.studies.layout.curves import GUARANTEED, Chart, Line, Panel

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
