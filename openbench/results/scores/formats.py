"""Files of scores in every format: columns, OpenOOD's `.npz`, pytorch-ood's `.pt`, single arrays; or a folder of them.

Arrays do not say which set they belong to nor, except for OpenOOD's `conf`, what a larger score means. What a file does
not say is asked for and never guessed.
"""

import os
import pickle
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

ID_ROLES = ("id_test", "id_val", "csid")
COLUMNS, ARRAYS = (".csv", ".parquet"), (".npz", ".npy", ".pt", ".pth")
_CONFIDENCE = "conf"  # of OpenOOD: larger = more ID
_KEYS = {
    "scores": (_CONFIDENCE, "scores", "score"),
    "labels": ("label", "labels", "y"),
    "predictions": ("pred", "prediction", "predictions"),
    "images": ("image", "images"),
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
    files = _files(path, meaning)
    sets: list[SetScores] = []
    arrays: dict[Path, SetScores] = {}
    unsigned: list[str] = []
    for file in files:
        try:
            if file.suffix in ARRAYS:
                arrays[file], signed = _arrays(file, meaning)
                unsigned += [] if signed else [file.name]
            else:
                sign = -1.0 if meaning.larger_is == "id" else 1.0
                sets += [replace(s, scores=sign * s.scores) for s in read_sets(file)]
        except DataError as error:
            on_error(error)
    _check_known(arrays, unsigned, meaning)
    for file, of_file in arrays.items():
        try:
            sets += _sets(file, of_file)
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


def _arrays(file: Path, meaning: Meaning) -> tuple[SetScores, bool]:
    """The arrays of a file as one set, without a role if it is not known, and whether the sign of scores is known."""
    found = _loaded(file)
    named = {column: [key for key in keys if key in found] for column, keys in _KEYS.items()}
    for column, keys in named.items():
        if len(keys) > 1:
            raise DataError(f"{file} has the arrays {' and '.join(keys)} — keep one of them")
        if column == "scores" and not keys:
            names = ", ".join(map(one_line, list(found)[:_SHOWN])) or "none"
            raise DataError(
                f"{file} has no array '{_CONFIDENCE}' (OpenOOD) or 'scores', found: {names} — optional are "
                "label, pred, images"
            )
    arrays = {column: _vector(file, keys[0], found) for column, keys in named.items() if keys}
    role, name = meaning.of(file) or ("", file.stem)
    larger_is = meaning.larger_is or ("id" if named["scores"] == [_CONFIDENCE] else "")
    scores = arrays["scores"].astype(np.float64)
    for column, array in arrays.items():
        if len(array) != len(scores):
            raise DataError(
                f"{file}: '{named[column][0]}' has {len(array):,} values and '{named['scores'][0]}' {len(scores):,}"
            )
    return SetScores(
        name,
        role,
        -scores if larger_is == "id" else scores,
        labels=_classes(file, arrays.get("labels")),
        predictions=_classes(file, arrays.get("predictions")),
        images=tuple(map(str, arrays["images"])) if "images" in arrays else None,
    ), bool(larger_is)


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


def _vector(file: Path, key: str, found: Mapping[str, Any]) -> NDArray[Any]:
    """(n,) of an array (n,) or (n, 1): names of images, or numbers, none of them NaN."""
    array = np.asarray(found[key])
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    kinds = "OSU" if key in _KEYS["images"] else "biuf"
    missing = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if array.dtype.kind not in kinds or missing or array.ndim != 1 or not array.size:
        raise DataError(
            f"{file}: '{key}' has the shape {array.shape}, the type {array.dtype} and {missing:,} NaN — allowed: (n,), "
            "a number for each sample"
        )
    return array


def _classes(file: Path, array: NDArray[Any] | None) -> NDArray[np.int64] | None:
    """(n,) int64 of whole numbers; None of None."""
    if array is None:
        return None
    whole = array.astype(np.int64)
    if not np.array_equal(array, whole):
        raise DataError(f"{file}: label or pred is no class index — allowed: whole numbers, negative for OOD")
    return whole


def _check_known(arrays: Mapping[Path, SetScores], unsigned: Sequence[str], meaning: Meaning) -> None:
    """Raise one ConfigError with the options that say what the files do not."""
    roles = {file.name: s.labels for file, s in arrays.items() if not s.role}
    if not unsigned and not roles:
        return
    taken = any(s.role == "id_test" for s in arrays.values())
    typed, asked = ["--larger-is ood"] * bool(unsigned), []
    for name, labels in roles.items():
        role = "far" if labels is None or labels.min() < 0 else "csid" if taken else "id_test"
        taken |= role == "id_test"
        typed.append(f"--set {role}={name}")
    if unsigned:
        asked.append(f"whether a larger score is more OOD or more ID (id) in {listed(map(one_line, unsigned), _SHOWN)}")
    if roles:
        sets = f", which are not sets of benchmark '{meaning.benchmark}'" * bool(meaning.benchmark)
        asked.append(f"the role ({', '.join(ROLES)}) of {listed(map(one_line, roles), _SHOWN)}{sets}")
    benchmark = "" if meaning.benchmark or not roles else "; --benchmark NAME tells the roles of its sets"
    raise ConfigError(f"scores do not say {' and '.join(asked)} — add what is right of: {' '.join(typed)}{benchmark}")


def _sets(file: Path, s: SetScores) -> list[SetScores]:
    """The set of a file, or ID test and the OOD set of a file that has both."""
    if not is_words(s.name):
        raise DataError(f"{file}: the name of its set is {one_line(s.name)!r} — allowed: {WORDS}")
    is_id = s.role in ID_ROLES
    wrong = np.zeros(len(s.scores), bool) if s.labels is None else (s.labels < 0) == is_id
    if not wrong.any():
        return [_rows(s, ~wrong, s.role, s.name)]
    if not is_id and not wrong.all():
        return [_rows(s, wrong, "id_test", "id_test"), _rows(s, ~wrong, s.role, s.name)]
    sign = "negative, which means OOD" if is_id else "not negative, which means ID"
    raise DataError(f"{file}: {wrong.sum():,} of {len(wrong):,} labels of the {s.role} set '{s.name}' are {sign}")


def _rows(s: SetScores, rows: NDArray[np.bool_], role: str, name: str) -> SetScores:
    """Some rows as a set; labels and predictions on the ID side only."""
    known = [None if a is None or role not in ID_ROLES else a[rows] for a in (s.labels, s.predictions)]
    labels, predictions = known
    correct = None if labels is None or predictions is None else (labels == predictions).astype(np.float64)
    images = None if s.images is None else tuple(np.asarray(s.images)[rows].tolist())
    return SetScores(name, role, s.scores[rows], correct, labels, predictions=predictions, images=images)


def _distinct(sets: Sequence[SetScores], path: Path) -> list[SetScores]:
    """The sets, each once: several files may have the same ID test scores."""
    found: dict[tuple[str, str], SetScores] = {}
    for s in sets:
        first = found.setdefault((s.role, s.name), s)
        if first is not s and not np.array_equal(first.scores, s.scores):
            raise DataError(f"'{path}' has two sets {s.role}/{s.name} with other scores — keep one of them")
    for role in _SINGLE:
        names = sorted(name for other, name in found if other == role)
        if len(names) > 1:
            raise DataError(f"'{path}' has {len(names)} sets of the role {role}: {', '.join(names)} — allowed: one")
    return list(found.values())


# Files of columns, read by pyarrow; a value that cannot be used is refused with its place.

_TEXTS, _NUMBERS = ("set", "role", "image"), ("score", "label", "prediction")
_REQUIRED, _OPTIONAL = ("score", "set", "role"), ("correct", "label", "prediction", "image")
_PROBABILITY = re.compile(r"p_[0-9]+")
_PLACE = " place"  # column of each row's number in the file, from 0
_MOST = 2**53  # whole numbers up to here are floats
_ROUNDING = 1e-6  # of a probability in float32
_SUM = 0.01  # of a row of probabilities, which may have been written with few digits
_TRUE, _FALSE = ("1", "1.0", "true", "True", "TRUE"), ("0", "0.0", "false", "False", "FALSE")


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
    import pyarrow as pa
    import pyarrow.compute as pc

    readers = {".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(f"'{path}' is not a file of scores — allowed: {', '.join(readers)}")
    if not os.path.isfile(path):
        raise DataError(f"file of scores '{path}' not found")
    try:
        table = readers[path.suffix](path)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read as {path.suffix[1:]} ({reason}) — write the file again") from error
    if not table.num_rows:
        raise DataError(f"{path} has no rows — write one per scored image")
    roles = table.group_by(["role", "set"], use_threads=False).aggregate([])
    sets = []
    for role, name in zip(*(roles[key].to_pylist() for key in ("role", "set")), strict=True):
        of_set = pc.and_(pc.equal(table["role"], role), pc.equal(table["set"], name))
        sets.append(_set_scores(name, role, _Rows(path, table.filter(of_set))))
    return sets


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a set.

    Args:
        path: the file.
        table: the columns that have a meaning here, nulls where nothing stands, and `_PLACE`.
    """

    path: Path
    table: "pa.Table"

    def has(self, name: str) -> bool:
        """Whether the set has any value in a column."""
        return name in self.table.column_names and self.table[name].null_count < self.table.num_rows

    def refuse(self, name: str, bad: NDArray[Any], allowed: str) -> None:
        """Raise a DataError that names the first of the `bad` cells (n,) of a column; without any, do nothing."""
        if not bad.any():
            return
        first, count = int(bad.argmax()), int(bad.sum())
        value = self.table[name][first].as_py()
        written = "empty" if value in (None, "") else f"'{one_line(f'{value:g}' if name not in _TEXTS else value)}'"
        more = f" and {count - 1} more like it" if count > 1 else ""
        raise DataError(f"{self.where(first)}: {name} is {written}{more} — allowed: {allowed}")

    def where(self, row: int) -> str:
        """Return the file and the place of a row, in a text file as an editor counts."""
        place = self.table[_PLACE][row].as_py()
        return f"{self.path}, line {place + 2}" if self.path.suffix == ".csv" else f"{self.path}, row {place}"

    def numbers(
        self, name: str, allowed: str, low: float = -np.inf, high: float = np.inf, whole: bool = False
    ) -> NDArray[np.float64]:
        """(n,) the values of a column, each within bounds and none of them missing."""
        numbers = np.asarray(self.table[name].to_numpy(), np.float64)  # null is NaN
        fits = (numbers >= low) & (numbers <= high)
        self.refuse(name, ~fits | (whole & (numbers != np.floor(numbers))), allowed)
        return numbers

    def indices(self, name: str, classes: int | None = None) -> NDArray[np.int64]:
        """(n,) class indices, below `classes` if that is known."""
        allowed = "a class index ≥ 0" if classes is None else f"a class index from 0 to {classes - 1}"
        return self.numbers(name, allowed, 0, _MOST if classes is None else classes - 1, whole=True).astype(np.int64)


def _set_scores(name: str, role: str, rows: _Rows) -> SetScores:
    every = np.ones(rows.table.num_rows, bool)
    rows.refuse("set", every & (not name.strip()), "a name in every row")
    rows.refuse("set", every & (not name.isprintable()), "a name on one line")
    rows.refuse("role", every & (role not in ROLES), f"one of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
    scores, images = rows.numbers("score", "a number"), None
    if rows.has("image"):
        images = tuple(rows.table["image"].to_pylist())
        rows.refuse("image", np.array([not image for image in images]), "a name in every row of a set, or in none")
    if role not in ID_ROLES:
        return SetScores(name, role, scores, images=images)
    probabilities = _probabilities(name, role, rows)
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


def _probabilities(name: str, role: str, rows: _Rows) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    names = [f"p_{k}" for k in range(sum(map(_is_probability, rows.table.column_names)))]
    present = [rows.has(column) for column in names]
    if not any(present):
        return None
    if not all(present):
        raise DataError(f"{rows.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    allowed, ends = "a probability from 0 to 1", (-_ROUNDING, 1 + _ROUNDING)
    probabilities = np.stack([rows.numbers(column, allowed, *ends) for column in names], axis=1)
    sums = probabilities.sum(axis=1)
    bad = np.abs(sums - 1.0) > _SUM
    if bad.any():
        first = int(bad.argmax())
        raise DataError(
            f"{rows.where(first)}: {names[0]} … {names[-1]} have a sum of {sums[first]:.6g} — allowed: class "
            "probabilities, which sum to 1"
        )
    return probabilities


def _is_probability(name: str) -> bool:
    return _PROBABILITY.fullmatch(name) is not None


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
    classes = [name for name in names if _is_probability(name)]
    if {*classes} != {f"p_{k}" for k in range(len(classes))}:
        raise DataError(f"{path}: the columns must be p_0 … p_{{c-1}} without a gap — found {', '.join(classes)}")
    for name in (*_REQUIRED, *_OPTIONAL, *classes):
        if names.count(name) > 1:
            raise DataError(f"{path} has the column '{name}' {names.count(name)} times — keep one column of each name")
        if name in names:
            yield name, pa.string() if name in _TEXTS else pa.float64()


def _typed(table: "pa.Table", path: Path) -> "pa.Table":
    """The columns that have a meaning here; whole numbers that no float64 holds are an error."""
    import pyarrow as pa

    columns = {name: table[name].cast(kind) for name, kind in _known(table.column_names, path)}
    columns |= {name: columns[name].fill_null("") for name in ("set", "role")}
    return pa.table({**columns, _PLACE: pa.array(np.arange(table.num_rows))})


def _parquet(path: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    # Not `read_table`, which would take a folder called `set=x` for a column. Checksums are compared if it has any.
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        table = file.read(columns=[name for name in names if name in (*_REQUIRED, *_OPTIONAL) or _is_probability(name)])
    table.validate(full=True)
    return _typed(table, path)


def _csv(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    content = path.read_bytes()
    if content.count(b'"') % 2:  # an open quote swallows the rows up to the next one
        raise DataError(f"{path}: a quote is not closed — write the file again")
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.float64()) | {"correct": pa.bool_()}
    # Nothing but an empty cell is taken for a missing value: a set may be called NA.
    convert = csv.ConvertOptions(column_types=types, null_values=[""], true_values=_TRUE, false_values=_FALSE)
    parse = csv.ParseOptions(newlines_in_values=b'"' in content)
    options = csv.ReadOptions(use_threads=False)  # so that errors name the row
    table = _typed(csv.read_csv(pa.BufferReader(content), options, parse, convert), path)
    # Spreadsheets leave rows of nothing but commas.
    texts = pc.binary_join_element_wise(table["set"], table["role"], "")
    return table.filter(pc.or_(pc.not_equal(texts, ""), table["score"].is_valid()))
