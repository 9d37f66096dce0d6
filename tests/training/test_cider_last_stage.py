from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from openbench import _compat
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.errors import ConfigError
from openbench.training.base import Batch, StepInfo
from openbench.training.loop._loop import train
from openbench.training.loop.weights import obtain
from openbench.training.methods.cider import CIDER
from openbench.training.methods.cider_last_stage import CIDERLastStage, last_stage
from openbench.training.methods.fine_tuning import FineTuning

from .training_toys import CLASSES, FEATURES, QUIET, RECIPE, backbone, job

METHOD = CIDERLastStage(RECIPE, width=6, tuning=FineTuning(3, 0.05))


def test_last_stage_is_layer4_of_a_resnet() -> None:
    torchvision = _compat.library("torchvision.models")
    for network in (CifarResNet(SPECS["resnet18"], 10), torchvision.resnet18(num_classes=10)):
        assert last_stage(network) is network.layer4


def test_a_network_of_nothing_but_its_classifier_has_no_stage() -> None:
    with pytest.raises(ConfigError, match="no part of Sequential before its classifier has parameters"):
        last_stage(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))


def test_only_the_last_stage_and_the_projection_learn() -> None:
    network = CifarResNet(SPECS["resnet8"], CLASSES)
    model = METHOD.prepare(network, 64, CLASSES)
    (group,) = METHOD.parameter_groups(model)
    expected = {*network.layer3.parameters(), *model.project.parameters()}
    assert set(group["params"]) == expected
    assert group["weight_decay"] == METHOD.weight_decay
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    given = Batch(images, torch.arange(6) % 3, torch.arange(6), StepInfo(1, 2, 1, 4, torch.Generator()))
    model.prototypes.copy_(nn.functional.normalize(torch.randn(CLASSES, 6), dim=1))
    METHOD.loss(model.train(), given).backward()
    assert {p for p in model.parameters() if p.grad is not None} == expected


def test_loss_is_ciders() -> None:
    losses = []
    for method in (METHOD, CIDER(RECIPE, width=6)):
        torch.manual_seed(0)
        model = method.prepare(backbone(dropout=0).initialise(0).module(), FEATURES, CLASSES).train()
        model.prototypes.copy_(nn.functional.normalize(torch.randn(CLASSES, 6), dim=1))
        images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        given = Batch(images, torch.arange(6) % 3, torch.arange(6), StepInfo(1, 2, 1, 4, torch.Generator()))
        losses.append(float(method.loss(model, given).detach()))
    assert losses[0] == losses[1]


def test_training_goes_on_from_cross_entropy_and_leaves_earlier_stages_where_they_were(tmp_path: Path) -> None:
    made = job(METHOD)
    first = obtain(made.initial, tmp_path, lambda folder: train(made.initial, folder, QUIET))
    last = obtain(made, tmp_path, lambda folder: train(made, folder, QUIET, first.weights))
    before, after = (backbone().load(c.weights).module().state_dict() for c in (first, last))
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    # The toy's stages with parameters are a convolution and, the last, a batch norm.
    assert unchanged == {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}


def test_schedule_is_that_of_the_fine_tuning() -> None:
    assert METHOD.schedule == replace(RECIPE, epochs=3, lr=0.05)
