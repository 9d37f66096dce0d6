"""Tabular sets: the tables of ADBench, split by a seeded rule that needs only their counts, and texts as rows.

A part of a table is named `adbench/<table>/<protocol>/<draw>/<part>`, e.g. `adbench/cardio/adbench/1/train`. A row's
key says whether it is an anomaly and its number among its kind in file order: `cardio/anomaly/17`.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.config.constraints import Count, OneOf, Seed
from openbench.core.benchmark import RowItems
from openbench.data.manifests import Manifest
from openbench.data.sources.archives import read_npz
from openbench.data.sources.base import FoundImages, Source, rows_found
from openbench.errors import DataError, did_you_mean
from openbench.storage.files import read_regular

FOLDER = "adbench"
Rows = NDArray[np.int64]
Table = NDArray[np.float64]

NORMAL, ANOMALY = "normal", "anomaly"
PARTS = ("train", "val", "test", "anomalies")
_TEST = 0.3
_VAL = 0.1
# ADBench's limits: smaller tables are drawn from with replacement, of larger ones a part is taken.
_LEAST, _MOST = 1_000, 10_000
_MOST_BYTES = 2**24  # of one text; the longest message of 20 Newsgroups has 160 thousand


def adbench(anomalous: NDArray[np.bool_], draw: int) -> dict[str, Rows]:
    """Return the rows as ADBench draws them for its seed `draw`; its tables are the means over seeds 1, 2 and 3.

    Of more than 10 000 rows, 10 000 are drawn; from fewer than 1 000, 1 000 are drawn with replacement, so that the
    same row may train and test. Then 70 % train and 30 % test, anomalies in equal shares. There is no validation:
    that part repeats the normal training rows.
    """
    stream = np.random.RandomState(draw)  # the generator that ADBench's draws come from
    n = len(anomalous)
    rows = np.arange(n)
    if not _LEAST <= n <= _MOST:
        rows = stream.choice(n, _LEAST if n < _LEAST else _MOST, replace=n < _LEAST)
    # Imported here, since it takes seconds and only tables need it.
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(rows, test_size=_TEST, stratify=anomalous[rows], random_state=stream)
    return {
        "train": train,
        "val": train[~anomalous[train]],
        "test": test[~anomalous[test]],
        "anomalies": test[anomalous[test]],
    }


def held_out(anomalous: NDArray[np.bool_], draw: int) -> dict[str, Rows]:
    """Return every row in exactly one part: of the normal ones 60 % train, 10 % validate and 30 % test.

    Anomalies have no validation part; 70 % of them are among the training rows.
    """
    rng = np.random.default_rng(draw)
    normal, odd = np.flatnonzero(~anomalous), np.flatnonzero(anomalous)
    mixed, strange = rng.permutation(len(normal)), rng.permutation(len(odd))
    first, second = (round(share * len(normal)) for share in (1 - _TEST - _VAL, 1 - _TEST))
    seen = round((1 - _TEST) * len(odd))
    return {
        "train": np.concatenate([normal[np.sort(mixed[:first])], odd[np.sort(strange[:seen])]]),
        "val": normal[np.sort(mixed[first:second])],
        "test": normal[np.sort(mixed[second:])],
        "anomalies": odd[np.sort(strange[seen:])],
    }


def unit_interval(train: Table) -> tuple[Table, Table]:
    """Return the scale that maps each training column onto [0, 1]."""
    low = train.min(axis=0)
    return low, _nonzero(train.max(axis=0) - low)


def standard(train: Table) -> tuple[Table, Table]:
    """Return the scale that gives each training column mean 0 and standard deviation 1."""
    return train.mean(axis=0), _nonzero(train.std(axis=0))


def _nonzero(unit: Table) -> Table:
    return np.where(unit > 0, unit, 1.0)


# How the rows of a table are split: (n,) whether a row is an anomaly, and the draw → rows of each of PARTS, of which
# `train` has anomalies too. And the scale: training rows (n, d) → shift and unit (d,) of (x − shift) / unit.
PROTOCOLS = {"adbench": (adbench, unit_interval), "held_out": (held_out, standard)}


@dataclass(frozen=True)
class TableFacts:
    """Facts of a table.

    Args:
        rows: all rows.
        anomalies: number of anomalies among them.
        columns: numbers in a row.
        places: which rows are anomalies, as numbers and ascending ranges; empty if not known. Anomalies
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
    """Return the manifest of a part, e.g. `adbench/cardio/adbench/1/train`; see PROTOCOLS.

    The anomalies among the training rows are not labelled.

    Raises:
        DataError: no such table, protocol or part, or a draw that is not a number.
    """
    _, table, protocol, draw, part = name.split("/")
    if not draw.isdigit() or part not in PARTS or protocol not in PROTOCOLS:
        raise DataError(
            f"'{name}' is not a part of a table — write {FOLDER}/TABLE/PROTOCOL/DRAW/PART, with PROTOCOL one of "
            f"{', '.join(PROTOCOLS)} and PART one of {', '.join(PARTS)}"
        )
    anomalous = facts_of(table).anomalous()
    numbers = np.where(anomalous, np.cumsum(anomalous), np.cumsum(~anomalous)) - 1
    rows = PROTOCOLS[protocol][0](anomalous, int(draw))[part]
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
        protocol: `adbench` or `held_out`; see PROTOCOLS.
        draw: the seed of the split into training and test rows.
        at: folders below each root.
    """

    table: str
    protocol: Annotated[str, OneOf(tuple(PROTOCOLS))] = "adbench"
    draw: Seed = 1
    at: Sequence[str] = ("adbench/Classical", "ADBench/adbench/datasets/Classical", "Classical")

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """All rows, if the table is there."""
        name = re.compile(rf"(\d+_)?{re.escape(self.table)}\.npz")
        file = next((f for f in sorted(place.glob("*.npz")) if name.fullmatch(f.name)), None)
        if file is None:
            return None
        values, row_of = _scaled(file, self.table, self.protocol, int(self.draw))
        return rows_found(values, row_of, keys)


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
    shift, unit = PROTOCOLS[protocol][1](train)
    return ((raw - shift) / unit).astype(np.float32), row_of


def _table(file: Path, table: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    arrays, facts = read_npz(file, ("X", "y")), facts_of(table)
    shapes = {name: array.shape for name, array in arrays.items() if array.dtype.kind in "biuf"}
    anomalous = arrays.get("y", np.zeros(0)) == 1
    if (
        shapes != {"X": (facts.rows, facts.columns), "y": (facts.rows,)}
        or anomalous.sum() != facts.anomalies
        or (facts.places and not np.array_equal(facts.anomalous(), anomalous))
    ):
        raise DataError(
            f"'{file}' is not the published table ({facts.rows} rows of {facts.columns} columns, {facts.anomalies} "
            f"anomalies): found numbers {shapes} with {anomalous.sum()} anomalies — get the file again"
        )
    raw = arrays["X"].astype(np.float64)
    if not np.isfinite(raw).all():
        raise DataError(f"'{file}': {int((~np.isfinite(raw)).sum())} values are NaN or infinite — get the file again")
    return raw, anomalous


@dataclass(frozen=True)
class HashedTexts(Source):
    """Text files as rows (n, columns): counts of their words, hashed to columns with a sign, of length 1.

    Nothing is fitted, so no part leaks into another. The text before the first empty line (the header of a
    message), lines that begin with `>` (quotations) and English stop words are left out; a text without other words is
    a row of zeros.

    Args:
        at: folders below each root.
        columns: how many numbers a row has.

    Reference:
        Weinberger et al., Feature hashing for large scale multitask learning, ICML 2009, arXiv 0902.2206, as in
        scikit-learn's HashingVectorizer.
    """

    at: Sequence[str] = (".",)
    columns: Count = 1024

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """The rows of the texts that are there."""
        present = np.array([(place / key).is_file() for key in keys], dtype=bool)
        if not present.any():
            return None
        from sklearn.feature_extraction.text import HashingVectorizer

        hashing = HashingVectorizer(n_features=int(self.columns), stop_words="english", dtype=np.float32)
        rows = hashing.transform(_text(place / key) for key in compress(keys, present)).toarray()
        return FoundImages(RowItems((rows,)), present)


def _text(path: Path) -> str:
    """The body of a message without what it quotes; any byte is a letter of latin-1."""
    header, blank, body = read_regular(path, _MOST_BYTES).decode("latin-1").partition("\n\n")
    lines = (body if blank else header).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(">"))
