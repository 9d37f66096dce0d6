"""The views of a record across methods: rows are the rows of a board, columns the keys of a view."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path

from openbench.errors import ConfigError, RecordError, did_you_mean
from openbench.metrics.conformal.prediction_sets import KINDS, OWN
from openbench.metrics.keys import higher_is_better
from openbench.results.escape import csv_row
from openbench.results.frame import Keep, Run
from openbench.results.leaderboard.pages import heading, letters, side_of, told_by, who_columns
from openbench.results.leaderboard.ranking import Board, Row, places
from openbench.results.tables.render import Cell, Column, Estimate, Table, cell_text
from openbench.results.tables.views import FAMILIES, GROUPS, arrow, conventions, key_order, kind_of, shown_in
from openbench.storage.files import output
from openbench.storage.plain_json import dumps

ACROSS = ("overview", *FAMILIES, "intervals", "prediction_sets", "id", "other")
SETS = "sets"
_POOLED = "pooled_"
_ID = "id"
_END = re.compile(r"(.+)_(low|high)")
_PREDICTION_SET = re.compile(rf"({'|'.join((*KINDS, OWN))})_.+@.+")
_COMMON = ("training", "augment", "outliers", "backbone")
AUROC = "AUROC ↑"
_SHORT = {"auroc": AUROC, "fpr95": "FPR@95 ↓"}


@dataclass(frozen=True)
class Shown:
    """One column of numbers: a key of a set or group, under a title."""

    title: str
    name: str
    key: str


@dataclass(frozen=True)
class Sheet:
    """What one table shows of a board.

    Args:
        board: the rows.
        about: the set, group or kind of prediction set; what tells the sheets of a board apart.
        columns: its numbers.
    """

    board: Board
    about: str
    columns: tuple[Shown, ...]

    @property
    def rows(self) -> list[tuple[int | None, bool, Row]]:
        """Rank, whether it is shared, and row: ranked ones first."""
        ranked = [(*place, row) for place, row in zip(places(self.board.ranked), self.board.ranked, strict=True)]
        return [*ranked, *((None, False, row) for row in self.board.unranked)]


def needed(view: str) -> Keep:
    """Return which numbers of a record a view needs.

    Raises:
        ConfigError: no such view.
    """
    if view not in ACROSS:
        raise ConfigError(f"view '{view}' not found{did_you_mean(view, ACROSS)} — available: {', '.join(ACROSS)}")

    @cache
    def of_view(key: str) -> bool:
        base = key.removeprefix(_POOLED)
        if view == "overview":
            return re.sub(r"_(low|high)$", "", key) in _SHORT
        if view == "intervals":
            return True
        return shown_in(base, view) or shown_in(re.sub(r"_(low|high)$", "", base), view)

    def keep(name: str, key: str) -> bool:
        of_id = name.rpartition("/")[2] == _ID
        return of_id if view in (_ID, "prediction_sets") else not of_id and of_view(key)

    return keep


def across(boards: Iterable[Board], view: str, of: Sequence[str] = ()) -> list[Table]:
    """Return the tables of a view: one for each board, ID side and set or group.

    Args:
        boards: made with `keep=needed(view)`.
        view: one of ACROSS.
        of: groups (`near`, `far`), pooled groups (`pooled_near`), sets by name, or `sets` for all of them; none stands
            for near and far, and in the overview for everything.

    Raises:
        ConfigError: no board has such a set.
    """
    return [_table(sheet, view) for sheet in _sheets(boards, view, of)]


def across_csv(boards: Iterable[Board], view: str, of: Sequence[str] = ()) -> Table:
    """Return all that `across` shows as one table for programs: fractions, with run ids; arguments as there."""
    sheets = _sheets(boards, view, of)
    titles = list(dict.fromkeys(shown.title for sheet in sheets for shown in sheet.columns))
    first = ("benchmark", "digest", "id_side", "of", "rank", "method", "version", "training", "augment", "outliers")
    who = (*first, "backbone", "hyper_parameters", "tuned", "not_ranked_because", "run_ids")
    rows: list[tuple[Cell, ...]] = []
    for sheet in sheets:
        columns, board = {shown.title: shown for shown in sheet.columns}, sheet.board
        for rank, _, row in sheet.rows:
            about: list[Cell] = [board.benchmark, board.digest, side_of(board), sheet.about, rank, row.method]
            about += [row.version, row.training, row.augment, row.outliers, row.backbone, row.params, row.tuned]
            about += ["; ".join(row.reasons), " ".join(row.runs)]
            values = ((columns.get(t)) for t in titles)
            rows.append((*about, *(None if s is None else row.value(s.name, s.key) for s in values)))
    return Table(view, (*map(Column, who), *(Column(title) for title in titles)), tuple(rows))


def _sheets(boards: Iterable[Board], view: str, of: Sequence[str]) -> list[Sheet]:
    found = list(boards)
    if view not in (_ID, "prediction_sets"):
        known = {name for board in found for name in (*_names(board), *(f"{_POOLED}{g}" for g in GROUPS), SETS)}
        for name in of:
            if name not in known:
                raise ConfigError(
                    f"--of: '{name}' not found{did_you_mean(name, known)} — available: {', '.join(sorted(known))}"
                )
    return [sheet for board in found for sheet in _SHEETS.get(view, _by_name)(board, view, of) if sheet.columns]


def _names(board: Board) -> list[str]:
    """The groups and sets of a board: near, its sets, far, its sets."""
    members = [run.members for row in (*board.ranked, *board.unranked) for run in row.members]
    sets = {group: sorted({name for m in members for name in m.get(group, ())}) for group in GROUPS}
    return [name for group in GROUPS if sets[group] for name in (group, *sets[group])]


def _chosen(board: Board, of: Sequence[str], default: Callable[[str], bool]) -> list[str]:
    names = _names(board)
    pooled = [f"{_POOLED}{group}" for group in GROUPS if group in names and f"{_POOLED}{group}" in of]
    wanted = [n for n in names if (n in of or (SETS in of and n not in GROUPS) if of else default(n))]
    return [*wanted, *pooled]


def _overview(board: Board, view: str, of: Sequence[str]) -> list[Sheet]:
    names = _chosen(board, of, lambda name: True)
    return [
        Sheet(board, title, tuple(Shown(name, name, key) for name in names if not name.startswith(_POOLED)))
        for key, title in _SHORT.items()
    ]


def _by_name(board: Board, view: str, of: Sequence[str]) -> list[Sheet]:
    sheets = []
    for chosen in _chosen(board, of, lambda name: name in GROUPS):
        prefix = _POOLED if chosen.startswith(_POOLED) else ""
        name = chosen.removeprefix(_POOLED)
        found = {k.removeprefix(prefix) for k in _keys(board, name) if k.startswith(_POOLED) == bool(prefix)}
        ordered = sorted((key for key in found if _belongs(key, view, found)), key=lambda key: key_order(view, key))
        sheets.append(Sheet(board, chosen, tuple(Shown(arrow(key), name, prefix + key) for key in ordered)))
    return sheets


def _of_id(board: Board, view: str, of: Sequence[str]) -> list[Sheet]:
    keys = sorted(key for key in _keys(board, _ID) if not _PREDICTION_SET.fullmatch(key))
    return [Sheet(board, _ID, tuple(Shown(arrow(key), _ID, key) for key in keys))]


def _of_prediction_sets(board: Board, view: str, of: Sequence[str]) -> list[Sheet]:
    kinds: dict[str, list[str]] = {}
    for key in sorted(_keys(board, _ID), key=lambda key: key_order(view, key)):
        if match := _PREDICTION_SET.fullmatch(key):
            kinds.setdefault(match.group(1), []).append(key)
    return [Sheet(board, kind, tuple(Shown(arrow(k), _ID, k) for k in keys)) for kind, keys in kinds.items()]


_SHEETS: dict[str, Callable[[Board, str, Sequence[str]], list[Sheet]]] = {
    "overview": _overview,
    _ID: _of_id,
    "prediction_sets": _of_prediction_sets,
}


def _keys(board: Board, name: str) -> set[str]:
    rows = (*board.ranked, *board.unranked)
    return {key for row in rows for run in row.members for key in run.metrics.get(row.side + name, ())}


def _belongs(key: str, view: str, found: set[str]) -> bool:
    """Whether a key is a column of a view; the ends of an interval are shown with their value."""
    if view == "intervals":
        return f"{key}_low" in found and f"{key}_high" in found
    return not ((end := _END.fullmatch(key)) and end.group(1) in found) and shown_in(key, view)


def _table(sheet: Sheet, view: str) -> Table:
    """A sheet for readers: rows show only what distinguishes them, and intervals only if a view is about them."""
    rows = [row for *_, row in sheet.rows]
    who, known = told_by(rows), who_columns(rows)
    grid = [[row.value(shown.name, shown.key) for shown in sheet.columns] for row in rows]
    if view not in ("overview", "intervals"):
        grid = [[replace(v, low=None, high=None) if isinstance(v, Estimate) else v for v in line] for line in grid]
    marks: dict[str, str] = {}
    cells = []
    for (rank, tied, row), line in zip(sheet.rows, grid, strict=True):
        for reason in row.reasons:
            marks.setdefault(reason, letters(len(marks)))
        place: Cell = " ".join(f"[{marks[r]}]" for r in row.reasons) or (f"{rank}=" if tied else rank)
        cells.append((place, *(getattr(row, name) for name in who.values()), *line))
    columns = (Column("rank", "count"), *map(Column, who))
    columns += tuple(Column(shown.title, kind_of(shown.key.removeprefix(_POOLED))) for shown in sheet.columns)
    common = [getattr(row, n) for row in rows[:1] for t, n in known.items() if n in _COMMON and t not in who]
    title = " · ".join((view, *([sheet.about] * (sheet.about != view)), heading(sheet.board), *common))
    notes = tuple(f"[{mark}] not ranked: {reason}" for reason, mark in marks.items())
    best = _best(sheet, columns[-len(sheet.columns) :], grid)
    shift = len(columns) - len(sheet.columns)
    return Table(
        title, columns, tuple(cells), _header(sheet, grid), notes, frozenset((row, shift + at) for row, at in best)
    )


def _best(
    sheet: Sheet, columns: Sequence[Column], grid: Sequence[Sequence[Estimate | str | None]]
) -> Iterator[tuple[int, int]]:
    """(row, column of numbers) of the best of the ranked rows, and of all that are printed the same."""
    for at, (shown, column) in enumerate(zip(sheet.columns, columns, strict=True)):
        higher = higher_is_better(shown.key.removeprefix(_POOLED))
        ranked = [(row, line[at]) for row, line in enumerate(grid[: len(sheet.board.ranked)])]
        found = {row: cell.value for row, cell in ranked if isinstance(cell, Estimate)}
        if higher is None or not found:
            continue
        best = cell_text((max if higher else min)(found.values()), column)
        yield from ((row, at) for row, value in found.items() if cell_text(value, column) == best)


def _header(sheet: Sheet, grid: Sequence[Sequence[Estimate | str | None]]) -> str:
    """Those of the board's conventions that the numbers of a sheet depend on."""
    keys = [shown.key for shown in sheet.columns]
    bounded = {
        k for line in grid for k, v in zip(keys, line, strict=True) if isinstance(v, Estimate) and v.low is not None
    }
    lines = sorted({conventions(header, keys, bounded) for header in sheet.board.headers})
    return " · ".join(line for line in lines if line)


