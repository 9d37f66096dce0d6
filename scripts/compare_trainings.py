"""One table of the ways of training: each with the score of its paper, mean ± std over seeds, beside cross-entropy.

    python -m openbench run -m +benchmark=cifar10_small seed=0,1,2 'training=glob(*)' +scorer=published
    python scripts/compare_trainings.py cifar10_small > results/trainings/cifar10_small.md

Read are the records in OPENBENCH_RESULTS (or --results) of one benchmark and backbone; cross_entropy comes first, the
others follow by near AUROC.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from openbench import paths
from openbench.core.record import ResultRecord
from openbench.results.render import FORMATS, render
from openbench.results.store import RecordStore
from openbench.results.table import Column, Estimate, Table

BASELINE = "cross_entropy"
SHOWN = {"near AUROC ↑": ("near", "auroc"), "far AUROC ↑": ("far", "auroc"), "near FPR@95 ↓": ("near", "fpr95")}


def accuracy(record: ResultRecord) -> float:
    return record.metrics["id"]["accuracy"]


def estimate(values: Iterable[float]) -> Estimate:
    found = np.array(list(values))
    return Estimate(float(found.mean()), std=float(found.std()) if len(found) > 1 else None)


def comparison(records: Iterable[ResultRecord], benchmark: str, backbone: str | None) -> Table:
    groups: dict[tuple[str, str], dict[int, ResultRecord]] = defaultdict(dict)
    for record in records:
        if record.benchmark["name"] == benchmark and backbone in (None, record.backbone["name"]):
            groups[record.config["training"]["_name_"], record.method["name"]][record.config["seed"]] = record
    rows = []
    for (training, method), seeds in groups.items():
        found = list(seeds.values())
        cells = [estimate(r.metrics[s][key] for r in found) for s, key in SHOWN.values()]
        rows.append((training, method, len(found), estimate(map(accuracy, found)), *cells))
    rows.sort(key=lambda row: (row[0] != BASELINE, -row[4].value))
    columns = (Column("training"), Column("score"), Column("seeds", "count"), Column("ID accuracy ↑", "percent"))
    return Table(
        f"Ways of training on {benchmark}",
        (*columns, *(Column(title, "percent") for title in SHOWN)),
        tuple(rows),
        header="mean ± population standard deviation over seeds; each training with the score that its paper uses",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--backbone", help="where records of several are there")
    parser.add_argument("--results", type=Path, default=paths.results_dir())
    parser.add_argument("--format", default="markdown", choices=list(FORMATS))
    arguments = parser.parse_args()
    table = comparison(RecordStore(arguments.results), arguments.benchmark, arguments.backbone)
    if not table.rows:
        print(f"no records of '{arguments.benchmark}' in {arguments.results}", file=sys.stderr)
        return 2
    print(render(table, arguments.format), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
