"""Code of a user's own: a test copies it, and turns its sign."""

from dataclasses import dataclass

from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone
from openbench.data.sources.embedded import SklearnDigits
from openbench.methods.msp import MSP
from openbench.training.augment.augmentations import Augmentation
from openbench.training.methods.cross_entropy import CrossEntropy

SIGN = 1


class Method(MSP):
    def score(self, x):
        return SIGN * super().score(x)


@dataclass(frozen=True)
class Training(CrossEntropy):
    def loss(self, model, batch):
        return SIGN * super().loss(model, batch)


@dataclass(frozen=True)
class Flip(Augmentation):
    def __call__(self, images, generator):
        return images if SIGN > 0 else 255 - images


class Network(NetworkBackbone):
    def outputs(self, images, request):
        return super().outputs(SIGN * images, request)


def network(name: str, model: str, num_classes: int, preprocess, **rest) -> NetworkBackbone:
    made = resnet(name, model, num_classes=num_classes, preprocess=preprocess)
    made.__class__ = Network
    return made


@dataclass(frozen=True)
class Digits(SklearnDigits):
    def image(self, class_name, number):
        return super().image(class_name, number) if SIGN > 0 else 255 - super().image(class_name, number)