_ABOUT: tuple[str, ...] = ("run_id", "benchmark", "digest", "deviations", "method", "version", "hyper_parameters")
_ABOUT += ("tuned", "training", "augment", "outliers", "backbone", "network", "seed", "contradictions")
# Those that a run does not have under the same name.
_TOLD: dict[str, Callable[[Run], object]] = {
    "deviations": lambda run: "; ".join(run.deviations) if run.deviations or run.pristine else "not stated",
    "hyper_parameters": lambda run: dumps(run.params).replace("\n", "") if run.params else "",
    "tuned": lambda run: run.strategy if run.tuned else "no",
    "contradictions": lambda run: "; ".join(run.problems),
}


def write_every_number(runs: Callable[[], Iterable[Run]], path: Path) -> tuple[int, int]:
    """Write a row per record and a column per number, `<set or group>.<key>`; return how many rows and numbers.

    An empty cell has no value. Runs are gone through twice and never all in memory.

    Args:
        runs: gives all of them, with every number, each time it is called.
        path: the CSV.

    Raises:
        RecordError: the file cannot be written.
    """
    columns = sorted({(name, key) for run in runs() for name, values in run.metrics.items() for key in values})
    count = 0
    try:
        with output(path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(csv_row([*_ABOUT, *(f"{name}.{key}" for name, key in columns)]))
            for run in runs():
                about = [_TOLD.get(name, attrgetter(name))(run) for name in _ABOUT]
                numbers = (run.metrics.get(name, {}).get(key) for name, key in columns)
                cells = ("" if n is None else n if isinstance(n, str) else repr(n) for n in numbers)
                writer.writerow(csv_row([*about, *cells]))
                count += 1
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written — {error.strerror or error} — choose another file") from error
    return count, len(columns)
