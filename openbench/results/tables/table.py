"""A table as a value: its cells and how numbers are written; `render.py` turns it into text."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "percent", "number", "count"]


@dataclass(frozen=True)
class Estimate:
    """A number with what is known of its uncertainty.

    Args:
        value: the number.
        low: lower end of its interval, or None.
        high: upper end, or None.
        std: population standard deviation over runs, or None.
    """

    value: float
    low: float | None = None
    high: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Link:
    """A text that leads to a file beside the page, where the format has links.

    Args:
        text: what is shown.
        target: name of the file.
    """

    text: str
    target: str


Cell = str | float | int | Estimate | Link | None


@dataclass(frozen=True)
class Column:
    """One column: its title and how its numbers are written.

    Args:
        title: as printed.
        kind: `percent` for fractions in [0, 1], `number` for other reals, `count` for whole numbers.
        decimals: digits after the point of a percentage.
    """

    title: str
    kind: Kind = "text"
    decimals: int = 2


@dataclass(frozen=True)
class Table:
    """A table that console, CSV, Markdown and LaTeX can show.

    Args:
        title: what it is about.
        columns: left to right.
        rows: one cell per column; None where there is no value.
        header: one line of conventions that the numbers depend on.
        notes: footnotes.
        best: (row, column) of the cells that are the best of their column, as printed; LaTeX sets them in bold.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    header: str = ""
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        """Check that every row has a cell per column."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table '{self.title}': a row of {len(row)} cells for {len(self.columns)} columns")

    def texts(self) -> list[list[str]]:
        """The rows as they are printed."""
        return [[cell_text(cell, column) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]


def cell_text(cell: Cell, column: Column) -> str:
    """Return a cell as printed: `90.12 ± 0.30` over runs, `90.12 [89.55, 90.70]` with an interval, `–` without one."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Link):
        return cell.text
    if not isinstance(cell, Estimate):
        return _number(cell, column)
    text = _number(cell.value, column)
    if cell.std is not None:
        return f"{text} ± {_beside(text, cell.std, column)}"
    if cell.low is not None and cell.high is not None:
        return f"{text} [{_beside(text, cell.low, column)}, {_beside(text, cell.high, column)}]"
    return text


def _beside(text: str, value: float, column: Column) -> str:
    """A number with as many digits after the point as the one that it stands beside."""
    whole, _, fraction = text.partition(".")
    if column.kind != "number" or not (whole.lstrip("-") + (fraction or "0")).isdigit():
        return _number(value, column)
    return f"{value:.{len(fraction)}f}"


def _number(value: float, column: Column) -> str:
    if column.kind == "percent":
        return f"{100 * value:.{column.decimals}f}"
    if column.kind == "count" and float(value).is_integer():
        return f"{int(value)}"
    return f"{value:.4g}"
