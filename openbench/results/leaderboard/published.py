"""Boards of published results, which nobody verified here, with the rows that were measured here beside them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from openbench.results.leaderboard.ranking import Board
from openbench.results.tables.published import SOURCES, Figure, Setup, published_name, published_rows
from openbench.results.tables.render import Cell, Column, Estimate, Table

TITLE = "published, not verified here"
MEASURED, GIVEN = "measured here", "scores given, code not run"
COLUMNS = Column.of(
    *("method", "training", "augment", "outliers", "backbone"),
    *(("near AUROC ↑", "percent"), ("far AUROC ↑", "percent"), ("ID accuracy ↑", "percent"), "source"),
)


@dataclass(frozen=True)
class PublishedBoard:
    """The results on a benchmark that others have published, and those of records.

    Args:
        benchmark: its name; in the full-spectrum setting with the suffix `_fs`.
        table: COLUMNS, best near AUROC first.
        runs: the run ids of each row; none for a published one.
        reasons: why a row that was measured here is not ranked.
    """

    benchmark: str
    table: Table
    runs: tuple[tuple[str, ...], ...]
    reasons: tuple[tuple[str, ...], ...]


def published_boards(folder: Path, boards: Iterable[Board]) -> list[PublishedBoard]:
    """Return a board for each benchmark with published results, unless more rows of it were measured here.

    Such a benchmark has the published results in columns of its own board.

    Args:
        folder: of the reference files.
        boards: of records.

    Raises:
        RecordError: a reference file cannot be read.
    """
    measured: dict[str, list[tuple[tuple[Cell, ...], tuple[str, ...], tuple[str, ...]]]] = {}
    for board in boards:
        rows = measured.setdefault(published_name(board.benchmark, full_spectrum=board.full_spectrum), [])
        for row in board.rows:
            about = (row.method, row.training, row.augment, row.outliers, row.backbone)
            numbers = (row.values.get(key) for key in ("near auroc", "far auroc", "accuracy"))
            rows.append(((*about, *numbers, GIVEN if row.given else MEASURED), row.runs, row.reasons))
    found = []
    for name, printed in published_rows(folder).items():
        ours = measured.get(name, [])
        if len(ours) < len(printed):
            every = sorted([*ours, *((_cells(*pair), (), ()) for pair in printed)], key=lambda row: _order(row[0]))
            cells, runs, reasons = zip(*every, strict=True)
            found.append(PublishedBoard(name, Table(f"{name}: {TITLE}", COLUMNS, cells), runs, reasons))
    return found


def _cells(setup: Setup, figure: Figure) -> tuple[Cell, ...]:
    about = (setup.method, setup.training, setup.augment, figure.outliers, setup.backbone)
    return (*about, figure.near, figure.far, figure.accuracy, SOURCES[figure.source])


def _order(cells: tuple[Cell, ...]) -> tuple[float | str, ...]:
    near, far = (-cell.value if isinstance(cell, Estimate) else 0.0 for cell in cells[5:7])
    return (near, far, *map(str, cells))
