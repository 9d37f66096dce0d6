"""Comparison of tabular records with the published figures, by table and detector."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.tables.published import load_names, number_in, reference_rows

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = "conformal_adbench.csv"
SOURCE = "Novello et al., arXiv 2403.11532, tables 6 to 8: ADBench's figures and their conformal correction"
PROTOCOL = "adbench"
METRICS = ("auroc", "conformal_auroc")
_BENCHMARK = "adbench_"
_ROUNDING = 0.005  # two decimals are printed

Cell = tuple[str, str, str]  # table, our method, metric
_CELL = ["dataset", "method", "metric"]
COLUMNS = {**dict.fromkeys(_CELL, "str"), "ours": "float64", "std": "float64", "draws": "int64"}
COLUMNS |= {"published": "float64", "difference": "float64"}


def load_figures(folder: Path) -> dict[Cell, float]:
    """Return the published figures of the tables by (table, our method, metric).

    Args:
        folder: the reference folder.

    Raises:
        RecordError: no such file, or a value that is not a number.
    """
    names, figures = load_names(folder), dict[Cell, float]()
    if not (folder / FIGURES).is_file():
        raise RecordError(f"'{folder / FIGURES}' not found — it holds the published figures: {SOURCE}")
    for where, row in reference_rows(folder, FIGURES):
        for method in names.ours("detector", row["detector"], PROTOCOL):
            figures[row["dataset"], method, row["metric"]] = number_in(row["value"], where)
    return figures


def gaps(records: Iterable[ResultRecord], figures: Mapping[Cell, float]) -> "DataFrame":
    """Return every number that was published and has been run under the published protocol, sorted.

    Columns are COLUMNS: the mean over the draws that were run, their population standard deviation and number, the
    published figure of two decimals, and ours less it.

    Args:
        records: any; those of other benchmarks and protocols are skipped.
        figures: as `load_figures` returns them.

    Raises:
        RecordError: a table and draw has several records of one method: their settings differ.
    """
    import pandas as pd

    rows = []
    for record in records:
        name, node = str(record.benchmark.get("name", "")), record.config.get("benchmark", {})
        if name.startswith(_BENCHMARK) and node.get("protocol") == PROTOCOL:
            about = name.removeprefix(_BENCHMARK), str(record.method["name"])
            values = record.metrics.get("anomalies", {})
            known = {key: values[key] for key in METRICS if isinstance(values.get(key), float | int)}
            rows += [(*about, key, node["draw"], float(value)) for key, value in known.items()]
    runs = pd.DataFrame(rows, columns=[*_CELL, "draw", "value"])
    for table, method, _, draw, _ in runs[runs.duplicated([*_CELL, "draw"])].itertuples(index=False):
        raise RecordError(f"{table}, draw {draw}: two records of method '{method}' — compare the folders of one sweep")
    drawn = runs.groupby(_CELL)["value"]
    table = pd.DataFrame({"ours": drawn.mean(), "std": drawn.std(ddof=0), "draws": drawn.size()})
    table["published"] = pd.Series(figures, dtype="float64").reindex(table.index)
    table["difference"] = table["ours"] - table["published"]
    return table.dropna(subset="published").reset_index()[list(COLUMNS)]


def summary(table: "DataFrame", worst: int = 3) -> list[str]:
    """Return a line per metric and method: tables, median and largest difference, and where it is largest."""
    lines = [f"{'metric':<17}{'method':<11}{'tables':>6}{'median':>8}{'beyond rounding':>17}  largest"]
    for (metric, method), members in table.groupby(["metric", "method"]):
        size = members["difference"].abs()
        largest = members.loc[size.sort_values(ascending=False, kind="stable").index[:worst]]
        listed = ", ".join(f"{gap.dataset} {gap.difference:+.3f}" for gap in largest.itertuples())
        beyond = int((size > _ROUNDING + 1e-9).sum())
        lines.append(f"{metric:<17}{method:<11}{len(members):>6}{size.median():>8.4f}{beyond:>17}  {listed}")
    return lines
