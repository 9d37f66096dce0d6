"""Features of anything as data sets and as a benchmark: rows of `.npy`, `.npz`, `.parquet` and `.safetensors` files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.core.benchmark import RowItems
from openbench.core.request import Role
from openbench.data.own.benchmark import OwnBenchmark, OwnSet, split, write_files
from openbench.data.own.images import NO_CLASS, Contents, contents_of, state_of
from openbench.data.sources.base import FoundImages, Source
from openbench.digest import bytes_sha256
from openbench.errors import ConfigError, DataError, check_known, listed, not_found
from openbench.storage.array_file import open_arrays, reading

Array = NDArray[Any]
FEATURES, LOGITS, LABELS = ("features", "X", "x"), ("logits",), ("labels", "label", "y")
SUFFIXES = (".npy", ".npz", ".parquet", ".safetensors")
ROLES = {"train": Role.ID_TRAIN, "id_val": Role.ID_VAL, "id_test": Role.ID_TEST, "ood_val": Role.OOD_VAL}
GROUPS = {"near": Role.NEAR, "far": Role.FAR, "csid": Role.CSID}
ONE_CLASS = "id"  # of rows without labels
_BATCH = 4096
_VAL = 0.1  # of the training rows where no validation set is given


@dataclass(frozen=True, eq=False)
class FeatureItems(RowItems):
    """Rows of array files, in the order of a list.

    Args:
        contents: (N, 32) uint8, the SHA-256 of each row of the first array, as float32.
    """

    contents: Contents = field(kw_only=True)


@dataclass(frozen=True)
class FeatureRows(Source):
    """Features, and perhaps logits, in array files; the key of a row is its number, from 0.

    Args:
        path: of the file with features (n, d); absolute, or relative to a data root or the working directory.
        logits: of the file with logits (n, c), if they are given.
        sha256: of these files as the benchmark was written; `check` compares them. A changed file is computed again.
    """

    path: str
    logits: str | None = None
    sha256: Sequence[str] = ()

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the path itself, or the path below the working directory and each root."""
        return paths.places(self.path)

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the rows with these numbers; the files are memory-mapped where their format allows that.

        Raises:
            DataError: a file that cannot be read, NaN or infinity, or features and logits of different lengths.
        """
        if not place.is_file():
            return None
        files = self._files(place)
        parts, contents = rows_in(files)
        numbers = np.array([int(key) if key.isdigit() else -1 for key in keys], dtype=np.int64)
        present = (numbers >= 0) & (numbers < len(contents))
        return FoundImages(FeatureItems(parts, numbers[present], contents=contents), present, files)

    def changed(self) -> list[str]:
        """Return a message for each file that is not as it was when the benchmark was written."""
        place = next((p for p in self.places(paths.data_roots()) if p.is_file()), None)
        return [
            f"'{file}' has changed since the benchmark was written (SHA-256 {found}, {expected} in the yaml)"
            for file, expected in zip(self._files(place) if place else (), self.sha256, strict=False)
            if (found := sha256_of(file)) != expected
        ]

    def _files(self, place: Path) -> tuple[Path, ...]:
        return (place, Path(self.logits).expanduser()) if self.logits else (place,)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file, which is read again if it has changed."""
    return contents_of([file]).tobytes().hex()


