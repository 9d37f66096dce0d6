"""Published figures beside the rows of a board: near and far AUROC as printed, and ours less theirs.

There is a difference only where the row has the same kind of network and all images of the benchmark: anywhere else it
would tell of the networks and look like a reproduction that failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openbench.report.site.columns import Metric
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.records.trained import RELEASED
from openbench.results.tables.published import SOURCES, Figure, Setup, published_name
from openbench.results.tables.table import Cell, Column, Estimate, Table
from openbench.results.tables.views import GROUPS

_PLAIN_TRAINING = "cross_entropy"  # of released weights, as far as the published tables have them


@dataclass(frozen=True)
class Beside:
    """A published figure for a row.

    Args:
        figure: as printed.
        backbone: that it was measured with.
        same: whether the row's network is of that kind, trained in that way; another network gives other numbers.
        whole: whether the row was measured on the benchmark as it is defined; other images give other numbers.
    """

    figure: Figure
    backbone: str
    same: bool
    whole: bool

    @property
    def comparable(self) -> bool:
        """Whether the difference tells of anything but another network or other images."""
        return self.same and self.whole

    @property
    def network(self) -> str:
        """What it was measured with, for readers."""
        found = self.backbone if self.same else f"another network: {self.backbone}"
        return found if self.whole else f"{found}, on other images"

    def apart(self, row: Row, group: str) -> float | None:
        """Ours less theirs; None if either is missing, or they are not comparable."""
        ours, theirs = row.values.get(f"{group} auroc"), self.of(group)
        if not self.comparable or not isinstance(ours, Estimate) or theirs is None:
            return None
        return ours.value - theirs.value

    def of(self, group: str) -> Estimate | None:
        """The AUROC of near or far."""
        found: Estimate | None = getattr(self.figure, group)
        return found


class Figures:
    """The published figures of a board's benchmark, by row.

    Args:
        board: whose rows are looked up.
        published: all figures, those of the preferred source first.
    """

    def __init__(self, board: Board, published: Mapping[Setup, Figure]) -> None:
        name = published_name(board.benchmark, full_spectrum=board.full_spectrum)
        self.setups = {setup: figure for setup, figure in published.items() if setup.benchmark == name}
        self._name = name
        self._any_backbone: dict[tuple[str, str, str], Setup] = {}
        for setup in self.setups:
            self._any_backbone.setdefault((setup.training, setup.method, setup.augment), setup)
        self.of_rows = {row.runs: self._beside(row) for row in (*board.ranked, *board.unranked)}
        known = [found for found in self.of_rows.values() if found is not None]
        self._groups = {f"{g}.auroc": g for g in GROUPS if any(found.of(g) is not None for found in known)}

    def __bool__(self) -> bool:
        """Whether any row has one."""
        return bool(self._groups)

    def group(self, metric: str) -> str | None:
        """The group of which a metric is the AUROC, if any row has a published one."""
        return self._groups.get(metric)

    @property
    def cited(self) -> str:
        """The sources of the figures that rows have."""
        used = {found.figure.source for found in self.of_rows.values() if found is not None}
        return "; ".join(text for source, text in SOURCES.items() if source in used)

    @property
    def comparable(self) -> bool:
        """Whether all of them are of the row's own kind of network, and of the same images."""
        return all(found.comparable for found in self.of_rows.values() if found is not None)

    def _beside(self, row: Row) -> Beside | None:
        """The figure of the row's own setup, else that of the method with another network."""
        whole = all(run.pristine for run in row.members)
        exact = Setup(self._name, row.training, row.backbone, row.method, row.augment)
        if exact in self.setups:
            return Beside(self.setups[exact], row.backbone, same=True, whole=whole)
        training = _PLAIN_TRAINING if row.training == RELEASED else row.training
        other = self._any_backbone.get((training, row.method, row.augment))
        return None if other is None else Beside(self.setups[other], other.backbone, same=False, whole=whole)


def with_columns(metrics: Sequence[dict[str, object]], figures: Figures) -> list[dict[str, object]]:
    """Return the columns of a board as the page reads them, with those of published figures after their AUROC."""
    found = []
    for metric in metrics:
        found.append(metric)
        if (group := figures.group(str(metric["id"]))) is not None:
            for key, title in (("published", "published"), ("apart", "ours − published")):
                own = {"id": f"{metric['id']}.{key}", "title": f"{group}, {title}", "of": group, "better": 0}
                found.append(own)
    return found


def with_values(values: Sequence[Any], metrics: Sequence[Metric], row: Row, figures: Figures) -> list[Any]:
    """Return the numbers of a row in these columns.

    Args:
        values: its own, one for each metric.
        metrics: of the board.
        row: whose numbers they are.
        figures: of the board.
    """
    beside, found = figures.of_rows[row.runs], list[Any]()
    for metric, value in zip(metrics, values, strict=True):
        found.append(value)
        if (group := figures.group(metric.id)) is not None:
            found += [None, None] if beside is None else [beside.of(group), beside.apart(row, group)]
    return found


def with_published(table: Table, board: Board, figures: Figures, auroc: str) -> Table:
    """Return a board's table for programs with published figures at the right of its rows of AUROCs.

    Args:
        table: with the columns `of` and `run_ids`.
        board: whose rows it has.
        figures: of the board.
        auroc: what `of` is in rows of AUROCs.
    """
    titles = [column.title for column in table.columns]
    of, runs = titles.index("of"), titles.index("run_ids")
    rows = {" ".join(row.runs): row for row in (*board.ranked, *board.unranked)}
    added = [f"{group}_{key}" for group in GROUPS for key in ("published", "minus_published")]
    more = [Column(title) for title in (*added, "published_with", "published_in")]
    cells = tuple((*line, *_added(line[of] == auroc, rows[str(line[runs])], figures)) for line in table.rows)
    return Table(table.title, (*table.columns, *more), cells)


def _added(shown: bool, row: Row, figures: Figures) -> Sequence[Cell]:
    found = figures.of_rows[row.runs] if shown else None
    if found is None:
        return (*[None] * 2 * len(GROUPS), None, None)
    numbers: list[Cell] = []
    for group in GROUPS:
        apart = found.apart(row, group)
        numbers += [found.of(group), None if apart is None else Estimate(apart)]
    return (*numbers, found.network, SOURCES.get(found.figure.source, found.figure.source))
