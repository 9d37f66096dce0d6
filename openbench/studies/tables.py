"""The tables of a study, ours beside the published figures, and everything that a study shows as files."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy.stats import t as student

from openbench import paths
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, listed
from openbench.metrics.intervals import paired_delong
from openbench.metrics.rank_ranges import holm
from openbench.results import escape
from openbench.results.comparisons.rejection import contenders, rejection_tables
from openbench.results.comparisons.runs import OnLost
from openbench.results.comparisons.thresholds import scored_runs, summary_tables
from openbench.results.frame import Run
from openbench.results.plots import COLOURS, GRID, panels, saved, sides
from openbench.results.scores.stored import ScoreStore, first_with
from openbench.results.tables.published import rebench_figures, rejection_figures
from openbench.results.tables.render import Cell as TableCell, Column, Estimate, Table, cell_text, rendered, to_csv
from openbench.storage.plain_json import dumps
from openbench.studies import curves
from openbench.studies.cells import VERDICTS, Cell, Grid, StudyOptions, cells, empty_cells, without
from openbench.studies.runs import Records
from openbench.studies.study import Column as StudyColumn, Row, Study
from openbench.studies.tuning import Tuning

SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}
NOT_AS_DEFINED = "†"
_NAMED = 8  # in a note; more are counted
_Shown = tuple[Column, Sequence[str], Collection[int]]  # a column, its texts, and the rows in which they are bold
Load = Callable[[Run], ResultRecord]


class CachedScores(ScoreStore):
    """Scores of runs, from the cache or else from beside the records.

    Args:
        cache: the folder of the cache's scores.
        published: the folder of those that were published.
    """

    def __init__(self, cache: Path, published: Path) -> None:
        super().__init__(cache)
        self._folders = (cache, published)

    def read(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run, as `ScoreStore.read` does."""
        return ScoreStore.read(first_with(run_id, self._folders) or self, run_id)


class Outputs:
    """What a study shows.

    Args:
        study: narrowed or not.
        options: of the command line.
        records: of the results folder.
        scores: of their runs.
        load: returns the whole record of a run.
        on_lost: receives an error for each run whose scores cannot be read.
    """

    def __init__(
        self, study: Study, options: StudyOptions, records: Records, scores: ScoreStore, *, load: Load, on_lost: OnLost
    ) -> None:
        self.cells = cells(study, options, records)
        every = [cell for line in self.cells for cell in line]
        self._picture: Callable[[], bytes] | None = None
        self._is_grid = study.layout in ("grid", "mixture")
        if self._is_grid:
            words = " ".join(options.overrides)
            tables = grid_tables(study, self.cells)
            if any(cell.ours is not None for cell in every):
                self._picture = partial(draw, _titled(study.title, words), self.cells)
                if study.test and len(self.cells) > 1:
                    tables.append(paired_table(study, self.cells, scores.read))
            self._tables = [replace(table, title=_titled(table.title, words)) for table in tables]
        else:
            runs = {run.run_id: run for cell in every for run in cell.records.values()}
            whole = [load(run) for run in sorted(runs.values(), key=lambda run: run.file)]
            if study.layout == "tuning":
                tuning = Tuning(study, self.cells, whole)
                self._tables, self._picture = tuning.tables(), tuning.picture
            else:
                self._tables = _score_tables(study, self.cells, whole, scores, on_lost)
        self._charts = curves.charts(study, self.cells, scores)

    def text(self, form: str) -> str:
        """Return the tables in a format of tables; in CSV and JSON without those of curves."""
        facts = [_facts(cell) for line in self.cells for cell in line] if self._is_grid else []
        if facts and form == "json":
            return dumps(facts)
        if facts and form == "csv":
            return to_csv(Table("", Column.of(*facts[0]), tuple(tuple(of_cell.values()) for of_cell in facts)))
        areas = [] if form in ("csv", "json") else map(curves.summary, self._charts.values())
        return "\n".join(rendered([*self._tables, *areas], form))

    def files(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Yield the suffix of the study's name and the function that makes the content, for every file."""
        for form, suffix in SUFFIXES.items():
            yield f".{suffix}", partial(self._content, form)
        if self._picture is not None:
            yield ".png", self._picture
        for kind, chart in self._charts.items():
            yield from ((f"-{kind}.{form}", partial(curves.content, chart, form)) for form in ("png", "svg", "csv"))

    def _content(self, form: str) -> bytes:
        return self.text(form).encode()


def _titled(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def _facts(cell: Cell) -> dict[str, TableCell]:
    """A cell for programs: fractions at full precision, and why it is empty."""
    row, column, gap, printed = cell.row, cell.column, cell.difference, cell.published and cell.published.value
    named = {"row_group": row.group, "row": row.name, "column_group": column.group, "column": column.name}
    numbers = {key: getattr(cell.ours, key, None) for key in ("value", "std", "low", "high")}
    paper = {"published": getattr(printed, "value", None), "published_std": getattr(printed, "std", None)}
    what = {"set": column.set, "metric": column.key}
    runs = {"runs": len(cell.records), "runs_wanted": len(cell.runs)}
    against = {"difference": gap.value if gap else None, "verdict": VERDICTS[gap.verdict][0] if gap else ""}
    empty = {"empty_because": cell.reason, "benchmark_deviates": "; ".join(cell.deviations)}
    ids = " ".join(run.run_id for run in cell.records.values())
    return {**named, **what, **numbers, **runs, **paper, **against, **empty, "records": ids}


def grid_tables(study: Study, grid: Grid) -> list[Table]:
    """Return the tables of a study: one, or one for each group of columns if figures are published.

    Args:
        study: narrowed or not.
        grid: its cells.
    """
    published = any(cell.published is not None for line in grid for cell in line)
    tables = []
    for group in dict.fromkeys(column.group for column in study.columns) if published else [""]:
        part = [[cell for cell in line if not published or cell.column.group == group] for line in grid]
        columns = [shown for column in zip(*part, strict=True) for shown in _columns(column, grouped=not published)]
        notes = (*_legend([cell for line in part for cell in line]), *_empty(part))
        tables.append(_table(_titled(study.title, group), [line[0].row for line in part], columns, notes))
    return _noted(tables, study.about)


def _noted(tables: list[Table], notes: Sequence[str]) -> list[Table]:
    """Tables with more notes below the last one."""
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *notes))]


