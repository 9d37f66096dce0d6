"""Keys and labels against the real sets, read a second time by other means; each test skips if its set is missing."""

import gzip
import os
import pickle
import re

import numpy as np
import pytest

from openbench._compat import library
from openbench.data.build import build_benchmark
from openbench.data.checking.verify import verify_benchmark
from openbench.data.dataset import SetConfig, locate
from openbench.data.manifests import load_classes, load_manifest
from openbench.data.sources.archives import CifarPickles, IdxFiles

CIFAR100 = {
    "folder": "cifar-100-python",
    "train": ["train"],
    "test": ["test"],
    "label_key": "fine_labels",
    "meta": "meta",
    "names_key": "fine_label_names",
}


@pytest.fixture
def present(real_data):
    def path(name):
        if not (real_data / name).exists():
            pytest.skip(f"{real_data / name} is missing")
        return real_data / name

    return path


def by_hand(*paths):
    contents = [pickle.loads(path.read_bytes(), encoding="bytes") for path in paths]
    data = np.concatenate([c[b"data"] for c in contents])
    labels = np.concatenate([c.get(b"labels", c.get(b"fine_labels")) for c in contents])
    # The planes of red, green and blue follow each other.
    return np.stack([data[:, :1024], data[:, 1024:2048], data[:, 2048:]], axis=-1).reshape(-1, 32, 32, 3), labels


@pytest.mark.parametrize(
    ("source", "name", "files"),
    [
        (CifarPickles(), "cifar10/val", ["test_batch"]),
        (CifarPickles(), "cifar10/test", ["test_batch"]),
        (CifarPickles(), "cifar10/train", [f"data_batch_{i}" for i in range(1, 6)]),
        (CifarPickles(**CIFAR100), "cifar100/near_cifar10", ["test"]),
    ],
)
def test_a_cifar_key_is_the_nth_of_its_class(source, name, files, present):
    folder, manifest = present(source.folder), load_manifest(name)
    pixels, labels = by_hand(*(folder / file for file in files))
    classes = pickle.loads((folder / source.meta).read_bytes(), encoding="latin1")[source.names_key]
    found = source.find(folder, manifest.keys)
    assert found.present.all()
    for position in range(0, len(manifest), 97):
        class_name, number = re.fullmatch(r".*/([^/]+)/(\d+)\.png", manifest.keys[position]).groups()
        row = np.flatnonzero(labels == classes.index(class_name))[int(number) - 1]
        np.testing.assert_array_equal(found.items[position], pixels[row])


def test_mnist_test_keys_are_rows_and_every_label_agrees(present):
    folder = present("MNIST/raw")
    raw = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(raw[16:], np.uint8).reshape(-1, 28, 28)
    keys = [key for key in load_manifest("mnist/all").keys if key.startswith("mnist/test/")]
    found = IdxFiles(at=["MNIST/raw"]).find(folder, keys)
    assert found.count == len(keys) == 10_000
    for position in range(0, 10_000, 97):
        row = int(re.fullmatch(r".*_(\d+)\.jpg", keys[position])[1])
        np.testing.assert_array_equal(found.items[position], pixels[row])


def test_cifar10_has_no_image_on_two_sides_but_the_known_one(composed, present):
    for name in ("cifar-10-batches-py", "cifar-100-python", "tin/val/images"):
        present(name)
    bench = build_benchmark(composed("+benchmark=cifar10", "benchmark.incomplete=allow"))
    report = verify_benchmark(bench)
    assert report.ok, report
    assert [pair for shared in report.known for pair in shared.pairs] == [
        ("cifar10/test/automobile/0933.png", "cifar100/test/bus/0019.png")
    ]
    assert (len(bench.id_train), len(bench.id_val), len(bench.id_test)) == (50_000, 1_000, 9_000)
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
    found = locate(SetConfig.from_node(node, "benchmark.far.lsun"))
    assert (found.count, found.expected) == (10_000, 10_000)
    assert found.found.items.files[0] == str(folder / "0.jpg")
