"""Run ADBench's tables with its thirteen detectors and print the difference to the published figures.

    python scripts/compare_adbench.py --results FOLDER                                # all tables found, draws 1, 2, 3
    python scripts/compare_adbench.py --results FOLDER --tables cardio,wine --methods pca,pyod_knn --csv gaps.csv
    python scripts/compare_adbench.py --results FOLDER --only-compare                 # from the records that are there
    python scripts/compare_adbench.py --results FOLDER --unpack  # first write what is committed there

Runs go through the runner of `python -m openbench run`; a run whose record exists is skipped, so a stopped sweep
continues where it was. A detector that refuses a table is named and skipped. Published figures: results/reference.
"""

import argparse
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pandas as pd

from openbench import paths
from openbench.compose.config import Composed, composed
from openbench.core.record import ResultRecord
from openbench.core.runtime import Runtime
from openbench.data.tabular import TableFile, table_facts
from openbench.engine.prepare import prepare
from openbench.engine.run import run
from openbench.errors import OpenbenchError, RecordError
from openbench.results.checks import CHECKS
from openbench.results.records.store import RecordStore
from openbench.results.tables.frames import write_frame
from openbench.results.tables.published import (
    ADBENCH,
    ADBENCH_CELL,
    ADBENCH_COLUMNS,
    ADBENCH_METRICS,
    load_names,
    number_in,
    reference_rows,
)

DETECTORS = (
    *("IForest", "OCSVM", "CBLOF", "COF", "COPOD", "ECOD", "HBOS", "KNN", "LOF", "PCA", "SOD"),
    *("DeepSVDD", "DAGMM"),  # these learn a network
)
RESULTS = Path(__file__).resolve().parents[1] / "results"
REFERENCE, PACKED = RESULTS / "reference", RESULTS / "adbench"
KINDS = ("records", "scores")
FIGURES = "conformal_adbench.csv"
_ROUNDING = 0.005  # two decimals are printed

Cell = tuple[str, str, str]  # table, our method, metric


def tables_found() -> list[str]:
    """The tables that are there, those with the fewest rows first."""
    facts = table_facts()
    return [name for name in sorted(facts, key=lambda name: facts[name].rows) if _is_there(name)]


def _is_there(table: str) -> bool:
    source = TableFile(table)
    return any(source.find(place, ()) is not None for place in source.places(paths.data_roots()))


def composed_run(*overrides: str, results: Path) -> Composed:
    """The config of a command line."""
    fixed = ["metrics.families=[ranking,conformal,intervals]", "metrics.replicates=0", "runtime.progress=false"]
    return composed("run", ["+benchmark=adbench", *overrides, *fixed, f"runtime.results={results}"])


def sweep(tables: list[str], methods: list[str], draws: list[str], results: Path) -> None:
    """All runs, those of one draw together; how each ended is said on stderr."""
    jobs = {method: composed_run(f"method={method}", results=results) for method in methods}
    for table, draw in product(tables, draws):
        form = (f"benchmark.table={table}", f"benchmark.draw={draw}")
        config = composed_run(*form, results=results).config
        for method, job in jobs.items():
            setting = Runtime.from_config(job.runtime)
            try:
                made = {**config, "method": job.config["method"]}
                outcome = run(prepare(made, setting, overrides=(*job.overrides, *form)), setting)
                ended = f"{outcome.status} {outcome.record.metrics['anomalies']['auroc']:.4f}"
            except OpenbenchError as error:
                ended = f"skipped: {error}"
            print(table, draw, method, ended, file=sys.stderr, flush=True)


def pack(results: Path, packed: Path = PACKED, kinds: Sequence[str] = KINDS) -> None:
    """Write the files of a results folder as one table for each kind of file: a row per file, its path and content."""
    for kind in kinds:
        files = sorted(path for path in (results / kind).rglob("*") if path.is_file())
        table = pd.DataFrame(
            {"path": [str(p.relative_to(results)) for p in files], "content": [p.read_bytes() for p in files]}
        )
        # One page for all, since records repeat each other: half the size of the default.
        options = {"compression_level": 22, "use_dictionary": False, "data_page_size": 1 << 27, "write_batch_size": 1}
        table.to_parquet(packed / f"{kind}.parquet", compression="zstd", index=False, **options)


def unpack(results: Path, kinds: Sequence[str] = KINDS, packed: Path = PACKED) -> None:
    """Write the files of the committed tables, and the checks of these records if any, to a results folder."""
    results.mkdir(parents=True, exist_ok=True)
    if (packed / CHECKS).is_file():
        shutil.copy(packed / CHECKS, results / CHECKS)
    for kind in kinds:
        for path, content in pd.read_parquet(packed / f"{kind}.parquet").itertuples(index=False):
            (results / path).parent.mkdir(parents=True, exist_ok=True)
            (results / path).write_bytes(content)


