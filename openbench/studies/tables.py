"""The tables of a study, ours beside the published figures, and everything that a study shows as files."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from numpy.typing import ArrayLike
from scipy.stats import t as student

from openbench import paths
from openbench.config.constraints import Count, OneOf, Probability, check_values
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, check_known, listed
from openbench.metrics.intervals import paired_delong
from openbench.results.comparisons.rejection import compare, contenders, rejection_tables
from openbench.results.comparisons.rows import OnLost
from openbench.results.comparisons.thresholds import scored_runs, summary_tables
from openbench.results.frame import Run
from openbench.results.plots import sides
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import rebench_figures, rejection_figures
from openbench.results.tables.render import Cell as TableCell, Column, Estimate, Table, cell_text, rendered, to_csv
from openbench.storage.plain_json import dumps
from openbench.studies._chart import draw, files as chart_files, summary
from openbench.studies._curves import KINDS, charts
from openbench.studies._tuning import Tuning
from openbench.studies.cells import Cell, StudyOptions, Verdict, cells, empty_cells, mixture_cells, without
from openbench.studies.runs import Records
from openbench.studies.study import Column as StudyColumn, Study

LEVEL = 0.05
_LEAST = 3  # two differences that happen to be alike would make an interval of no width
ReadScores = Callable[[str], Sequence[SetScores]]  # of a run, or CacheError
OVER_RUNS, ON_IMAGES = "over runs: Student's paired t", "one run: DeLong's paired test on the same images"
Grid = Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Pair:
    """A cell less the cell of the row that it is compared with.

    Args:
        cell: the cell.
        difference: with its 95 % interval, if there is a test.
        p: two-sided, for no difference; None without a test.
        test: which; empty for none.
        significant: whether p is small enough among those of the other rows of the column (Holm).
    """

    cell: Cell
    difference: Estimate | None = None
    p: float | None = None
    test: str = ""
    significant: bool = False


def paired(study: Study, grid: Grid, read: ReadScores) -> list[list[Pair]]:
    """Return every row but the one that the study names, compared with that one.

    Args:
        study: with a row to compare with.
        grid: the cells, row by row.
        read: returns the cached scores of a run.
    """
    base = next(line for line in grid if line[0].row.path == study.test)
    others = [line for line in grid if line is not base]
    pairs = [[_pair(study, cell, of, read) for cell, of in zip(line, base, strict=True)] for line in others]
    columns = [_holm([line[at] for line in pairs]) for at in range(len(base))]
    return [list(line) for line in zip(*columns, strict=True)]


def _pair(study: Study, cell: Cell, base: Cell, read: ReadScores) -> Pair:
    if cell.ours is None or base.ours is None:
        return Pair(cell)
    # Released weights are one network, whatever the seed; draws of a table differ although their network does not.
    both = {at: run.network for at, run in cell.records.items() if at in base.records}
    places = list({network if study.repeat == "seed" else at: at for at, network in both.items()}.values())
    gaps = [cell.values[at] - base.values[at] for at in places]
    if len(gaps) >= _LEAST:
        return _over_runs(cell, gaps)
    if len(gaps) == 1 and cell.column.key == "auroc":
        return _on_images(Pair(cell, Estimate(gaps[0])), cell.records[places[0]], base.records[places[0]], read)
    return Pair(cell, Estimate(fmean(gaps))) if gaps else Pair(cell)


def _over_runs(cell: Cell, gaps: Sequence[float]) -> Pair:
    """d̄ ± t(.975, n − 1)·s/√n, and p of the paired t test."""
    mean, n = fmean(gaps), len(gaps)
    error = stdev(gaps) / sqrt(n)
    half = float(student.ppf(1 - LEVEL / 2, n - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return Pair(cell, Estimate(mean, mean - half, mean + half), p, OVER_RUNS)


def _on_images(pair: Pair, run: Run, base: Run, read: ReadScores) -> Pair:
    """The pair with DeLong's interval and p; without where images differ or scores are not cached."""
    name = pair.cell.column.set
    if run.digest != base.digest or "/" in name:
        return pair
    try:
        first, second = (_of(name, read(each.run_id)) for each in (run, base))
    except CacheError:
        return pair
    test = paired_delong(first, second, 1 - LEVEL)
    return replace(pair, difference=Estimate(test.difference, test.low, test.high), p=test.p, test=ON_IMAGES)


def _of(name: str, sets: Sequence[SetScores]) -> tuple[ArrayLike, list[ArrayLike]]:
    """The scores of ID test, and of each set of a group, or of the one set of that name."""
    ids, oods = sides(sets)
    return ids.scores, [s.scores for s in oods if name in (s.role, s.name)]


