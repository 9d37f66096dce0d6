"""All records as one tidy DataFrame: a row per record and set, typed columns, nothing rounded."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.record import Value
from openbench.errors import RecordError, did_you_mean
from openbench.results.leaderboard.runs import Keep, Run
from openbench.results.records.settings import hyper_parameters
from openbench.results.tables.views import FAMILIES, FULL_SPECTRUM, family_of, key_order, ordered, role_in, tuned_by

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ALL = "all"
# Column → dtype, in the order of the columns; the metrics stand between the two parts.
_ABOUT = {
    **dict.fromkeys(("method", "training", "backbone", "benchmark"), "category"),
    "seed": "Int64",
    **dict.fromkeys(("side", "role", "set"), "category"),
}
_MADE = {
    "id_accuracy": "float64",
    **dict.fromkeys(("augment", "outliers", "params", "tuned_on"), "category"),
    "version": "Int64",
    **dict.fromkeys(("pristine", "complete"), "bool"),
    "utc": "datetime64[us, UTC]",
    **dict.fromkeys(("run_id", "path"), "str"),
}
_OF_ROW = {name: _ABOUT[name] for name in ("side", "role", "set")}
_OF_RECORD: dict[str, Any] = {name: dtype for name, dtype in (_ABOUT | _MADE).items() if name not in _OF_ROW}
_COUNTS = "n_"
_ID = "id_"


def tidy(runs: Iterable[Run], folder: Path, metrics: str | Sequence[str] = "ranking") -> "DataFrame":
    """Return a row per record and set, group and ID side.

    Args:
        runs: what is needed of each record, with the numbers that `needed` keeps.
        folder: where the records are.
        metrics: which columns of numbers: a family (ranking, threshold, selective, conformal) with its intervals,
            `all`, or keys. Keys that a record states of its ID side have the prefix `id_`.

    Raises:
        RecordError: a key that no record has.
    """
    import pandas as pd

    about, of_record, counts = _columns(_OF_RECORD), _Numbers(), list[int]()
    places, of_row = _columns(_OF_ROW), _Numbers()
    for run in runs:
        of_record.add(_of_id(run))
        for name, value in _same(run, folder).items():
            about[name].append(value)
        before = of_row.rows
        for place, values in _rows(run):
            for name, text in place.items():
                places[name].append(text)
            of_row.add(values)
        counts.append(of_row.rows - before)
    wanted, record_of = _Needed(metrics), np.repeat(np.arange(len(counts)), counts)
    numbers = of_row.columns(wanted) | {key: column[record_of] for key, column in of_record.columns(wanted).items()}
    _check_found(numbers, metrics, of_row.rows)
    keys = sorted(numbers, key=_order) if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    found = {name: pd.Series(values, dtype=_OF_ROW[name]) for name, values in places.items()}
    found |= {name: _typed(name, about[name]).take(record_of).reset_index(drop=True) for name in _OF_RECORD}
    found |= {key: _numeric(key, numbers.get(key, np.empty(0))) for key in keys}
    return pd.DataFrame({name: found[name] for name in (*_ABOUT, *keys, *_MADE)})


def needed(metrics: str | Sequence[str]) -> Keep:
    """Return which numbers of a record `tidy` reads."""
    wanted = _Needed(metrics)

    def keep(name: str, key: str) -> bool:
        if name == "id" and (key == "accuracy" or wanted[f"{_ID}{key}"]):
            return True
        return wanted[key]

    return keep


class _Needed(dict[str, bool]):
    """Key → whether it is one of those that were asked for: of a family, of a list, or any; found out once a key."""

    def __init__(self, metrics: str | Sequence[str]) -> None:
        super().__init__()
        self.metrics = metrics

    def __missing__(self, key: str) -> bool:
        if isinstance(self.metrics, str):
            self[key] = self.metrics in (ALL, family_of(_base(key)))
        else:
            self[key] = key in self.metrics
        return self[key]


class _Numbers:
    """Numbers row by row, as eight bytes each; rows with the same keys are kept together."""

    def __init__(self) -> None:
        self.rows = 0
        self._by_keys: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}

    def add(self, values: Mapping[str, Value]) -> None:
        """Add a row; `unable` is NaN."""
        keys = tuple(values)
        if keys not in self._by_keys:
            self._by_keys[keys] = array("q"), array("d")
        rows, numbers = self._by_keys[keys]
        rows.append(self.rows)
        numbers.extend([nan if isinstance(value, str) else value for value in values.values()])
        self.rows += 1

    def columns(self, wanted: Mapping[str, bool]) -> dict[str, NDArray[np.float64]]:
        """Return {key: its number in every row, NaN where there is none} of the keys that are wanted."""
        found: dict[str, NDArray[np.float64]] = {}
        for keys, (rows, numbers) in self._by_keys.items():
            table = np.frombuffer(numbers).reshape(len(rows), len(keys))
            for at, key in enumerate(keys):
                if wanted[key]:
                    found.setdefault(key, np.full(self.rows, nan))[np.frombuffer(rows, np.int64)] = table[:, at]
        return found


def check_metrics(metrics: str | Sequence[str]) -> None:
    """Check that a choice of metrics is a family, `all`, or keys.

    Raises:
        RecordError: it is another word.
    """
    known = (*FAMILIES, ALL)
    if isinstance(metrics, str) and metrics not in known:
        raise RecordError(
            f"metrics '{metrics}' not found{did_you_mean(metrics, known)} — allowed: {', '.join(known)}, or a list of "
            "keys such as ['auroc', 'aupr_in']"
        )


def _same(run: Run, folder: Path) -> dict[str, Any]:
    """What is the same in all rows of a record."""
    return {
        "method": run.method,
        "training": run.training,
        "backbone": run.backbone,
        "benchmark": run.benchmark,
        "seed": run.seed,
        "id_accuracy": _number(run.metrics.get("id", {}).get("accuracy")),
        "augment": run.augment,
        "outliers": run.outliers,
        "params": hyper_parameters(run.params),
        "tuned_on": tuned_by(run.strategy) if run.tuned else "",
        "version": run.version,
        "pristine": run.pristine,
        "complete": run.complete,
        "utc": run.utc,
        "run_id": run.run_id,
        "path": str(folder / run.benchmark / run.backbone / run.method / f"{run.run_id}.json"),
    }


def _rows(run: Run) -> Iterator[tuple[dict[str, str], Mapping[str, Value]]]:
    """Which row it is, and its numbers."""
    for name in ordered(run.measured, run.members):
        role = role_in(run.members, name)
        for side, prefix in (("standard", ""), ("full spectrum", FULL_SPECTRUM)):
            if prefix + name in run.measured:
                yield {"side": side, "role": role, "set": name}, run.metrics.get(prefix + name, {})


def _columns(names: Iterable[str]) -> dict[str, list[Any]]:
    return {name: [] for name in names}


def _of_id(run: Run) -> dict[str, Value]:
    values = run.metrics.get("id", {})
    return {f"{_ID}{key}": value for key, value in values.items() if f"{_ID}{key}" not in _MADE}


def _check_found(numbers: Mapping[str, Any], metrics: str | Sequence[str], rows: int) -> None:
    if isinstance(metrics, str) or not rows:
        return
    for key in metrics:
        if key not in numbers:
            raise RecordError(f"metric '{key}' is in no record — metrics='{ALL}' shows every key that there is")


def _number(value: object) -> float | None:
    """A number as it is; `unable` and what is missing as None."""
    return float(value) if isinstance(value, float | int) else None


def _numeric(key: str, values: NDArray[np.float64]) -> "Series":
    import pandas as pd

    return pd.Series(values, dtype="Int64" if _base(key).startswith(_COUNTS) else "float64")


def _typed(name: str, values: list[Any]) -> "Series":
    import pandas as pd

    dtype = _OF_RECORD[name]
    if name == "utc":
        texts = pd.Series(values, dtype="str")
        values = pd.to_datetime(texts, utc=True, errors="coerce", format="ISO8601").tolist()
    found: Series = pd.Series(values, dtype=dtype)
    return found


def _base(key: str) -> str:
    return key.removesuffix("_low").removesuffix("_high")


def _order(key: str) -> tuple[Any, ...]:
    """Sets' keys before ID's and pooled ones, families as the views have them, the ends of an interval after it."""
    base = _base(key)
    return base.startswith((_ID, "pooled_")), key_order(family_of(base), base), base, key != base, key.endswith("_high")
