"""What was measured of a method: its rows of the committed leaderboard."""

import csv
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from generate.markdown import table

ROOT = Path(__file__).parents[2]
MOST = 10
_AS_FAR = "as far as it was there"  # a column: the benchmark, and whether the run was on all of it
_PART = ", in part"
_MISSING = "images or sets were missing or in another form, which `results/leaderboard` names; such rows are not ranked"
_READ = ("run_id", "role", "set", "auroc", "auroc_low", "auroc_high", "fpr95")
_SAME = ("benchmark", "backbone", "training", "augment", "outliers", "method", "params", "seed")
Record = dict[str, Any]  # column → value, for each set of each run
HEADERS = (
    "benchmark",
    "backbone",
    "trainings",
    "near AUROC ↑",
    "far AUROC ↑",
    "near FPR@95 ↓",
    "chosen",
    "µs per image",
)


def differences_of(target: str) -> str:
    """Return how far the tests of a method found it from what they expect; empty if none is kept.

    Args:
        target: the class, as a config names it.
    """
    *_, module, name = target.split(".")
    with (ROOT / "results" / "claims" / "differences.csv").open(encoding="utf-8") as file:
        mine = [
            (row["test"].replace("_", " "), row["comparisons"], row["largest difference"])
            for row in csv.DictReader(file)
            if row["file"] == module or row["file"].replace("_", "") == name.lower()
        ]
    if not mine:
        return ""
    after = (
        "The largest difference of a value in the comparisons of each test, relative to the largest expected: formulas "
        "written out in float64, other libraries, or the method itself on data that must not matter. From "
        "`results/claims/differences.csv`."
    )
    return table(("test", "comparisons", "largest difference"), mine) + "\n\n" + after


def rows_of(method: str) -> str:
    """Return the rows of a method in percent, one for each benchmark and backbone; empty if nothing was measured."""
    groups = _grouped((_AS_FAR, "backbone"), method=method)
    rows = [[*_row(name, group), _cost(row["run_id"] for row in group)] for name, group in groups]
    if not rows:
        return ""
    part = f" {_PART[2:].capitalize()}: {_MISSING}." if any(row[0].endswith(_PART) for row in rows) else ""
    after = (
        "In percent, mean and standard deviation over trainings; for a single training the 95 % interval of DeLong "
        "over images. The whole tables are in `results/leaderboard`. The time is that of scoring cached features on "
        f"the processor that made the record.{part}"
    )
    return table(HEADERS, rows) + "\n\n" + after


def rows_of_training(training: str) -> str:
    """Return what networks trained in a way reached, in percent, by method; empty if nothing was measured."""
    groups = _grouped((_AS_FAR, "backbone", "method"), training=training)
    rows = [[*name, *_row(name[:2], group)[2:5]] for name, group in groups]
    best = sorted(rows, key=lambda row: _leading(row[4]), reverse=True)[:MOST]
    headers = ("benchmark", "backbone", "method", *HEADERS[2:5])
    return table(headers, best) + (f"\n\nThe best {MOST} by near AUROC." if len(rows) > MOST else "") if rows else ""


def _grouped(by: tuple[str, ...], **value: str) -> list[tuple[tuple[str, ...], list[Record]]]:
    """The records with a value in a column, by what they have in others, sorted."""
    ((column, wanted),) = value.items()
    found = defaultdict[tuple[str, ...], list[Record]](list)
    for row in _records():
        if row[column] == wanted:
            found[tuple(row[key] for key in by)].append(row)
    return sorted(found.items())


def _row(name: tuple[str, ...], group: list[Record]) -> list[str]:
    near, far = ([row for row in group if (row["role"], row["set"]) == ("mean", side)] for side in ("near", "far"))
    chosen = sorted({str(row["params"]) for row in group if row["params"]})
    return [
        *name,
        str(len({row["run_id"] for row in group})),
        _auroc(near),
        _auroc(far),
        f"{100 * fmean(row['fpr95'] for row in near):.2f}" if near else "",
        "; ".join(f"`{one}`" for one in chosen[:3]) + ("; …" if len(chosen) > 3 else ""),
    ]


def _leading(cell: str) -> float:
    """The number that a cell begins with, by which rows are ordered; cells without one come last."""
    return float(cell.split()[0]) if cell else float("-inf")


def _auroc(rows: list[Record]) -> str:
    if not rows:
        return ""
    values = [100 * row["auroc"] for row in rows]
    mean = f"{fmean(values):.2f}"
    if len(rows) > 1:
        return f"{mean} ± {pstdev(values):.2f}"
    low, high = (100 * rows[0][f"auroc_{end}"] for end in ("low", "high"))
    return mean if low != low else f"{mean} [{low:.2f}, {high:.2f}]"


def _cost(run_ids: Iterable[str]) -> str:
    spent = _spent()
    known = [value for run_id in dict.fromkeys(run_ids) if (value := spent[run_id]) is not None]
    return f"{1000 * sum(known) / len(known):.1f}" if known else ""


@cache
def _spent() -> dict[str, float | None]:
    """Run id → milliseconds per image, from the index that `ob.records` has just read: no record is parsed again."""
    from openbench.results.frame import runs
    from openbench.results.records.store import RecordStore

    return {run.run_id: run.ms for run in runs(RecordStore(ROOT / "results"), lambda error: None)}


@cache
def _records() -> list[Record]:
    import openbench as ob

    found = ob.records(ROOT / "results")
    found = found[found["side"] == "standard"]
    # A run that was repeated for other metrics only, such as another δ, has the same areas.
    found = found.drop_duplicates([*_SAME, "role", "set", "auroc"])
    names = found["benchmark"].astype(str)
    as_far = names.where(found["complete"] & found["pristine"], names + _PART)
    rows: list[Record] = found[[*_SAME, *_READ]].assign(**{_AS_FAR: as_far}).to_dict("records")
    return rows


def shown_rows(benchmark: str, methods: tuple[str, ...]) -> str:
    """Return some rows of a benchmark as a table, best near AUROC first."""
    rows = []
    for (method,), group in _grouped(("method",), benchmark=benchmark):
        plain = [row for row in group if row["augment"] == "none"]
        if method in methods and plain:
            rows.append([f"[{method}](/look_up/method/{method}.md)", *_row(("", ""), plain)[3:6]])
    best = sorted(rows, key=lambda row: _leading(row[1]), reverse=True)
    return table(("method", *HEADERS[3:6]), best) + "\n"