def _holm(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of a column, marked by Holm's procedure: the k-th smallest of m p values is held to .05/(m − k + 1)."""
    tested = sorted((at for at, pair in enumerate(pairs) if pair.p is not None), key=lambda at: pairs[at].p or 0.0)
    passed: set[int] = set()
    for rank, at in enumerate(tested):
        if (pairs[at].p or 0.0) > LEVEL / (len(tested) - rank):
            break
        passed.add(at)
    return [replace(pair, significant=at in passed) for at, pair in enumerate(pairs)]


NOT_AS_DEFINED = "†"
_SHOWN = 8  # names in a note; more are counted
_MARKS = {
    Verdict.ROUNDING: "= no larger than rounding of what is printed",
    Verdict.WITHIN: "~ no larger than seeds differ (95 %)",
    Verdict.BEYOND: "* beyond the spread of seeds (95 %)",
    Verdict.UNKNOWN: "? the spread of seeds is not known on either side",
}
_ARROWS = {"max": " ↑", "min": " ↓", "none": ""}
_Shown = tuple[Column, Sequence[str], Collection[int]]  # a column, its texts, and the rows in which they are bold


def grid_tables(study: Study, grid: Grid, overrides: str = "") -> list[Table]:
    """Return the tables of a study: one, or one for each group of columns if figures are published.

    Args:
        study: narrowed or not.
        grid: the cells, row by row.
        overrides: those of the command line, for the title.
    """
    published = any(cell.published is not None for line in grid for cell in line)
    tables = []
    for group in dict.fromkeys(column.group for column in study.columns) if published else [""]:
        at = [place for place, column in enumerate(study.columns) if not published or column.group == group]
        part = [[line[place] for place in at] for line in grid]
        columns = [shown for cells in zip(*part, strict=True) for shown in _columns(cells, grouped=not published)]
        notes = (*_legend(part), *_empty(part))
        tables.append(_table((study.title, group, overrides), [line[0] for line in part], columns, notes))
    general = [f"paper: {study.source}"] * bool(study.source) + [f"deviates: {text}" for text in study.deviations]
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *general))]


def paired_table(study: Study, pairs: Sequence[Sequence[Pair]], overrides: str = "") -> Table:
    """Return the table of rows compared with one of them in pairs.

    Args:
        study: with a row to compare with.
        pairs: row by row, from `paired`.
        overrides: those of the command line, for the title.
    """
    columns: list[_Shown] = []
    for column in zip(*pairs, strict=True):
        head, *_ = next(_columns([pair.cell for pair in column], grouped=True))
        columns.append((head, list(map(_pair_text, column)), ()))
    tests = {pair.test: None for line in pairs for pair in line if pair.test}
    notes = [f"{'; '.join(tests)} · 95 % intervals · * p < .05 by Holm over the rows of a column"] * bool(tests)
    notes += ["without an interval: fewer than three runs, or the scores of the only one were not kept"] * any(
        pair.difference is not None and not pair.test for line in pairs for pair in line
    )
    return _table((f"{study.title}: less {study.test}", overrides), [line[0].cell for line in pairs], columns, notes)


def _table(title: Sequence[str], first: Sequence[Cell], columns: Sequence[_Shown], notes: Sequence[str]) -> Table:
    """A table with a heading above each group of rows; `first` is a cell of each row."""
    groups = ["", *(cell.row.group for cell in first)]
    headings = {at: group for at, (before, group) in enumerate(pairwise(groups)) if group not in ("", before)}
    best = {(row, at) for at, (*_, rows) in enumerate(columns, 1) for row in rows}
    return Table(
        " · ".join(filter(None, title)),
        (Column(""), *(head for head, *_ in columns)),
        tuple(zip([cell.row.name for cell in first], *(texts for _, texts, _ in columns), strict=True)),
        notes=tuple(notes),
        headings=headings,
        best=frozenset(best),
    )


def _pair_text(pair: Pair) -> str:
    if pair.difference is None:
        return "–"
    column, gap = pair.cell.column, pair.difference
    ends = ""
    if gap.low is not None and gap.high is not None:
        ends = f" [{_signed(gap.low, column)}, {_signed(gap.high, column)}]"
    return f"{_signed(gap.value, column)}{ends}{' *' * pair.significant}"


def _signed(value: float, column: StudyColumn) -> str:
    return f"{(100 if column.kind == 'percent' else 1) * value:+.{column.decimals}f}"


