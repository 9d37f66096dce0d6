"""Files of scores in every format: columns, OpenOOD's `.npz`, pytorch-ood's `.pt`, single arrays; or a folder of them.

Arrays do not say which set they belong to nor, except for OpenOOD's `conf`, what a larger score means. What a file does
not say is asked for and never guessed.
"""

import os
import pickle
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.names import WORDS, is_words
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, DataError, OpenbenchError, available, did_you_mean, listed
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line
from openbench.results.scores.cells import ID_ROLES, read_sets
from openbench.storage.array_file import open_arrays

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
                f"{file}: '{named[column][0]}' has {len(array):,} values and '{named['scores'][0]}' {len(scores):,} — "
                "one of each is needed for every sample"
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
