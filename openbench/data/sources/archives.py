"""Sources of sets in a few files: CIFAR pickles, MNIST's idx files, `.npz` packs, SVHN's `.mat`."""

import gzip
import io
import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.data.sources.base import FoundImages, Source, rows_found
from openbench.errors import DataError
from openbench.storage.array_file import reading

_CACHED = 8  # containers in memory: splits of one run share a container, which is read once
# What pickles of dicts, lists, bytes and NumPy arrays need, and nothing else; some are from the time of Python 2.
_ALLOWED = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "numpy._core.multiarray" for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "numpy._core.numeric" for core in ("core", "_core")},
    ("numpy", "ndarray"): "numpy",
    ("numpy", "dtype"): "numpy",
    ("_codecs", "encode"): "_codecs",
}


@dataclass(frozen=True)
class CifarPickles(Source):
    """CIFAR-10 or CIFAR-100 as distributed: pickles of (n, 3072) pixels and labels, in torchvision's layout.

    Keys are `<any>/<train or test>/<class>/<number>.png`; the number counts the pictures of that class in file order,
    from 1.

    Args:
        folder: e.g. `cifar-10-batches-py`.
        train: the training files, in order.
        test: the test files, in order.
        label_key: `labels` or `fine_labels`.
        meta: file with the class names.
        names_key: `label_names` or `fine_label_names`.
    """

    folder: str = "cifar-10-batches-py"
    train: Sequence[str] = tuple(f"data_batch_{i}" for i in range(1, 6))
    test: Sequence[str] = ("test_batch",)
    label_key: str = "labels"
    meta: str = "batches.meta"
    names_key: str = "label_names"

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the folder below each root."""
        return [root / self.folder for root in roots]

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys' rows; a part (train or test) is there only if all its files are."""
        parsed = [_parsed(key) for key in keys]
        parts = {part for part, _, _ in parsed} & {"train", "test"}
        files = [place / name for name in (self.train if parts == {"train"} else self.test)]
        if len(parts) != 1 or not all(file.is_file() for file in (place / self.meta, *files)):
            return None
        pixels, labels = _cifar(tuple(files), self.label_key)
        names: Any = load_pickle(place / self.meta).get(self.names_key)
        known = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not known or labels.max(initial=-1) >= len(names):
            raise DataError(f"'{place / self.meta}': `{self.names_key}` does not name every class — get the file again")
        row_of: dict[tuple[str, int], int] = {}
        count: dict[int, int] = defaultdict(int)
        for row, label in enumerate(labels.tolist()):
            count[label] += 1
            row_of[names[label], count[label]] = row
        return rows_found(pixels, row_of, ((name, number) for _, name, number in parsed))


