"""What prediction sets are made of, kept beside the scores: class probabilities, and a method's scores by class."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from openbench.core.scores import SetScores

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".by_class"
MOST_VALUES = 4_000_000  # of each kind in a run: 10,000 images of 400 classes; those of more classes are not kept
SCORES = b"scores"  # key of the digest of the scores that the file belongs to
PROBABILITIES = "probabilities"  # folder of the network's class probabilities, and key of their digest
# Field of a set's scores → prefix of its columns.
_KINDS = {"probabilities": "p", "class_scores": "s", "class_probabilities": "q"}
_COLUMN = re.compile(r"([psq])_([0-9]+)")
_ROLES = ("set", "role")


def by_class_table(run_id: str, scores: Sequence[SetScores]) -> "pa.Table | None":
    """Return the table of a run's numbers by class, a row per image of the sets that have them; None if there are none.

    Float32 and float64 stay what they are, so that metrics come out to the last digit. Of more than MOST_VALUES numbers
    of a kind nothing is kept.

    Args:
        run_id: of the run.
        scores: its sets.
    """
    import pyarrow as pa

    found = [s for s in scores if s.probabilities is not None or s.class_scores is not None]
    fields = [field for field in _KINDS if found and all(getattr(s, field) is not None for s in found)]
    if not fields or max(sum(getattr(s, field).size for s in found) for field in fields) > MOST_VALUES:
        return None
    repeated = [len(s.scores) for s in found]
    columns: dict[str, Any] = {
        "set": repeated_words([s.name for s in found], repeated),
        "role": repeated_words([str(s.role) for s in found], repeated),
    }
    for field in fields:
        joined = np.concatenate([np.asarray(getattr(s, field)) for s in found])
        columns |= {f"{_KINDS[field]}_{k}": pa.array(joined[:, k]) for k in range(joined.shape[1])}
    return pa.table(columns).replace_schema_metadata({"run_id": run_id})


def parted(table: "pa.Table") -> "tuple[pa.Table, pa.Table | None]":
    """Return a table of `by_class_table` without the network's class probabilities, and these alone, if any."""
    shared = [name for name in table.column_names if name.startswith(f"{_KINDS['probabilities']}_")]
    if not shared:
        return table, None
    return table.drop_columns(shared), table.select([*_ROLES, *shared]).replace_schema_metadata({})


def joined(own: "pa.Table", shared: "pa.Table") -> "pa.Table":
    """Return the table of which `parted` made two.

    Raises:
        ValueError: their rows are not the same.
    """
    for name in _ROLES:
        if own.column(name).to_pylist() != shared.column(name).to_pylist():
            raise ValueError("the class probabilities are of other rows")
    for name in own.column_names[len(_ROLES) :]:
        shared = shared.append_column(name, own.column(name))
    return shared


def repeated_words(words: Sequence[str], counts: Sequence[int]) -> "pa.DictionaryArray":
    """Return a column that has each word as often as its count says."""
    import pyarrow as pa

    return pa.array(np.repeat(np.array(words, object), counts), pa.string()).dictionary_encode()


def with_classes(scores: Sequence[SetScores], table: "pa.Table") -> list[SetScores]:
    """Return sets with the numbers by class that a table of `by_class_table` has of them.

    Raises:
        ValueError: columns or rows are not those of the sets.
    """
    order: dict[str, list[str]] = {}
    for name in table.column_names[len(_ROLES) :]:
        match = _COLUMN.fullmatch(name)
        if match is None or int(match[2]) != len(order.setdefault(match[1], [])):
            raise ValueError(f"column '{name}' is out of place")
        order[match[1]].append(name)
    if tuple(table.column_names[: len(_ROLES)]) != _ROLES:
        raise ValueError(f"columns {table.column_names[:2]}, expected {list(_ROLES)}")
    names, roles = (np.asarray(table.column(name).to_pylist()) for name in _ROLES)
    numbers = {
        field: np.stack([table.column(name).to_numpy() for name in order[prefix]], axis=1)
        for field, prefix in _KINDS.items()
        if prefix in order
    }
    found, used = [], 0
    for s in scores:
        rows = (names == s.name) & (roles == str(s.role))
        if rows.any() and int(rows.sum()) != len(s.scores):
            raise ValueError(f"{int(rows.sum())} rows of {s.role}/{s.name}, which has {len(s.scores)} images")
        used += int(rows.sum())
        found.append(replace(s, **{field: values[rows] for field, values in numbers.items()}) if rows.any() else s)
    if used != table.num_rows:
        raise ValueError(f"{table.num_rows} rows, of which {used} belong to sets of the run")
    return found
