"""How many images each role of each benchmark has: the counts that the papers and OpenOOD v1.5 state."""

import pytest

from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.dataset import SetConfig
from openbench.data.manifests.folder_rule import FolderRule

CIFAR_FAR = {"far.mnist": 70_000, "far.svhn": 26_032, "far.texture": 5_640}
CIFAR_ID = {"id.train": 50_000, "id.val": 1_000, "id.test": 9_000}
IMAGENET_OOD = {
    "ood_val": 1_763,
    "near.ssb_hard": 49_000,
    "near.ninco": 5_879,
    "far.inaturalist": 10_000,
    "far.textures": 5_160,
    "far.openimage_o": 15_869,
}
IMAGENET1K = {"id.train": 1_281_167, "id.val": 5_000, "id.test": 45_000, **IMAGENET_OOD}
IMAGENET200 = {"id.train": None, "id.val": 1_000, "id.test": 9_000, **IMAGENET_OOD}
CIFAR10 = {
    **CIFAR_ID, "ood_val": 1_000, "near.cifar100": 9_000, "near.tin": 7_793, **CIFAR_FAR, "far.places365": 35_195,
}  # fmt: skip
SIZES = {
    "cifar10": CIFAR10,
    "cifar10_fs": {**CIFAR10, "csid.cifar10c": 10_000},
    "cifar100": {
        **CIFAR_ID, "ood_val": 972, "near.cifar10": 10_000, "near.tin": 6_526, **CIFAR_FAR, "far.places365": 33_773,
    },
    "imagenet1k": IMAGENET1K,
    "imagenet1k_fs": {**IMAGENET1K, "csid.imagenet_v2": 10_000, "csid.imagenet_c": 10_000, "csid.imagenet_r": 30_000},
    "imagenet200": IMAGENET200,
    "imagenet200_fs": {**IMAGENET200, "csid.imagenet_v2": 2_000, "csid.imagenet_c": 2_000, "csid.imagenet_r": 30_000},
    "cifar10_rejection": {
        **CIFAR_ID, "ood_val": 1_000, "near.cifar100": 9_000, "near.tin": 7_793, "far.mnist": 10_000,
    },
    "cifar10_32px": {
        **CIFAR_ID, "ood_val": 900, "near.cifar100": 9_000, "near.tin": 7_793,
        "far.mnist": 10_000, "far.notmnist": 10_000, "far.texture": 1_200,
    },
    "cifar10_autc": {**CIFAR_ID, "ood_val": 9_000, "near.tin": 7_793, "far.svhn": 26_032, "far.lsun": 10_000},
    "mnist": {
        "id.train": 55_000, "id.val": 5_000, "id.test": 10_000,
        "ood_val": 1_000, "far.notmnist": 10_000, "far.fashion_mnist": 10_000, "far.cifar10": 10_000,
    },
    "fashion_mnist": {
        "id.train": 55_000, "id.val": 5_000, "id.test": 10_000,
        "ood_val": 1_000, "near.mnist": 10_000, "near.notmnist": 10_000, "far.cifar10": 10_000,
    },
    "adbench": {"id.train": 1_281, "id.val": 1_158, "id.test": 497, "far.anomalies": 53},
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_benchmark_has_the_sets_and_sizes_of_its_paper(name, composed):
    sizes = {}
    for entry in BenchmarkConfig.parse(composed(f"+benchmark={name}")).sets:
        listing = SetConfig.from_node(entry.node, entry.path).listing()
        sizes[entry.path] = listing.size if isinstance(listing, FolderRule) else len(listing)
    assert sizes == SIZES[name]


def test_the_networks_see_all_of_an_imagenet_c_image_and_a_crop_of_the_others(composed):
    """OpenOOD's evaluator neither resizes nor crops ImageNet-C, which is published at 224×224."""
    csid = composed("+benchmark=imagenet1k_fs")["csid"]
    assert {name: bool(node.get("as_stored")) for name, node in csid.items()} == {
        "imagenet_v2": False,
        "imagenet_c": True,
        "imagenet_r": False,
    }
