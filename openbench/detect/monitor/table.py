"""Numbers from one column of a table of images: csv, jsonl or parquet."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError
from openbench.results.escape import one_line

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIXES = (".csv", ".jsonl", ".parquet")
_ERROR = "error"  # the column in which `score` says why an image has no score


def numbers(path: Path, column: str) -> NDArray[np.float64]:
    """Return a column (n,) of finite numbers in the order of the rows, without rows that have an error instead.

    Args:
        path: a .csv with a header, a .jsonl with an object per line, or a .parquet file.
        column: its name.

    Raises:
        DataError: no such file or column, two of that name, no rows, or a value that is not a finite number.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"'{path}' is not a table that can be read — allowed: {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"table '{path}' not found — python -m openbench score DETECTOR IMAGES > {path.name} writes it")
    try:
        frame = _frame(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"table '{path}' cannot be read: {one_line(str(error).splitlines()[0][:200])}") from error
    names = list(frame.columns)
    if names.count(column) != 1 or names.count(_ERROR) > 1:
        listed = ", ".join(one_line(str(name)[:40]) for name in names[:20])
        raise DataError(
            f"table '{path}' needs one column '{column}' (found {listed}) — python -m openbench score writes it"
        )
    cells = frame[column]
    if _ERROR in names:
        no_score, no_error = (series.isna() | series.eq("") for series in (cells, frame[_ERROR]))
        cells = cells[~no_score | no_error]
    if not len(cells):
        raise DataError(f"table '{path}' has no rows")
    values = np.array([_number(cell) for cell in cells])
    for row in np.flatnonzero(~np.isfinite(values))[:1]:
        quoted = one_line(str(cells.iloc[row])[:60])
        raise DataError(
            f"table '{path}', row {cells.index[row] + 1}: '{quoted}' in column '{column}' is not a finite number"
        )
    return values


def _number(cell: object) -> float:
    try:
        return float("nan") if isinstance(cell, bool) else float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
        return float("nan")


def _frame(path: Path) -> "DataFrame":
    """Return a table as written: cells of a .csv are text, and two columns may have one name."""
    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path, page_checksum_verification=True)
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return pd.DataFrame([json.loads(line) for line in lines if line.strip()], dtype=object)
    rows = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    return rows[1:].set_axis(rows.iloc[0].tolist(), axis=1).reset_index(drop=True)