def _columns(cells: Sequence[Cell], *, grouped: bool) -> Iterator[_Shown]:
    """What a column of cells becomes: ours, and the published figure with the difference."""
    column = cells[0].column
    published = any(cell.published is not None for cell in cells)
    unit = " %" if column.kind == "percent" and not published else ""
    group = column.group if grouped else ""
    title = f"{column.name}{unit}{_ARROWS[column.direction]}"
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
    return cell_text(shown, Column("", cell.column.kind, cell.column.decimals))


def _best(cells: Sequence[Cell]) -> list[int]:
    """The rows whose number is printed as the best one is; none where no number is better than another."""
    column = cells[0].column
    numbers = {at: cell.ours.value for at, cell in enumerate(cells) if cell.ours is not None}
    if len(numbers) < 2 or column.direction == "none":
        return []
    texts = {at: cell_text(value, Column("", column.kind, column.decimals)) for at, value in numbers.items()}
    best = (max if column.direction == "max" else min)(numbers, key=lambda at: numbers[at])
    return [at for at, text in texts.items() if text == texts[best]]


def _legend(grid: Grid) -> Iterator[str]:
    every = [cell for line in grid for cell in line]
    several = any(cell.ours is not None and cell.ours.std is not None for cell in every)
    ends = any(cell.ours is not None and cell.ours.low is not None and cell.published is None for cell in every)
    parts = ["mean ± population standard deviation over runs"] * several
    parts += ["in brackets the 95 % interval of a single run"] * ends
    parts += ["(n of N): so many of the runs are there"] * any(cell.incomplete and cell.ours for cell in every)
    if parts:
        yield " · ".join(parts)
    verdicts = {cell.difference.verdict for cell in every if cell.difference is not None}
    if verdicts:
        yield "difference, ours less the paper's: " + " · ".join(_MARKS[v] for v in Verdict if v in verdicts)
    deviations = list(dict.fromkeys(text for cell in every for text in cell.deviations))
    if deviations:
        yield f"{NOT_AS_DEFINED} not the benchmark as defined: {listed(deviations, _SHOWN, '; ', '; and ')}"


def _empty(grid: Grid) -> Iterator[str]:
    """A line for every reason why cells are empty, with their names."""
    for reason, empty in empty_cells(grid).items():
        rows = listed(dict.fromkeys(cell.row.name for cell in empty), _SHOWN)
        yield f"empty, {len(empty)} cell{'s' * (len(empty) > 1)}: {reason} — {rows}"


# Layouts that are made of cached scores: methods at one bound, one threshold for several groups.


def score_tables(
    study: Study, grid: Grid, records: Sequence[ResultRecord], scores: ScoreStore, on_lost: OnLost
) -> list[Table]:
    """Return the tables of the layouts `rejection` and `thresholds`.

    Args:
        study: with one of these layouts.
        grid: the cells, row by row.
        records: of the runs in the cells.
        scores: where their scores are.
        on_lost: receives an error for each run whose scores cannot be read.
    """
    notes = without(grid) + [f"paper: {study.source}"] * bool(study.source)
    if not records:
        rows = tuple((line[0].row.name, "–") for line in grid)
        return [Table(study.title, Column.of("", ""), rows, notes=tuple(notes))]
    names = list(dict.fromkeys(str(record.benchmark["name"]) for record in records))
    if study.layout == "thresholds":
        runs = scored_runs(records, scores, sorted(names), on_lost)
        tables = list(summary_tables(runs, rebench_figures(paths.reference_dir())))
    else:
        tables = [table for name in names for table in _rejection(study, records, name, scores, on_lost)]
    notes += [f"deviates: {text}" for text in study.deviations]
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *notes))]


def _rejection(
    study: Study, records: Sequence[ResultRecord], benchmark: str, scores: ScoreStore, on_lost: OnLost
) -> Iterator[Table]:
    figures = rejection_figures(paths.reference_dir())
    published = {key[1:]: figure for key, figure in figures.items() if key[0] == benchmark}
    doubles = [text.partition("+")[::2] for text in study.options.get("doubles", ())]
    for rows in contenders(records, scores, benchmark, (), on_lost).values():
        names = {row.who.method for row in rows}
        known = [(first, second) for first, second in doubles if {first, second} <= names]
        compared = compare(rows, float(study.options.get("tpr", 0.8)), known)
        yield from rejection_tables(benchmark, compared, published, rows[0].deviations)


_CURVES: Mapping[str, Any] = {"curves": list[Annotated[str, OneOf(tuple(KINDS))]]}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "rejection": {"tpr": Probability, "doubles": list[str], **_CURVES},
    "thresholds": _CURVES,
    "grid": _CURVES,
    "mixture": {"ood_mean": float, "samples": Count},
    "tuning": {},
}


