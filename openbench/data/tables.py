"""Tabular sets: rows of an `.npz` with `X` and `y`, parted by a seeded rule that needs the counts alone.

A part is named `adbench/<table>/<draw>/<part>`, e.g. `adbench/cardio/0/train`. A row's key says whether it is an
anomaly and its number among its kind in file order: `cardio/anomaly/17`.
"""

import re
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.data.items import VectorItems
from openbench.data.manifest import Manifest
from openbench.data.sources import Found, Source
from openbench.errors import DataError, did_you_mean

FOLDER = "adbench"
NORMAL, ANOMALY = "normal", "anomaly"
PARTS = ("train", "val", "test", "anomalies")
# Of the normal rows: training, validation, test. Anomalies have no validation part: it goes to training.
SHARES = (0.6, 0.1, 0.3)


@dataclass(frozen=True)
class TableFacts:
    """What is known of a table without reading it.

    Args:
        rows: all rows.
        anomalies: how many of them are anomalies.
        columns: numbers in a row.
    """

    rows: int
    anomalies: int
    columns: int


@lru_cache(maxsize=1)
def table_facts() -> dict[str, TableFacts]:
    """Return the facts of every table by name."""
    text = (paths.manifest_dir() / FOLDER / "tables.toml").read_text(encoding="utf-8")
    return {name: TableFacts(**facts) for name, facts in tomllib.loads(text).items()}


def is_table_part(name: str) -> bool:
    """Whether a manifest's name is that of a part of a table."""
    return name.startswith(f"{FOLDER}/") and name.count("/") == 3


@lru_cache(maxsize=16)
def table_part(name: str) -> Manifest:
    """Return the manifest of a part, e.g. `adbench/cardio/0/train`.

    Normal rows are put into a random order that the draw seeds; the first 60 % are for training, the next 10 % for
    validation, the rest for the test. Of the anomalies the first 70 % join the training rows, unlabelled: a detector is
    not told that they are there. The rest are the OOD test set.

    Raises:
        DataError: no such table or part, or a draw that is no number.
    """
    _, table, draw, part = name.split("/")
    if not draw.isdigit() or part not in PARTS:
        raise DataError(
            f"'{name}' is no part of a table — `{FOLDER}/<table>/<draw>/<part>` with a part of {', '.join(PARTS)}"
        )
    facts = facts_of(table)
    rng = np.random.default_rng(int(draw))
    normal, anomalies = rng.permutation(facts.rows - facts.anomalies), rng.permutation(facts.anomalies)
    first, second = round(SHARES[0] * len(normal)), round((SHARES[0] + SHARES[1]) * len(normal))
    seen = round((SHARES[0] + SHARES[1]) * len(anomalies))
    rows = {
        "train": {NORMAL: normal[:first], ANOMALY: anomalies[:seen]},
        "val": {NORMAL: normal[first:second]},
        "test": {NORMAL: normal[second:]},
        "anomalies": {ANOMALY: anomalies[seen:]},
    }[part]
    keys = tuple(f"{table}/{kind}/{number}" for kind, numbers in rows.items() for number in np.sort(numbers).tolist())
    return Manifest(name, keys, (ANOMALY if part == "anomalies" else NORMAL,) * len(keys))


def facts_of(table: str) -> TableFacts:
    """Return the facts of one table.

    Raises:
        DataError: no such table.
    """
    known = table_facts()
    if table not in known:
        raise DataError(f"table '{table}' not found{did_you_mean(table, known)} — choose from {', '.join(known)}")
    return known[table]


@dataclass(frozen=True)
class TableFile(Source):
    """ADBench's `<number>_<table>.npz` with `X` (n, d) and `y` (n,), 1 = anomaly. Columns are standardised.

    Mean and standard deviation are those of the draw's training rows; a column that is constant there is only centred.

    Args:
        table: e.g. `cardio`.
        draw: the seed of the parting into training and test rows.
        at: folders below each root.
        deviation: how these rows differ from the set as published.
    """

    table: str
    draw: int = 0
    at: Sequence[str] = ("adbench/Classical", "ADBench/adbench/datasets/Classical", "Classical")
    deviation: str = ""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Each folder below each root."""
        return [root / folder for root in roots for folder in self.at]

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """All rows, if the table is there."""
        wanted = re.compile(rf"(\d+_)?{re.escape(self.table)}\.npz")
        file = next((f for f in sorted(place.glob("*.npz")) if wanted.fullmatch(f.name)), None)
        if file is None:
            return None
        values, row_of = _standardised(file, self.table, int(self.draw))
        rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
        present = rows >= 0
        return Found(VectorItems(values, rows[present]), present)


@lru_cache(maxsize=2)
def _standardised(file: Path, table: str, draw: int) -> tuple[NDArray[np.float32], dict[str, int]]:
    """The table's rows after standardisation, and the row of each key."""
    raw, anomalous = _table(file, table)
    row_of = {
        f"{table}/{kind}/{number}": row
        for kind, mask in ((NORMAL, ~anomalous), (ANOMALY, anomalous))
        for number, row in enumerate(np.flatnonzero(mask).tolist())
    }
    train = raw[[row_of[key] for key in table_part(f"{FOLDER}/{table}/{draw}/train").keys]]
    spread = train.std(axis=0)
    return ((raw - train.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32), row_of


def _table(file: Path, table: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    try:
        with np.load(file, allow_pickle=False) as pack:
            raw, y = pack["X"].astype(np.float64), pack["y"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"'{file}' cannot be read — {error} — `X` (n, d) and `y` (n,) expected") from error
    facts = facts_of(table)
    found = (*raw.shape, int((y == 1).sum())) if raw.ndim == 2 and y.shape == raw.shape[:1] else (raw.shape, y.shape)
    if found != (facts.rows, facts.columns, facts.anomalies):
        raise DataError(
            f"'{file}': found {found} — {facts.rows} rows of {facts.columns} columns with {facts.anomalies} anomalies "
            "are published — get the file again"
        )
    if not np.isfinite(raw).all():
        raise DataError(f"'{file}': {int((~np.isfinite(raw)).sum())} values are NaN or infinite — get the file again")
    return raw, y == 1
