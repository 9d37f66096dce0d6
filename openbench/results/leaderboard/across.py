"""Tables of a view over all methods: a row for each row of a board, a column for each metric of the view."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from openbench.errors import ConfigError, check_choice, not_found
from openbench.metrics.conformal.prediction_sets import KINDS, OWN
from openbench.results.frame import Keep, Run
from openbench.results.leaderboard import pages
from openbench.results.leaderboard.ranking import Board
from openbench.results.tables import views
from openbench.results.tables.render import Cell, Column, Estimate, Table, with_best

ACROSS = ("overview", *views.FAMILIES, "intervals", "prediction_sets", "id", "other")
COST = "cost"
SETS = "sets"
POOLED = "pooled_"
ID = "id"
_PREDICTION_SET = re.compile(rf"({'|'.join((*KINDS, OWN))})_.+@.+")
_COMMON = ("training", "augment", "outliers", "backbone")
AUROC = "AUROC ↑"
_OVERVIEW = {"auroc": AUROC, "fpr95": "FPR@95 ↓"}


class Number(NamedTuple):
    """A column of numbers: a metric of a set or group."""

    column: Column
    of: str
    key: str


class Section(NamedTuple):
    """What one table shows of a board.

    Args:
        board: the rows.
        about: the set, group or kind of prediction set, which distinguishes the sections of a board.
        numbers: its columns.
    """

    board: Board
    about: str
    numbers: tuple[Number, ...]


def needed(view: str) -> Keep:
    """Return which numbers of a record a view needs.

    Raises:
        ConfigError: no such view.
    """
    check_choice("view", view, ACROSS)

    @cache
    def of_view(key: str) -> bool:
        names = {name.removeprefix(POOLED) for name in (key, views.without_end(key))}
        if view == "overview":
            return not names.isdisjoint(_OVERVIEW)
        return view == "intervals" or any(views.shown_in(name, view) for name in names)

    def keep(name: str, key: str) -> bool:
        of_id = name.rpartition("/")[2] == ID
        return of_id if view in (ID, "prediction_sets") else not of_id and of_view(key)

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
    return [_table(section, view) for section in _sections(boards, view, of)]


def across_csv(boards: Iterable[Board], view: str, of: Sequence[str] = ()) -> Table:
    """Return all that `across` shows as one table for programs: fractions, with run ids; arguments as there."""
    sections = _sections(boards, view, of)
    titles = list(dict.fromkeys(number.column.key for section in sections for number in section.numbers))
    about = (*pages.WHO, "tuned", "not_ranked_because", "run_ids")
    rows: list[tuple[Cell, ...]] = []
    for board, of_section, numbers in sections:
        known = {number.column.key: (number.of, number.key) for number in numbers}
        for rank, _, row in board.placed:
            cells = (board.benchmark, board.digest, board.side, of_section, rank, *pages.facts(row, about))
            rows.append((*cells, *(row.value(*known[title]) if title in known else None for title in titles)))
    return Table(view, Column.of("benchmark", "digest", "id_side", "of", "rank", *about, *titles), tuple(rows))


def _sections(boards: Iterable[Board], view: str, of: Sequence[str]) -> list[Section]:
    every = list(boards)
    if view not in (ID, "prediction_sets"):
        check_names(every, of)
    make = {"overview": _overview, ID: _of_id, "prediction_sets": _of_prediction_sets}.get(view)
    per_board = (make(board, of) if make else _by_name(board, view, of) for board in every)
    return [section for sections in per_board for section in sections if section.numbers]


def check_names(boards: Sequence[Board], of: Iterable[str]) -> None:
    """Check that some board has each of some groups, pooled groups or sets.

    Raises:
        ConfigError: none has.
    """
    known = {name for board in boards for name in (*_names(board), *(f"{POOLED}{g}" for g in views.GROUPS), SETS)}
    for name in of:
        if name not in known:
            raise ConfigError(not_found(f"--of: '{name}'", name, sorted(known)))


def _names(board: Board) -> list[str]:
    """The groups and sets of a board: near, its sets, far, its sets."""
    members = [run.members for row in board.rows for run in row.members]
    sets = {group: sorted({name for m in members for name in m.get(group, ())}) for group in views.GROUPS}
    return [name for group in views.GROUPS if sets[group] for name in (group, *sets[group])]


def chosen(board: Board, of: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the groups, sets and pooled groups of a board that `--of` names; `default` if it names none."""
    names = _names(board)
    pooled = [f"{POOLED}{group}" for group in views.GROUPS if group in names and f"{POOLED}{group}" in of]
    return [n for n in names if (n in of or (SETS in of and n not in views.GROUPS) if of else n in default)] + pooled


def _overview(board: Board, of: Sequence[str]) -> list[Section]:
    names = [name for name in chosen(board, of, _names(board)) if not name.startswith(POOLED)]
    return [
        Section(board, title, tuple(Number(Column(n, "percent", better=title[-1]), n, key) for n in names))
        for key, title in _OVERVIEW.items()
    ]


def _by_name(board: Board, view: str, of: Sequence[str]) -> list[Section]:
    sections = []
    for name in chosen(board, of, views.GROUPS):
        prefix = POOLED if name.startswith(POOLED) else ""
        group = name.removeprefix(prefix)
        measured = {k.removeprefix(prefix) for k in _keys(board, group) if k.startswith(POOLED) == bool(prefix)}
        keys = [k for k in measured if views.is_column(k, view, measured)]
        keys.sort(key=lambda k: views.key_order(view, k))
        sections.append(Section(board, name, tuple(Number(views.metric_column(k), group, prefix + k) for k in keys)))
    return sections


