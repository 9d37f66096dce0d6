"""Tables, and their text for a terminal, CSV, Markdown, LaTeX and a notebook."""

import csv
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from openbench.errors import ConfigError, did_you_mean
from openbench.results import escape

if TYPE_CHECKING:
    from rich.table import Table as RichTable

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


class _Texts(NamedTuple):
    """A table as it is printed, escaped for a format."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def _escaped(table: Table, escaped: Callable[[str], str]) -> _Texts:
    columns = [escaped(column.title) for column in table.columns]
    rows = [[escaped(text) for text in row] for row in table.texts()]
    return _Texts(escaped(table.title), columns, rows, [escaped(text) for text in (table.header, *table.notes) if text])


_WIDTH = 120
# Fewest characters of a table, a cell of words, and a long word; longer ones are folded.
_NARROWEST, _WORDS, _WORD = 60, 24, 40
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

    texts = _escaped(table, escape.console)
    room = max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns if width is None else width)
    stream = io.StringIO()
    # Without force_jupyter=False, rich would show the table in a notebook's cell in place of writing it.
    console = Console(
        file=stream, width=room, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    console.print(Text(texts.title), *_grids(table, texts, room), *map(Text, texts.notes), sep="\n")
    return "\n".join(line.rstrip() for line in stream.getvalue().strip("\n").split("\n")) + "\n"


def _grids(table: Table, texts: _Texts, room: int) -> "list[RichTable]":
    """The lines of a table, in parts that fit; rich breaks what is in words."""
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    words = [column.kind == "text" for column in table.columns]
    cells = list(zip(*texts.rows, strict=True)) or [()] * len(words)
    titles = [_longest_word([title]) for title in texts.columns]
    longest = [max(title, *map(len, column), 0) for title, column in zip(titles, cells, strict=True)]
    least = [
        max(title, min(most, _WORDS if _longest_word(column) <= _WORDS else min(_longest_word(column), _WORD)))
        if in_words
        else most
        for title, most, column, in_words in zip(titles, longest, cells, words, strict=True)
    ]
    grids = []
    for part in _parts(words, texts.rows, least, room):
        whole = sum(max(longest[index], len(texts.columns[index])) + _GAP for index in part) <= room
        fits = sum(least[index] + _GAP for index in part) <= room
        grid = RichTable(box=SIMPLE, pad_edge=False, padding=(0, 1))
        for index in part:
            side: Literal["left", "right"] = "left" if words[index] else "right"
            narrowest = least[index] if fits and words[index] else None
            width = None if whole or words[index] else least[index]
            # Text objects: in plain strings rich would read the brackets of an interval as markup.
            grid.add_column(Text(texts.columns[index]), justify=side, overflow="fold", width=width, min_width=narrowest)
        for row in texts.rows:
            grid.add_row(*(Text(row[index]) for index in part))
        grids.append(grid)
    return grids


def _parts(words: Sequence[bool], rows: Sequence[Sequence[str]], least: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each part of at most `room` characters; the later ones repeat what tells the rows apart."""
    every = list(range(len(words)))

    def width(part: Sequence[int]) -> int:
        return sum(least[index] + _GAP for index in part)

    if width(every) <= room or True not in words:
        return [every]
    # A number before the first text, such as a rank, belongs to what tells rows apart.
    first = words.index(True) + 1
    lead = min(words.index(False, first) if False in words[first:] else first, len(words) - 1)
    again = next((k for k in range(first, lead) if len({tuple(row[:k]) for row in rows}) == len(rows)), lead)
    parts, begun = [every[:lead]], lead
    for index in every[lead:]:
        if len(parts[-1]) > begun and width([*parts[-1], index]) > room:
            parts.append(every[:again])
            begun = again
        parts[-1].append(index)
    return parts if lead else [every]


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


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
    texts = _escaped(table, escape.markdown)
    marks = ["---" if column.kind == "text" else "---:" for column in table.columns]
    lines = [texts.columns, marks]
    for row, shown in zip(table.rows, texts.rows, strict=True):
        links = (isinstance(cell, Link) and escape.markdown_link(cell.text, cell.target) for cell in row)
        lines.append([link or text for link, text in zip(links, shown, strict=True)])
    parts = [f"### {texts.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    parts += [escape.markdown_paragraph(text) for text in (table.header, *table.notes) if text]
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX float that needs the package booktabs; the best of a column is bold if it is known."""
    texts = _escaped(table, escape.latex)
    layout = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    for row, column in table.best:
        texts.rows[row][column] = rf"\textbf{{{texts.rows[row][column]}}}"
    head, *body = [" & ".join(row) + r" \\" for row in (texts.columns, *texts.rows)]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{texts.title}}}", rf"\begin{{tabular}}{{{layout}}}"]
    lines += [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(rf"\par\footnotesize {note}" for note in texts.notes), r"\end{table}"]) + "\n"


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


def _ends(table: Table, index: int) -> list[str]:
    cells = [row[index] for row in table.rows if isinstance(row[index], Estimate)]
    return [end for end in ("low", "high", "std") if any(getattr(cell, end) is not None for cell in cells)]


def _exact(cell: Cell) -> str:
    if isinstance(cell, Estimate):
        return repr(cell.value)
    if isinstance(cell, Link):
        cell = cell.text
    return "" if cell is None else escape.csv_cell(cell) if isinstance(cell, str) else repr(cell)


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
    texts = _escaped(table, escape.html)
    styles = [_CELL.format(side="left" if column.kind == "text" else "right") for column in table.columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f'<{tag} style="{style}">{cell}</{tag}>' for cell, style in zip(cells, styles, strict=True))

    rows = [f"<tr>{line('td', row)}</tr>" for row in texts.rows]
    return "\n".join(
        [
            f'<div class="{_NO_FORMULAS}">',
            f"<p><strong>{texts.title}</strong></p>",
            *(f'<p style="{_WARNING}">{escape.html(text)}</p>' for text in warnings),
            *(f"<p>{escape.html(text)}</p>" for text in notes),
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">',
            f'<thead><tr style="{_RULE}">{line("th", texts.columns)}</tr></thead>',
            f"<tbody>{''.join(rows)}</tbody>",
            "</table>",
            *(f"<p><small>{text}</small></p>" for text in texts.notes),
            "</div>",
        ]
    )
