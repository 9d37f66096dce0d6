"""What the site shows, as plain values: the boards with a list per row, and what opens behind each record."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from openbench.core.names import FULL_SPECTRUM
from openbench.metrics.keys import higher_is_better
from openbench.metrics.rank_ranges import RankRange
from openbench.report.site.facts import UNKNOWN, MethodFacts
from openbench.results.checks import Check
from openbench.results.leaderboard.pages import letters
from openbench.results.leaderboard.ranking import NOT_RUN, Board, Row
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.records.settings import RELEASED
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.tables.published import SOURCES, Figure, Setup, published_name
from openbench.results.tables.render import Cell, Estimate
from openbench.results.tables.views import GROUPS, title_of, without_end

Plain = dict[str, Any]
Facts = Mapping[str, MethodFacts]
Published = Mapping[Setup, Figure]
Ranges = Mapping[tuple[str, ...], RankRange]
ShownColumn = tuple[Plain, Callable[[Row], Any]]  # as the page reads it, and what a row has in it
DIGITS = 9  # of a number; with six a table of two decimals may be another one
_OF_CHECK = ("utc", "made_from", "reproduces", "said", "made_by")
_OF_RUN = ("run_id", "config", "benchmark", "backbone", "method", "tuned", "trials")
_OF_RECORD = (*_OF_RUN, "header", "counts", "provenance")


# Key → title; of near and far, and those of the first two of every set.
_KEYS = (
    *("auroc", "fpr95", "fpr95_id_positive", "aupr_in", "aupr_out", "autc", "aufpr", "aufnr"),
    *("conformal_auroc", "conformal_fpr95", "oscr"),
)
_TITLES = {key: title_of(key)[:-2] for key in _KEYS} | {"fpr95_id_positive": "FPR@95 (ID positive)"}
_OF_SETS = ("auroc", "fpr95")
_OF_ID = {"accuracy": "ID accuracy", "aurc": "AURC", "augrc": "AUGRC", "ece_debiased": "ECE (debiased)"}
_RISK = re.compile(r"risk@.+")


def metric(of: str, key: str, title: str, better: int) -> Plain:
    """Return a column of numbers as the page reads it.

    Args:
        of: a set or group, e.g. `near`.
        key: of the metric, e.g. `auroc`; with `of` its name in the address of the site.
        title: as printed.
        better: 1 if larger numbers are better, −1 if smaller ones are, 0 for neither.
    """
    return {"id": f"{of}.{key}" if key else of, "title": title, "of": of, "better": better}


def keep(name: str, key: str) -> bool:
    """Whether the site may show a number of a record, or an end of its interval."""
    of, base = name.removeprefix(FULL_SPECTRUM), without_end(key)
    if of == "id":
        return base in _OF_ID
    return base in (_TITLES if of in GROUPS else _OF_SETS) or (of in GROUPS and _RISK.fullmatch(base) is not None)


def _metrics_of(board: Board) -> list[tuple[str, str]]:
    """Set or group and key of the numbers that the rows of a board have: near and far, ID, then every set."""
    present = {
        (name.removeprefix(row.side), without_end(key))
        for row in board.rows
        for run in row.members
        for name, values in run.metrics.items()
        if name.startswith(row.side) and (row.side or not name.startswith(FULL_SPECTRUM))
        for key in values
        if keep(name, key)
    }
    return sorted(present, key=_place)


def _place(metric: tuple[str, str]) -> tuple[int, int, str, int, str]:
    """Groups before ID before sets; of a group AUROC and FPR first."""
    name, key = metric
    first = (*GROUPS, "id")
    known = list(_TITLES)
    rank = known.index(key) if key in known else len(known)
    return (rank >= 2 and name in GROUPS, first.index(name) if name in first else len(first), name, rank, key)


_PLAIN_TRAINING = "cross_entropy"  # of released weights, as far as the published tables have them


class PublishedComparison(NamedTuple):
    """The published figure for a row.

    Args:
        figure: as printed.
        network: that of the published result, for readers.
        comparable: whether network and images are the same, so that the difference has a meaning.
    """

    figure: Figure
    network: str
    comparable: bool

    def gap(self, row: Row, group: str) -> float | None:
        """Return the row's AUROC of near or far less the published one; None if there is none to compare."""
        ours, theirs = row.values.get(f"{group} auroc"), getattr(self.figure, group)
        if not self.comparable or not isinstance(ours, Estimate) or theirs is None:
            return None
        return ours.value - theirs.value