def check_options(study: Study) -> None:
    """Check the options of a study against those of its layout.

    Raises:
        ConfigError: an option that the layout does not have, or a value that it does not take.
    """
    where, kinds = f"study '{study.name}': options", _OPTIONS[study.layout]
    check_known(study.options, kinds, where)
    check_values(study.options, kinds, where)


_FACTS = (
    *("row_group", "row", "column_group", "column", "set", "metric", "value", "std", "low", "high"),
    *("runs", "runs_wanted", "published", "published_std", "difference", "verdict", "empty_because"),
    *("benchmark_deviates", "records"),
)
_VERDICTS = {"=": "rounding", "~": "within seeds", "*": "beyond seeds", "?": "spread not known"}
SUFFIXES = {"markdown": "md", "latex": "tex", "csv": "csv"}


class CachedScores(ScoreStore):
    """Scores of runs, from the cache or else from beside the records.

    Args:
        cache: the folder of the cache's scores.
        published: the folder of those that were published.
    """

    def __init__(self, cache: Path, published: Path) -> None:
        super().__init__(cache)
        self._published = ScoreStore(published)

    def read(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run, as `ScoreStore.read` does."""
        try:
            return super().read(run_id)
        except CacheError:
            if not self._published.path(run_id).is_file():
                raise
            return self._published.read(run_id)


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
        self,
        study: Study,
        options: StudyOptions,
        records: Records,
        scores: ScoreStore,
        *,
        load: Callable[[Run], ResultRecord],
        on_lost: OnLost,
    ) -> None:
        check_options(study)
        overrides = " ".join(options.overrides)
        self.cells = mixture_cells(study) if study.layout == "mixture" else cells(study, options, records)
        every = [cell for line in self.cells for cell in line]
        has_numbers = any(cell.ours is not None for cell in every)
        self._measured = study.layout in ("grid", "mixture")
        self._draw: Callable[[], bytes] | None = partial(draw, study, self.cells, overrides) if has_numbers else None
        if self._measured:
            self._tables = grid_tables(study, self.cells, overrides)
            if study.test and len(self.cells) > 1 and has_numbers:
                self._tables.append(paired_table(study, paired(study, self.cells, scores.read), overrides))
        else:
            runs = {run.run_id: run for cell in every for run in cell.records.values()}
            whole = [load(run) for run in sorted(runs.values(), key=lambda run: run.file)]
            if study.layout == "tuning":
                tuning = Tuning(study, self.cells, {record.run_id: record for record in whole})
                self._tables, self._draw = tuning.tables(), tuning.picture
            else:
                self._tables = score_tables(study, self.cells, whole, scores, on_lost)
        self._charts = charts(study, self.cells, scores)

    def text(self, form: str) -> str:
        """Return the tables in a format of tables; in CSV and JSON without those of curves."""
        if form in ("csv", "json"):
            if not self._measured:
                return "\n".join(rendered(self._tables, form))
            facts = tuple(_facts(cell) for line in self.cells for cell in line)
            if form == "csv":
                return to_csv(Table("", Column.of(*_FACTS), facts))
            return dumps([dict(zip(_FACTS, of_cell, strict=True)) for of_cell in facts])
        return "\n".join(rendered([*self._tables, *map(summary, self._charts)], form))

    def files(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Yield the suffix of the study's name and the function that makes the content, for every file."""
        for form, suffix in SUFFIXES.items():
            yield f".{suffix}", partial(self._content, form)
        if self._draw is not None:
            yield ".png", self._draw
        for chart in self._charts:
            yield from ((f"-{chart.kind}{suffix}", content) for suffix, content in chart_files(chart))

    def _content(self, form: str) -> bytes:
        return self.text(form).encode()


def _facts(cell: Cell) -> tuple[TableCell, ...]:
    """A cell for programs: fractions at full precision, and why it is empty."""
    ours, printed = cell.ours, cell.published.value if cell.published else None
    numbers = [None] * 4 if ours is None else [ours.value, ours.std, ours.low, ours.high]
    theirs = [None] * 2 if printed is None else [printed.value, printed.std]
    gap = [None, ""] if cell.difference is None else [cell.difference.value, _VERDICTS[cell.difference.verdict]]
    column = cell.column
    return (
        *(cell.row.group, cell.row.name, column.group, column.name, column.set, column.key, *numbers),
        *(len(cell.records), len(cell.runs), *theirs, *gap, cell.reason),
        "; ".join(cell.deviations),
        " ".join(run.run_id for run in cell.records.values()),
    )