def _table(title: str, rows: Sequence[Row], columns: Sequence[_Shown], notes: Sequence[str]) -> Table:
    """A table with a heading above each group of rows."""
    heads, groups = (Column(""), *(head for head, *_ in columns)), ["", *(row.group for row in rows)]
    lines = tuple(zip([row.name for row in rows], *(texts for _, texts, _ in columns), strict=True))
    headings = {at: group for at, (before, group) in enumerate(pairwise(groups)) if group not in ("", before)}
    best = frozenset((row, at) for at, (*_, rows_of_best) in enumerate(columns, 1) for row in rows_of_best)
    return Table(title, heads, lines, notes=tuple(notes), headings=headings, best=best)


def _columns(cells: Sequence[Cell], *, grouped: bool) -> Iterator[_Shown]:
    """What a column of cells becomes: ours, and the published figure with the difference."""
    column = cells[0].column
    published = any(cell.published is not None for cell in cells)
    unit = " %" if column.heading.kind == "percent" and not published else ""
    group = column.group if grouped else ""
    title = f"{column.name}{unit}{column.arrow}"
    yield Column(title, "number", group=group), list(map(_ours, cells)), _best(cells)
    if published:
        printed = [_written(cell, cell.published.value) if cell.published else "–" for cell in cells]
        yield Column("paper", "number", group=group), printed, ()
        gaps = [cell.difference for cell in cells]
        texts = [f"{_signed(gap.value, column)} {gap.verdict}" if gap else "–" for gap in gaps]
        yield Column("difference", "number", group=group), texts, ()


def _ours(cell: Cell) -> str:
    """Our number as printed, with its marks."""
    if cell.ours is None:
        return "unable" if cell.reason.startswith("unable") else "–"
    count = f" ({len(cell.records)} of {len(cell.runs)})" * cell.incomplete
    return _written(cell, cell.ours) + count + NOT_AS_DEFINED * bool(cell.deviations)


def _written(cell: Cell, value: Estimate) -> str:
    shown = Estimate(value.value, std=value.std) if cell.published is not None else value
    return cell_text(shown, cell.column.heading)


def _signed(value: float, column: StudyColumn) -> str:
    return f"{(100 if column.heading.kind == 'percent' else 1) * value:+.{column.heading.decimals}f}"


def _best(cells: Sequence[Cell]) -> list[int]:
    """The rows whose number is printed as the best one is; none where no number is better than another."""
    column = cells[0].column
    numbers = {at: cell.ours for at, cell in enumerate(cells) if cell.ours is not None}
    if len(numbers) < 2 or not column.arrow:
        return []
    texts = {at: cell_text(number.value, column.heading) for at, number in numbers.items()}
    best = (max if "↑" in column.arrow else min)(numbers, key=lambda at: numbers[at].value)
    return [at for at, text in texts.items() if text == texts[best]]


