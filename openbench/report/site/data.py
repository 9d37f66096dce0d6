"""What the site shows, as plain values: the boards with a list per row, and what opens behind each record."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openbench.metrics.rank_ranges import RankRange
from openbench.report.site.columns import Figures, Metric, metrics_of, titled, with_columns, with_values
from openbench.report.site.facts import UNKNOWN, MethodFacts
from openbench.results.checks import Check
from openbench.results.leaderboard.pages import letters, side_of
from openbench.results.leaderboard.ranking import Board, Row, places
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import SOURCES, Figure, Setup
from openbench.results.tables.render import Estimate

Plain = dict[str, Any]
Facts = Mapping[str, MethodFacts]
Published = Mapping[Setup, Figure]
Ranges = Mapping[tuple[str, ...], RankRange]
_DIGITS = 6  # of a number; tables print four
_OF_CHECK = ("utc", "made_from", "reproduces", "said", "made_by")
_OF_RUN = ("run_id", "config", "benchmark", "backbone", "method", "tuned", "trials")
_OF_RECORD = (*_OF_RUN, "header", "counts", "provenance")


def board_data(boards: Sequence[Board], published: Published, scores: ScoreStore) -> list[Plain]:
    """Return the boards of records as the page reads them.

    Args:
        boards: made with `keep=columns.keep`.
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
    known = {name: facts.get(name, UNKNOWN) for name in sorted({row["method"] for b in boards for row in b["rows"]})}
    return {
        name: {"reads": f.reads, "needs": list(f.needs), "year": f.year, "summary": f.summary}
        for name, f in known.items()
    }


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


def _board(board: Board, published: Published, ranges: Ranges) -> dict[str, Any]:
    metrics, figures = metrics_of(board), Figures(board, published)
    side = side_of(board)
    ranked = zip(places(board.ranked), board.ranked, strict=True)
    rows: Iterable[tuple[tuple[int, bool] | None, Row]] = [*ranked, *((None, row) for row in board.unranked)]
    return {
        "id": f"{board.benchmark}{'' if side == 'standard' else '+csid'}-{board.digest[:6]}",
        "benchmark": board.benchmark,
        "title": f"{board.benchmark}{'' if side == 'standard' else ', covariate shift counts as ID'}",
        "digest": board.digest,
        "side": side,
        "conventions": list(board.headers),
        "metrics": with_columns(titled(metrics), figures),
        "compared": len(ranges),
        "rows": [_row(row, place, metrics, figures) | _range(ranges.get(row.runs)) for place, row in rows],
        "published": list(_figures(figures)),
        "about": _about(figures) if figures else "",
    }


def _about(figures: Figures) -> str:
    other = (
        ""
        if figures.comparable
        else "; those of another network or other images stand in brackets, without a difference"
    )
    return f"published figures: {figures.cited}{other}"


def _row(row: Row, place: tuple[int, bool] | None, metrics: Sequence[Metric], figures: Figures) -> dict[str, Any]:
    beside, own = figures.of_rows[row.runs], [row.value(metric.name, metric.key) for metric in metrics]
    return {
        "rank": None if place is None else place[0],
        "tied": place is not None and place[1],
        "method": row.method,
        "version": row.version,
        "training": row.training,
        "augment": row.augment,
        "outliers": row.outliers,
        "backbone": row.backbone,
        "settings": row.settings,
        "tuned": row.tuned,
        "networks": row.networks,
        "runs": list(row.runs),
        "reasons": list(row.reasons),
        "ms": _mean(run.ms for run in row.members),
        "mib": _mean(run.mib for run in row.members),
        "published": "" if beside is None else beside.network,
        "comparable": beside is not None and beside.comparable,
        "complete": all(run.complete for run in row.members),
        "values": [_value(value) for value in with_values(own, metrics, row, figures)],
    }


def _range(found: RankRange | None) -> dict[str, Any]:
    """The ranks that a row may have: with other trainings and images, and with other images alone; and its groups."""
    if found is None:
        return {"ranks": None, "ranks_here": None, "groups": ""}
    named = " ".join(letters(group) for group in found.groups)
    return {"ranks": [found.best, found.worst], "ranks_here": found.on_networks, "groups": named}


def _value(found: Estimate | float | str | None) -> Any:
    """A number, [value, deviation over runs], or [value, low, high] with its interval; None if there is none."""
    if isinstance(found, float):
        return _short(found)
    if not isinstance(found, Estimate):
        return found
    if found.std is not None:
        return [_short(found.value), _short(found.std)]
    if found.low is not None and found.high is not None:
        return [_short(found.value), _short(found.low), _short(found.high)]
    return _short(found.value)


def _short(value: float) -> float:
    return round(value, _DIGITS)


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return float(f"{sum(found) / len(found):.4g}") if found else None


def _figures(figures: Figures) -> Iterator[dict[str, Any]]:
    """Figures of others for a benchmark, whatever their network: the page says where it is the row's own."""
    for setup, figure in figures.setups.items():
        yield {
            "method": setup.method,
            "training": setup.training,
            "backbone": setup.backbone,
            "augment": setup.augment,
            "near": _value(figure.near),
            "far": _value(figure.far),
            "accuracy": figure.accuracy,
            "source": SOURCES.get(figure.source, figure.source),
        }
