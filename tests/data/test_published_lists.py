"""The manifests against OpenOOD v1.5's image lists, where these are found; class names against other packages."""

import re
from collections import Counter
from importlib.resources import files

import pytest

from openbench._compat import library
from openbench.core.benchmark import canonical
from openbench.data.manifests import load_classes, load_manifest, load_rule

# Manifest: (published list, images, classes), the counts as the benchmarks' documentation states them.
FACTS = {
    "cifar10/train": ("cifar10/train_cifar10", 50_000, 10),
    "cifar10/val": ("cifar10/val_cifar10", 1_000, 10),
    "cifar10/test": ("cifar10/test_cifar10", 9_000, 10),
    "cifar100/near_cifar10": ("cifar10/test_cifar100", 9_000, 100),
    "tiny_imagenet/near_cifar10": ("cifar10/test_tin", 7_793, 160),
    "tiny_imagenet/val_cifar10": ("cifar10/val_tin", 1_000, 20),
    "mnist/all": ("cifar10/test_mnist", 70_000, 10),
    "svhn/test": ("cifar10/test_svhn", 26_032, 10),
    "texture/all": ("cifar10/test_texture", 5_640, 47),
    "places365/far_cifar10": ("cifar10/test_places365", 35_195, 365),
    "cifar10c/test": ("cifar10/test_cifar10c", 10_000, 10),
    "cifar100/train": ("cifar100/train_cifar100", 50_000, 100),
    "cifar100/val": ("cifar100/val_cifar100", 1_000, 100),
    "cifar100/test": ("cifar100/test_cifar100", 9_000, 100),
    "cifar10/near_cifar100": ("cifar100/test_cifar10", 10_000, 10),
    "tiny_imagenet/near_cifar100": ("cifar100/test_tin", 6_526, 133),
    "tiny_imagenet/val_cifar100": ("cifar100/val_tin", 972, 20),
    "places365/far_cifar100": ("cifar100/test_places365", 33_773, 365),
    "imagenet1k/val": ("imagenet/val_imagenet", 5_000, 1_000),
    "imagenet1k/test": ("imagenet/test_imagenet", 45_000, 1_000),
    "imagenet200/val": ("imagenet200/val_imagenet200", 1_000, 200),
    "imagenet200/test": ("imagenet200/test_imagenet200", 9_000, 200),
    "imagenet_v2/imagenet1k": ("imagenet/test_imagenet_v2", 10_000, 1_000),
    "imagenet_v2/imagenet200": ("imagenet200/test_imagenet200_v2", 2_000, 200),
    "imagenet_c/imagenet1k": ("imagenet/test_imagenet_c", 10_000, 1_000),
    "imagenet_c/imagenet200": ("imagenet200/test_imagenet200_c", 2_000, 200),
    "imagenet_r/all": ("imagenet/test_imagenet_r", 30_000, 200),
    "ssb_hard/all": ("imagenet/test_ssb_hard", 49_000, 980),
    "ninco/all": ("imagenet/test_ninco", 5_879, 64),
    "inaturalist/all": ("imagenet/test_inaturalist", 10_000, 0),
    "openimage_o/test": ("imagenet/test_openimage_o", 15_869, 0),
    "openimage_o/val": ("imagenet/val_openimage_o", 1_763, 0),
    "texture/far_imagenet": ("imagenet/test_textures", 5_160, 43),
}
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


@pytest.mark.parametrize("name", FACTS)
def test_a_manifest_has_the_documented_counts(name):
    manifest = load_manifest(name)
    assert (len(manifest), len(manifest.class_names())) == FACTS[name][1:]


@pytest.mark.parametrize("name", FACTS)
def test_a_manifest_lists_the_published_images(name, published):
    assert Counter(load_manifest(name).keys) == Counter(path for path, _ in published(FACTS[name][0]))


@pytest.mark.parametrize(("of", "name"), [(of, name) for of, names in LABELLED.items() for name in names])
def test_labels_of_id_images_are_the_published_ones(of, name, published):
    manifest, index = load_manifest(name), {c: i for i, c in enumerate(load_classes(f"{of}/classes"))}
    stated = {path: int(label) for path, label in published(FACTS[name][0])}
    assert {k: index[c] for k, c in zip(manifest.keys, manifest.classes, strict=True)} == stated


def test_imagenet_wnids_are_those_that_timm_lists_in_label_order():
    library("timm")
    listed = (files("timm.data") / "_info/imagenet_synsets.txt").read_text().split()
    assert list(load_classes("imagenet1k/wnids")) == listed


def test_imagenet_class_names_are_those_of_torchvision():
    ours, names = load_classes("imagenet1k/classes"), library("torchvision.models._meta")._IMAGENET_CATEGORIES
    differ = {i for i in range(1000) if canonical(ours[i]) != canonical(names[i])}
    # torchvision tells the doubles apart in its own words.
    assert all(canonical(ours[i]).startswith(canonical(names[i]).split("_")[0]) for i in differ)
    assert len(differ) <= 6
    assert len({canonical(name) for name in ours}) == 1000


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


def test_ssb_hard_has_no_wnid_of_imagenet():
    assert not set(load_manifest("ssb_hard/all").class_names()) & set(load_classes("imagenet1k/wnids"))


def test_outlier_classes_are_none_of_tiny_imagenet_none_of_cifar_and_none_of_places():
    names = {canonical(c) for c in load_rule("imagenet_outliers/train").classes}
    tiny = {c for part in ("near_cifar10", "val_cifar10") for c in load_manifest(f"tiny_imagenet/{part}").class_names()}
    places = load_manifest("places365/far_cifar10").class_names()
    for taken in (tiny, places, load_classes("cifar10/classes"), load_classes("cifar100/classes")):
        assert not names & {canonical(c) for c in taken}
    for kind in ("robin", "beagle", "tabby", "sorrel", "tailed frog", "airliner", "liner", "sports car", "pickup"):
        assert canonical(kind) not in names


@pytest.mark.parametrize(
    ("name", "folders", "count"),
    [
        ("imagenet1k/train", 1_000, 1_281_167),
        ("imagenet200/train", 200, None),
        ("imagenet800/train", 800, None),
        ("imagenet_outliers/train", 571, 28_550),
        ("tin597/train", 800, 29_850),
    ],
)
def test_a_rule_names_its_folders_and_says_whether_it_is_derived(name, folders, count):
    rule = load_rule(name)
    assert (len(rule.folders), rule.count) == (folders, count)
    assert bool(rule.derived) == (name not in ("imagenet1k/train", "tin597/train"))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_training_images_come_in_the_published_order(name, published):
    assert list(load_manifest(f"{name}/train").keys) == [path for path, _ in published(f"{name}/train_{name}")]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        *((name, r".*/(.+)/[^/]+") for name in ("cifar100/near_cifar10", "texture/all", "places365/far_cifar10")),
        ("mnist/all", r".*/(\d)_\d+\.jpg"),
        ("svhn/test", r".*/\d+_(\d)\.jpg"),
    ],
)
def test_the_class_of_an_image_is_its_folder_or_in_its_file_name(name, pattern):
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
