"""Files of scores in every format: columns, OpenOOD's `.npz`, pytorch-ood's `.pt`, single arrays; or a folder of them.

Arrays do not say which set they belong to nor, except for OpenOOD's `conf`, what a larger score means. What a file does
not say is asked for and never guessed.
"""

import os
import pickle
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.names import WORDS, is_words
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, DataError, OpenbenchError, available, did_you_mean, listed
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line
from openbench.storage.array_file import open_arrays

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame

ID_ROLES = ("id_test", "id_val", "csid")
COLUMNS, ARRAYS = (".csv", ".parquet"), (".npz", ".npy", ".pt", ".pth")
_CONFIDENCE = "conf"  # of OpenOOD: larger = more ID
# Column → the arrays that may hold it.
_KEYS = {
    "score": ("scores", "score", _CONFIDENCE),
    "label": ("label", "labels", "y"),
    "prediction": ("pred", "prediction", "predictions"),
    "image": ("image", "images"),
}
_SINGLE = ("id_test", "id_val", "ood_val")  # roles that have one set
_SHOWN = 20
# Writes the file of each set in a pickle of OpenOOD's `--save-score`; labels of OOD sets become −1, as OpenOOD's
# evaluator sets them.
_UNPICKLE = (
    "import pickle, sys, numpy as np; s = pickle.load(open(sys.argv[1], 'rb')); i = {'id_test': s['id']['test'], "
    "**s['csid']}; o = {**s['ood']['near'], **s['ood']['far']}; [np.savez(n, pred=v[0], conf=v[1], label=v[2] if n in "
    "i else v[2] * 0 - 1) for n, v in {**i, **o}.items() if v]"
)
# Columns of `.csv` and `.parquet`.
_TEXTS, _NUMBERS = ("set", "role", "image"), ("score", "label", "prediction")
_REQUIRED, _OPTIONAL = ("score", "set", "role"), ("correct", "label", "prediction", "image")
_PROBABILITY = re.compile(r"p_[0-9]+")
_MOST = 2**53  # whole numbers up to here are floats
_ROUNDING = 1e-6  # of a probability in float32
_SUM = 0.01  # of a row of probabilities, which may have been written with few digits
_TRUE, _FALSE = ("1", "1.0", "true", "True", "TRUE"), ("0", "0.0", "false", "False", "FALSE")
OnError = Callable[[OpenbenchError], None]


@dataclass(frozen=True)
class Meaning:
    """What files of arrays do not say.

    Args:
        larger_is: `id` or `ood`, what a larger score means; empty = what the format says.
        files: name of a file → the role and the name of its set, as `--set` gives them.
        sets: the sets of a benchmark, name → role; files with these names need no other information.
        benchmark: its name, for messages.
    """

    larger_is: str = ""
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    benchmark: str = ""

    def of(self, file: Path) -> tuple[str, str] | None:
        """Return the role and the name of the set in a file; None if they are not known."""
        role = file.stem if file.stem in _SINGLE else self.sets.get(file.stem, "")
        name = next((name for name, of in self.sets.items() if of == file.stem), file.stem)  # of a file `id_test.npz`
        return self.files.get(file.name) or ((role, name) if role else None)


def read_scores(path: Path, meaning: Meaning, on_error: OnError) -> list[SetScores]:
    """Return the sets of a file, or of all files of scores in a folder, in the order of their names.

    Args:
        path: `.csv` and `.parquet` as `read_sets` takes them; `.npz` and `.pt` with the arrays `conf` (larger = more
            ID) or `scores` (n,), and, if known, `label` (n,), negative for OOD, `pred` (n,) and `images` (n,); `.npy`
            with scores (n,). A file of both ID and OOD samples is `id_test` and one OOD set.
        meaning: what arrays do not say.
        on_error: receives an error for each file that cannot be read; the others are.

    Raises:
        ConfigError: what scores mean or which sets they belong to is not known; all of it in one message.
        DataError: nothing to read, or two files have the same set.
    """
    tables: dict[Path, DataFrame] = {}
    for file in _files(path, meaning):
        try:
            tables[file] = _of_arrays(file) if file.suffix in ARRAYS else _of_columns(file)
        except DataError as error:
            on_error(error)
    _check_known({file: table for file, table in tables.items() if "set" not in table}, meaning)
    sets: list[SetScores] = []
    for file, table in tables.items():
        larger_is = meaning.larger_is or ("id" if _CONFIDENCE in table else "ood")
        signed = table.rename(columns={_CONFIDENCE: "score"})
        signed["score"] *= -1.0 if larger_is == "id" else 1.0
        try:
            sets += _sets(file, signed if "set" in signed else _with_set(file, signed, meaning))
        except DataError as error:
            on_error(error)
    return _distinct(sets, path)


