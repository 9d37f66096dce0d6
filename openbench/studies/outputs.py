"""Everything that a study shows: its tables in every format, and its pictures."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from openbench.core.record import ResultRecord
from openbench.results import escape
from openbench.results.comparisons.rows import OnLost
from openbench.results.plots import save
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import Column, Table, rendered, to_console
from openbench.studies.cells import Asked, Cell, archive_of, cells, mixture_cells
from openbench.studies.chart import draw, summary
from openbench.studies.chart import files as chart_files
from openbench.studies.curves import charts
from openbench.studies.kept import check_options, kept_tables, pictures
from openbench.studies.sheet import Line, Sheet, Text, paired, paired_sheet, sheets
from openbench.studies.study import Study

_FACTS = [
    "row_group",
    "row",
    "column_group",
    "column",
    "set",
    "metric",
    "value",
    "std",
    "low",
    "high",
    "runs",
    "runs_wanted",
    "published",
    "published_std",
    "difference",
    "verdict",
    "empty_because",
    "benchmark_deviates",
    "records",
]
_INDENT = "  "
_VERDICTS = {"=": "rounding", "~": "within seeds", "*": "beyond seeds", "?": "spread not known"}


def console(sheet: Sheet) -> str:
    """Return a table for a terminal."""
    heads = [Column(" ".join(part for part in (head.group, head.title) if part), "number") for head in sheet.heads]
    rows: list[tuple[str, ...]] = []
    for group, members in groupby(sheet.lines, key=lambda line: line.group):
        rows += [(group, *[""] * len(heads))] * bool(group)
        rows += [(f"{_INDENT * bool(group)}{line.name}", *(text.text for text in line.cells)) for line in members]
    return to_console(Table(sheet.title, (Column(""), *heads), tuple(rows), notes=sheet.notes))


def markdown(sheet: Sheet) -> str:
    """Return a table as GitHub Markdown; the best of a column is bold, a heading is a row of its own."""
    titles = ["", *(" ".join(part for part in (head.group, head.title) if part) for head in sheet.heads)]
    lines = [[escape.markdown(title) for title in titles], ["---", *["---:"] * len(sheet.heads)]]
    for group, members in groupby(sheet.lines, key=lambda line: line.group):
        lines += [[f"**{escape.markdown(group)}**", *[""] * len(sheet.heads)]] * bool(group)
        lines += [[escape.markdown(line.name), *map(_bold, line.cells)] for line in members]
    parts = [f"### {escape.markdown(sheet.title)}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    parts += [escape.markdown_paragraph(note) for note in sheet.notes]
    return "\n\n".join(parts) + "\n"


def latex(sheet: Sheet) -> str:
    """Return a table as a LaTeX float that needs the package booktabs; headings span their columns."""
    rows = [_latex_line(line) for line in sheet.lines]
    body: list[str] = []
    for at, (group, members) in enumerate(groupby(sheet.lines, key=lambda line: line.group)):
        count = len(list(members))
        body += [r"\midrule"] * (at > 0)
        body += [rf"\multicolumn{{{len(sheet.heads) + 1}}}{{l}}{{\textit{{{escape.latex(group)}}}}} \\"] * bool(group)
        body += rows[:count]
        rows = rows[count:]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape.latex(sheet.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(sheet.heads)}}}",
        r"\toprule",
        *_latex_groups(sheet),
        " & ".join(["", *(escape.latex(head.title) for head in sheet.heads)]) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {escape.latex(note)}" for note in sheet.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def long_csv(cells: Sequence[Sequence[Cell]]) -> str:
    """Return a row for every cell, for programs: fractions at full precision, and why a cell is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_FACTS)
    writer.writerows(escape.csv_row(_facts(cell)) for line in cells for cell in line)
    return stream.getvalue()


def texts(sheets: Sequence[Sheet], cells: Sequence[Sequence[Cell]]) -> dict[str, Callable[[], str]]:
    """Return {format: what makes the text of all tables in it}."""
    return {
        "console": lambda: "\n".join(map(console, sheets)),
        "markdown": lambda: "\n".join(map(markdown, sheets)),
        "latex": lambda: "\n".join(map(latex, sheets)),
        "csv": lambda: long_csv(cells),
    }