def _legend(cells: Sequence[Cell]) -> Iterator[str]:
    several = any(cell.ours is not None and cell.ours.std is not None for cell in cells)
    ends = any(cell.ours is not None and cell.ours.low is not None and cell.published is None for cell in cells)
    parts = ["mean ± population standard deviation over runs"] * several
    parts += ["in brackets the 95 % interval of a single run"] * ends
    parts += ["(n of N): so many of the runs are there"] * any(cell.incomplete and cell.ours for cell in cells)
    if parts:
        yield " · ".join(parts)
    marks = {cell.difference.verdict for cell in cells if cell.difference is not None}
    if marks:
        said = (f"{mark} {text}" for mark, (_, text) in VERDICTS.items() if mark in marks)
        yield f"difference, ours less the paper's: {' · '.join(said)}"
    deviations = dict.fromkeys(text for cell in cells for text in cell.deviations)
    if deviations:
        yield f"{NOT_AS_DEFINED} not the benchmark as defined: {listed(deviations, _NAMED, '; ', '; and ')}"


def _empty(grid: Grid) -> Iterator[str]:
    """A line for every reason why cells are empty, with their names."""
    for reason, empty in empty_cells(grid).items():
        rows = listed(dict.fromkeys(cell.row.name for cell in empty), _NAMED)
        yield f"empty, {len(empty)} cell{'s' * (len(empty) > 1)}: {reason} — {rows}"


LEVEL = 0.05
_LEAST = 3  # two differences that happen to be alike would make an interval of no width
ReadScores = Callable[[str], Sequence[SetScores]]  # of a run, or CacheError
OVER_RUNS, ON_IMAGES = "over runs: Student's paired t", "one run: DeLong's paired test on the same images"


class Pair(NamedTuple):
    """What a cell has less the cell of the row that it is compared with.

    Args:
        difference: with its 95 % interval, if there is a test; None without common runs.
        p: two-sided, for no difference.
        test: which; empty for none.
    """

    difference: Estimate | None = None
    p: float = 1.0
    test: str = ""


def paired_table(study: Study, grid: Grid, read: ReadScores) -> Table:
    """Return the table of rows compared in pairs with the one that the study names.

    Args:
        study: with a row to compare with.
        grid: its cells.
        read: returns the cached scores of a run, or raises CacheError.
    """
    base = next(line for line in grid if line[0].row.path == study.test)
    others = [line for line in grid if line is not base]
    columns, pairs = list[_Shown](), list[Pair]()
    for of, *column in zip(base, *others, strict=True):
        found = [paired(study, cell, of, read) for cell in column]
        tested = [at for at, pair in enumerate(found) if pair.test]
        significant = {tested[at] for at in np.flatnonzero(holm([found[at].p for at in tested], LEVEL))}
        texts = [_pair_text(pair, of.column) + " *" * (at in significant) for at, pair in enumerate(found)]
        columns.append((next(_columns(column, grouped=True))[0], texts, ()))
        pairs += found
    tests = dict.fromkeys(pair.test for pair in pairs if pair.test)
    notes = [f"{'; '.join(tests)} · 95 % intervals · * p < .05 by Holm over the rows of a column"] * bool(tests)
    notes += ["without an interval: fewer than three runs, or the scores of the only one were not kept"] * any(
        pair.difference is not None and not pair.test for pair in pairs
    )
    return _table(f"{study.title}: less {study.test}", [line[0].row for line in others], columns, notes)