def comparisons_of(board: Board, setups: Published) -> dict[tuple[str, ...], PublishedComparison]:
    """Return {runs of a row: the figure of its own setup, else that of the method with another network}.

    Args:
        board: with the rows.
        setups: the figures of its benchmark, those of the preferred source first.
    """
    any_backbone = {(setup.training, setup.method, setup.augment): setup for setup in reversed(list(setups))}
    found, name = {}, published_name(board.benchmark, full_spectrum=board.full_spectrum)
    for row in board.rows:
        whole = all(run.pristine for run in row.members)
        exact = Setup(name, row.training, row.backbone, row.method, row.augment)
        training = _PLAIN_TRAINING if row.training == RELEASED else row.training
        used = exact if exact in setups else any_backbone.get((training, row.method, row.augment))
        if used is not None:
            network = row.backbone if used == exact else f"another network: {used.backbone}"
            network += ", on other images" * (not whole)
            found[row.runs] = PublishedComparison(setups[used], network, used == exact and whole)
    return found


def _columns(board: Board, comparisons: Mapping[tuple[str, ...], PublishedComparison]) -> list[ShownColumn]:
    """The columns of a board as the page reads them, each with what a row has in it; published figures after ours."""

    def theirs(row: Row, of: str) -> Estimate | None:
        return getattr(comparisons[row.runs].figure, of) if row.runs in comparisons else None

    def apart(row: Row, of: str) -> float | None:
        return comparisons[row.runs].gap(row, of) if row.runs in comparisons else None

    columns: list[ShownColumn] = []
    for of, key in _metrics_of(board):
        title = _OF_ID[key] if of == "id" else f"{of} {_TITLES.get(key, key)}"
        better = {True: 1, False: -1, None: 0}[higher_is_better(key)]
        columns.append((metric(of, key, title, better), methodcaller("value", of, key)))
        if key == "auroc" and of in GROUPS and any(theirs(row, of) is not None for row in board.rows):
            columns.append((metric(of, "auroc.published", f"{of}, published", 0), partial(theirs, of=of)))
            columns.append((metric(of, "auroc.apart", f"{of}, ours − published", 0), partial(apart, of=of)))
    return columns


def board_data(boards: Sequence[Board], published: Published, scores: ScoreStore) -> list[Plain]:
    """Return the boards of records as the page reads them.

    Args:
        boards: of runs with the numbers that `keep` names.
        published: figures of others.
        scores: the published ones, from which ranges of ranks follow.
    """
    return [_board(board, published, ranges_of(board, scores)) for board in boards]


def methods_of(boards: Iterable[Plain], facts: Facts) -> dict[str, Plain]:
    """Return what each method of some boards is.

    Args:
        boards: as the page reads them.
        facts: what is known of methods.
    """
    names, keys = {row["method"] for board in boards for row in board["rows"]}, ("reads", "needs", "year", "summary")
    return {name: {key: getattr(facts.get(name, UNKNOWN), key) for key in keys} for name in sorted(names)}


def details(content: Mapping[str, Any], check: Check | None = None, *, scores: bool = False, page: str = "") -> Plain:
    """Return what opens behind a record: settings, trials, config, counts, provenance, and when it was checked.

    Args:
        content: what the record's file says.
        check: what came of computing it again.
        scores: whether its scores are published.
        page: the site's file about it; empty if there is none.
    """
    return {
        "checked": None if check is None else {key: getattr(check, key) for key in _OF_CHECK},
        "scores": f"results/{PUBLISHED}/{content['run_id']}.parquet" if scores else None,
        "page": page or None,
        **{key: content[key] for key in _OF_RECORD},
    }