@dataclass(frozen=True)
class IdxFiles(Source):
    """MNIST-style idx files, gzipped or not. Keys are `<any>/<train or test>/<label>_<row>.jpg`, rows from 0.

    Rules name a folder per class, so the keys `<any>/<train or test>/<label>/<label>_<row>.jpg` are the same images.
    The labels are then read from the files; no list of them is needed.

    Args:
        at: folders below each root.
        parts: part named in the key → prefix of its two files.
    """

    at: Sequence[str]
    parts: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "t10k"})

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys' rows in the parts whose files are there."""
        blocks: list[NDArray[np.uint8]] = []
        row_of: dict[tuple[str, str], int] = {}
        for part in self.parts:
            if opened := self._open(place, part):
                start = sum(map(len, blocks))
                row_of |= {(part, f"{label}_{row}"): start + row for row, label in enumerate(opened[1].tolist())}
                blocks.append(opened[0])
        if not blocks:
            return None
        pixels = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return rows_found(pixels, row_of, map(self._image, keys))

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """The names of a class's images, for `<any>/<train or test>/<label>`; none for other folders."""
        part, _, label = folder.rpartition("/")
        opened = self._open(place, part.rpartition("/")[2])
        if opened is None or not label.isdigit():
            return ()
        return (f"{label}_{row}.jpg" for row in np.flatnonzero(opened[1] == int(label)).tolist())

    def _open(self, place: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
        """The images and labels of a part; None where a file is missing."""
        prefix = self.parts.get(part)
        images = prefix and _idx_file(place, f"{prefix}-images-idx3-ubyte")
        labels = prefix and _idx_file(place, f"{prefix}-labels-idx1-ubyte")
        if not images or not labels:
            return None
        pixels, digits = _idx(images, 3), _idx(labels, 1)
        if len(pixels) != len(digits):
            raise DataError(f"'{images}' has {len(pixels)} images, '{labels}' {len(digits)} labels — get both again")
        return pixels, digits

    def _image(self, key: str) -> tuple[str, str]:
        """The part and the name of an image, with or without a folder for its class."""
        *folders, name = key.rpartition(".")[0].split("/")
        by_class = len(folders) > 1 and folders[-1] == name.partition("_")[0] and folders[-1] not in self.parts
        return (folders[-2] if by_class else folders[-1]) if folders else "", name


@dataclass(frozen=True)
class NpzPack(Source):
    """An `.npz` file with `images` (n, h, w[, 3]) uint8 and `paths` (n,), the keys.

    Args:
        file: path below each root.
    """

    file: str

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the file below each root."""
        return [root / self.file for root in roots]

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys among `paths`."""
        if not place.is_file():
            return None
        pixels, paths = _npz(place)
        return rows_found(pixels, {path: row for row, path in enumerate(paths)}, keys)


@dataclass(frozen=True)
class SvhnMat(Source):
    """SVHN's `test_32x32.mat`. Keys are `<any>/<part>/<number>_<digit>.jpg`, numbers from 1.

    Args:
        at: folders below each root.
    """

    at: Sequence[str] = ("svhn", "SVHN", ".")

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the test file in each folder below each root."""
        return [root / folder / "test_32x32.mat" for root in roots for folder in self.at]

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys' rows."""
        if not place.is_file():
            return None
        pixels, digits = _mat(place)
        row_of = {f"{row + 1}_{digit}": row for row, digit in enumerate(digits.tolist())}
        return rows_found(pixels, row_of, (PurePath(key).stem.lstrip("0") for key in keys))


def _parsed(key: str) -> tuple[str, str, int]:
    """Part, class and number of a key; −1 for a name that is not a number."""
    part, name, file = ["", "", *key.split("/")][-3:]
    number = file.rsplit(".", 1)[0]  # by hand: there are as many keys as images
    return part, name, int(number) if number.isdigit() else -1


@lru_cache(maxsize=_CACHED)
def _cifar(files: tuple[Path, ...], label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, labels = [], []
    for path in files:
        content = load_pickle(path)
        rows: Any = content.get("data")
        values: Any = content.get(label_key)
        known = isinstance(values, list) and all(type(label) is int and label >= 0 for label in values)
        if not known or not isinstance(rows, np.ndarray) or (rows.dtype, rows.shape) != (np.uint8, (len(values), 3072)):
            raise DataError(f"'{path}': `data` is not uint8 (n, 3072), or `{label_key}` not n numbers — get it again")
        pixels.append(rows.reshape(-1, 3, 32, 32))
        labels.append(np.asarray(values, dtype=np.int64))
    # A view: the bytes stay planar, as they are in the file.
    return np.concatenate(pixels).transpose(0, 2, 3, 1), np.concatenate(labels)


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


@lru_cache(maxsize=_CACHED)
def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    with reading(path, "get it again"):
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            raw = stream.read()
        # Two zero bytes, the type (8 = uint8), the number of axes, then the axes as big-endian numbers of 32 bits.
        if raw[:4] != bytes((0, 0, 8, axes)):
            raise ValueError(f"it does not hold bytes along {axes} axes")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(np.frombuffer(raw, ">u4", axes, 4).tolist())


@lru_cache(maxsize=_CACHED)
def _npz(path: Path) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    arrays = read_npz(path, ("images", "paths"))
    pixels, paths = (arrays.get(name, np.zeros(0)) for name in ("images", "paths"))
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or paths.shape != pixels.shape[:1]:
        shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items()) or "neither"
        raise DataError(f"'{path}' has {shapes} — write `images` uint8 (n, h, w[, 3]) and `paths` (n,)")
    return pixels, tuple(map(str, paths))


@lru_cache(maxsize=_CACHED)
def _mat(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from scipy.io import loadmat

    with reading(path, "get the file again"):
        content: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
        pixels, digits = content["X"], content["y"].reshape(-1).astype(np.int64)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape != (32, 32, 3, len(digits)):
        raise DataError(f"'{path}': X is {pixels.dtype} {pixels.shape}, y {digits.shape} — uint8 (32, 32, 3, n), (n,)")
    # The file writes the digit 0 as 10.
    return pixels.transpose(3, 0, 1, 2), digits % 10


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(_ALLOWED[module, name], name)


def load_pickle(path: Path) -> dict[str, Any]:
    """Return the mapping in a pickle that holds dicts, lists, text, numbers and numeric arrays only.

    Raises:
        DataError: the file is cut off, is not a pickle, is not a mapping, or names anything that could run code.
    """
    with reading(path, "get it again"):
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    if not isinstance(content, dict):
        raise DataError(f"pickle '{path}' holds a {type(content).__name__}, not a dict — get the file again")
    return content


def read_npz(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return those of the arrays `names` that a file has.

    Raises:
        DataError: no such file, one that cannot be read, or arrays of Python objects.
    """
    with reading(path, "write it with numpy.savez"), np.load(path, allow_pickle=False) as pack:
        return {n: array for n in names if n in pack.files and isinstance(array := pack[n], np.ndarray)}
