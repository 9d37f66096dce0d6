"""Records of tabular benchmarks beside the published figures, table by table and detector by detector."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.escape import csv_row
from openbench.results.tables.published import load_names

FIGURES = "conformal_adbench.csv"
SOURCE = "Novello et al., arXiv 2403.11532, tables 6 to 8: ADBench's figures and their conformal correction"
PROTOCOL = "adbench"
METRICS = ("auroc", "conformal_auroc")
_BENCHMARK = "adbench_"
_SET = "anomalies"
# Two decimals are printed.
_ROUNDING = 0.005

Cell = tuple[str, str, str]  # table, our method, metric


@dataclass(frozen=True)
class Gap:
    """One of openbench's numbers beside the published one; fractions in [0, 1].

    Args:
        table: e.g. `cardio`.
        method: what users type after `method=`.
        metric: one of METRICS.
        ours: mean over the draws that were run.
        std: their standard deviation (population); 0 for a single draw.
        draws: how many.
        published: two decimals, the mean over three draws.
    """

    table: str
    method: str
    metric: str
    ours: float
    std: float
    draws: int
    published: float

    @property
    def difference(self) -> float:
        """Our number minus the published one."""
        return self.ours - self.published

    @property
    def beyond_rounding(self) -> bool:
        """Whether rounding to two decimals cannot explain the difference."""
        return abs(self.difference) > _ROUNDING + 1e-9


def load_figures(folder: Path) -> dict[Cell, float]:
    """Return the published figures of the tables by (table, our method, metric).

    Args:
        folder: the reference folder.

    Raises:
        RecordError: no such file, a value that is not a number, or a key twice.
    """
    path, names = folder / FIGURES, load_names(folder)
    if not path.is_file():
        raise RecordError(f"'{path}' not found — it holds the published figures: {SOURCE}")
    found: dict[Cell, float] = {}
    with open(path, encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            for method in names.ours("detector", row["detector"], PROTOCOL):
                cell = (row["dataset"], method, row["metric"])
                if cell in found:
                    raise RecordError(f"'{path}' line {number}: {cell} appears twice — keep one")
                try:
                    found[cell] = float(row["value"])
                except ValueError as error:
                    raise RecordError(f"'{path}' line {number}: found {row['value']!r} — a number expected") from error
    return found


def gaps(records: Iterable[ResultRecord], figures: Mapping[Cell, float]) -> list[Gap]:
    """Return every number that was published and has been run under the published protocol, sorted.

    Args:
        records: any; those of other benchmarks and protocols are skipped.
        figures: as `load_figures` returns them.

    Raises:
        RecordError: a table and draw has several records of one method: their settings differ.
    """
    values: dict[Cell, dict[int, float]] = defaultdict(dict)
    for record in records:
        name, node = str(record.benchmark.get("name", "")), record.config.get("benchmark", {})
        if not name.startswith(_BENCHMARK) or node.get("protocol") != PROTOCOL:
            continue
        for metric in METRICS:
            value = record.metrics.get(_SET, {}).get(metric)
            cell = (name.removeprefix(_BENCHMARK), str(record.method["name"]), metric)
            if isinstance(value, float | int):
                if node["draw"] in values[cell]:
                    raise RecordError(
                        f"{cell[0]}, draw {node['draw']}: two records of method '{cell[1]}' — their settings differ; "
                        "compare the folders of one sweep"
                    )
                values[cell][node["draw"]] = float(value)
    return [
        Gap(*cell, fmean(drawn.values()), pstdev(drawn.values()), len(drawn), figures[cell])
        for cell, drawn in sorted(values.items())
        if drawn and cell in figures
    ]


def summary(found: Iterable[Gap], worst: int = 3) -> list[str]:
    """Return a line per metric and method: tables, median and largest difference, and where it is largest."""
    groups: dict[tuple[str, str], list[Gap]] = defaultdict(list)
    for gap in found:
        groups[gap.metric, gap.method].append(gap)
    lines = [f"{'metric':<17}{'method':<11}{'tables':>6}{'median':>8}{'beyond rounding':>17}  largest"]
    for (metric, method), members in sorted(groups.items()):
        members.sort(key=lambda gap: -abs(gap.difference))
        middle = median(abs(gap.difference) for gap in members)
        beyond = sum(gap.beyond_rounding for gap in members)
        shown = ", ".join(f"{g.table} {g.difference:+.3f}" for g in members[:worst])
        lines.append(f"{metric:<17}{method:<11}{len(members):>6}{middle:>8.4f}{beyond:>17}  {shown}")
    return lines


def write_table(found: Iterable[Gap], path: Path) -> None:
    """Write a CSV with a row per number, four decimals."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["dataset", "method", "metric", "ours", "std", "draws", "published", "difference"])
        for gap in found:
            ours, std, difference = (f"{value:.4f}" for value in (gap.ours, gap.std, gap.difference))
            row = (gap.table, gap.method, gap.metric, ours, std, gap.draws, gap.published, difference)
            writer.writerow(csv_row(row))


def read_table(path: Path) -> list[Gap]:
    """Return the numbers of a CSV that `write_table` wrote.

    Raises:
        RecordError: columns are missing, or a number cannot be read.
    """
    with open(path, encoding="utf-8", newline="") as stream:
        try:
            return [_gap(row) for row in csv.DictReader(stream)]
        except (KeyError, ValueError, TypeError) as error:
            raise RecordError(
                f"'{path}': {error} — a file that scripts/compare_adbench.py wrote is expected"
            ) from error


def _gap(row: Mapping[str, str]) -> Gap:
    ours, std, published = (float(row[key]) for key in ("ours", "std", "published"))
    return Gap(row["dataset"], row["method"], row["metric"], ours, std, int(row["draws"]), published)
