"""Reading a file of scores that anything may have written, row by row checked, into sets for the metrics."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError, did_you_mean
from openbench.metrics.suite import ROLES, SetScores

if TYPE_CHECKING:
    import pandas as pd

ID_ROLES = ("id_test", "id_val", "csid")
REQUIRED = ("score", "set", "role")
OPTIONAL = ("correct", "label", "prediction")
_TRUTH = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0, True: 1.0, False: 0.0}


def read_sets(path: Path) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities). Correctness is `correct`, else
    `prediction == label`, else the largest probability's class.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv) or row (parquet) where it stands.
    """
    table = _read(path)
    where = _Where(path, first=2 if path.suffix == ".csv" else 0, unit="line" if path.suffix == ".csv" else "row")
    _check_columns(list(table.columns), path)
    # Blank lines are kept up to here, so that the lines named in messages are the file's.
    table = table[~(_blank(table["score"]) & _blank(table["set"]) & _blank(table["role"]))]
    if table.empty:
        raise DataError(f"{path} has no rows — one per scored image is expected")
    roles, names = table["role"].astype(str), table["set"].astype(str)
    unknown = roles[~roles.isin(ROLES)]
    if not unknown.empty:
        role = unknown.iloc[0]
        raise DataError(
            f"{where(int(unknown.index[0]))}: role '{role}' not found{did_you_mean(role, ROLES)} — "
            f"allowed: {', '.join(ROLES)}"
        )
    both = roles.str.cat(names, sep="/")
    return [
        _one_set(names[rows[0]], roles[rows[0]], table.loc[rows], where)
        for rows in both.groupby(both, sort=False).groups.values()
    ]


class _Where:
    """Names a row of the file the way the reader's editor counts."""

    def __init__(self, path: Path, first: int, unit: str) -> None:
        self.path, self.first, self.unit = path, first, unit

    def __call__(self, position: int) -> str:
        return f"{self.path}, {self.unit} {position + self.first}"


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"'{path}' is no file of scores that can be read — allowed: .csv, .parquet")
    if not path.is_file():
        raise DataError(f"file of scores '{path}' not found")
    try:
        if path.suffix == ".csv":
            # A set may be called NA or null, so nothing is taken for a missing value here; blank lines stay, so that
            # line numbers are true.
            return pd.read_csv(path, keep_default_na=False, skip_blank_lines=False, low_memory=False)
        return pd.read_parquet(path).reset_index(drop=True)
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]} — {str(error).strip()}") from error


def _check_columns(columns: list[str], path: Path) -> None:
    for name in REQUIRED:
        if name not in columns:
            raise DataError(
                f"{path} has no column '{name}' — found: {', '.join(map(str, columns))} — needed: "
                f"{', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}, p_0 … p_{{c-1}}"
            )
    classes = _classes(columns)
    if classes != list(range(len(classes))):
        raise DataError(
            f"{path}: the probability columns must be p_0 … p_{{c-1}} without a gap — found p_"
            f"{', p_'.join(map(str, classes))}"
        )


def _classes(columns: list[str]) -> list[int]:
    return sorted(int(match.group(1)) for name in columns if (match := re.fullmatch(r"p_(\d+)", str(name))))


def _one_set(name: str, role: str, rows: "pd.DataFrame", where: _Where) -> SetScores:
    scores = _numbers(rows, "score", where)
    if role not in ID_ROLES:
        return SetScores(name, role, scores)
    labels = _optional(rows, "label", where)
    predictions = _optional(rows, "prediction", where)
    columns = [f"p_{k}" for k in _classes(list(rows.columns))]
    parts = [_optional(rows, column, where) for column in columns]
    present = [part for part in parts if part is not None]
    if len(present) not in (0, len(columns)):
        raise DataError(f"{where.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    probabilities = np.stack(present, axis=1) if present else None
    correct = _optional(rows, "correct", where)
    if correct is not None:
        _refuse(~np.isin(correct, (0.0, 1.0)), rows, ("correct", "0 or 1"), where)
    elif labels is not None and predictions is not None:
        correct = (labels == predictions).astype(np.float64)
    elif labels is not None and probabilities is not None:
        correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    if labels is not None:
        _refuse((labels < 0) | (labels != np.floor(labels)), rows, ("label", "a class index ≥ 0"), where)
    return SetScores(name, role, scores, correct, None if labels is None else labels.astype(np.int64), probabilities)


def _optional(rows: "pd.DataFrame", column: str, where: _Where) -> NDArray[np.float64] | None:
    """The numbers of a column, or None if the set has none at all; some but not all is an error."""
    if column not in rows.columns:
        return None
    return None if bool(_blank(rows[column]).all()) else _numbers(rows, column, where)


def _blank(cells: "pd.Series[Any]") -> "pd.Series[bool]":
    return cells.isna() | (cells == "")


def _numbers(rows: "pd.DataFrame", column: str, where: _Where) -> NDArray[np.float64]:
    import pandas as pd

    values = rows[column]
    if values.dtype == object or pd.api.types.is_string_dtype(values):
        values = values.map(lambda value: _TRUTH.get(value, value))
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
    _refuse(np.isnan(numbers), rows, (column, "a number"), where)
    return np.asarray(numbers, dtype=np.float64)


def _refuse(bad: NDArray[Any], rows: "pd.DataFrame", what: tuple[str, str], where: _Where) -> None:
    if bad.any():
        first = int(bad.argmax())
        column, allowed = what
        raise DataError(
            f"{where(int(rows.index[first]))}: {column} — found '{rows[column].iloc[first]}'"
            f"{f' and {int(bad.sum()) - 1} more like it in this set' if bad.sum() > 1 else ''} — allowed: {allowed}"
        )
