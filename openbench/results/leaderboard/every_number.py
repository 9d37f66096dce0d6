"""Every number of every record in one wide CSV, a row per record."""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.escape import csv_row
from openbench.results.leaderboard.runs import Run, runs_of
from openbench.storage.files import output
from openbench.storage.plain_json import dumps

_ABOUT: dict[str, Callable[[Run], object]] = {
    "run_id": lambda run: run.run_id,
    "benchmark": lambda run: run.benchmark,
    "digest": lambda run: run.digest,
    "deviations": lambda run: "; ".join(run.deviations) if run.deviations or run.pristine else "not stated",
    "method": lambda run: run.method,
    "version": lambda run: run.version,
    "hyper_parameters": lambda run: dumps(run.params).replace("\n", "") if run.params else "",
    "tuned": lambda run: run.strategy if run.tuned else "no",
    "training": lambda run: run.training,
    "augment": lambda run: run.augment,
    "outliers": lambda run: run.outliers,
    "backbone": lambda run: run.backbone,
    "network": lambda run: run.network,
    "seed": lambda run: run.seed,
    "contradictions": lambda run: "; ".join(run.problems),
}


def write_every_number(records: Callable[[], Iterable[ResultRecord]], path: Path) -> tuple[int, int]:
    """Write a row per record and a column per number, `<set or group>.<key>`; return how many rows and numbers.

    An empty cell has no value. Records are read twice and never all in memory.

    Args:
        records: gives all records, each time it is called.
        path: the CSV.

    Raises:
        RecordError: the file cannot be written.
    """
    columns = sorted({column for record in records() for column in _columns(record)})
    count = 0
    try:
        with output(path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(csv_row([*_ABOUT, *(f"{name}.{key}" for name, key in columns)]))
            for run in runs_of(records()):
                about = [value(run) for value in _ABOUT.values()]
                numbers = (run.metrics.get(name, {}).get(key) for name, key in columns)
                cells = ("" if n is None else n if isinstance(n, str) else repr(n) for n in numbers)
                writer.writerow(csv_row([*about, *cells]))
                count += 1
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written — {error.strerror or error} — choose another file") from error
    return count, len(columns)


def _columns(record: ResultRecord) -> Iterator[tuple[str, str]]:
    for name, values in record.metrics.items():
        for key in values:
            yield name, key
