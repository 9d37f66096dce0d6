"""Keys and labels against the real sets, read a second time by other means; each test skips if its set is missing."""

import gzip
import os

import numpy as np
import pytest

from openbench._compat import library
from openbench.core.request import Role
from openbench.data.build import build_benchmark
from openbench.data.checking.verify import verify_benchmark
from openbench.data.dataset import BenchmarkSet, SetConfig, locate
from openbench.data.manifests import load_classes, load_manifest


@pytest.fixture
def present(real_data):
    def path(name):
        if not (real_data / name).exists():
            pytest.skip(f"{real_data / name} is missing")
        return real_data / name

    return path


def test_cifar10_has_no_image_on_two_sides_but_the_known_one(composed, present):
    for name in ("cifar-10-batches-py", "cifar-100-python", "tin/val/images"):
        present(name)
    node = composed("+benchmark=cifar10")
    node["id"]["train"]["limit"] = 5000  # the others were compared once; their list has not changed since
    bench = build_benchmark({**node, "incomplete": "allow"})
    report = verify_benchmark(bench)
    assert report.ok, report
    (known,) = report.known
    assert known.endswith(" share 1 identical images: cifar10/test/automobile/0933.png = cifar100/test/bus/0019.png")
    assert (len(bench.id_train), len(bench.id_val), len(bench.id_test)) == (5_000, 1_000, 9_000)
    assert (len(bench.ood_val), len(bench.near["cifar100"]), len(bench.near["tin"])) == (1_000, 9_000, 7_793)


PARTS = {"train": ("train", 0, 55_000), "val": ("train", 55_000, 60_000), "test": ("t10k", 0, 10_000)}
FOLDERS = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw", "notmnist": "notMNIST/raw"}


@pytest.fixture
def official(real_data):
    """The official labels, or a skip that says what is missing."""

    def labels(name, prefix):
        file = real_data / FOLDERS[name] / f"{prefix}-labels-idx1-ubyte.gz"
        if not file.is_file():
            pytest.skip(f"{file} is missing")
        return np.frombuffer(gzip.decompress(file.read_bytes())[8:], np.uint8)

    return labels


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_the_official_labels_in_the_official_order(name, part, official):
    prefix, start, stop = PARTS[part]
    manifest, classes = load_manifest(f"{name}/{part}"), load_classes(f"{name}/classes")
    assert len(manifest) == stop - start
    assert [classes.index(c) for c in manifest.classes] == official(name, prefix)[start:stop].tolist()


def test_notmnist_has_the_labels_of_its_file(official):
    manifest, classes = load_manifest("notmnist/test"), load_classes("notmnist/classes")
    assert (len(manifest), classes) == (10_000, tuple("ABCDEFGHIJ"))
    assert [classes.index(c) for c in manifest.classes] == official("notmnist", "t10k").tolist()


def test_fashion_mnist_classes_are_those_of_torchvision():
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
    where = "benchmark.far.lsun"
    found = locate(BenchmarkSet(where, Role.FAR, SetConfig.from_node(node, where)))
    assert (found.found, found.expected) == (10_000, 10_000)
    assert found.images.items.files[0] == str(folder / "0.jpg")
