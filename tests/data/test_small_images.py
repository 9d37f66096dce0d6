"""MNIST, FashionMNIST and notMNIST: manifests against the official label files, where these are found."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from openbench.data.manifests import load_classes, load_manifest

PARTS = {"train": ("train", 0, 55_000), "val": ("train", 55_000, 60_000), "test": ("t10k", 0, 10_000)}
FOLDERS = {
    "mnist": ("MNIST/raw", "mnist/MNIST/raw"),
    "fashion_mnist": ("FashionMNIST/raw", "fashion-mnist", "."),
    "notmnist": ("notMNIST/raw",),
}


def official(name, prefix):
    """The raw bytes of images and labels, or a skip that says what is missing."""
    roots = [Path(part) for part in os.environ.get("OPENBENCH_DATA", "").split(os.pathsep) if part]
    for folder in (root / below for root in roots for below in FOLDERS[name]):
        files = [folder / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        if all(file.is_file() for file in files):
            images, labels = (gzip.decompress(file.read_bytes()) for file in files)
            return np.frombuffer(images[16:], np.uint8).reshape(-1, 28, 28), np.frombuffer(labels[8:], np.uint8)
    pytest.skip(f"{name}: {prefix}-images-idx3-ubyte.gz and its labels are not below OPENBENCH_DATA")


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_the_official_labels_in_the_official_order(name, part):
    prefix, start, stop = PARTS[part]
    manifest, classes = load_manifest(f"{name}/{part}"), load_classes(f"{name}/classes")
    assert len(manifest) == stop - start
    _, labels = official(name, prefix)
    assert [classes.index(c) for c in manifest.classes] == labels[start:stop].tolist()


def test_notmnist_has_the_labels_of_its_file():
    manifest, classes = load_manifest("notmnist/test"), load_classes("notmnist/classes")
    assert (len(manifest), classes) == (10_000, tuple("ABCDEFGHIJ"))
    _, labels = official("notmnist", "t10k")
    assert [classes.index(c) for c in manifest.classes] == labels.tolist()


def test_fashion_mnist_classes_are_those_of_torchvision():
    from openbench._compat import library

    names = library("torchvision.datasets").FashionMNIST.classes
    ours = [c.replace("_", " ") for c in load_classes("fashion_mnist/classes")]
    assert ours == [n.lower().replace("-", " ").replace("/", " ") for n in names]


def test_lsun_is_every_file_of_its_folder(root, composed):
    node = composed("+benchmark=cifar10_autc")["far"]["lsun"]
    folder = root / "LSUN_resize"
    folder.mkdir()
    (folder / "0.jpg").touch()
    for i in range(1, 10_000):
        os.link(folder / "0.jpg", folder / f"{i}.jpg")  # a quarter of the time that new files take
    from openbench.data.dataset import SetConfig, locate

    found = locate(SetConfig.from_node(node, "benchmark.far.lsun"))
    assert (found.count, found.expected) == (10_000, 10_000)
    assert found.found.items.files[0] == str(folder / "0.jpg")
