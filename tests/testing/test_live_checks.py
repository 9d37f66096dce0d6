"""The checks on methods that run the network: a right one passes, planted bugs are caught."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from openbench.core.method import LiveMethod
from openbench.core.request import Field, Request
from openbench.methods.double_score import DoubleScore
from openbench.methods.msp import MSP
from openbench.testing import _checks as checks
from openbench.testing._checks import CheckError, all_checks
from openbench.testing._toy import LAYERS, images_with, network_with, planted

from .test_checks import Right

FEATURES = Request(fields=frozenset({Field.FEATURES}))


@dataclass
class RightLive(LiveMethod):
    __doc__ = Right.__doc__
    needs: ClassVar[Request] = Right.needs
    reference: ClassVar[str] = Right.reference

    scale: float = 1.0

    fit = Right.fit

    def score_images(self, images, backbone):
        features = backbone.outputs(images, FEATURES).features
        return self.scale * torch.cdist(features, self.learnt("means_")).min(dim=1).values


class Swapped(RightLive):
    def score_images(self, images, backbone):
        return -super().score_images(images, backbone)


# Name → what is done after the scores, and a piece of the message that it is told by.
LEFT = {
    "ChangesWeights": (lambda network, images: network.fc.weight.mul_(0.9), "weights"),
    "LeavesHooks": (lambda network, images: network.stage2.register_forward_hook(lambda *_: None), "hooks"),
    "LeavesGradients": (lambda network, images: network.requires_grad_(True)(images).sum().backward(), "gradients or"),
    "LeavesTrainingMode": (lambda network, images: network.train(), "training mode behind"),
    "WritesImages": (lambda network, images: images.mul_(2), "overwrites the images"),
    "AsksForGradients": (lambda network, images: images.requires_grad_(True), "asks for their gradients"),
}


class Leaving(RightLive):
    """Right scores; its subclasses are made from the table."""

    def score_images(self, images, backbone):
        found = super().score_images(images, backbone)
        with backbone.frozen() as network:
            pass
        with torch.enable_grad():
            LEFT[type(self).__name__][0](network, images)
        return found


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.__name__)
def test_a_right_live_method_passes(check):
    check(RightLive)


@pytest.mark.parametrize("name", LEFT)
def test_a_network_that_is_not_left_as_it_was_is_noticed(name):
    with pytest.raises(CheckError, match=LEFT[name][1]):
        checks.check_leaves_the_network_as_it_was(type(name, (Leaving,), {}))


def test_the_sign_is_checked():
    with pytest.raises(CheckError, match="the sign may be swapped"):
        checks.check_separates_planted_clusters(Swapped)


@pytest.mark.parametrize(
    "check", [c for c in all_checks() if c.__name__ != "check_metadata_is_complete"], ids=lambda check: check.__name__
)
def test_a_live_method_may_be_part_of_a_composite(check):
    check(lambda: DoubleScore(risk=MSP(), ood=RightLive()))


def test_the_toy_network_finds_the_planted_columns():
    data = planted()
    rows = data.id_test[:10]
    request = Request(fields=frozenset({Field.FEATURES, Field.LOGITS, Field.MAPS}), layers=LAYERS, pool="mean")
    found = network_with(data.head).outputs(images_with(rows.features), request)
    torch.testing.assert_close(found.features, rows.features)
    torch.testing.assert_close(found.logits, rows.logits)
    for layer in LAYERS:
        torch.testing.assert_close(found.maps[layer].flatten(1), rows.features)
