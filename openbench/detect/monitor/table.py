"""Numbers from one column of a table of images: csv, jsonl or parquet."""

import json
import math
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
    """Return a column (n,) of finite numbers, in the order of the rows; rows with an error in place of it are left out.

    Args:
        path: a .csv with a header, a .jsonl with an object per line, or a .parquet file.
        column: its name.

    Raises:
        DataError: no such file or column, two of that name, no rows, or a value that is not a finite number.
    """
    import pandas as pd

    if path.suffix not in SUFFIXES:
        raise DataError(f"'{path}' is not a table that can be read — allowed: {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(
            f"table '{path}' not found — a file is needed: python -m openbench score DETECTOR IMAGES > {path.name}"
        )
    try:
        frame = _frame(path)
    except (OSError, ValueError, RecursionError) as error:
        told = one_line(str(error).splitlines()[0][:200])
        raise DataError(f"table '{path}' cannot be read — {told} — write it again") from error
    names = list(frame.columns)
    if column not in names:
        shown = ", ".join(one_line(str(name)[:40]) for name in names[:20])
        raise DataError(
            f"table '{path}' has no column '{column}' — found: {shown} — python -m openbench score writes it"
        )
    for name in (column, _ERROR):
        if names.count(name) > 1:
            raise DataError(
                f"table '{path}' has {names.count(name)} columns '{name}' — one is needed — name the others otherwise"
            )
    cells = frame[column]
    if _ERROR in names:
        empty = [series.isna() | series.eq("") for series in (cells, frame[_ERROR])]
        cells = cells[~empty[0] | empty[1]]
    if not len(cells):
        raise DataError(f"table '{path}' has no rows — give a table with a row per image")
    found = []
    for row, cell in cells.items():
        try:
            found.append(math.nan if isinstance(cell, bool) or pd.isna(cell) else float(cell))
        except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise DataError(
                f"table '{path}', row {int(row) + 1}: column '{column}' — found '{one_line(str(cell)[:60])}' — "  # type: ignore[call-overload]
                "allowed: a finite number"
            )
    return np.array(found, dtype=np.float64)


def _frame(path: Path) -> "DataFrame":
    """The table as it is written: cells of a .csv are text, and two columns may have one name."""
    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path, page_checksum_verification=True)
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return pd.DataFrame([json.loads(line) for line in lines if line.strip()], dtype=object)
    rows = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    return rows[1:].set_axis(rows.iloc[0].tolist(), axis=1).reset_index(drop=True)
