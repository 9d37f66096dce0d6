"""Tables, and their text for a terminal, CSV, Markdown, LaTeX and a notebook."""

import csv
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from openbench.errors import ConfigError, did_you_mean
from openbench.results import escape

if TYPE_CHECKING:
    from rich.table import Table as RichTable

from dataclasses import dataclass

from openbench.results.escape import html

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


WIDTH = 120
# Fewest characters of a table, a cell of words, a long word (longer ones are folded) and a folded cell.
_NARROWEST, _WORDS, _WORD, _FOLDED = 60, 24, 40, 10
_GAP = 3  # between two columns


def to_console(table: Table, width: int | None = None) -> str:
    """Return a table for a terminal; long headers and notes are wrapped.

    Numbers are never broken. What does not fit beside one another is shown in parts below one another, which repeat the
    first columns.

    Args:
        table: any.
        width: characters in a line; None takes the terminal's (COLUMNS, if that is set), and 120 where there is none.
    """
    from rich.console import Console
    from rich.text import Text

    table = _shown(table)
    room = max(_NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns if width is None else width)
    stream = io.StringIO()
    # Without force_jupyter=False, rich would show the table in a notebook's cell in place of writing it.
    console = Console(
        file=stream, width=room, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    grids = [_grid(part, room) for part in _parts(table, room)]
    console.print(Text(table.title), *grids, *(Text(line) for line in (table.header, *table.notes) if line), sep="\n")
    return "\n".join(line.rstrip() for line in stream.getvalue().strip("\n").split("\n")) + "\n"


def to_csv(table: Table) -> str:
    """Return a table for programs: fractions at full precision, nothing rounded; an empty cell has no value.

    An uncertain column `x` becomes `x` and those of `x low`, `x high`, `x std` that occur.
    """
    plans = [(column, _ends(table, index)) for index, column in enumerate(table.columns)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    titles = [title for column, ends in plans for title in (column.title, *(f"{column.title} {e}" for e in ends))]
    writer.writerow(escape.csv_row(titles))
    for row in table.rows:
        cells: list[str] = []
        for cell, (_, ends) in zip(row, plans, strict=True):
            cells.append(_exact(cell))
            cells += [_exact(getattr(cell, end)) if isinstance(cell, Estimate) else "" for end in ends]
        writer.writerow(cells)
    return stream.getvalue()


def to_markdown(table: Table) -> str:
    """Return a table as GitHub Markdown, with title, header line and notes."""
    marks = ["---" if column.kind == "text" else "---:" for column in table.columns]
    lines = [[escape.markdown(column.title) for column in table.columns], marks]
    for cells, texts in zip(table.rows, table.texts(), strict=True):
        lines.append([_markdown(cell, text) for cell, text in zip(cells, texts, strict=True)])
    parts = [f"### {escape.markdown(table.title)}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    parts += [escape.markdown_paragraph(text) for text in (table.header, *table.notes) if text]
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX float that needs the package booktabs; the best of a column is bold if it is known."""
    layout = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    grid = [[escape.latex(text) for text in row] for row in table.texts()]
    for row, column in table.best:
        grid[row][column] = rf"\textbf{{{grid[row][column]}}}"
    rows = [" & ".join(row) + r" \\" for row in grid]
    notes = [escape.latex(text) for text in (table.header, *table.notes) if text]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape.latex(table.title)}}}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        " & ".join(escape.latex(column.title) for column in table.columns) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {note}" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {
    "console": to_console,
    "csv": to_csv,
    "markdown": to_markdown,
    "latex": to_latex,
}


def render(table: Table, form: str) -> str:
    """Return a table in one of FORMATS.

    Raises:
        ConfigError: no such format.
    """
    if form not in FORMATS:
        raise ConfigError(f"format '{form}' not found{did_you_mean(form, FORMATS)} — available: {', '.join(FORMATS)}")
    return FORMATS[form](table)


def rendered(tables: Sequence[Table], form: str) -> list[str]:
    """Return tables in one of FORMATS; CSV has no place for titles, so each row of several tables names its table.

    Raises:
        ConfigError: no such format.
    """
    if form == "csv" and len(tables) > 1:
        tables = [
            replace(t, columns=(Column("table"), *t.columns), rows=tuple((t.title, *row) for row in t.rows))
            for t in tables
        ]
    return [render(table, form) for table in tables]


def column_widths(table: Table) -> list[int]:
    """Return the characters that each column takes on a terminal, padding and rule included."""
    texts = table.texts()
    return [
        max(len(column.title), *(len(row[index]) for row in texts), 0) + 3 for index, column in enumerate(table.columns)
    ]


def _grid(table: Table, room: int) -> "RichTable":
    """The lines of a table without title and notes."""
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    # Text objects: in plain strings rich would read the brackets of an interval as markup.
    grid = RichTable(box=SIMPLE, pad_edge=False, padding=(0, 1))
    for column, width in zip(table.columns, _shares(table, room), strict=True):
        side: Literal["left", "right"] = "left" if column.kind == "text" else "right"
        grid.add_column(Text(column.title), justify=side, overflow="fold", width=width)
    for row in table.texts():
        grid.add_row(*map(Text, row))
    return grid


def _parts(table: Table, room: int) -> list[Table]:
    """The table in parts of at most `room` characters; the later ones repeat what tells its rows apart."""
    kinds = [column.kind == "text" for column in table.columns]
    # A number before the first text, such as a rank, belongs to what tells rows apart.
    first = kinds.index(True) + 1 if True in kinds else 0
    lead = min(kinds.index(False, first) if False in kinds[first:] else max(first, 1), len(kinds) - 1)
    least, texts = _least(table), table.texts()
    if lead < 1 or sum(least) + _GAP * len(least) <= room:
        return [table]
    again = next((k for k in range(max(first, 1), lead) if len({tuple(row[:k]) for row in texts}) == len(texts)), lead)
    parts = [list(range(lead))]
    for index in range(lead, len(least)):
        if len(parts[-1]) > (lead if len(parts) == 1 else again) and (
            sum(least[i] + _GAP for i in (*parts[-1], index)) > room
        ):
            parts.append(list(range(again)))
        parts[-1].append(index)
    return [_select(table, part) for part in parts]


def _least(table: Table) -> list[int]:
    """The fewest characters in which each column can be read."""
    found = []
    for column, *cells in zip(table.columns, *table.texts(), strict=True):
        longest = max(map(len, cells), default=0)
        if column.kind == "text":
            longest = min(longest, max(_WORDS, min(_WORD, _longest_word(cells))))
        found.append(max(_longest_word([column.title]), longest))
    return found


def _shares(table: Table, room: int) -> list[int]:
    """The characters for each column: all it needs if there is room, else the least, and the rest to text first."""
    wanted = [width - _GAP for width in column_widths(table)]
    shares = wanted.copy() if sum(wanted) + _GAP * len(wanted) <= room else _least(table)
    left = room - sum(shares) - _GAP * len(shares)
    texts = [index for index, column in enumerate(table.columns) if column.kind == "text"]
    # Where long words leave no room for a number, they are folded: the console would drop the number.
    while left < 0 and texts and shares[widest := max(texts, key=shares.__getitem__)] > _FOLDED:
        shares[widest] -= 1
        left += 1
    for index in sorted(range(len(shares)), key=lambda i: table.columns[i].kind != "text"):
        more = max(0, min(left, wanted[index] - shares[index]))
        shares[index] += more
        left -= more
    return shares


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def _select(table: Table, indices: list[int]) -> Table:
    columns: tuple[Column, ...] = tuple(table.columns[i] for i in indices)
    rows = tuple(tuple(row[i] for i in indices) for row in table.rows)
    return Table(table.title, columns, rows, table.header, table.notes)


def _ends(table: Table, index: int) -> list[str]:
    cells = [row[index] for row in table.rows if isinstance(row[index], Estimate)]
    return [end for end in ("low", "high", "std") if any(getattr(cell, end) is not None for cell in cells)]


def _exact(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        return repr(cell.value)
    if isinstance(cell, Link):
        cell = cell.text
    return "" if cell is None else escape.csv_cell(cell) if isinstance(cell, str) else repr(cell)


def _markdown(cell: Cell, text: str) -> str:
    """A cell whose text is given, as a link where it is meant to be one."""
    return escape.markdown_link(text, cell.target) if isinstance(cell, Link) else escape.markdown(text)


def _shown(table: Table) -> Table:
    """The table with every text as a terminal shows it, so that widths are those of what is printed."""
    columns = tuple(replace(column, title=escape.console(column.title)) for column in table.columns)
    rows = tuple(
        tuple(escape.console(text) if isinstance(cell, str | Link) else cell for cell, text in zip(*pair, strict=True))
        for pair in zip(table.rows, table.texts(), strict=True)
    )
    notes = tuple(map(escape.console, table.notes))
    return Table(escape.console(table.title), columns, rows, escape.console(table.header), notes)


_CELL = "padding:0.2em 0.8em;text-align:{side};white-space:nowrap"
_RULE = "border-bottom:1px solid currentColor"
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"  # a notebook would typeset what stands between two dollar signs
_WARNING = "border-left:3px solid #D55E00;padding-left:0.6em;margin:0.3em 0"


def to_html(table: Table, notes: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
    """Return a table with its title, what is to be known before its numbers are read above it, and its notes below.

    Args:
        table: any.
        notes: where the numbers come from.
        warnings: why they may not be what the user expects.
    """
    sides = ["left" if column.kind == "text" else "right" for column in table.columns]
    head = "".join(_cell("th", column.title, side) for column, side in zip(table.columns, sides, strict=True))
    rows = ["".join(_cell("td", text, side) for text, side in zip(row, sides, strict=True)) for row in table.texts()]
    return "\n".join(
        [
            f'<div class="{_NO_FORMULAS}">',
            f"<p><strong>{html(table.title)}</strong></p>",
            *(f'<p style="{_WARNING}">{html(text)}</p>' for text in warnings),
            *(f"<p>{html(text)}</p>" for text in notes),
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">',
            f'<thead><tr style="{_RULE}">{head}</tr></thead>',
            f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>",
            "</table>",
            *(f"<p><small>{html(text)}</small></p>" for text in (*table.notes, table.header) if text),
            "</div>",
        ]
    )


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="{_CELL.format(side=side)}">{html(text)}</{tag}>'