def _board(board: Board, published: Published, ranges: Ranges) -> Plain:
    name = published_name(board.benchmark, full_spectrum=board.full_spectrum)
    setups = {setup: figure for setup, figure in published.items() if setup.benchmark == name}
    comparisons = comparisons_of(board, setups)
    columns = _columns(board, comparisons)
    return {
        "id": f"{board.benchmark}{'+csid' if board.full_spectrum else ''}-{board.digest[:6]}",
        "benchmark": board.benchmark,
        "title": f"{board.benchmark}{', full spectrum (csID counts as ID)' if board.full_spectrum else ''}",
        "digest": board.digest,
        "side": board.side,
        "conventions": list(board.headers),
        "metrics": [plain for plain, _ in columns],
        "compared": len(ranges),
        "rows": [
            {"rank": rank, "tied": tied} | _row(row, columns, comparisons.get(row.runs)) | _range(ranges.get(row.runs))
            for rank, tied, row in board.placed
        ],
        "published": [_figure(setup, figure) for setup, figure in setups.items()],
        "about": _about(comparisons.values()),
    }


def _about(comparisons: Collection[PublishedComparison]) -> str:
    if not any(getattr(one.figure, group) is not None for one in comparisons for group in GROUPS):
        return ""
    sources = {one.figure.source for one in comparisons}
    cited = "; ".join(text for source, text in SOURCES.items() if source in sources)
    other = "; results of other networks or images are in parentheses, without a difference"
    return f"published results: {cited}" + other * (not all(one.comparable for one in comparisons))


_OF_ROW = ("method", "version", "training", "augment", "outliers", "backbone", "settings", "tuned", "networks")


def _row(row: Row, columns: Sequence[ShownColumn], comparison: PublishedComparison | None) -> Plain:
    return {
        **{name: getattr(row, name) for name in _OF_ROW},
        **{name: list(getattr(row, name)) for name in ("runs", "reasons")},
        "ms": _mean(run.ms for run in row.members),
        "mib": _mean(run.mib for run in row.members),
        "published": "" if comparison is None else comparison.network,
        "comparable": comparison is not None and comparison.comparable,
        "complete": all(run.complete for run in row.members),
        "source": "",
        "group": NOT_RUN.capitalize() if row.given else "",
        "values": [value_of(value(row)) for _, value in columns],
    }


def _range(interval: RankRange | None) -> dict[str, Any]:
    """The ranks that a row may have: with other trainings and images, and with other images alone; and its groups."""
    if interval is None:
        return {"ranks": None, "ranks_here": None, "groups": ""}
    named = " ".join(letters(group) for group in interval.groups)
    return {"ranks": [interval.best, interval.worst], "ranks_here": interval.on_networks, "groups": named}


def value_of(cell: Cell) -> Any:
    """Return a number, [value, deviation over runs], or [value, low, high] with its interval; None if there is none."""
    if isinstance(cell, Estimate):
        ends = (cell.std,) if cell.std is not None else (cell.low, cell.high)
        rounded = [round(value, DIGITS) for value in (cell.value, *ends) if value is not None]
        return rounded if len(rounded) > 1 else rounded[0]
    return round(cell, DIGITS) if isinstance(cell, float) else cell


def number(value: Any) -> float | None:
    """Return the value of what `value_of` returned; None if it is not a number."""
    first = value[0] if isinstance(value, list) else value
    return first if isinstance(first, float | int) else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(f"{sum(numbers) / len(numbers):.4g}") if numbers else None


def _figure(setup: Setup, figure: Figure) -> Plain:
    """A published result on any network; the page marks that of the row's own network."""
    return {
        **{name: getattr(setup, name) for name in ("method", "training", "backbone", "augment")},
        "near": value_of(figure.near),
        "far": value_of(figure.far),
        "accuracy": figure.accuracy,
        "source": SOURCES.get(figure.source, figure.source),
    }
