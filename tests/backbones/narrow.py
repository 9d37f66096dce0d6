"""torchvision's networks as deep as it builds them, at a fraction of their width, under names among its own."""

from collections.abc import Callable
from typing import Any

from torch import nn

from openbench import _compat

_models = _compat.library("torchvision.models")


class _VGG(_models.VGG):
    """VGG's own classifier has a hundred million values."""

    def __init__(self, num_classes: int) -> None:
        nn.Module.__init__(self)
        widths = [8, "M", 16, "M", 16, 16, "M", 32, 32, "M", 32, 32, "M"]
        self.features = _compat.library("torchvision.models.vgg").make_layers(widths)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            *(nn.Linear(32 * 7 * 7, 24), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(24, 24), nn.ReLU(True), nn.Dropout()),
            nn.Linear(24, num_classes),
        )


def _vit(image_size: int, num_classes: int) -> nn.Module:
    return _models.VisionTransformer(image_size, 16, 12, 2, 48, 96, num_classes=num_classes)


def _swin(num_classes: int) -> nn.Module:
    return _models.SwinTransformer([4, 4], 24, [2, 2, 6, 2], [1, 2, 4, 8], [7, 7], num_classes=num_classes)


def _convnext(num_classes: int) -> nn.Module:
    block = _compat.library("torchvision.models.convnext").CNBlockConfig
    blocks = [block(16, 24, 3), block(24, 32, 3), block(32, 48, 9), block(48, None, 3)]
    return _models.ConvNeXt(blocks, num_classes=num_classes)


def _densenet(num_classes: int) -> nn.Module:
    return _models.DenseNet(8, num_init_features=16, num_classes=num_classes)


def _register(name: str, like: str, make: Callable[..., nn.Module]) -> None:
    published = _models.get_model_weights(like)

    def build(*, weights: Any = None, **options: Any) -> nn.Module:
        return make(**options)

    build.__annotations__["weights"] = published
    build.__module__ = _models.get_model_builder(like).__module__
    _compat.library("torchvision.models._api").register_model(name)(build)


_register("narrow_vgg11", "vgg11", _VGG)
_register("narrow_vit_b_16", "vit_b_16", _vit)
_register("narrow_swin_t", "swin_t", _swin)
_register("narrow_convnext_tiny", "convnext_tiny", _convnext)
_register("narrow_densenet121", "densenet121", _densenet)