def paired(study: Study, cell: Cell, base: Cell, read: ReadScores) -> Pair:
    """Return a cell less another one of its column, with a test where the runs or the scores of one allow it.

    Over at least three runs it is d̄ ± t(.975, n − 1)·s/√n, with p of the paired t test; of one DeLong's interval.

    Args:
        study: of both.
        cell: with its runs.
        base: of another row.
        read: returns the cached scores of a run, or raises CacheError.
    """
    # Released weights are one network, whatever the seed; draws of a table differ although their network does not.
    by_network = study.repeat == "seed"
    both = {run.network if by_network else at: at for at, run in cell.records.items() if at in base.records}
    gaps = [cell.values[at] - base.values[at] for at in both.values()]
    if not gaps:
        return Pair()
    mean, n = fmean(gaps), len(gaps)
    if n >= _LEAST:
        error = stdev(gaps) / sqrt(n)
        half = float(student.ppf(1 - LEVEL / 2, n - 1)) * error
        p = 2 * float(student.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
        return Pair(Estimate(mean, mean - half, mean + half), p, OVER_RUNS)
    name, (run, of) = cell.column.set, (one.records[next(iter(both.values()))] for one in (cell, base))
    # On other images, or a side of the full spectrum, one score is not beside the other.
    if n == 1 and cell.column.key == "auroc" and run.digest == of.digest and "/" not in name:
        try:
            first, second = (_of(name, read(each.run_id)) for each in (run, of))
        except CacheError:
            return Pair(Estimate(mean))
        test = paired_delong(first, second, 1 - LEVEL)
        return Pair(Estimate(test.difference, test.low, test.high), test.p, ON_IMAGES)
    return Pair(Estimate(mean))


def _of(name: str, sets: Sequence[SetScores]) -> tuple[ArrayLike, list[ArrayLike]]:
    """The scores of ID test, and of each set of a group, or of the one set of that name."""
    ids, oods = sides(sets)
    return ids.scores, [s.scores for s in oods if name in (s.role, s.name)]


def _pair_text(pair: Pair, column: StudyColumn) -> str:
    if pair.difference is None:
        return "–"
    ends = [_signed(end, column) for end in (pair.difference.low, pair.difference.high) if end is not None]
    return _signed(pair.difference.value, column) + f" [{', '.join(ends)}]" * bool(ends)


def _score_tables(
    study: Study, grid: Grid, records: Sequence[ResultRecord], scores: ScoreStore, on_lost: OnLost
) -> list[Table]:
    """The tables of layouts that are made of cached scores: methods at one bound, one threshold for several groups."""
    tables, names = list[Table](), list(dict.fromkeys(str(record.benchmark["name"]) for record in records))
    doubles = [(risk, ood) for risk, _, ood in (text.partition("+") for text in study.options.doubles)]
    if study.layout == "thresholds" and names:
        runs = scored_runs(records, scores, sorted(names), on_lost)
        tables = summary_tables(runs, rebench_figures(paths.reference_dir()))
    for name in names if study.layout == "rejection" else ():
        for rows in contenders(records, scores, name, (), on_lost).values():
            known = [pair for pair in doubles if {row.who.method for row in rows}.issuperset(pair)]
            figures = rejection_figures(paths.reference_dir())
            tables += rejection_tables(name, rows, study.options.tpr, known, figures)
    empty = Table(study.title, Column.of("", ""), tuple((line[0].row.name, "–") for line in grid))
    return _noted(tables or [empty], (*without(grid), *study.about))


_LINE = 0.21  # inches for a row
_EDGE = 1.1  # inches above and below the rows
_WIDTH = 3.1
_NAMES = 1.6  # inches for the names of the rows
_ACROSS = 4


def draw(title: str, grid: Grid) -> bytes:
    """Return a PNG of a table with a number; rows and columns without any are left out, and a line says how many.

    Args:
        title: above it.
        grid: the cells.
    """
    rows = [line for line in grid if any(cell.ours is not None for cell in line)]
    columns = [column for column in zip(*rows, strict=True) if any(cell.ours is not None for cell in column)]
    across = min(len(columns), _ACROSS)
    figure, every = panels(len(columns), (_WIDTH + _NAMES / across, _EDGE + _LINE * len(rows)), _ACROSS)
    for number, (column, axes) in enumerate(zip(columns, every, strict=True)):
        _panel(axes, column, named=number % across == 0, first=number == 0)
    ours = [cell.ours for line in rows for cell in line if cell.ours is not None]
    notes = ["bars: deviation over runs"] * any(number.std is not None for number in ours)
    notes += ["bars of a single run: 95 % interval"] * any(number.low is not None for number in ours)
    notes += ["† not the benchmark as defined"] * any(cell.deviations for line in rows for cell in line)
    notes += [f"rows without a number: {len(grid) - len(rows)}, not drawn"] * (len(grid) > len(rows))
    figure.suptitle(escape.plot(title), fontsize=10)
    figure.supxlabel(escape.plot(" · ".join(notes)), fontsize=7.5)
    return saved(figure, "png")


def _panel(axes: Axes, cells: Sequence[Cell], *, named: bool, first: bool) -> None:
    """Points with bars: the deviation over runs, or the interval of a single run."""
    column = cells[0].column
    percent = column.heading.kind == "percent"
    scale = 100.0 if percent else 1.0
    published = {at: cell.published.value for at, cell in enumerate(cells) if cell.published is not None}
    ours = {at: cell.ours for at, cell in enumerate(cells) if cell.ours is not None}
    look: Any = {"linestyle": "none", "markersize": 4.5, "capsize": 2, "elinewidth": 1.0}
    for values, marker, colour, label in ((published, "D", 1, "published"), (ours, "o", 0, "here")):
        if values:
            look |= {"marker": marker, "color": COLOURS[colour], "mfc": "white" if colour else COLOURS[0]}
            middle, bars = [scale * value.value for value in values.values()], [v.bars for v in values.values()]
            axes.errorbar(middle, list(values), xerr=scale * np.array(bars).T, label=label, **look)
    title, unit = " ".join(filter(None, (column.group, column.name))), " (%)" * percent
    axes.set_title(escape.plot(title) + unit + column.arrow, fontsize=9)
    names = [escape.plot(cell.row.name) + NOT_AS_DEFINED * bool(cell.deviations) for cell in cells]
    axes.set_yticks(range(len(cells)), names if named else [""] * len(names), fontsize=8)
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if published and first:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)