def _of_id(board: Board, of: Sequence[str]) -> list[Section]:
    keys = views.id_keys(_keys(board, ID))
    return [Section(board, ID, tuple(Number(views.metric_column(key), ID, key) for key in keys))]


def _of_prediction_sets(board: Board, of: Sequence[str]) -> list[Section]:
    kinds: dict[str, list[Number]] = {}
    for key in sorted(_keys(board, ID), key=lambda key: views.key_order("prediction_sets", key)):
        if match := _PREDICTION_SET.fullmatch(key):
            kinds.setdefault(match.group(1), []).append(Number(views.metric_column(key), ID, key))
    return [Section(board, kind, tuple(numbers)) for kind, numbers in kinds.items()]


def _keys(board: Board, name: str) -> set[str]:
    return {key for row in board.rows for run in row.members for key in run.metrics.get(row.side + name, ())}


def _table(section: Section, view: str) -> Table:
    """A section for readers: rows show only what distinguishes them, and intervals only if a view is about them."""
    rows, marks = section.board.rows, pages.reason_marks(section.board)
    titles, known = pages.distinguishing_columns(rows), pages.row_columns(rows)
    grid = [[row.value(number.of, number.key) for number in section.numbers] for row in rows]
    if view not in ("overview", "intervals"):
        grid = [[replace(v, low=None, high=None) if isinstance(v, Estimate) else v for v in line] for line in grid]
    cells = []
    for (rank, tied, row), line in zip(section.board.placed, grid, strict=True):
        place: Cell = " ".join(marks[reason] for reason in row.reasons) or (f"{rank}=" if tied else rank)
        cells.append((place, *(getattr(row, name) for name in titles.values()), *line))
    columns = (Column("rank", "count"), *map(Column, titles), *(number.column for number in section.numbers))
    common = [getattr(row, n) for row in rows[:1] for t, n in known.items() if n in _COMMON and t not in titles]
    title = " · ".join((view, *([section.about] * (section.about != view)), pages.heading(section.board), *common))
    notes = tuple(f"{mark} not ranked: {reason}" for reason, mark in marks.items())
    notes += views.not_recorded([number.key for number in section.numbers]) if view == ID else ()
    about = section.about[:-2] if view == "overview" else f"{view.replace('_', ' ')} ({section.about})"
    words = pages.caption(section.board, about)
    table = Table(title, columns, tuple(cells), _header(section, grid), notes, caption=words)
    return with_best(table, len(section.board.ranked))


def _header(section: Section, grid: Sequence[Sequence[Estimate | str | None]]) -> str:
    """Those of the board's conventions that the numbers of a section depend on."""
    keys = [number.key for number in section.numbers]
    pairs = [pair for line in grid for pair in zip(keys, line, strict=True)]
    bounded = {key for key, value in pairs if isinstance(value, Estimate) and value.low is not None}
    lines = sorted({views.conventions(header, keys, bounded) for header in section.board.headers})
    return " · ".join(line for line in lines if line)


_COUNTS = ("runs", "seconds", "peak MiB", "passes", "passes without a cache")
_EVERY = "all"
_COST_NOTES = (
    "passes: images that the network read, once for each time; features that were cached before are not counted.",
    "passes without a cache: at least; every method reads each set again on each network, as in OpenOOD's evaluator.",
    "seconds: of all stages, on the processors that the records name. peak MiB: of the process, PyTorch included.",
)


def costs(boards: Iterable[Board], fitted_on: Mapping[str, Iterable[str]]) -> list[Table]:
    """Return what the runs of each board took, by method and together, most passes without a cache first.

    A pass is an image that the network reads. `passes without a cache` counts what OpenOOD's evaluator reads for the
    same runs: the images to fit on, both validation sets for every setting that is tried, ID test twice (scores,
    accuracy), and every OOD set. It is a lower bound, since some methods read an image several times; where the run
    itself took more passes, it is these.

    Args:
        boards: of runs; the full spectrum has the same ones.
        fitted_on: {method as typed: roles of the images that it is fitted on}.
    """
    tables, columns = [], Column.of("method", *((title, "count") for title in _COUNTS))
    for board in (board for board in boards if not board.full_spectrum):
        members: dict[str, list[Run]] = {}
        for row in board.rows:
            members.setdefault(row.method, []).extend(row.members)
        rows = [_cost(name, runs, fitted_on) for name, runs in members.items()]
        rows.sort(key=lambda row: (-int(row[-1]), str(row[0])))
        rows.append(_cost(_EVERY, [run for runs in members.values() for run in runs], fitted_on))
        tables.append(Table(f"{COST} · {pages.heading(board)}", columns, tuple(rows), notes=_COST_NOTES))
    return tables


def _cost(name: str, runs: Sequence[Run], fitted_on: Mapping[str, Iterable[str]]) -> tuple[str | int, ...]:
    seconds, peak = sum(sum(run.seconds.values()) for run in runs), max(run.mib or 0.0 for run in runs)
    without = sum(_passes_without_cache(run, fitted_on.get(run.method, ())) for run in runs)
    return name, len(runs), round(seconds), round(peak), sum(run.passes or 0 for run in runs), without


def _passes_without_cache(run: Run, fitted_on: Iterable[str]) -> int:
    n = Counter(run.sizes)
    fit, tested = sum(n[role] for role in fitted_on), sum(n[role] for role in (*views.GROUPS, *2 * ("id_test", "csid")))
    return max(fit + run.trials * (n["id_val"] + n["ood_val"]) + tested, run.passes or 0)
