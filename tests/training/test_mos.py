from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import log_softmax
from torch import nn

from openbench.core.request import Field, Request, Role
from openbench.errors import ConfigError
from openbench.training._images import load_images
from openbench.training.augment.mixing import blend, draw_share
from openbench.training.base import Batch, StepInfo, TrainingData, features_and_logits
from openbench.training.loop._loop import train
from openbench.training.loop.weights import evaluated, obtain
from openbench.training.methods.fine_tuning import FineTuning
from openbench.training.methods.mos import MOS, Grouped, assignment, clustered

from .training_toys import CLASSES, FEATURES, PREPROCESS, QUIET, RECIPE, backbone, job, split

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])
GIVEN = MOS(groups=[[0], [2, 1]], mixup=0.0)

ALL = frozenset({Field.FEATURES, Field.LOGITS, Field.MAPS})


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def batch() -> Batch:
    images = torch.randn(len(LABELS), 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch(images, LABELS, torch.arange(len(LABELS)), StepInfo(1, 2, 5, 10, draws()))


def prepared(method: MOS) -> Grouped:
    torch.manual_seed(1)
    return method.prepare(backbone(dropout=0).initialise(1).module(), FEATURES, CLASSES).train()


def outputs(model: Grouped, images: torch.Tensor) -> list[np.ndarray]:
    """Per group the logits of "others" and of its classes, as the paper has them."""
    with torch.no_grad():
        f, z = features_and_logits(model.network, images)
        o = model.others(f).double().numpy()
    z = z.double().numpy()
    return [np.column_stack([o[:, 0], z[:, 0]]), np.column_stack([o[:, 1], z[:, 1], z[:, 2]])]


def group_loss(parts: list[np.ndarray], y: np.ndarray) -> float:
    """Cross-entropy of every group: place 0 stands for others."""
    places = [{0: 1, 1: 0, 2: 0}, {0: 0, 1: 1, 2: 2}]
    total = 0.0
    for z, place in zip(parts, places, strict=True):
        answers = [place[int(k)] for k in y]
        total -= log_softmax(z, axis=1)[np.arange(len(y)), answers].mean()
    return total


def test_loss_is_the_sum_of_the_groups_cross_entropies() -> None:
    model, given = prepared(GIVEN), batch()
    expected = group_loss(outputs(model, given.images), LABELS.numpy())
    assert float(GIVEN.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_labels_are_mixed_as_images_are_and_openoods_images_stay_clean(compat: str) -> None:
    method = replace(GIVEN, mixup=5.0, compat=compat)
    model, given = prepared(method), batch()
    generator = draws()
    mixed = blend(given.images, draw_share(5.0, generator), generator)
    parts = outputs(model, given.images if compat == "openood" else mixed.images)
    own, other = (group_loss(parts, y.numpy()) for y in (LABELS, LABELS[mixed.partners]))
    expected = mixed.share * own + (1 - mixed.share) * other
    assert 0.1 < mixed.share < 0.9
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def tuned(tmp_path: Path, method: MOS):
    made = job(method)
    first = obtain(made.initial, tmp_path, lambda folder: train(made.initial, folder, QUIET))
    checkpoint = obtain(made, tmp_path, lambda folder: train(made, folder, QUIET, first.weights))
    model = method.prepare(backbone().load(checkpoint.weights).module(), FEATURES, CLASSES)
    model.load_state_dict(load_file(checkpoint.extras), strict=False)
    return evaluated(made, checkpoint), model.eval()


def test_output_is_the_log_probability_of_others_in_each_group(tmp_path: Path) -> None:
    found, model = tuned(tmp_path, replace(GIVEN, recipe=RECIPE, tuning=FineTuning(2, 0.01)))
    images = batch().images
    others = found.outputs(images, Request(fields=ALL, layers=("others",), pool="mean")).maps["others"]
    expected = np.column_stack([log_softmax(z, axis=1)[:, 0] for z in outputs(model, images)])
    np.testing.assert_allclose(others.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_evaluated_logits_are_odds_against_the_others_of_the_group(tmp_path: Path) -> None:
    found, model = tuned(tmp_path, replace(GIVEN, recipe=RECIPE, tuning=FineTuning(2, 0.01)))
    images = batch().images
    first, second = (z[:, 1:] - z[:, :1] for z in outputs(model, images))
    expected = np.column_stack([first, second])
    np.testing.assert_allclose(found.outputs(images, Request()).logits.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_weights_do_not_decay() -> None:
    assert [group["weight_decay"] for group in GIVEN.parameter_groups(prepared(GIVEN))] == [0.0]


def test_groups_are_found_from_the_class_means_of_the_starting_network() -> None:
    """Two classes that the network cannot tell apart end in one group."""
    method = MOS(groups=2)
    model = prepared(method)
    data = TrainingData(load_images(split(Role.ID_TRAIN, 70), PREPROCESS, torch.device("cpu")), None)
    with torch.no_grad():
        model.network.conv.weight[:, :2] = 0  # blind to red and green: classes 0 and 1 look alike
    method.on_epoch_start(model, StepInfo(0, 2, 0, 10, draws()), data)
    assert model.groups.group_of.tolist() == [0, 0, 1]
    method.on_epoch_start(model, StepInfo(1, 2, 5, 10, draws()), TrainingData(data.train, None))
    assert model.groups.group_of.tolist() == [0, 0, 1]


def test_clusters_are_numbered_by_their_lowest_class_whatever_the_seed() -> None:
    means = np.array([[9.0, 0], [0, 0], [9.1, 0], [0.1, 0], [0, 50]])
    assert {tuple(clustered(means, 3, seed).tolist()) for seed in range(5)} == {(0, 1, 0, 1, 2)}


def test_given_groups_are_assigned() -> None:
    assert assignment(((0, 2), (3, 1)), 4).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("groups", [0, [], [[0, 1], []], [[0, 1], [1]], "ab", [[-1]], 1.5])
def test_what_is_no_partition_is_refused(groups) -> None:
    with pytest.raises(ConfigError, match=r"MOS\.groups — found"):
        MOS(groups=groups)


@pytest.mark.parametrize(("groups", "words"), [([[0], [1]], "missing or unknown: 2"), (4, "groups=4 for 3 classes")])
def test_groups_of_other_classes_are_refused_before_training(groups, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MOS(groups=groups).prepare(nn.Identity(), FEATURES, CLASSES)
