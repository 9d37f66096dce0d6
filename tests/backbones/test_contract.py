"""What every backbone promises, over every family: features, head, logits, maps, independence, repeatability."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openbench import _compat
from openbench.backbones.anatomy import last_linear
from openbench.backbones.cifar import resnet
from openbench.backbones.libraries import timm_model, torchvision_model
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.open_clip import ZeroShot, _random, anatomy
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request

from . import narrow  # noqa: F401 — registers networks

CLASSES = 7


def small(side: int) -> Preprocess:
    return Preprocess(side, side, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def cifar(model: str) -> NetworkBackbone:
    return resnet(model, model, num_classes=CLASSES, preprocess=small(16))


def torchvision(model: str, side: int = 64, **options: object) -> NetworkBackbone:
    return torchvision_model(model, model, num_classes=CLASSES, preprocess=small(side), options=options)


def timm(model: str, side: int = 64, **options: object) -> NetworkBackbone:
    return timm_model(model, model, num_classes=CLASSES, preprocess=small(side), options=options)


# The two kinds of towers that open_clip has, at a thousandth of the size of those with weights.
TOWERS = {
    "vit": {"image_size": 64, "layers": 4, "width": 64, "head_width": 16, "patch_size": 16},
    "resnet": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
}
TEXTS = {"context_length": 8, "vocab_size": 64, "width": 16, "heads": 2, "layers": 1}


def open_clip(tower: str, folder: Path) -> NetworkBackbone:
    def make() -> ZeroShot:
        library, name = _compat.library("open_clip"), f"contract-{tower}"
        file = folder / f"{name}.json"
        file.write_text(json.dumps({"embed_dim": 32, "vision_cfg": TOWERS[tower], "text_cfg": TEXTS}))
        library.add_model_config(file)
        return _random(library, name, 32, CLASSES)

    return NetworkBackbone(tower, tower, make, anatomy, preprocess=small(64))


FAMILIES: dict[str, Callable[[Path], NetworkBackbone]] = {
    "cifar-resnet18": lambda _: cifar("resnet18"),
    "cifar-resnet20": lambda _: cifar("resnet20"),
    "torchvision-resnet18": lambda _: torchvision("resnet18"),
    "torchvision-vit_b_16": lambda _: torchvision("narrow_vit_b_16", image_size=64),
    "torchvision-swin_t": lambda _: torchvision("narrow_swin_t"),
    "torchvision-convnext_tiny": lambda _: torchvision("narrow_convnext_tiny"),
    "torchvision-mobilenet_v3_small": lambda _: torchvision("mobilenet_v3_small"),
    "torchvision-densenet121": lambda _: torchvision("narrow_densenet121"),
    "timm-mobilenetv2_100": lambda _: timm("mobilenetv2_100", pad_type="same"),
    "timm-vit_tiny": lambda _: timm("vit_tiny_patch16_224", img_size=64, depth=4),
    "timm-swin_tiny": lambda _: timm("swin_tiny_patch4_window7_224", img_size=64, depths=(1, 1, 2, 1), embed_dim=48),
    "open_clip-vit": lambda folder: open_clip("vit", folder),
    "open_clip-resnet": lambda folder: open_clip("resnet", folder),
}


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NetworkBackbone:
    made = FAMILIES[request.param](tmp_path_factory.mktemp("towers"))
    # Batch norms at their start have mean 0 and variance 1: what ignores them would go unnoticed.
    generator = torch.Generator().manual_seed(5)
    for part in made.module().modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_var is not None:
            part.running_var.copy_(0.5 + torch.rand(part.running_var.shape, generator=generator))
    # Some heads start at zero, some features are tiny: logits of the order of 1 make tolerances mean something.
    features = made.outputs(noise(made), Request()).features
    head = made.module().get_submodule(last_linear(made.module()))
    head.weight.data = torch.randn(head.weight.shape, generator=generator) / features.norm(dim=1).mean()
    head.bias.data = torch.randn(head.bias.shape, generator=generator)
    return made.load_state(made.module().state_dict(), "random")


def noise(backbone: NetworkBackbone) -> Tensor:
    side = backbone.preprocess.crop
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def images(backbone: NetworkBackbone) -> Tensor:
    return noise(backbone)


def test_head_of_features_is_logits(backbone: NetworkBackbone, images: Tensor) -> None:
    outputs = backbone.outputs(images, Request())
    assert outputs.logits.shape == (3, CLASSES)
    assert outputs.features.shape == (3, backbone.feature_dim)
    assert backbone.num_classes == backbone.head.num_classes == CLASSES
    assert outputs.logits.dtype == outputs.features.dtype == torch.float32
    torch.testing.assert_close(backbone.head(outputs.features), outputs.logits, rtol=1e-5, atol=1e-5)


def test_logits_are_the_networks_own(backbone: NetworkBackbone, images: Tensor) -> None:
    with torch.no_grad():
        expected = backbone.module().eval()(images)
    torch.testing.assert_close(backbone.outputs(images, Request()).logits, expected, rtol=1e-4, atol=1e-5)


def test_maps_are_square_and_get_no_finer(backbone: NetworkBackbone, images: Tensor) -> None:
    maps = backbone.outputs(images, Request(layers=backbone.layers)).maps
    sides = [maps[layer].shape[-1] for layer in backbone.layers]
    assert all(maps[layer].shape[2] == maps[layer].shape[3] for layer in backbone.layers)
    assert sides == sorted(sides, reverse=True)
    assert len(set(sides)) in (1, len(sides))  # of tokens, or of stages
    assert len({maps[layer].std().item() for layer in backbone.layers}) == len(backbone.layers)


def test_changing_a_map_changes_what_follows_and_nothing_before(backbone: NetworkBackbone, images: Tensor) -> None:
    request = Request(layers=backbone.layers)
    plain = backbone.outputs(images, request)
    for i, layer in enumerate(backbone.layers):
        with backbone.changing(layer, lambda maps: maps.clone()):
            torch.testing.assert_close(backbone.outputs(images, Request()).logits, plain.logits, rtol=1e-5, atol=1e-5)
        with backbone.changing(layer, lambda maps: maps.flip(0)):
            changed = backbone.outputs(images, request)
        for before in backbone.layers[:i]:
            torch.testing.assert_close(changed.maps[before], plain.maps[before])
        # After the last block of a transformer, a class token reads no patch any more.
        assert layer == backbone.layers[-1] or not torch.allclose(changed.logits, plain.logits, atol=1e-6)
    torch.testing.assert_close(backbone.outputs(images, request).logits, plain.logits)


def test_outputs_do_not_depend_on_the_rest_of_the_batch(backbone: NetworkBackbone, images: Tensor) -> None:
    together = backbone.outputs(images, Request(layers=backbone.layers, pool="mean"))
    for i in range(len(images)):
        alone = backbone.outputs(images[i : i + 1], Request(layers=backbone.layers, pool="mean"))
        torch.testing.assert_close(alone.features, together.features[i : i + 1], rtol=1e-4, atol=1e-4)
        for layer in backbone.layers:
            torch.testing.assert_close(alone.maps[layer], together.maps[layer][i : i + 1], rtol=1e-4, atol=1e-4)


def test_outputs_repeat_bit_for_bit_and_leave_images_alone(backbone: NetworkBackbone, images: Tensor) -> None:
    before = images.clone()
    first = backbone.outputs(images, Request())
    assert torch.equal(first.logits, backbone.outputs(images, Request()).logits)
    assert torch.equal(images, before)
