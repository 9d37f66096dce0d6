"""Boards of the site besides those of records: AUTC, tabular data (ADBench), training methods, published results."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from openbench.report.site._boards import DIGITS, Plain, metric, number, value_of
from openbench.results.leaderboard.pages import PublishedBoard
from openbench.results.leaderboard.trainings import COLUMNS as RUN_COLUMNS, comparison
from openbench.results.records.settings import NONE
from openbench.results.tables.frames import read_frame
from openbench.results.tables.published import ADBENCH, ADBENCH_COLUMNS, ADBENCH_METRICS
from openbench.results.tables.render import Cell, Column, Estimate, Table, cell_text, with_best

_AUTC = tuple(f"{group}.{key}" for group in ("near", "far") for key in ("autc", "aufpr", "aufnr"))
_PRINTED = Column("", "percent")
# Every row of the site has these; a board sets those that it knows.
_ROW: Plain = {
    **dict.fromkeys(("rank", "version", "ms", "mib", "ranks", "ranks_here")),
    **dict.fromkeys(("training", "backbone", "settings", "tuned", "groups", "published", "source", "group"), ""),
    **dict.fromkeys(("augment", "outliers"), NONE),
    **dict.fromkeys(("comparable", "complete"), True),
    "tied": False,
    "networks": 1,
    "reasons": [],
}
# Likewise of a board that is not made of records.
_BOARD: Plain = {"digest": "", "side": "standard", "conventions": [], "compared": 0, "published": []}
_NEAR_AND_FAR = (("near", "auroc", "near AUROC", 1), ("far", "auroc", "far AUROC", 1))
_ACCURACY = ("id", "accuracy", "ID accuracy", 1)


def by_autc(board: Plain) -> Plain | None:
    """Return a board in the order of near AUTC, or far AUTC where no set is near; None if none was measured.

    Args:
        board: as `board_data` makes it.
    """
    at = {metric["id"]: place for place, metric in enumerate(board["metrics"])}
    by = next((key for key in ("near.autc", "far.autc") if key in at), None)
    if by is None:
        return None

    def value(row: Plain) -> float:
        return number(row["values"][at[by]]) or 0.0

    measured = [row for row in board["rows"] if number(row["values"][at[by]]) is not None]
    rows = [row | {"ranks": None, "ranks_here": None, "groups": ""} for row in sorted(measured, key=value)]
    ranked, rest = ([row for row in rows if (row["rank"] is None) == out] for out in (False, True))
    return {
        **board,
        "id": f"{board['id']}-autc",
        "title": f"{board['title']}: AUTC",
        "rows": [*_placed(ranked, value), *rest],
        "compared": 0,
        "first": ["training", "augment", "outliers", "backbone", *(key for key in _AUTC if key in at)],
        "about": f"ranked by {by.replace('.autc', ' AUTC')}: the mean of AUFPR and AUFNR, 0 is perfect",
    }


def adbench(path: Path) -> Plain | None:
    """Return the board of ADBench's tables, each detector's mean over them and the published figure beside it.

    The means of a row are over the tables of which it has the AUROC.

    Args:
        path: the CSV that scripts/compare_adbench.py writes; None is returned if it is not there, or has no number.

    Raises:
        RecordError: it is not one.
    """
    read: Any = read_frame(path, ADBENCH_COLUMNS).itertuples() if path.is_file() else ()
    cells = {(gap.method, gap.metric, gap.dataset): gap for gap in read if gap.metric in ADBENCH_METRICS}
    if not cells:
        return None
    tables, methods = (sorted({cell[i] for cell in cells}) for i in (2, 0))
    ends = (("", "", 1), (".published", ", published", 0), (".apart", ", ours − published", 0))
    means = product(ADBENCH_METRICS.items(), ends)
    metrics = [metric("mean", key + end, f"mean {title}{more}", better) for (key, title), (end, more, better) in means]
    first = [mean["id"] for mean in metrics]
    metrics += [metric(name, "auroc", name, 1) for name in tables]
    rows = []
    for method in methods:
        aurocs = [cells.get((method, "auroc", table)) for table in tables]
        here = [gap.dataset for gap in aurocs if gap is not None]
        values = [v for key in ADBENCH_METRICS for v in _mean_gap([cells.get((method, key, table)) for table in here])]
        values += [gap and ([gap.ours, gap.std] if gap.draws > 1 else gap.ours) for gap in aurocs]
        reason = f"{len(here)} of {len(tables)} tables: its mean is over others" if here else "no AUROC was measured"
        row = {"method": method, "runs": [], "id": f"adbench-{method}", "values": values}
        rows.append(_ROW | row | {"reasons": [reason] * (len(here) < len(tables)), "tuned": "no"})
    whole, part = ([row for row in _sorted(rows) if bool(row["reasons"]) == few] for few in (False, True))
    return _BOARD | {
        "id": "adbench",
        "benchmark": "ADBench",
        "title": "ADBench: tabular data",
        "metrics": metrics,
        "first": first,
        "rows": [*_placed(whole, _leading), *part],
        "about": f"means over {len(tables)} tables and their draws; published: {ADBENCH}",
    }


def trainings(path: Path) -> Plain:
    """Return the board of ways of training, each with the score of its paper, over seeds, beside cross-entropy.

    Args:
        path: the CSV that scripts/compare_trainings.py writes, named by the benchmark.

    Raises:
        RecordError: it is not one.
    """
    runs = read_frame(path, RUN_COLUMNS)
    table = comparison(runs, path.stem)
    ids = runs.sort_values("seed").groupby(["training", "score"])["run_id"].agg(list).to_dict()
    named = (*_NEAR_AND_FAR, ("near", "fpr95", "near FPR@95", -1), _ACCURACY)
    more = (("gain", "", "gain over cross-entropy (near AUROC)", 1), ("plain", "", "near AUROC with cross-entropy", 1))
    metrics = [metric(*each) for each in (*named, *more)]
    rows = []
    for training, score, _, accuracy, near, far, fpr95, gain, same in table.rows:
        values = [value_of(cell) for cell in (near, far, fpr95, accuracy, gain, same)]
        run_ids = ids[str(training), str(score)]
        row = {"method": score, "training": training, "runs": run_ids, "networks": len(run_ids), "values": values}
        rows.append(_ROW | row | {"id": f"{path.stem}-{training}-{score}"})
    return _BOARD | {
        "id": f"trainings-{path.stem}",
        "benchmark": f"trainings on {path.stem}",
        "title": f"{path.stem}: training methods",
        "conventions": [table.header],
        "metrics": metrics,
        "first": ["training", *(metric["id"] for metric in metrics)],
        "rows": _placed(_sorted(rows), _leading),
        "about": "each training method with the score of its paper; ± over seeds; gains over common seeds",
    }


def published(board: PublishedBoard) -> Plain:
    """Return a board of published results, without ranks, as the page reads it."""
    metrics = [metric(*each) for each in (*_NEAR_AND_FAR, _ACCURACY)]
    rows = []
    for at, (cells, runs, reasons) in enumerate(zip(board.table.rows, board.runs, board.reasons, strict=True)):
        *about, near, far, accuracy, source = cells
        row: Plain = dict(zip(("method", "training", "augment", "outliers", "backbone"), about, strict=True))
        row |= {"source": source, "runs": list(runs), "values": [value_of(cell) for cell in (near, far, accuracy)]}
        rows.append(_ROW | row | {"id": runs[0] if runs else f"published-{at}", "reasons": list(reasons)})
    return _BOARD | {
        "id": f"published-{board.benchmark}",
        "benchmark": board.benchmark,
        "title": board.table.title,
        "metrics": metrics,
        "kind": "published",
        "first": ["training", "augment", "outliers", "backbone", *(one["id"] for one in metrics), "source"],
        "rows": rows,
        "about": "each row names its source",
    }


def _mean_gap(gaps: Sequence[Any]) -> list[Any]:
    """Our mean over some tables, the published one, and the difference; nothing if any is missing."""
    if not gaps or None in gaps:
        return [None, None, None]
    ours, theirs = fmean(gap.ours for gap in gaps), fmean(gap.published for gap in gaps)
    return [round(value, DIGITS) for value in (ours, theirs, ours - theirs)]


def _leading(row: Plain) -> float:
    """The first number of a row, by which it is ranked."""
    return number(row["values"][0]) or 0.0


def _sorted(rows: Sequence[Plain]) -> list[Plain]:
    return sorted(rows, key=lambda row: (-_leading(row), row["method"], row["training"]))


def _placed(rows: Sequence[Plain], value: Callable[[Plain], float]) -> list[Plain]:
    """Rows in order with their rank, shared by those that are printed the same."""
    texts = [cell_text(value(row), _PRINTED) for row in rows]
    first, count = {text: texts.index(text) + 1 for text in set(texts)}, Counter(texts)
    return [row | {"rank": first[text], "tied": count[text] > 1} for row, text in zip(rows, texts, strict=True)]


def other_boards(results: Path, boards: Sequence[Mapping[str, Any]]) -> list[Plain]:
    """Return every board beside those of records.

    Args:
        results: the folder with `adbench` and `trainings`.
        boards: those of records, as `board_data` makes them.

    Raises:
        RecordError: a file there is not what it should be.
    """
    others = [by_autc(dict(board)) for board in boards]
    others.append(adbench(results / "adbench" / "comparison.csv"))
    others += [trainings(path) for path in sorted((results / "trainings").glob("*.csv"))]
    return [board for board in others if board is not None]


def table_of(board: Plain) -> Table:
    """Return a board as a table, with the best and second-best of each column among the ranked rows."""
    arrows = {1: "↑", -1: "↓", 0: ""}
    metrics = (Column(m["title"], "percent", better=arrows[m["better"]]) for m in board["metrics"])
    texts = ("method", "training", *(("backbone", "outliers", "source") if board.get("kind") else ()))
    columns = (Column("rank", "count"), *map(Column, texts), *metrics)
    rows = []
    for row in board["rows"]:
        rank = None if row["rank"] is None else f"{row['rank']}=" if row["tied"] else row["rank"]
        rows.append((rank, *(row[key] for key in texts), *map(_cell, row["values"])))
    ranked = sum(row["rank"] is not None for row in board["rows"])
    return with_best(Table(board["title"], columns, tuple(rows), notes=(board["about"],)), ranked)


def _cell(value: Any) -> Cell:
    """What `value_of` made a number, a text or nothing of."""
    if not isinstance(value, list):
        return value
    return Estimate(value[0], std=value[1]) if len(value) == 2 else Estimate(*value)
