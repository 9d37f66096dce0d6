"""Tabular sets: rows of an `.npz` with `X` and `y`, split by a seeded rule that needs only their counts.

A part is named `adbench/<table>/<protocol>/<draw>/<part>`, e.g. `adbench/cardio/adbench/1/train`. A row's key says
whether it is an anomaly and its number among its kind in file order: `cardio/anomaly/17`.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.config.constraints import Seed
from openbench.data.manifests.manifest import Manifest
from openbench.data.sources.base import Found, Source
from openbench.data.sources.items import VectorItems
from openbench.data.sources.npz_file import read_npz
from openbench.data.tabular.parts import ANOMALY, NORMAL, PARTS, PROTOCOLS
from openbench.errors import ConfigError, DataError, did_you_mean

FOLDER = "adbench"


@dataclass(frozen=True)
class TableFacts:
    """What is known of a table without reading it.

    Args:
        rows: all rows.
        anomalies: how many of them are anomalies.
        columns: numbers in a row.
        places: which rows are anomalies, as numbers and ascending ranges; empty where that is not known. Anomalies
            are then assumed to follow the normal rows, which changes the draw but not its distribution.
    """

    rows: int
    anomalies: int
    columns: int
    places: str = ""

    def anomalous(self) -> NDArray[np.bool_]:
        """Whether a row is an anomaly, (rows,)."""
        marked = np.zeros(self.rows, dtype=bool)
        for token in self.places.split() or [f"{self.rows - self.anomalies}-{self.rows - 1}"]:
            first, _, last = token.partition("-")
            marked[int(first) : int(last or first) + 1] = True
        return marked


@lru_cache(maxsize=1)
def table_facts() -> dict[str, TableFacts]:
    """Return the facts of every table by name."""
    counts, places = (
        tomllib.loads((paths.manifest_dir() / FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        for name in ("tables", "places")
    )
    return {name: TableFacts(**facts, places=places.get(name, "")) for name, facts in counts.items()}


def is_table_part(name: str) -> bool:
    """Whether a manifest's name is that of a part of a table."""
    return name.startswith(f"{FOLDER}/") and name.count("/") == 4


@lru_cache(maxsize=16)
def table_part(name: str) -> Manifest:
    """Return the manifest of a part, e.g. `adbench/cardio/adbench/1/train`; see tabular.parts for the protocols.

    The anomalies among the training rows are not labelled: a detector is not told that they are there.

    Raises:
        DataError: no such table, protocol or part, or a draw that is not a number.
    """
    _, table, protocol, draw, part = name.split("/")
    if not draw.isdigit() or part not in PARTS or protocol not in PROTOCOLS:
        raise DataError(
            f"'{name}' is not a part of a table — `{FOLDER}/<table>/<protocol>/<draw>/<part>` expected, "
            f"<protocol> one of {', '.join(PROTOCOLS)}, <part> one of {', '.join(PARTS)}"
        )
    anomalous = facts_of(table).anomalous()
    numbers = np.where(anomalous, np.cumsum(anomalous), np.cumsum(~anomalous)) - 1
    rows = PROTOCOLS[protocol].part(anomalous, int(draw))[part]
    kinds = np.where(anomalous[rows], ANOMALY, NORMAL)
    keys = tuple(f"{table}/{kind}/{number}" for kind, number in zip(kinds, numbers[rows].tolist(), strict=True))
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
    """ADBench's `<number>_<table>.npz` with `X` (n, d) and `y` (n,), 1 = anomaly. Columns are scaled.

    The scale is that of the draw's training rows: [0, 1] under `adbench`, mean 0 and deviation 1 under `held_out`. A
    column that is constant there is only shifted.

    Args:
        table: e.g. `cardio`.
        protocol: `adbench` or `held_out`; see tabular.parts.
        draw: the seed of the split into training and test rows.
        at: folders below each root.
        deviation: how these rows differ from the set as published.
    """

    table: str
    protocol: str = "adbench"
    draw: Seed = 1
    at: Sequence[str] = ("adbench/Classical", "ADBench/adbench/datasets/Classical", "Classical")
    deviation: str = ""

    def __post_init__(self) -> None:
        """Check the protocol's name."""
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"benchmark.protocol '{self.protocol}' not found{did_you_mean(self.protocol, PROTOCOLS)} — choose from "
                f"{', '.join(PROTOCOLS)}"
            )

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Each folder below each root."""
        return [root / folder for root in roots for folder in self.at]

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """All rows, if the table is there."""
        wanted = re.compile(rf"(\d+_)?{re.escape(self.table)}\.npz")
        file = next((f for f in sorted(place.glob("*.npz")) if wanted.fullmatch(f.name)), None)
        if file is None:
            return None
        values, row_of = _scaled(file, self.table, self.protocol, int(self.draw))
        rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
        present = rows >= 0
        return Found(VectorItems(values, rows[present]), present)


@lru_cache(maxsize=2)
def _scaled(file: Path, table: str, protocol: str, draw: int) -> tuple[NDArray[np.float32], dict[str, int]]:
    """The table's rows after scaling, and the row of each key."""
    raw, anomalous = _table(file, table)
    row_of = {
        f"{table}/{kind}/{number}": row
        for kind, mask in ((NORMAL, ~anomalous), (ANOMALY, anomalous))
        for number, row in enumerate(np.flatnonzero(mask).tolist())
    }
    train = raw[[row_of[key] for key in table_part(f"{FOLDER}/{table}/{protocol}/{draw}/train").keys]]
    return PROTOCOLS[protocol].scale(train)(raw).astype(np.float32), row_of


def _table(file: Path, table: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    held = read_npz(file, ("X", "y"), "`X` (n, d) and `y` (n,) expected")
    if {name for name, array in held.items() if array.dtype.kind in "biuf"} != {"X", "y"}:
        kinds = ", ".join(f"{name} {array.dtype}" for name, array in held.items()) or "neither"
        raise DataError(f"'{file}': found {kinds} — numbers in `X` (n, d) and `y` (n,) expected")
    raw, y = held["X"].astype(np.float64), held["y"]
    facts = facts_of(table)
    found = (*raw.shape, int((y == 1).sum())) if raw.ndim == 2 and y.shape == raw.shape[:1] else (raw.shape, y.shape)
    if found != (facts.rows, facts.columns, facts.anomalies):
        raise DataError(
            f"'{file}': found {found} — {facts.rows} rows of {facts.columns} columns with {facts.anomalies} anomalies "
            "are published — get the file again"
        )
    if facts.places and not np.array_equal(facts.anomalous(), y == 1):
        raise DataError(f"'{file}': its anomalies are not the published rows — get the file again")
    if not np.isfinite(raw).all():
        raise DataError(f"'{file}': {int((~np.isfinite(raw)).sum())} values are NaN or infinite — get the file again")
    return raw, y == 1
