"""Tables, and their text for a terminal, CSV, Markdown, LaTeX and a notebook."""

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from openbench.errors import check_choice
from openbench.results import escape
from openbench.storage.plain_json import readable

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

    @property
    def bars(self) -> tuple[float, float]:
        """How far error bars go below and above it: by its deviation, else to the ends of its interval, if any."""
        if self.std is not None:
            return self.std, self.std
        ends = (self.value if end is None else end for end in (self.low, self.high))
        low, high = (max(0.0, sign * (end - self.value)) for sign, end in zip((-1, 1), ends, strict=True))
        return low, high


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
        name: what programs call it, in a CSV and a DataFrame; the title if empty.
        group: a heading that it shares with its neighbours; empty for none.
        better: which numbers are better, ↑ or ↓; if empty, the arrow in the title says it.
    """

    title: str
    kind: Kind = "text"
    decimals: int = 2
    name: str = ""
    group: str = ""
    better: str = ""

    @classmethod
    def of(cls, *described: str | tuple[str, Kind] | tuple[str, Kind, int]) -> "tuple[Column, ...]":
        """Return columns by their titles; of one whose cells are not text by title, kind and, if need be, decimals."""
        return tuple(cls(one) if isinstance(one, str) else cls(*one) for one in described)

    @property
    def heading(self) -> str:
        """The title after that of its group."""
        return f"{self.group} {self.title}" if self.group else self.title

    @property
    def key(self) -> str:
        """What programs call it."""
        return self.name or self.title

    @property
    def direction(self) -> str:
        """↑ where larger numbers are better, ↓ where smaller ones are, else empty."""
        return self.better or next((arrow for arrow in "↑↓" if arrow in self.title), "")


@dataclass(frozen=True)
class Table:
    """A table that every format can show.

    Args:
        title: what it is about.
        columns: left to right.
        rows: one cell per column; None where there is no value.
        header: one line of conventions that the numbers depend on.
        notes: footnotes.
        headings: {row: a line above it}.
        best: (row, column) of the cells in bold; see `with_best`.
        second: of the cells that are underlined.
        caption: a sentence for LaTeX, where the title becomes a comment; the title if empty.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    header: str = ""
    notes: tuple[str, ...] = ()
    headings: Mapping[int, str] = field(default_factory=dict)
    best: frozenset[tuple[int, int]] = frozenset()
    second: frozenset[tuple[int, int]] = frozenset()
    caption: str = ""

    def texts(self) -> list[list[str]]:
        """The rows as they are printed."""
        return [[cell_text(cell, column) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def with_columns(self, places: Sequence[int]) -> "Table":
        """The table with some of its columns, in this order."""

        def moved(cells: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
            return frozenset((row, places.index(column)) for row, column in cells if column in places)

        columns = tuple(self.columns[place] for place in places)
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, columns=columns, rows=rows, best=moved(self.best), second=moved(self.second))


_MOST_TIED = 3


def with_best(table: Table, compared: int | None = None) -> Table:
    """Return the table with the best and the second-best number of each column marked, where a direction is known.

    Numbers that print the same are tied; where more than three are tied, none of them is marked.

    Args:
        table: any.
        compared: how many of its first rows take part; None for all.
    """
    marks: list[set[tuple[int, int]]] = [set(), set()]
    for at, column in enumerate(table.columns):
        cells = [(row, value_of(line[at])) for row, line in enumerate(table.rows[:compared])]
        numbers = [(row, value) for row, value in cells if value is not None]
        numbers.sort(key=lambda number: number[1], reverse=column.direction == "↑")
        ties = [list(tie) for _, tie in groupby(numbers, key=lambda number: cell_text(number[1], column))]
        if column.direction and len(ties) > 1:
            for mark, tie in zip(marks, ties, strict=False):
                mark |= {(row, at) for row, _ in tie if len(tie) <= _MOST_TIED}
    return replace(table, best=frozenset(marks[0]), second=frozenset(marks[1]))


def value_of(cell: Cell) -> float | None:
    """Return the number in a cell; None if there is none."""
    value = cell.value if isinstance(cell, Estimate) else cell
    return value if isinstance(value, float | int) else None


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
        return f"{text} ± {_same_decimals(text, cell.std, column)}"
    if cell.low is None or cell.high is None:
        return text
    return f"{text} [{_same_decimals(text, cell.low, column)}, {_same_decimals(text, cell.high, column)}]"


def _same_decimals(text: str, value: float, column: Column) -> str:
    """A number with as many decimals as its neighbour."""
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


def _escaped(table: Table, escaped: Callable[[str], str]) -> Table:
    """The table as it is printed, with texts that are escaped for a format; the header is the first note."""
    return replace(
        table,
        title=escaped(table.title),
        columns=tuple(replace(c, title=escaped(c.title), group=escaped(c.group)) for c in table.columns),
        rows=tuple(tuple(map(escaped, row)) for row in table.texts()),
        header="",
        notes=tuple(escaped(text) for text in (table.header, *table.notes) if text),
        headings={row: escaped(text) for row, text in table.headings.items()},
        caption=escaped(table.caption),
    )


def _marked(table: Table, best: str, second: str = "{}") -> list[list[str]]:
    """The rows of an escaped table, with marks around the best and the second-best cells."""
    rows = [list(map(str, row)) for row in table.rows]
    for form, places in ((best, table.best), (second, table.second)):
        for row, column in places:
            rows[row][column] = form.format(rows[row][column])
    return rows


_WIDTH = 120
# Fewest characters of a table, a cell of words, and a long word; longer ones are folded.
_NARROWEST, _WORDS, _WORD = 60, 24, 40
_GAP = 3  # between two columns
_INDENT = "  "  # of rows below a heading


def to_console(table: Table, width: int | None = None, *, styled: bool = False) -> str:
    """Return a table for a terminal; long headers and notes are wrapped.

    Numbers are never broken. A table that is too wide is shown in parts, which repeat the first columns.

    Args:
        table: any.
        width: characters in a line; None takes the terminal's (COLUMNS, if that is set), and 120 where there is none.
        styled: whether the best numbers are bold and the second-best underlined, by the terminal's control codes.
    """
    from rich.console import Console
    from rich.text import Text

    texts = _escaped(table, escape.console)
    room = max(_NARROWEST, shutil.get_terminal_size((_WIDTH, 24)).columns if width is None else width)
    stream = io.StringIO()
    # Without force_jupyter=False, rich would show the table in a notebook's cell in place of writing it.
    where: Any = {"file": stream, "width": room, "force_jupyter": False, "legacy_windows": False}
    console = Console(**where, color_system="standard" if styled else None, force_terminal=styled)
    console.print(Text(texts.title), *_grids(texts, room), *map(Text, texts.notes), sep="\n")
    return "\n".join(line.rstrip() for line in stream.getvalue().strip("\n").split("\n")) + "\n"


def _grids(table: Table, room: int) -> "list[RichTable]":
    """The lines of an escaped table, in parts that fit; rich breaks what is in words."""
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = [list(map(str, row)) for row in table.rows]
    if table.headings:
        rows = [[f"{_INDENT}{first}", *others] for first, *others in rows]
    words = [column.kind == "text" for column in table.columns]
    longest, least = list[int](), list[int]()
    for at, (column, in_words) in enumerate(zip(table.columns, words, strict=True)):
        cells = [*(row[at] for row in rows), *(table.headings.values() if at == 0 else ())]
        heading = _longest_word([column.heading])
        longest.append(max(heading, *map(len, cells), 0))
        folded = max(heading, min(longest[at], max(_WORDS, min(_longest_word(cells), _WORD))))
        least.append(folded if in_words else longest[at])
    style = {**dict.fromkeys(table.second, "underline"), **dict.fromkeys(table.best, "bold")}
    grids = []
    for part in _parts(words, rows, least, room):
        fits_whole = sum(max(longest[at], len(table.columns[at].heading)) + _GAP for at in part) <= room
        fits = sum(least[at] + _GAP for at in part) <= room
        grid = RichTable(box=SIMPLE, header_style="", pad_edge=False, padding=(0, 1))
        for at in part:
            side: Literal["left", "right"] = "left" if words[at] else "right"
            narrowest = least[at] if fits and words[at] else None
            width = None if fits_whole or words[at] else least[at]
            # Text objects: in plain strings rich would read the brackets of an interval as markup.
            title = Text(table.columns[at].heading)
            grid.add_column(title, justify=side, overflow="fold", width=width, min_width=narrowest)
        for number, row in enumerate(rows):
            if number in table.headings:
                grid.add_row(Text(table.headings[number]))
            grid.add_row(*(Text.assemble((row[at], style.get((number, at), ""))) for at in part))
        grids.append(grid)
    return grids


def _parts(words: Sequence[bool], rows: Sequence[Sequence[str]], least: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each part of at most `room` characters; later ones repeat the columns that identify a row."""
    every = list(range(len(words)))

    def width(part: Sequence[int]) -> int:
        return sum(least[index] + _GAP for index in part)

    if width(every) <= room or True not in words:
        return [every]
    # A number before the first text, such as a rank, identifies a row too.
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
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = expanded(table)
    writer.writerow(escape.csv_row(" ".join(filter(None, (column.key, end))) for column, end, _ in columns))
    writer.writerows(map(escape.csv_row, zip(*(values for *_, values in columns), strict=True)))
    return stream.getvalue()


def expanded(table: Table) -> list[tuple[Column, str, list[object]]]:
    """Return each column with its plain values, an uncertain one followed by those of `low`, `high`, `std` it has."""
    found = []
    for index, column in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        found.append((column, "", [_without_ends(cell) for cell in cells]))
        for end in ("low", "high", "std"):
            values: list[object] = [getattr(cell, end) if isinstance(cell, Estimate) else None for cell in cells]
            if any(value is not None for value in values):
                found.append((column, end, values))
    return found


def _without_ends(cell: Cell) -> object:
    return cell.value if isinstance(cell, Estimate) else cell.text if isinstance(cell, Link) else cell


def to_markdown(table: Table) -> str:
    """Return a table as GitHub Markdown, with title, header line and notes; the best of a column is bold."""
    texts = _escaped(table, escape.markdown)
    lines = [[column.heading for column in texts.columns]]
    lines += [["---" if column.kind == "text" else "---:" for column in texts.columns]]
    for at, (row, texts_of_row) in enumerate(zip(table.rows, _marked(texts, "**{}**"), strict=True)):
        if at in texts.headings:
            lines.append([f"**{texts.headings[at]}**", *[""] * (len(texts.columns) - 1)])
        links = (isinstance(cell, Link) and escape.markdown_link(cell.text, cell.target) for cell in row)
        lines.append([link or text for link, text in zip(links, texts_of_row, strict=True)])
    parts = [f"### {texts.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    parts += [escape.markdown_paragraph(text) for text in (table.header, *table.notes) if text]
    return "\n\n".join(parts) + "\n"


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX float that needs the package booktabs: best bold, second underlined, groups spanned."""
    texts = _escaped(table, escape.latex)
    layout = "".join("l" if column.kind == "text" else "r" for column in texts.columns)
    body: list[str] = []
    for at, row in enumerate(_marked(texts, r"\textbf{{{}}}", r"\underline{{{}}}")):
        if at in texts.headings:
            body += [r"\midrule"] * (at > 0)
            body += [rf"\multicolumn{{{len(layout)}}}{{l}}{{\textit{{{texts.headings[at]}}}}} \\"]
        body.append(" & ".join(row) + r" \\")
    lines = [f"% {escape.console(table.title)}"] * bool(texts.caption)
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{texts.caption or texts.title}}}"]
    lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", *_latex_groups(texts.columns)]
    lines += [" & ".join(column.title for column in texts.columns) + r" \\", r"\midrule", *body]
    lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {note}" for note in texts.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """The line of the groups of columns, and the rules below them; none if no column is in a group."""
    cells, rules, at = list[str](), list[str](), 1
    for group, members in groupby(columns, key=lambda column: column.group):
        n = len(list(members))
        cells += [rf"\multicolumn{{{n}}}{{c}}{{{group}}}"] if group else [""] * n
        rules += [rf"\cmidrule(lr){{{at}-{at + n - 1}}}"] * bool(group)
        at += n
    return [" & ".join(cells) + r" \\", " ".join(rules)] if rules else []


def to_json(*tables: Table) -> str:
    """Return tables as a JSON list: title, header, notes, columns and, for each row, {column: value}.

    Numbers have full precision. An uncertain one is {value, low, high, std}, with those that are known; a cell without
    value is null.
    """
    values = []
    for table in tables:
        keys = [column.key for column in table.columns]
        rows = [dict(zip(keys, map(_value, row), strict=True)) for row in table.rows]
        about = {"title": table.title, "header": table.header, "notes": table.notes}
        values.append({**about, "columns": keys, "rows": rows})
    return json.dumps(readable(values), indent=1, ensure_ascii=True) + "\n"


def _value(cell: Cell) -> object:
    if isinstance(cell, Estimate):
        known = {end: value for end in ("low", "high", "std") if (value := getattr(cell, end)) is not None}
        return {"value": cell.value, **known} if known else cell.value
    return _without_ends(cell)


FORMATS: dict[str, Callable[[Table], str]] = {
    "console": to_console,
    "csv": to_csv,
    "markdown": to_markdown,
    "latex": to_latex,
    "json": to_json,
}


def render(table: Table, form: str) -> str:
    """Return a table in one of FORMATS.

    Raises:
        ConfigError: no such format.
    """
    check_choice("format", form, list(FORMATS))
    return to_console(table, styled=sys.stdout.isatty()) if form == "console" else FORMATS[form](table)


def rendered(tables: Sequence[Table], form: str) -> list[str]:
    """Return tables in one of FORMATS: as one text in JSON, and in CSV with a first column that names the table.

    Raises:
        ConfigError: no such format.
    """
    if form == "json":
        return [to_json(*tables)]
    if form == "csv" and len(tables) > 1:
        named = ((t, tuple((t.title, *row) for row in t.rows)) for t in tables)
        tables = [replace(table, columns=(Column("table"), *table.columns), rows=rows) for table, rows in named]
    return [render(table, form) for table in tables]


_CELL = "padding:0.2em 0.8em;text-align:{side};white-space:nowrap"
_RULE = "border-bottom:1px solid currentColor"
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"  # a notebook would typeset what stands between two dollar signs
_WARNING = "border-left:3px solid #D55E00;padding-left:0.6em;margin:0.3em 0"


def to_html(table: Table, notes: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
    """Return a table for a notebook: title, warnings and notes above it, footnotes below.

    Args:
        table: any.
        notes: where the numbers come from.
        warnings: why they may not be what the user expects.
    """
    texts = _escaped(table, escape.html)
    styles = [_CELL.format(side="left" if column.kind == "text" else "right") for column in table.columns]
    titles = [column.heading for column in texts.columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f'<{tag} style="{style}">{cell}</{tag}>' for cell, style in zip(cells, styles, strict=True))

    rows = [f"<tr>{line('td', row)}</tr>" for row in _marked(texts, "<strong>{}</strong>", "<u>{}</u>")]
    return "\n".join(
        [
            f'<div class="{_NO_FORMULAS}">',
            f"<p><strong>{texts.title}</strong></p>",
            *(f'<p style="{_WARNING}">{escape.html(text)}</p>' for text in warnings),
            *(f"<p>{escape.html(text)}</p>" for text in notes),
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">',
            f'<thead><tr style="{_RULE}">{line("th", titles)}</tr></thead>',
            f"<tbody>{''.join(rows)}</tbody>",
            "</table>",
            *(f"<p><small>{text}</small></p>" for text in texts.notes),
            "</div>",
        ]
    )