def arrays_in(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name, memory-mapped where the format allows; that of an `.npy` has no name.

    Raises:
        DataError: no such file, another format, or one that cannot be read.
    """
    if path.suffix not in SUFFIXES or not path.is_file():
        what = "has another format" if path.is_file() else "not found"
        raise DataError(f"'{path}' {what} — name a file that ends in {', '.join(SUFFIXES)}")
    return _arrays(path, state_of([path]))


@lru_cache(maxsize=16)  # sets that share a file
def _arrays(path: Path, state: str) -> dict[str, Array]:
    from safetensors import safe_open

    if path.suffix == ".npz":
        return open_arrays(path)
    with reading(path, "write it again"):
        if path.suffix == ".npy":
            return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        if path.suffix == ".parquet":
            return _columns(path)
        with safe_open(path, framework="pt") as pack:
            tensors = {name: pack.get_tensor(name) for name in pack.keys()}  # noqa: SIM118 — it is no mapping
        return {name: (t if t.element_size() > 2 else t.float()).numpy() for name, t in tensors.items()}


def _columns(path: Path) -> dict[str, Array]:
    """The label column of a table, and its features: a column of lists, or all other columns side by side."""
    import pyarrow.parquet as pq

    table = pq.read_table(path).to_pandas(ignore_metadata=True)  # of pandas' own, which make a column its index
    if empty := [name for name, column in table.items() if column.isna().any()]:
        raise ValueError(f"column '{empty[0]}' has empty cells")
    arrays = {name: np.asarray(table.pop(name).tolist()) for name in LABELS if name in table}
    kinds = {name: next(iter(column), None) for name, column in table.items()}
    lists = {name: np.stack(table[name].tolist()) for name, cell in kinds.items() if isinstance(cell, np.ndarray)}
    flat = [column.to_numpy() for name, column in table.items() if name not in lists]
    if flat and not lists.keys() & {*FEATURES, *LOGITS}:
        lists[FEATURES[0]] = np.column_stack(flat)
    return arrays | lists


def array_in(path: Path, names: Sequence[str]) -> Array:
    """Return the numbers (n, k) of a file: the array of one of these names, else its only one besides labels.

    Raises:
        DataError: none, several, or another shape or type.
    """
    arrays = {name: array for name, array in arrays_in(path).items() if name not in LABELS}
    array = next((arrays[name] for name in names if name in arrays), None)
    if array is None and len(arrays) == 1:
        array = next(iter(arrays.values()))
    if array is None:
        found = ", ".join(map(repr, arrays)) or "none"
        raise DataError(f"'{path}' has the arrays {found} — name the one with a row for each sample `{names[0]}`")
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise DataError(f"'{path}': {names[0]} are {array.dtype} {array.shape} — allowed: numbers (n, k)")
    return array


def rows_in(files: Sequence[Path]) -> tuple[tuple[Array, ...], Contents]:
    """Return the features in the first file and the logits in a second one, and the SHA-256 of each row of features.

    The hashes, (n, 32) uint8 of rows as float32, are cached until the file changes.

    Raises:
        DataError: another number of logits, or NaN or infinity.
    """
    parts = tuple(array_in(file, names) for file, names in zip(files, (FEATURES, LOGITS), strict=False))
    if len(parts[-1]) != len(parts[0]):
        raise DataError(f"'{files[0]}' has {len(parts[0]):,} rows, its logits '{files[1]}' {len(parts[1]):,}")
    hashes = [contents_of([file], partial(_hashes, file, rows)) for file, rows in zip(files, parts, strict=True)]
    return parts, hashes[0]


def _hashes(path: Path, array: Array) -> Iterator[str]:
    bad: list[int] = []
    for start in range(0, len(array), _BATCH):
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(array[start : start + _BATCH], dtype=np.float32) + 0.0  # −0 is 0
        bad += (start + np.flatnonzero(~np.isfinite(rows).all(axis=1))).tolist()
        yield from (bytes_sha256(row.tobytes()) for row in rows)
    if bad:
        raise DataError(f"'{path}' has NaN or infinity in {len(bad)} of {len(array)} rows, the first is row {bad[0]}")


@dataclass(frozen=True)
class FeatureFiles:
    """The files of a benchmark of features, by set (`train`, `id_test`, `near.x`, …).

    Args:
        features: of every set.
        labels: of ID sets whose features come without them.
        logits: of all sets or none.
        head: with `weight` (c, d) and `bias` (c,); None = there is none.
    """

    features: Mapping[str, Path]
    labels: Mapping[str, Path] = field(default_factory=dict)
    logits: Mapping[str, Path] = field(default_factory=dict)
    head: Path | None = None

    def __post_init__(self) -> None:
        """Check the names of the sets, and that all are there that a benchmark needs."""
        for where in self.features:
            group, _, name = where.partition(".")
            if where not in ROLES and not (group in GROUPS and name.replace("_", "").isalnum() and name.isascii()):
                known = [*ROLES, *(f"{group}.NAME" for group in GROUPS)]
                raise ConfigError(not_found(f"--features: set '{where}'", where, known))
        if lacking := [where for where in ("train", "id_test") if where not in self.features]:
            raise ConfigError(f"--features: {' and '.join(lacking)} missing — give {lacking[0]}=FILE")
        check_known(self.labels, (where for where in self.features if role_of(where).is_id), "--labels")
        check_known(self.logits, self.features, "--logits")
        if self.logits and (lacking := [where for where in self.features if where not in self.logits]):
            raise ConfigError(f"--logits: {', '.join(lacking)} missing — give logits of all sets or of none")

    def benchmark(self, name: str, seed: int = 0) -> OwnBenchmark:
        """Return the benchmark, with every row read and checked once; without `id_val`, a tenth of `train` is that.

        Args:
            name: what users type after `+benchmark=`.
            seed: of that tenth.

        Raises:
            DataError: files that do not fit together, NaN or infinity, or labels that are not classes.
        """
        parts = {where: rows_in(self._files(where))[0] for where in self.features}
        labels = {where: self._labels(where, len(rows)) for where, (rows, *_) in parts.items() if role_of(where).is_id}
        given = [where for where, of_set in labels.items() if of_set is not None]
        if given and (lacking := [where for where in labels if where not in given]):
            raise DataError(f"{lacking[0]} has no labels, {given[0]} has — give --labels {lacking[0]}=FILE")
        if not given and (self.logits or self.head):
            raise ConfigError("--logits and --head need the classes of ID rows — give --labels train=FILE id_test=FILE")
        names, columns = _names(labels, self._shown("train")), [array.shape[1] for array in parts["train"]]
        for where, arrays in parts.items():
            if (found := [array.shape[1] for array in arrays]) != columns:
                raise DataError(
                    f"{self._shown(where)} has {listed(found)} columns, {self._shown('train')} has {listed(columns)} — "
                    "give features and logits of one network"
                )
        if self.logits and columns[1] != (c := len(set(names["train"]))):
            raise DataError(f"logits '{self.logits['train']}' have {columns[1]} columns for {c} classes of train")
        sets = {}
        for where in sorted(parts, key=lambda where: list(Role).index(role_of(where))):
            unknown = ONE_CLASS if role_of(where).is_id else NO_CLASS
            of_rows = names.get(where) or [unknown] * len(parts[where][0])
            rows = tuple((f"{row:06d}", of_row) for row, of_row in enumerate(of_rows))
            files = [file.resolve() for file in self._files(where)]
            named = dict(zip(("path", "logits"), map(str, files), strict=False))
            sets[where] = OwnSet(files[0], rows, {"features": {**named, "sha256": [*map(sha256_of, files)]}})
        if "id_val" not in sets:
            sets["train"], sets["id_val"] = split(sets["train"], (1 - _VAL, _VAL), seed)
        id_sets = {"train": sets.pop("train"), "val": sets.pop("id_val"), "test": sets.pop("id_test")}
        return OwnBenchmark(name=name, id_sets=id_sets, ood=sets, one_class=not given)

    def _shown(self, where: str) -> str:
        return f"{where} '{self.features[where]}'"

    def _files(self, where: str) -> tuple[Path, ...]:
        return tuple(files[where] for files in (self.features, self.logits) if where in files)

    def _labels(self, where: str, rows: int) -> Array | None:
        """The labels (n,) of a set, if there are any."""
        path = self.labels.get(where)
        arrays = arrays_in(path or self.features[where])
        names = (*LABELS, *(arrays if path and len(arrays) == 1 else ()))
        found = next((arrays[name] for name in names if name in arrays), None)
        if path and found is None:
            raise DataError(f"'{path}' has the arrays {', '.join(arrays)} — name the labels `labels`")
        if found is not None and (found.shape != (rows,) or found.dtype.kind not in "iuU"):
            raise DataError(
                f"{self._shown(where)} has {rows:,} rows, and labels {found.dtype} {found.shape} — allowed: (n,) whole "
                "numbers from 0, or names of classes"
            )
        return found

    def write(self, benchmark: OwnBenchmark, folder: Path) -> list[Path]:
        """Write what `benchmark` returned as `write_files` does; return the files.

        Args:
            benchmark: with its sets' rows.
            folder: a config folder, new or not.
        """
        rows = sum(len(part.rows) for part in benchmark.id_sets.values())
        header = [
            f"{rows:,} ID rows; lists/{benchmark.name}/*.csv, beside this folder, name the class of each row.",
            *self.remarks(benchmark),
        ]
        defaults = [f"/dataset@benchmark.{where}: array_features" for where in benchmark.sets]
        defaults += ["_self_", "override /backbone: array_features", "override /method: knn"]
        defaults += [] if "ood_val" in benchmark.ood else ["override /tune: none"]
        fitted = None if self.logits or benchmark.one_class else "linear_probe"
        preprocess = {"resize": 1, "crop": 1, "mean": [0.0], "std": [1.0], "interpolation": "nearest"}
        columns, head = len(benchmark.classes) if self.logits else 0, str(self.head.resolve()) if self.head else fitted
        backbone = {"logits": columns, "head": head}
        return write_files(benchmark, folder, header, defaults, preprocess=preprocess, backbone=backbone)

    def remarks(self, benchmark: OwnBenchmark) -> list[str]:
        """Return a line for each thing that was not given, on what happens without it."""
        lines = []
        if benchmark.one_class:
            lines.append("No labels: methods that read classes or a classifier are refused.")
        elif not (self.logits or self.head):
            lines.append("No --logits and no --head: a linear head is fitted on train (backbone.head=linear_probe).")
        if "id_val" not in self.features:
            lines.append(f"No id_val: {len(benchmark.id_sets['val'].rows):,} rows of train are ID validation.")
        if "ood_val" not in self.features:
            lines.append("No ood_val: nothing is tuned (tune=none).")
        return lines


def role_of(where: str) -> Role:
    """Return the role of a set such as `train` or `near.x`."""
    return ROLES.get(where) or GROUPS[where.partition(".")[0]]


def _names(labels: Mapping[str, Array | None], where: str) -> dict[str, list[str]]:
    """The class name of each row of each ID set; numbers have as many digits as the last, so they sort in order.

    Raises:
        DataError: training labels that are not 0, 1, …, c − 1.
    """
    train, width = labels["train"], 0
    if train is None:
        return {}
    if train.dtype.kind != "U":
        classes = np.unique(train)
        if not np.array_equal(classes, np.arange(len(classes))):
            found = listed(classes, 8)
            raise DataError(f"{where} has the labels {found} — number the classes 0, 1, 2, … without gaps")
        width = len(str(classes[-1]))
    return {key: [str(name).rjust(width, "0") for name in of.tolist()] for key, of in labels.items() if of is not None}
