import copy
import gzip
import pickle
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image as Pillow

from openbench.compose.config import compose


def noisy(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_image(path: Path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.fromarray(pixels).save(path, **options)


def write_cifar(folder: Path, labels_by_file: dict[str, list[int]], names: list[str]):
    """CIFAR-style pickles; returns the pixels (n, 32, 32, 3) by file."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = {}
    for seed, (file, labels) in enumerate(labels_by_file.items()):
        planar = noisy((len(labels), 3, 32, 32), seed)
        content = {"data": planar.reshape(len(labels), 3072), "labels": labels}
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
        pixels[file] = np.moveaxis(planar, 1, 3)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    return pixels


def write_idx(folder: Path, prefix: str, images, labels, packed: bool):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
        array = np.asarray(array, np.uint8)
        raw = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(raw))
        else:
            (folder / name).write_bytes(raw)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """A cache folder of the test's own: what is known of a user's files is noted there."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("OPENBENCH_CACHE", str(folder))
    return folder


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """An empty data folder, the only one searched apart from an empty ./data."""
    folder = tmp_path / "images"
    folder.mkdir()
    monkeypatch.setenv("OPENBENCH_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def manifest(tmp_path):
    """Write a list of images, given as numbers by class, and return the name under which it loads."""

    def write(key: str, name: str = "set", **numbers) -> str:
        rows = [f"{key.format(label=label, n=n)},{label}" for label, chosen in numbers.items() for n in chosen]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["path,label", *rows]))
        return str(path)

    return write


@pytest.fixture
def composed(composed_whole):
    """Compose a benchmark node."""
    return lambda *overrides: composed_whole(*overrides)["benchmark"]


@pytest.fixture
def composed_whole():
    """Compose a config."""
    return lambda *overrides: copy.deepcopy(_composed(*overrides))


@lru_cache(maxsize=256)
def _composed(*overrides):
    """Once in a process."""
    cfg = compose("run", overrides)
    return OmegaConf.to_container(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]), resolve=True)
