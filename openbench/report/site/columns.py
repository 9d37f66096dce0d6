"""The numbers of a record that the site can show, and how."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from openbench.metrics.keys import higher_is_better
from openbench.results.leaderboard.ranking import Board
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