def _facts(cell: Cell) -> list[object]:
    ours, printed = cell.ours, cell.printed.value if cell.printed else None
    numbers = [None] * 4 if ours is None else [ours.value, ours.std, ours.low, ours.high]
    theirs = [None] * 2 if printed is None else [printed.value, printed.std]
    gap = [None, ""] if cell.difference is None else [cell.difference.value, _VERDICTS[cell.difference.verdict]]
    column = cell.column
    return [
        *(cell.row.group, cell.row.name, column.group, column.name, column.set, column.key, *numbers),
        *(len(cell.made), len(cell.runs), *theirs, *gap, cell.reason),
        "; ".join(cell.deviations),
        " ".join(one.run.run_id for one in cell.made.values()),
    ]


def _bold(text: Text) -> str:
    shown = escape.markdown(text.text)
    return f"**{shown}**" if text.best else shown


def _latex_line(line: Line) -> str:
    cells = [rf"\textbf{{{escape.latex(text.text)}}}" if text.best else escape.latex(text.text) for text in line.cells]
    return " & ".join([escape.latex(line.name), *cells]) + r" \\"


def _latex_groups(sheet: Sheet) -> list[str]:
    """The line of headings above columns, and the rules below them; none if no column has one."""
    if not any(head.group for head in sheet.heads):
        return []
    cells, rules, at = [""], [], 2
    for group, members in groupby(sheet.heads, key=lambda head: head.group):
        count = len(list(members))
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape.latex(group)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + count - 1}}}"] * bool(group)
        at += count
    return [" & ".join(cells) + r" \\", " ".join(rules)]


SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}
_KEPT = ("rejection", "thresholds")


@dataclass(frozen=True)
class Sources:
    """Where a study's numbers come from.

    Args:
        records: reads them, as often as it is called.
        scores: the kept scores.
        on_lost: receives an error for each run whose scores cannot be read.
    """

    records: Callable[[], Iterator[ResultRecord]]
    scores: ScoreStore
    on_lost: OnLost


class Outputs:
    """What a study shows.

    Args:
        study: narrowed or not.
        asked: on the command line.
        sources: where its numbers come from.
    """

    def __init__(self, study: Study, asked: Asked, sources: Sources) -> None:
        check_options(study)
        self._study, self._sources, self._named = study, sources, " ".join(asked.words)
        measured = study.layout != "mixture"
        self._cells = cells(study, asked, archive_of(study, asked, sources.records())) if measured else []
        self._cells = self._cells or mixture_cells(study)
        self._texts = self._kept() if study.layout in _KEPT else self._measured()
        self._charts = charts(study, self._cells, sources.scores)

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells, row by row."""
        return self._cells

    def text(self, form: str) -> str:
        """Return the tables in a format: console, markdown, latex or csv; that of curves is a file of its own."""
        told = [] if form == "csv" else rendered([summary(chart) for chart in self._charts], form)
        return "\n".join([self._texts[form](), *told])

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (what is appended to the study's name, content) of every file."""
        for form, suffix in SUFFIXES.items():
            yield f".{suffix}", self.text(form).encode()
        picture = draw(self._study, self._cells, self._named)
        if picture is not None:
            yield ".png", picture
        for chart in self._charts:
            yield from ((f"-{chart.kind}{suffix}", content) for suffix, content in chart_files(chart))
        for name, figure in pictures(self._study, self._cells, self._sources.scores):
            stream = io.BytesIO()
            save(figure, stream, "png")
            yield f"-{name}.png", stream.getvalue()

    def _measured(self) -> dict[str, Callable[[], str]]:
        study, found = self._study, self._cells
        every = sheets(study, found, self._named)
        if study.test and len(found) > 1 and any(cell.ours is not None for line in found for cell in line):
            every.append(paired_sheet(study, paired(study, found, self._sources.scores.read), self._named))
        return texts(every, found)

    def _kept(self) -> dict[str, Callable[[], str]]:
        wanted = {made.run.run_id for line in self._cells for cell in line for made in cell.made.values()}
        records = [record for record in self._sources.records() if record.run_id in wanted]
        tables = kept_tables(self._study, self._cells, records, self._sources.scores, self._sources.on_lost)
        return {form: (lambda form=form: "\n".join(rendered(tables, form))) for form in ("console", *SUFFIXES)}  # type: ignore[misc]