def _files(path: Path, meaning: Meaning) -> list[Path]:
    """The files to read; every one that `--set` names is among them."""
    found = sorted(path.iterdir()) if os.path.isdir(path) else [path]
    files = [file for file in found if file.suffix in (*COLUMNS, *ARRAYS) or found == [path]]
    pickled = [file for file in found if file.suffix in (".pkl", ".pickle")]
    if pickled and files in ([], pickled):
        raise DataError(
            f"'{pickled[0]}' is a pickle, which runs code when it is read — if you trust it, convert OpenOOD's with "
            f'this line in an empty folder, then give that folder: python -c "{_UNPICKLE}" '
            + shlex.quote(str(pickled[0].resolve()))
        )
    if not files:
        raise DataError(f"'{path}' has no files of scores — allowed: {', '.join((*COLUMNS, *ARRAYS))}")
    names = [file.name for file in files]
    for name in meaning.files:
        if name not in names:
            raise ConfigError(
                f"--set: file '{name}' not found{did_you_mean(name, names)} — available: {available(names, name)}"
            )
    return files


def _of_arrays(file: Path) -> "DataFrame":
    """The arrays of a file as columns; `conf` keeps its name, which says what a larger score means."""
    import pandas as pd

    found, arrays = _loaded(file), dict[str, NDArray[Any]]()
    for column, keys in _KEYS.items():
        present = [key for key in keys if key in found]
        if len(present) > 1:
            raise DataError(f"{file} has the arrays {' and '.join(present)} — keep one of them")
        if column == "score" and not present:
            names = ", ".join(map(one_line, list(found)[:_SHOWN])) or "none"
            raise DataError(
                f"{file} has no array '{_CONFIDENCE}' (OpenOOD) or 'scores', found: {names} — optional are "
                "label, pred, images"
            )
        for key in present:
            array = np.asarray(found[key])
            array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
            arrays[key if key == _CONFIDENCE else column] = array
    fits = [a.ndim == 1 and a.dtype.kind in ("SU" if name == "image" else "biuf") for name, a in arrays.items()]
    if not all(fits) or len({array.shape for array in arrays.values()}) > 1:
        described = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
        raise DataError(f"{file}: found {described} — allowed: (n,), a number for each sample, and names of images")
    table = pd.DataFrame({name: a.astype(str if name == "image" else np.float64) for name, a in arrays.items()})
    for name in table.columns.drop("image", errors="ignore"):
        _Rows(file, table).numbers(name, "a number")
    return table