def load_figures(folder: Path) -> dict[Cell, float]:
    """Return the published figures of the tables by (table, our method, metric).

    Args:
        folder: the reference folder.

    Raises:
        RecordError: no such file, or a value that is not a number.
    """
    names, figures = load_names(folder), dict[Cell, float]()
    if not (folder / FIGURES).is_file():
        raise RecordError(f"'{folder / FIGURES}' not found — it holds the published figures: {ADBENCH}")
    for where, row in reference_rows(folder, FIGURES):
        for method in names.ours("detector", row["detector"], "adbench"):
            figures[row["dataset"], method, row["metric"]] = number_in(row["value"], where)
    return figures


def gaps(records: Iterable[ResultRecord], figures: Mapping[Cell, float]) -> pd.DataFrame:
    """Return every number that was published and has been run under the published protocol, sorted.

    Columns are ADBENCH_COLUMNS: the mean over the draws that were run, their population standard deviation and number,
    the published figure of two decimals, and ours less it.

    Args:
        records: any; those of other benchmarks and protocols are skipped.
        figures: as `load_figures` returns them.

    Raises:
        RecordError: a table and draw has several records of one method: their settings differ.
    """
    rows = []
    for record in records:
        name, node = str(record.benchmark.get("name", "")), record.config.get("benchmark", {})
        if name.startswith("adbench_") and node.get("protocol") == "adbench":
            about = name.removeprefix("adbench_"), str(record.method["name"])
            values = record.metrics.get("anomalies", {})
            known = {key: values[key] for key in ADBENCH_METRICS if isinstance(values.get(key), float | int)}
            rows += [(*about, key, node["draw"], float(value)) for key, value in known.items()]
    runs = pd.DataFrame(rows, columns=[*ADBENCH_CELL, "draw", "value"])
    for table, method, _, draw, _ in runs[runs.duplicated([*ADBENCH_CELL, "draw"])].itertuples(index=False):
        raise RecordError(f"{table}, draw {draw}: two records of method '{method}' — compare the folders of one sweep")
    drawn = runs.groupby(list(ADBENCH_CELL))["value"]
    table = pd.DataFrame({"ours": drawn.mean(), "std": drawn.std(ddof=0), "draws": drawn.size()})
    table["published"] = pd.Series(figures, dtype="float64").reindex(table.index)
    table["difference"] = table["ours"] - table["published"]
    return table.dropna(subset="published").reset_index()[list(ADBENCH_COLUMNS)]


def summary(table: pd.DataFrame, worst: int = 3) -> list[str]:
    """Return a line per metric and method: tables, median and largest difference, and where it is largest."""
    lines = [f"{'metric':<17}{'method':<11}{'tables':>6}{'median':>8}{'beyond rounding':>17}  largest"]
    for (metric, method), members in table.groupby(["metric", "method"]):
        size = members["difference"].abs()
        largest = members.loc[size.sort_values(ascending=False, kind="stable").index[:worst]]
        listed = ", ".join(f"{gap.dataset} {gap.difference:+.3f}" for gap in largest.itertuples())
        beyond = int((size > _ROUNDING + 1e-9).sum())
        lines.append(f"{metric:<17}{method:<11}{len(members):>6}{size.median():>8.4f}{beyond:>17}  {listed}")
    return lines


def main() -> None:
    """Run what is asked for, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of the records")
    parser.add_argument("--tables", help="names with commas between; all that are found if left out")
    parser.add_argument("--methods", help="names with commas between; the thirteen if left out")
    parser.add_argument("--draws", default="1,2,3")
    parser.add_argument("--csv", type=Path, help="also write every number to this file")
    parser.add_argument("--only-compare", action="store_true")
    parser.add_argument("--unpack", action="store_true", help="write the committed records, scores and checks first")
    arguments = parser.parse_args()
    if arguments.unpack:
        unpack(arguments.results)
    names = load_names(REFERENCE)
    thirteen = [ours for published in DETECTORS for ours in names.ours("detector", published, "adbench")]
    if not arguments.only_compare:
        tables = arguments.tables.split(",") if arguments.tables else tables_found()
        methods = arguments.methods.split(",") if arguments.methods else thirteen
        sweep(tables, methods, arguments.draws.split(","), arguments.results)
    found = gaps(RecordStore(arguments.results), load_figures(REFERENCE))
    print(f"published: {ADBENCH}")
    print("\n".join(summary(found)))
    if arguments.csv:
        rounded = {name: found[name].map("{:.4f}".format) for name in ("ours", "std", "difference")}
        write_frame(found.assign(**rounded), arguments.csv, ADBENCH_COLUMNS)


if __name__ == "__main__":
    main()
