"""How pictures look: colours and dashes that are told apart in print and with every common colour blindness."""

import io
import re
from collections.abc import Iterator
from itertools import cycle
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe and Ito's colours without black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
PANEL = (4.2, 3.4)  # inches
_ROW = 3  # panels beside one another
_MOST = 24
_POINTS = 600  # of a drawn curve
_DPI = 150
# How a figure can be saved → metadata that is left out: dates and versions.
FORMS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
Floats = NDArray[Any]
# What a page colours itself, in light and in dark: colour in the file → variable of the page.
INK, GRID, GROUND = "#1b1f24", "#d0d7de", "#fffffe"
_VARIABLES = {INK: "var(--text)", GRID: "var(--line)", GROUND: "var(--ground)"}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched
    "svg.hashsalt": "openbench",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.labelcolor": INK,
}


def panels(count: int, size: tuple[float, float] = PANEL, across: int = _ROW) -> tuple[Figure, list[Axes]]:
    """Return a figure of some panels, so many in a row, and their axes."""
    columns = max(1, min(count, across))
    rows = -(-count // columns)
    with mpl.rc_context(_SETTINGS):
        made = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
        made.patch.set_alpha(0.0)
        FigureCanvasAgg(made)
        return made, [made.add_subplot(rows, columns, at + 1) for at in range(count)]


def lines() -> Iterator[dict[str, Any]]:
    """Yield colour and dashes of one line after another; no two of the first 24 are alike."""
    # Six colours and four kinds of dashes; the shift after twelve lines keeps pairs from coming again before 24.
    pairs = [(COLOURS[at % 6], DASHES[(at + at // 12) % 4]) for at in range(_MOST)]
    return cycle({"color": colour, "linestyle": dashes, "linewidth": 1.5} for colour, dashes in pairs)


def finish(axes: Axes, place: Any = "best", title: str | None = None) -> None:
    """Draw the grid below the lines, leave the frame open, and place the legend unless there is none."""
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if place is not None:
        legend = axes.legend(loc=place, title=title, fontsize=7.5, title_fontsize=7.5, edgecolor="none", framealpha=0.8)
        legend.get_frame().set_facecolor(GROUND)
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_color(INK)


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points of a curve, in equal steps along it if there are more than a picture shows.

    Args:
        x: (k,) positions.
        y: (k,) heights.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.size <= _POINTS:
        return x, y
    along = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    kept = np.unique(np.searchsorted(along, np.linspace(0.0, along[-1], _POINTS)))
    return x[kept], y[kept]


def svg(figure: Figure, label: str) -> str:
    """Return a figure as an SVG element for a page whose CSS has the variables text, line and ground.

    Equal figures give equal text.

    Args:
        figure: made by `panels`.
        label: what it shows, for those who do not see it; plain text.
    """
    stream = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(stream, format="svg", metadata=FORMS["svg"])
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = re.sub(re.escape(colour), variable, text, flags=re.IGNORECASE)
    attribute = re.sub(r"[&<>\"']", lambda match: f"&#{ord(match.group())};", label)
    return text.replace("<svg ", f'<svg role="img" aria-label="{attribute}" ', 1)


def save(figure: Figure, stream: BinaryIO, form: str) -> None:
    """Write a figure on white; equal figures give equal bytes.

    Args:
        figure: made by `panels`.
        stream: receives the file.
        form: one of FORMS.
    """
    figure.patch.set_alpha(1.0)
    figure.patch.set_facecolor("white")
    with mpl.rc_context(_SETTINGS):
        figure.savefig(stream, format=form, dpi=_DPI, metadata=FORMS[form])


def prefixed(text: str, prefix: str) -> str:
    """Return an SVG whose element ids carry a prefix, so that several can stand on one page."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
