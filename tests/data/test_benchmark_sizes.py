"""How many images each role of each benchmark has: the counts that the papers and OpenOOD v1.5 state."""

import pytest

from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.dataset import load_listing
from openbench.data.manifests import load_classes

CIFAR_FAR = {"far.mnist": 70_000, "far.svhn": 26_032, "far.texture": 5_640}
CIFAR_ID = {"id.train": 50_000, "id.val": 1_000, "id.test": 9_000}
IMAGENET_OOD = {
    "ood_val": 1_763, "near.ssb_hard": 49_000, "near.ninco": 5_879,
    "far.inaturalist": 10_000, "far.textures": 5_160, "far.openimage_o": 15_869,
}  # fmt: skip
IMAGENET1K_ID = {"id.train": 1_281_167, "id.val": 5_000, "id.test": 45_000}
IMAGENET1K = {**IMAGENET1K_ID, **IMAGENET_OOD}
IMAGENET1K_FS = {**IMAGENET1K, "csid.imagenet_v2": 10_000, "csid.imagenet_c": 10_000, "csid.imagenet_r": 30_000}
MOS = {"far.inaturalist": 10_000, "far.sun": 10_000, "far.places": 10_000, "far.textures": 5_640}
CLASSIC = {
    "far.svhn": 26_032, "far.texture": 5_640, "far.lsun_crop": 10_000, "far.lsun_resize": 10_000, "far.isun": 8_925,
}  # fmt: skip
IMAGENET200 = {"id.train": None, "id.val": 1_000, "id.test": 9_000, **IMAGENET_OOD}
CIFAR10 = {
    **CIFAR_ID, "ood_val": 1_000, "near.cifar100": 9_000, "near.tin": 7_793, **CIFAR_FAR, "far.places365": 35_195,
}  # fmt: skip
FAR_32PX = {"far.mnist": 10_000, "far.notmnist": 10_000, "far.texture": 1_200}
CIFAR10_32PX = {**CIFAR_ID, "ood_val": 900, "near.cifar100": 9_000, "near.tin": 7_793, **FAR_32PX}
SPURIOUS = {"far.svhn": 26_032, "far.lsun_resize": 10_000, "far.isun": 8_925}
SIZES = {
    "cifar10": CIFAR10,
    "cifar10_fs": {**CIFAR10, "csid.cifar10c": 10_000},
    "cifar100": {
        **CIFAR_ID, "ood_val": 972, "near.cifar10": 10_000, "near.tin": 6_526, **CIFAR_FAR, "far.places365": 33_773,
    },
    "imagenet1k": IMAGENET1K,
    "imagenet1k_fs": IMAGENET1K_FS,
    "imagenet200": IMAGENET200,
    "imagenet200_fs": {**IMAGENET200, "csid.imagenet_v2": 2_000, "csid.imagenet_c": 2_000, "csid.imagenet_r": 30_000},
    "cifar10_rejection": {
        **CIFAR_ID, "ood_val": 1_000, "near.cifar100": 9_000, "near.tin": 7_793, "far.mnist": 10_000,
    },
    "cifar10_32px": CIFAR10_32PX,
    "cifar100_32px": {**CIFAR_ID, "ood_val": 972, "near.cifar10": 10_000, "near.tin": 6_526, **FAR_32PX},
    "cifar10_32px_fs": {**CIFAR10_32PX, "csid.cifar10c_drawn": 10_000},
    "cifar10_autc": {**CIFAR_ID, "ood_val": 9_000, "near.tin": 7_793, "far.svhn": 26_032, "far.lsun": 10_000},
    "mnist": {
        "id.train": 55_000, "id.val": 5_000, "id.test": 10_000,
        "ood_val": 1_000, "far.notmnist": 10_000, "far.fashion_mnist": 10_000, "far.cifar10": 10_000,
    },
    "fashion_mnist": {
        "id.train": 55_000, "id.val": 5_000, "id.test": 10_000,
        "ood_val": 1_000, "near.mnist": 10_000, "near.notmnist": 10_000, "far.cifar10": 10_000,
    },
    "imagenet1k_mos": {**IMAGENET1K_ID, **MOS},
    # Of ID some training classes, so their number is not known; 5 and 45 validation images of a class.
    "imagenet10": {"id.train": None, "id.val": 50, "id.test": 450, "near.imagenet20": 1_000, **MOS},
    "imagenet20": {"id.train": None, "id.val": 100, "id.test": 900, "near.imagenet10": 500, **MOS},
    "imagenet100": {"id.train": None, "id.val": 500, "id.test": 4_500, **MOS},
    "imagenet_x": {"id.train": None, "id.val": 2_500, "id.test": 22_500, "near.other_classes": 22_500},
    "imagenet1k_ood": {**IMAGENET1K_ID, "near.imagenet_ood": 31_802},
    "imagenet1k_o": {**IMAGENET1K_ID, "near.imagenet_o": 2_000},
    "imagenet1k_fs_es": {**IMAGENET1K_FS, "csid.imagenet_es": 64_000},
    "cifar10_classic": {**CIFAR_ID, **CLASSIC, "far.places365": 35_195},  # of which 10 000 are drawn
    "cifar100_classic": {**CIFAR_ID, **CLASSIC, "far.places365": 33_773},
    "celeba_hair": {"id.train": 9_468, "id.val": 2_368, "id.test": 2_960, "near.bald": 3_351, **SPURIOUS},
    "waterbirds": {"id.train": 4_795, "id.val": 1_199, "id.test": 5_794, "near.scenes": 10_000, **SPURIOUS},
    "midog": {
        "id.train": 1_896, "id.val": 181, "id.test": 251, "ood_val": 414,
        "csid.scanner_1b": 2_956, "csid.scanner_1c": 2_946,
        "near.domain_2": 3_248, "near.domain_3": 14_725, "near.domain_4": 5_992, "near.domain_5": 3_515,
        "near.domain_6a": 5_678, "near.domain_6b": 863, "near.domain_7": 3_511,
        "far.ccagt": 21_897, "far.fnac2019": 1_879,
    },
    "phakir": {
        "id.train": 3_824, "id.val": 370, "id.test": 427, "ood_val": 200,
        "csid.medium_smoke": 822, "csid.heavy_smoke": 891,
        "near.cholec80": 66_033, "near.endovis2015": 120, "near.endovis2018": 750,
        "far.kvasir": 900, "far.cataracts": 107_937,
    },
    "mvtec": {"id.train": 188, "id.val": 21, "id.test": 20, "far.defects": 63},
    "newsgroups": {"id.train": 4_789, "id.val": 536, "id.test": 3_545, "near.science": 1_579, "far.talk": 2_408},
    "adbench": {"id.train": 1_281, "id.val": 1_158, "id.test": 497, "far.anomalies": 53},
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_benchmark_has_the_sets_and_sizes_of_its_paper(name, composed):
    sizes = {}
    for entry in BenchmarkConfig.parse(composed(f"+benchmark={name}")).sets:
        sizes[entry.path] = entry.config.listing().size
    assert sizes == SIZES[name]


def test_the_networks_see_all_of_an_imagenet_c_image_and_a_crop_of_the_others(composed):
    """OpenOOD's evaluator neither resizes nor crops ImageNet-C, which is published at 224×224."""
    csid = composed("+benchmark=imagenet1k_fs")["csid"]
    assert {name: bool(node.get("as_stored")) for name, node in csid.items()} == {
        "imagenet_v2": False,
        "imagenet_c": True,
        "imagenet_r": False,
    }


def test_the_semantic_shift_benchmark_has_the_published_numbers_of_classes():
    published = {"cub": [100, 34, 34, 32], "cars": [98, 7, 15, 76], "aircraft": [50, 13, 17, 20]}
    for name, counts in published.items():
        lists = {part: load_classes(f"{name}/{part}") for part in ("classes", "hard", "medium", "easy")}
        assert [len(of) for of in lists.values()] == counts
        assert sorted(c for of in lists.values() for c in of) == sorted(load_classes(f"{name}/all_classes"))


@pytest.mark.parametrize(
    ("known", "unknown", "whole", "sizes"),
    [
        ("imagenet_x/classes", "imagenet_x/ood_classes", "imagenet1k/classes", (500, 500)),
        ("fmow/classes", "fmow/ood_classes", "fmow/all_classes", (31, 31)),
    ],
)
def test_known_and_unknown_classes_are_all_classes(known, unknown, whole, sizes):
    parts = load_classes(known), load_classes(unknown)
    assert tuple(map(len, parts)) == sizes
    assert {*parts[0], *parts[1]} == set(load_classes(whole))


def test_no_class_of_imagenet_ood_is_one_of_imagenet():
    listing = load_listing("imagenet_ood/all")
    assert len(listing.class_names()) == 637
    assert not set(listing.class_names()) & set(load_classes("imagenet1k/wnids"))