def _loaded(file: Path) -> dict[str, Any]:
    """The named arrays of a file; nothing in it is run."""
    if not file.is_file():
        raise DataError(f"file of scores '{file}' not found")
    if file.suffix == ".npz":
        return dict(open_arrays(file))
    try:
        if file.suffix == ".npy":
            return {"scores": np.load(file, allow_pickle=False)}
        import torch

        found = torch.load(file, map_location="cpu", weights_only=True)
        if isinstance(found, torch.Tensor):
            found = {"scores": found}
        return {str(key): value.numpy() for key, value in found.items() if isinstance(value, torch.Tensor)}
    except (OSError, ValueError, EOFError, RuntimeError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{file} cannot be read as arrays of numbers ({one_line(reason)}) — write it again") from error


def _check_known(tables: Mapping[Path, "DataFrame"], meaning: Meaning) -> None:
    """Raise one ConfigError with the options that say what files of arrays do not."""
    unsigned = [file.name for file, table in tables.items() if not meaning.larger_is and _CONFIDENCE not in table]
    sets = {file: meaning.of(file) for file in tables}
    unknown = [file for file, of in sets.items() if of is None]
    if not unsigned and not unknown:
        return
    taken = any(of is not None and of[0] == "id_test" for of in sets.values())
    typed, asked = ["--larger-is ood"] * bool(unsigned), []
    for file in unknown:
        is_ood = "label" not in tables[file] or (tables[file]["label"] < 0).any()
        role = "far" if is_ood else "csid" if taken else "id_test"
        taken |= role == "id_test"
        typed.append(f"--set {role}={file.name}")
    if unsigned:
        asked.append(f"whether a larger score is more OOD or more ID (id) in {listed(map(one_line, unsigned), _SHOWN)}")
    if unknown:
        names = listed((one_line(file.name) for file in unknown), _SHOWN)
        of = f", which are not sets of benchmark '{meaning.benchmark}'" * bool(meaning.benchmark)
        asked.append(f"the role ({', '.join(ROLES)}) of {names}{of}")
    benchmark = "" if meaning.benchmark or not unknown else "; --benchmark NAME tells the roles of its sets"
    raise ConfigError(f"scores do not say {' and '.join(asked)} — add what is right of: {' '.join(typed)}{benchmark}")


def _with_set(file: Path, table: "DataFrame", meaning: Meaning) -> "DataFrame":
    """The table of a file of arrays with set and role; rows of an OOD file whose label is not negative are ID test."""
    role, name = meaning.of(file) or ("", "")
    table = table.assign(set=name, role=role)
    if "label" in table and role not in ID_ROLES:
        inside = ~(table["label"] < 0)
        if inside.all():
            raise DataError(f"{file}: no label of the {role} set '{one_line(name)}' is negative, which means OOD")
        table.loc[inside, ["set", "role"]] = "id_test"
    return table


def _distinct(sets: Sequence[SetScores], path: Path) -> list[SetScores]:
    """The sets, each once: several files may have the same ID test scores."""
    found: dict[tuple[str, str], SetScores] = {}
    for s in sets:
        first = found.setdefault((s.role, s.name), s)
        if first is not s and not np.array_equal(first.scores, s.scores):
            raise DataError(f"'{path}' has two sets {s.role}/{s.name} with other scores — keep one of them")
    for role in _SINGLE:
        if len(names := sorted(name for other, name in found if other == role)) > 1:
            raise DataError(f"'{path}' has {len(names)} sets of the role {role}: {', '.join(names)} — allowed: one")
    return list(found.values())


def read_sets(path: Path) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities); for any row `image`, its name.
    Correctness is `correct`, else `prediction == label`, else the largest probability's class. Further columns are not
    read.

    Scores become float64; those that share one are ties. The same row twice is two images. CSV is UTF-8 with commas,
    quotes doubled within quotes.

    Args:
        path: the file.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv, blank ones not counted) or row (parquet) where it stands.
    """
    return _sets(path, _of_columns(path))


def _sets(path: Path, table: "DataFrame") -> list[SetScores]:
    if table.empty:
        raise DataError(f"{path} has no rows — write one per scored image")
    groups = table.groupby(["role", "set"], sort=False)
    return [_set_scores(str(name), str(role), _Rows(path, rows)) for (role, name), rows in groups]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a set.

    Args:
        path: the file.
        table: its columns, missing values where nothing stands; the index is the number of a row in the file, from 0.
    """

    path: Path
    table: "DataFrame"

    def has(self, name: str) -> bool:
        """Whether the set has any value in a column."""
        return name in self.table and bool(self.table[name].notna().any())

    def refuse(self, name: str, bad: NDArray[np.bool_], allowed: str) -> None:
        """Raise a DataError that names the first of the `bad` cells (n,) of a column; without any, do nothing."""
        if not bad.any():
            return
        first, count = int(bad.argmax()), int(bad.sum())
        value = self.table[name].iloc[first]
        text = one_line(value) if isinstance(value, str) else f"{value:g}"
        written = "empty" if text in ("", "nan") else f"'{text}'"
        more = f" and {count - 1} more like it" if count > 1 else ""
        raise DataError(f"{self.where(first)}: {name} is {written}{more} — allowed: {allowed}")

    def where(self, row: int) -> str:
        """Return the file and the place of a row, in a text file as an editor counts."""
        place = self.table.index[row]
        return f"{self.path}, line {place + 2}" if self.path.suffix == ".csv" else f"{self.path}, row {place}"

    def numbers(
        self, name: str, allowed: str, low: float = -np.inf, high: float = np.inf, whole: bool = False
    ) -> NDArray[np.float64]:
        """(n,) the values of a column, each within bounds and none of them missing."""
        numbers = self.table[name].to_numpy()
        fits = (numbers >= low) & (numbers <= high)
        self.refuse(name, ~fits | (whole & (numbers != np.floor(numbers))), allowed)
        return numbers

    def indices(self, name: str, classes: int | None = None) -> NDArray[np.int64]:
        """(n,) class indices, below `classes` if that is known."""
        allowed = "a class index ≥ 0" if classes is None else f"a class index from 0 to {classes - 1}"
        return self.numbers(name, allowed, 0, _MOST if classes is None else classes - 1, whole=True).astype(np.int64)


