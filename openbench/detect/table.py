"""Numbers from one column of a table of images: csv, jsonl or parquet."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError
from openbench.results.escape import one_line

SUFFIXES = (".csv", ".jsonl", ".parquet")
_ERROR = "error"  # the column in which `score` says why an image has no score


def numbers(path: Path, column: str) -> NDArray[np.float64]:
    """Return a column (n,) of finite numbers in the order of the rows, without rows that have an error instead.

    Args:
        path: a .csv with a header, a .jsonl with an object per line, or a .parquet file.
        column: its name.

    Raises:
        DataError: no such file or column, no rows, or a value that is not a finite number.
    """
    import pandas as pd

    if path.suffix not in SUFFIXES:
        raise DataError(f"'{path}' is not a table that can be read — allowed: {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"table '{path}' not found — python -m openbench score DETECTOR IMAGES > {path.name} writes it")
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path, page_checksum_verification=True)
        elif path.suffix == ".jsonl":
            frame = pd.DataFrame(map(json.loads, path.read_text(encoding="utf-8-sig").splitlines()))
        else:
            frame = pd.read_csv(path, index_col=False, dtype=str)  # parsed exactly below
        cells = frame[column]
    except (OSError, ValueError) as error:
        raise DataError(f"table '{path}' cannot be read: {one_line(str(error).splitlines()[0][:200])}") from error
    except KeyError:
        listed = ", ".join(one_line(str(name)[:40]) for name in frame.columns[:20])
        raise DataError(
            f"table '{path}' needs a column '{column}' (found {listed}) — python -m openbench score writes it"
        ) from None
    if _ERROR in frame:
        cells = cells[cells.notna() | frame[_ERROR].isna()]
    if not len(cells):
        raise DataError(f"table '{path}' has no rows")
    values = np.array([_number(cell) for cell in cells])
    for row in np.flatnonzero(~np.isfinite(values))[:1]:
        quoted = one_line(str(cells.iloc[row])[:60])
        raise DataError(
            f"table '{path}', row {cells.index[row] + 1}: '{quoted}' in column '{column}' is not a finite number"
        )
    return values


def _number(cell: str | float) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
        return float("nan")
