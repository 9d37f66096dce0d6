"""The columns of the site: the numbers of a record that it can show, how, and the published figures beside them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openbench.metrics.keys import higher_is_better
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.records.settings import RELEASED
from openbench.results.tables.published import SOURCES, Figure, Setup, published_name
from openbench.results.tables.render import Cell, Column, Estimate, Table
from openbench.results.tables.views import FULL_SPECTRUM, GROUPS

# Key → title; of near and far, and those of the first two of every set.
_TITLES = {
    "auroc": "AUROC",
    "fpr95": "FPR@95",
    "fpr95_id_positive": "FPR@95 (ID positive)",
    "aupr_in": "AUPR in",
    "aupr_out": "AUPR out",
    "autc": "AUTC",
    "aufpr": "AUFPR",
    "aufnr": "AUFNR",
    "conformal_auroc": "conformal AUROC",
    "conformal_fpr95": "conformal FPR@95",
    "oscr": "OSCR",
}
_OF_SETS = ("auroc", "fpr95")
_OF_ID = {"accuracy": "ID accuracy", "aurc": "AURC"}
_RISK = re.compile(r"risk@.+")
_END = re.compile(r"_(low|high)$")


@dataclass(frozen=True)
class Metric:
    """One column of numbers.

    Args:
        name: of a set or group, e.g. `near`.
        key: of the metric, e.g. `auroc`.
    """

    name: str
    key: str

    @property
    def id(self) -> str:
        """How the site's address names it."""
        return f"{self.name}.{self.key}"

    @property
    def plain(self) -> dict[str, object]:
        """For the page: id, title, the set or group, and which way is better (1, −1, or 0 for neither)."""
        better = {True: 1, False: -1, None: 0}[higher_is_better(self.key)]
        title = _OF_ID.get(self.key) if self.name == "id" else f"{self.name} {_TITLES.get(self.key, self.key)}"
        return {"id": self.id, "title": title, "of": self.name, "better": better}


def keep(name: str, key: str) -> bool:
    """Whether the site may show a number of a record, or an end of its interval."""
    of, base = name.removeprefix(FULL_SPECTRUM), _END.sub("", key)
    if of == "id":
        return base in _OF_ID
    return base in (_TITLES if of in GROUPS else _OF_SETS) or (of in GROUPS and _RISK.fullmatch(base) is not None)


def metrics_of(board: Board) -> list[Metric]:
    """Return the numbers that the rows of a board have: near and far, ID, then every set."""
    present = {
        (name.removeprefix(row.side), _END.sub("", key))
        for row in (*board.ranked, *board.unranked)
        for run in row.members
        for name, values in run.metrics.items()
        if name.startswith(row.side) and (row.side or not name.startswith(FULL_SPECTRUM))
        for key in values
        if keep(name, key)
    }
    return [Metric(name, key) for name, key in sorted(present, key=_place)]


def _place(found: tuple[str, str]) -> tuple[int, int, str, int, str]:
    """Groups before ID before sets; of a group AUROC and FPR first."""
    name, key = found
    first = (*GROUPS, "id")
    known = list(_TITLES)
    rank = known.index(key) if key in known else len(known)
    return (rank >= 2 and name in GROUPS, first.index(name) if name in first else len(first), name, rank, key)


def titled(metrics: Iterable[Metric]) -> list[dict[str, object]]:
    """Return metrics as the page reads them."""
    return [metric.plain for metric in metrics]


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