def _set_scores(name: str, role: str, rows: _Rows) -> SetScores:
    every = np.ones(len(rows.table), bool)
    rows.refuse("set", every & (not name.strip() or not is_words(name)), WORDS)
    rows.refuse("role", every & (role not in ROLES), f"one of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
    scores, images = rows.numbers("score", "a number"), None
    if rows.has("image"):
        images = tuple(rows.table["image"].fillna(""))
        rows.refuse("image", np.array([not image for image in images]), "a name in every row of a set, or in none")
    if role not in ID_ROLES:
        return SetScores(name, role, scores, images=images)
    probabilities = _probabilities(rows)
    classes = None if probabilities is None else probabilities.shape[1]
    labels = rows.indices("label", classes) if rows.has("label") else None
    predictions = rows.indices("prediction") if rows.has("prediction") else None
    correct = rows.numbers("correct", "0 or 1", 0, 1, whole=True) if rows.has("correct") else None
    if labels is not None and predictions is not None:
        right = (labels == predictions).astype(np.float64)
        if correct is not None:
            rows.refuse("correct", correct != right, "1 where label and prediction are equal, else 0")
        correct = right
    elif correct is None and labels is not None and probabilities is not None:
        correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    return SetScores(name, role, scores, correct, labels, probabilities, predictions=predictions, images=images)


def _probabilities(rows: _Rows) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    names = [name for name in map(str, rows.table) if _PROBABILITY.fullmatch(name)]
    if not any(map(rows.has, names)):
        return None
    allowed, ends = "a probability from 0 to 1", (-_ROUNDING, 1 + _ROUNDING)
    probabilities = np.stack([rows.numbers(column, allowed, *ends) for column in names], axis=1)
    sums = probabilities.sum(axis=1)
    for first in np.flatnonzero(np.abs(sums - 1.0) > _SUM).tolist():
        found = f"{names[0]} … {names[-1]} have a sum of {sums[first]:.6g}"
        raise DataError(f"{rows.where(first)}: {found} — allowed: class probabilities, which sum to 1")
    return probabilities


def _of_columns(path: Path) -> "DataFrame":
    """The columns of a file that have a meaning here; missing values where nothing stands."""
    import pyarrow as pa

    if not os.path.isfile(path):
        raise DataError(f"file of scores '{path}' not found")
    if path.suffix not in COLUMNS:
        raise DataError(f"'{path}' is not a file of scores — allowed: {', '.join(COLUMNS)}")
    try:
        read = _csv(path) if path.suffix == ".csv" else _parquet(path)
        # Whole numbers that no float64 holds are an error.
        typed = pa.table({name: read[name].cast(kind) for name, kind in _known(read.column_names, path)})
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read as {path.suffix[1:]} ({reason}) — write the file again") from error
    table: DataFrame = typed.to_pandas()
    table[["set", "role"]] = table[["set", "role"]].fillna("")
    # Spreadsheets leave rows of nothing but commas.
    return table.loc[(table["set"] != "") | (table["role"] != "") | table["score"].notna()]


def _known(names: list[str], path: Path) -> Iterator[tuple[str, "pa.DataType"]]:
    """Yield the columns that have a meaning here with their types, after checking that they are there, once."""
    import pyarrow as pa

    for name in _REQUIRED:
        if name not in names:
            listed = [one_line(other) for other in names]
            raise DataError(
                f"{path} has no column '{name}'{did_you_mean(name, listed)}, found: {', '.join(listed)} — needed: "
                f"{', '.join(_REQUIRED)}; optional: {', '.join(_OPTIONAL)}, p_0 … p_{{c-1}}"
            )
    classes = [name for name in names if _PROBABILITY.fullmatch(name)]
    if {*classes} != {f"p_{k}" for k in range(len(classes))}:
        raise DataError(f"{path}: the columns must be p_0 … p_{{c-1}} without a gap — found {', '.join(classes)}")
    for name in (*_REQUIRED, *_OPTIONAL, *classes):
        if names.count(name) > 1:
            raise DataError(f"{path} has the column '{name}' {names.count(name)} times — keep one column of each name")
        if name in names:
            yield name, pa.string() if name in _TEXTS else pa.float64()


def _parquet(path: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    # Not `read_table`, which would take a folder called `set=x` for a column. Checksums are compared if it has any.
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        known = [name for name in names if name in (*_REQUIRED, *_OPTIONAL) or _PROBABILITY.fullmatch(name)]
        table = file.read(columns=known)
    table.validate(full=True)
    return table


def _csv(path: Path) -> "pa.Table":
    import pyarrow as pa
    from pyarrow import csv

    content = path.read_bytes()
    if content.count(b'"') % 2:  # an open quote swallows the rows up to the next one
        raise DataError(f"{path}: a quote is not closed — write the file again")
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.float64()) | {"correct": pa.bool_()}
    # Nothing but an empty cell is taken for a missing value: a set may be called NA.
    convert = csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, true_values=_TRUE, false_values=_FALSE
    )
    parse = csv.ParseOptions(newlines_in_values=b'"' in content)
    options = csv.ReadOptions(use_threads=False)  # so that errors name the row
    return csv.read_csv(pa.BufferReader(content), options, parse, convert)
