"""One table of the ways of training: each with the score of its paper, mean ± std over seeds, beside cross-entropy.

    python -m openbench run -m +benchmark=digits seed=0,1,2 'training=glob(*)' +scorer=published
    python scripts/compare_trainings.py digits --csv results/trainings/digits.csv

It reads the records of one benchmark and backbone in OPENBENCH_RESULTS (or --results). Where cross-entropy has been
scored by more than msp, the last column shows what the same score reaches on it. --csv keeps the runs of the table in
a file, and --runs makes the table from such a file.
"""

import argparse
import sys
from pathlib import Path

from openbench import paths
from openbench.errors import OpenbenchError
from openbench.results.frame import run_of
from openbench.results.leaderboard.trainings import COLUMNS, compared, comparison, training_runs
from openbench.results.records.store import RecordStore
from openbench.results.tables.frames import read_frame, write_frame
from openbench.results.tables.render import FORMATS, render


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--backbone", help="needed if there are records of several")
    parser.add_argument("--results", type=Path, default=paths.results_dir())
    parser.add_argument("--runs", type=Path, help="a CSV of runs instead of records")
    parser.add_argument("--csv", type=Path, help="write the runs there")
    parser.add_argument("--format", default="markdown", choices=list(FORMATS))
    arguments = parser.parse_args()
    try:
        if arguments.runs is None:
            records = map(run_of, RecordStore(arguments.results))
            found = training_runs(records, arguments.benchmark, arguments.backbone)
        else:
            found = read_frame(arguments.runs, COLUMNS)
        table = comparison(found, arguments.benchmark)
    except OpenbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.csv is not None:
        write_frame(compared(found), arguments.csv, COLUMNS)
    print(render(table, arguments.format), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
