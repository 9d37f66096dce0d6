"""Reading a file of scores, whatever wrote it, into sets for the metrics; every row is checked."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.scores import SetScores
from openbench.errors import DataError, did_you_mean
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line
from openbench.results.scores.cells import Cells, check_sums
from openbench.results.scores.file import Advance, ScoreTable, read_table, silent

ID_ROLES = ("id_test", "id_val", "csid")


def read_sets(path: Path, advance: Advance = silent) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities). Correctness is `correct`, else
    `prediction == label`, else the largest probability's class. Further columns are not read.

    Scores become float64; decimals that share one are ties, numbers beyond 2^53 that do are an error. The same row
    twice is two images.

    Args:
        path: the file.
        advance: as for `read_table`.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv) or row (parquet) where it stands.
    """
    table = read_table(path, advance)
    names, name_codes = _labels(table, "set")
    roles, role_codes = _labels(table, "role")
    for role in roles:
        if role not in ROLES:
            first = int(np.argmax(role_codes == roles.index(role)))
            raise DataError(
                f"{table.where(first)}: role '{one_line(role)}' not found{did_you_mean(role, ROLES)} — allowed: "
                f"{', '.join(ROLES)}"
            )
    for name in names:
        if not name.isprintable():
            first = int(np.argmax(name_codes == names.index(name)))
            raise DataError(f"{table.where(first)}: set — found '{one_line(name)}' — allowed: a name on one line")
    scores = Cells(table, "score").scores()
    groups = _groups(role_codes.astype(np.int64) * len(names) + name_codes)
    return [
        _one_set(names[name_codes[rows[0]]], roles[role_codes[rows[0]]], table, rows, scores[rows]) for rows in groups
    ]


def _labels(table: ScoreTable, column: str) -> tuple[list[str], NDArray[Any]]:
    """Return the different texts of `set` or `role`, and (n,) which of them each row has."""
    import pyarrow as pa

    found = table.columns[column]
    kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    if not (texts or pa.types.is_null(kind) or (column == "set" and pa.types.is_integer(kind))):
        raise DataError(f"{table.path}: column '{column}' has the type {kind} — allowed: text")
    if not pa.types.is_dictionary(found.type):
        found = found.cast(pa.string()).dictionary_encode()
    found = found.unify_dictionaries().combine_chunks()
    found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    values = found.dictionary.to_pylist()
    missing = np.asarray(found.indices.is_null())
    codes = np.asarray(found.indices.fill_null(0))
    empty = [k for k, value in enumerate(values) if value is None or not str(value).strip()]
    bad = missing | np.isin(codes, empty)
    Cells(table, column).refuse(bad, "a name in every row" if column == "set" else ", ".join(ROLES))
    used = np.unique(codes)  # a dictionary may hold texts that no row has
    renumbered = np.zeros(len(values), dtype=np.int64)
    renumbered[used] = np.arange(used.size)
    return [str(values[k]) for k in used], renumbered[codes]


def _groups(codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of each code, ascending, the codes in the order of their first row."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return sorted(np.split(order, starts[1:]), key=lambda rows: int(rows[0]))


def _one_set(
    name: str, role: str, table: ScoreTable, rows: NDArray[np.int64], scores: NDArray[np.float64]
) -> SetScores:
    if role not in ID_ROLES:
        return SetScores(name, role, scores)
    found = {column: Cells(table, column, rows) for column in table.columns if column not in ("score", "set", "role")}
    given = {column: cells for column, cells in found.items() if not cells.blank().all()}
    probabilities = _probabilities(name, role, table, given)
    classes = None if probabilities is None else probabilities.shape[1]
    labels = given["label"].indices(classes) if "label" in given else None
    predictions = given["prediction"].indices() if "prediction" in given else None
    correct = given["correct"].truths() if "correct" in given else None
    if correct is None and labels is not None:
        if predictions is not None:
            correct = (labels == predictions).astype(np.float64)
        elif probabilities is not None:
            correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    elif correct is not None and labels is not None and predictions is not None:
        given["correct"].refuse(correct != (labels == predictions), "1 where label and prediction are equal, else 0")
    return SetScores(name, role, scores, correct, labels, probabilities)


def _probabilities(name: str, role: str, table: ScoreTable, given: dict[str, Cells]) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    present = [given[column] for column in table.classes if column in given]
    if len(present) not in (0, len(table.classes)):
        raise DataError(f"{table.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    if not present:
        return None
    rows = np.stack([cells.probabilities() for cells in present], axis=1)
    positions = present[0].positions
    check_sums(table, np.arange(len(rows)) if positions is None else positions, rows)
    return rows
