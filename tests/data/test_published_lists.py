"""The manifests against OpenOOD v1.5's image lists, where these are found; class names against other packages."""

from collections import Counter
from importlib.resources import files

import pytest

from openbench._compat import library
from openbench.data.manifests import load_classes, load_manifest

# The published list of each manifest.
PUBLISHED = {
    "cifar10/train": "cifar10/train_cifar10", "cifar10/val": "cifar10/val_cifar10",
    "cifar10/test": "cifar10/test_cifar10", "cifar100/near_cifar10": "cifar10/test_cifar100",
    "tiny_imagenet/near_cifar10": "cifar10/test_tin", "tiny_imagenet/val_cifar10": "cifar10/val_tin",
    "mnist/all": "cifar10/test_mnist", "svhn/test": "cifar10/test_svhn", "texture/all": "cifar10/test_texture",
    "places365/far_cifar10": "cifar10/test_places365", "cifar10c/test": "cifar10/test_cifar10c",
    "cifar100/train": "cifar100/train_cifar100", "cifar100/val": "cifar100/val_cifar100",
    "cifar100/test": "cifar100/test_cifar100", "cifar10/near_cifar100": "cifar100/test_cifar10",
    "tiny_imagenet/near_cifar100": "cifar100/test_tin", "tiny_imagenet/val_cifar100": "cifar100/val_tin",
    "places365/far_cifar100": "cifar100/test_places365", "imagenet1k/val": "imagenet/val_imagenet",
    "imagenet1k/test": "imagenet/test_imagenet", "imagenet200/val": "imagenet200/val_imagenet200",
    "imagenet200/test": "imagenet200/test_imagenet200", "imagenet_v2/imagenet1k": "imagenet/test_imagenet_v2",
    "imagenet_v2/imagenet200": "imagenet200/test_imagenet200_v2", "imagenet_c/imagenet1k": "imagenet/test_imagenet_c",
    "imagenet_c/imagenet200": "imagenet200/test_imagenet200_c", "imagenet_r/all": "imagenet/test_imagenet_r",
    "ssb_hard/all": "imagenet/test_ssb_hard", "ninco/all": "imagenet/test_ninco",
    "inaturalist/all": "imagenet/test_inaturalist", "openimage_o/test": "imagenet/test_openimage_o",
    "openimage_o/val": "imagenet/val_openimage_o", "texture/far_imagenet": "imagenet/test_textures",
}  # fmt: skip
# Class list: the manifests of ID images whose labels count it.
LABELLED = {
    "cifar10": ("cifar10/train", "cifar10/val", "cifar10/test", "cifar10c/test"),
    "cifar100": ("cifar100/train", "cifar100/val", "cifar100/test"),
    "imagenet1k": [f"imagenet{part}" for part in ("1k/val", "1k/test", "_v2/imagenet1k", "_c/imagenet1k", "_r/all")],
    "imagenet200": ("imagenet200/val", "imagenet200/test", "imagenet_v2/imagenet200", "imagenet_c/imagenet200"),
}


@pytest.fixture
def published(real_data):
    def read(name):
        path = real_data / "imglists" / f"{name}.txt"
        if not path.is_file():
            pytest.skip(f"published list {path} is missing")
        return [line.split(" ") for line in path.read_text().splitlines()]

    return read


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_manifest_lists_the_published_images(name, published):
    assert Counter(load_manifest(name).keys) == Counter(path for path, _ in published(PUBLISHED[name]))


@pytest.mark.parametrize(("of", "name"), [(of, name) for of, names in LABELLED.items() for name in names])
def test_labels_of_id_images_are_the_published_ones(of, name, published):
    manifest, index = load_manifest(name), {c: i for i, c in enumerate(load_classes(f"{of}/classes"))}
    stated = {path: int(label) for path, label in published(PUBLISHED[name])}
    assert {k: index[c] for k, c in zip(manifest.keys, manifest.classes, strict=True)} == stated


def test_imagenet_wnids_are_those_that_timm_lists_in_label_order():
    library("timm")
    listed = (files("timm.data") / "_info/imagenet_synsets.txt").read_text().split()
    assert list(load_classes("imagenet1k/wnids")) == listed


def test_a_class_of_imagenet200_has_the_same_name_and_wnid_in_imagenet():
    whole = dict(zip(load_classes("imagenet1k/wnids"), load_classes("imagenet1k/classes"), strict=True))
    part = dict(zip(load_classes("imagenet200/wnids"), load_classes("imagenet200/classes"), strict=True))
    rest = dict(zip(load_classes("imagenet800/wnids"), load_classes("imagenet800/classes"), strict=True))
    assert len(part) == 200
    assert part | rest == whole
    assert not set(part) & set(rest)


def test_validation_and_test_of_imagenet_make_up_the_official_validation_set():
    found = {*load_manifest("imagenet1k/val").keys, *load_manifest("imagenet1k/test").keys}
    assert found == {f"imagenet_1k/val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 50_001)}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_training_images_come_in_the_published_order(name, published):
    assert list(load_manifest(f"{name}/train").keys) == [path for path, _ in published(f"{name}/train_{name}")]


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
