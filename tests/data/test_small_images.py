"""MNIST, FashionMNIST and notMNIST: manifests against the official label files, where these are found."""

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data.build import build_benchmark
from openbench.data.manifests import load_classes, load_manifest

from .conftest import write_idx
from .opened import open_split

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


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_training_and_validation_images_differ(name):
    assert not set(load_manifest(f"{name}/train").keys) & set(load_manifest(f"{name}/val").keys)


def test_fashion_mnist_classes_are_those_of_torchvision():
    from openbench._compat import library

    names = library("torchvision.datasets").FashionMNIST.classes
    ours = [c.replace("_", " ") for c in load_classes("fashion_mnist/classes")]
    assert ours == [n.lower().replace("-", " ").replace("/", " ") for n in names]


def numbered(count):
    """Images (28, 28) that differ, each showing its number: packed in a tenth of the time that noise takes."""
    pixels = np.zeros((count, 28, 28), np.uint8)
    pixels[:, 3, 4], pixels[:, 5, 6] = np.divmod(np.arange(count), 256)
    return pixels


@pytest.fixture(scope="module")
def fashion(tmp_path_factory):
    """A folder with the files of the test part, their images numbered."""
    folder = tmp_path_factory.mktemp("fashion")
    index = {name: label for label, name in enumerate(load_classes("fashion_mnist/classes"))}
    labels = [index[c] for c in load_manifest("fashion_mnist/test").classes]
    write_idx(folder, "t10k", numbered(10_000), labels, packed=True)
    return folder


@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "fashion-mnist", "."])
def test_fashion_mnist_is_found_as_torchvision_and_debian_lay_it_out(folder, root, composed, fashion):
    node = composed("+benchmark=fashion_mnist")["id"]["test"]
    shutil.copytree(fashion, root / folder, dirs_exist_ok=True)
    split = open_split(node, Role.ID_TEST, load_classes("fashion_mnist/classes"))
    assert split.deviations == ()
    np.testing.assert_array_equal(split.items[777], numbered(778)[777])


def test_mnist_files_are_not_taken_for_fashion_mnist(root, composed):
    """Both have the same file names; where the folder does not tell them apart, the labels do."""
    from openbench.errors import DataError

    labels = [int(c) for c in load_manifest("mnist/test").classes]
    write_idx(root, "t10k", numbered(10_000), labels, packed=True)
    node = composed("+benchmark=fashion_mnist")["id"]["test"]
    with pytest.raises(DataError, match="incomplete"):
        open_split(node, Role.ID_TEST, load_classes("fashion_mnist/classes"))


def test_fashion_mnist_is_complete_where_its_sets_are(composed):
    for name, prefix in (("fashion_mnist", "train"), ("mnist", "t10k"), ("notmnist", "t10k")):
        images, _ = official(name, prefix)
    bench = build_benchmark(composed("+benchmark=fashion_mnist", "benchmark.incomplete=allow"))
    assert len(bench.id_train) == 55_000
    assert {name: len(split) for name, split in bench.near.items()} == {"mnist": 10_000, "notmnist": 10_000}
    np.testing.assert_array_equal(bench.near["notmnist"].items[9_999], images[9_999])
    assert not [text for text in bench.deviations if "mnist" in text]


@pytest.mark.slow
def test_lsun_is_every_file_of_its_folder(root, composed):
    node = composed("+benchmark=cifar10_autc")["far"]["lsun"]
    folder = root / "LSUN_resize"
    folder.mkdir()
    (folder / "0.jpg").touch()
    for i in range(1, 10_000):
        os.link(folder / "0.jpg", folder / f"{i}.jpg")  # a quarter of the time that new files take
    from openbench.data.dataset import SetConfig, locate

    found = locate(SetConfig.from_node(node, "benchmark.far.lsun"))
    assert (found.count, found.wanted) == (10_000, 10_000)
    assert found.found.items.files[0] == str(folder / "0.jpg")
