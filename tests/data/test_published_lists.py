"""The manifests against the image lists that OpenOOD v1.5 published, where these are found under OPENBENCH_DATA."""

import re
from collections import Counter
from itertools import groupby

import pytest

from openbench.core.benchmark import canonical
from openbench.data.manifests import load_classes, load_manifest

LISTS = {
    "cifar10/train": "train_cifar10",
    "cifar10/val": "val_cifar10",
    "cifar10/test": "test_cifar10",
    "cifar100/near_cifar10": "test_cifar100",
    "tiny_imagenet/near_cifar10": "test_tin",
    "tiny_imagenet/val_cifar10": "val_tin",
    "mnist/all": "test_mnist",
    "svhn/test": "test_svhn",
    "texture/all": "test_texture",
    "places365/far_cifar10": "test_places365",
    "cifar10c/test": "test_cifar10c",
}
# Counts and numbers of classes that the benchmark's documentation states.
COUNTS = {
    "cifar10/train": (50_000, 10),
    "cifar10/val": (1_000, 10),
    "cifar10/test": (9_000, 10),
    "cifar100/near_cifar10": (9_000, 100),
    "tiny_imagenet/near_cifar10": (7_793, 160),
    "tiny_imagenet/val_cifar10": (1_000, 20),
    "mnist/all": (70_000, 10),
    "svhn/test": (26_032, 10),
    "texture/all": (5_640, 47),
    "places365/far_cifar10": (35_195, 365),
    "cifar10c/test": (10_000, 10),
}


@pytest.fixture
def published(real_data):
    def read(name):
        path = real_data / "imglists/cifar10" / f"{name}.txt"
        if not path.is_file():
            pytest.skip(f"published list {path} is missing")
        return [line.split(" ") for line in path.read_text().splitlines()]

    return read


@pytest.mark.parametrize(("name", "counts"), COUNTS.items())
def test_a_manifest_has_the_documented_counts(name, counts):
    manifest = load_manifest(name)
    assert (len(manifest), len(manifest.class_names())) == counts


@pytest.mark.parametrize(("name", "published_name"), LISTS.items())
def test_a_manifest_lists_the_published_images(name, published_name, published):
    assert Counter(load_manifest(name).keys) == Counter(path for path, _ in published(published_name))


def test_the_training_images_come_in_the_published_order(published):
    manifest = load_manifest("cifar10/train")
    assert list(manifest.keys) == [path for path, _ in published("train_cifar10")]
    starts = [name for name, _ in groupby(manifest.classes)]
    assert starts == ["cat", "dog", "truck", "bird", "airplane", "ship", "frog", "horse", "deer", "automobile"]


@pytest.mark.parametrize("name", ["cifar10/train", "cifar10/val", "cifar10/test", "cifar10c/test"])
def test_labels_of_id_images_are_the_published_ones(name, published):
    manifest, classes = load_manifest(name), load_classes("cifar10/classes")
    stated = dict(published(LISTS[name]))
    assert {k: classes.index(c) for k, c in zip(manifest.keys, manifest.classes, strict=True)} == {
        k: int(v) for k, v in stated.items()
    }


@pytest.mark.parametrize("name", ["cifar100/near_cifar10", "texture/all", "places365/far_cifar10"])
def test_the_class_of_an_ood_image_is_its_folder(name):
    manifest = load_manifest(name)
    assert all(key.split("/")[-2] == c for key, c in zip(manifest.keys, manifest.classes, strict=True))


def test_the_class_of_a_digit_is_in_its_file_name():
    for name, pattern in (("mnist/all", r".*/(\d)_\d+\.jpg"), ("svhn/test", r".*/\d+_(\d)\.jpg")):
        manifest = load_manifest(name)
        assert [re.fullmatch(pattern, key)[1] for key in manifest.keys] == list(manifest.classes)


def test_tiny_imagenet_classes_are_those_of_its_annotations(real_data):
    folder = real_data / "tin"
    if not (folder / "val/val_annotations.txt").is_file():
        pytest.skip(f"{folder}/val/val_annotations.txt is missing")
    words = dict(line.split("\t", 1) for line in (folder / "words.txt").read_text().splitlines())
    annotated = dict(line.split("\t")[:2] for line in (folder / "val/val_annotations.txt").read_text().splitlines())
    for name in ("tiny_imagenet/near_cifar10", "tiny_imagenet/val_cifar10"):
        manifest = load_manifest(name)
        expected = [words[annotated[key.split("/")[-1]]].split(",")[0] for key in manifest.keys]
        assert expected == list(manifest.classes)


def test_validation_and_test_images_differ_and_make_up_the_official_test_set():
    val, test = set(load_manifest("cifar10/val").keys), set(load_manifest("cifar10/test").keys)
    official = {f"cifar10/test/{c}/{i:04d}.png" for c in load_classes("cifar10/classes") for i in range(1, 1001)}
    assert not val & test
    assert val | test == official


def test_the_overlap_of_ood_validation_and_cifar100_is_exactly_the_one_named():
    names = [
        {canonical(c) for c in load_manifest(name).class_names()}
        for name in ("tiny_imagenet/val_cifar10", "cifar100/near_cifar10")
    ]
    assert names[0] & names[1] == {"chimpanzee", "mushroom"}


def test_the_few_leftover_images_that_resemble_id_classes_are_as_documented():
    counts = Counter(load_manifest("tiny_imagenet/near_cifar10").classes)
    assert {c: counts[c] for c in ("moving van", "limousine", "Egyptian cat", "tabby")} == {
        "moving van": 3, "limousine": 3, "Egyptian cat": 1, "tabby": 1,
    }  # fmt: skip
