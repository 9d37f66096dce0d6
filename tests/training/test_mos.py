from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import log_softmax
from torch import nn

from openbench.errors import ConfigError
from openbench.training.augment.augmentations import blend, draw_share
from openbench.training.base import features_and_logits
from openbench.training.loop.weights import evaluated
from openbench.training.methods.cross_entropy import FineTuning
from openbench.training.methods.mos import MOS, Grouped, assignment, clustered

from .training_toys import (
    CLASSES,
    FEATURES,
    RECIPE,
    array,
    backbone,
    batch,
    draws,
    info,
    job,
    model_of,
    reading,
    sets,
    trained,
)

LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])
GIVEN = MOS(groups=[[0], [2, 1]], mixup=0.0)


def outputs(model: Grouped, images: torch.Tensor) -> list[np.ndarray]:
    """Per group the logits of "others" and of its classes, as the paper has them."""
    with torch.no_grad():
        f, z = features_and_logits(model.network, images)
        o, z = array(model.others(f)), array(z)
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
    model, given = model_of(GIVEN), batch(LABELS)
    expected = group_loss(outputs(model, given.images), LABELS.numpy())
    assert float(GIVEN.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_labels_are_mixed_as_images_are_and_openoods_images_stay_clean(compat: str) -> None:
    method = replace(GIVEN, mixup=5.0, compat=compat)
    model, given = model_of(method), batch(LABELS)
    generator = draws()
    mixed = blend(given.images, draw_share(5.0, generator), generator)
    parts = outputs(model, given.images if compat == "openood" else mixed.images)
    own, other = (group_loss(parts, y.numpy()) for y in (LABELS, LABELS[mixed.partners]))
    expected = mixed.share * own + (1 - mixed.share) * other
    assert 0.1 < mixed.share < 0.9
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def test_evaluated_are_odds_and_the_log_probability_of_others_in_each_group(tmp_path: Path) -> None:
    made = job(replace(GIVEN, recipe=RECIPE, tuning=FineTuning(2, 0.01)))
    checkpoint = trained(made, tmp_path)
    model = made.method.prepare(backbone().load(checkpoint.weights).module(), FEATURES, CLASSES).eval()
    model.load_state_dict(load_file(checkpoint.extras), strict=False)
    images = batch(LABELS).images
    found, expected = evaluated(made, checkpoint).outputs(images, reading("others")), outputs(model, images)
    others = np.column_stack([log_softmax(z, axis=1)[:, 0] for z in expected])
    np.testing.assert_allclose(found.maps["others"].numpy(), others, rtol=1e-4, atol=1e-5)
    odds = np.column_stack([z[:, 1:] - z[:, :1] for z in expected])
    np.testing.assert_allclose(found.logits.numpy(), odds, rtol=1e-4, atol=1e-4)


def test_weights_do_not_decay() -> None:
    assert [group["weight_decay"] for group in GIVEN.parameter_groups(model_of(GIVEN))] == [0.0]


def test_groups_are_found_from_the_class_means_of_the_starting_network() -> None:
    """Two classes that the network cannot tell apart end in one group."""
    method = MOS(groups=2)
    model = model_of(method)
    with torch.no_grad():
        model.network.conv.weight[:, :2] = 0  # blind to red and green: classes 0 and 1 look alike
    method.on_epoch_start(model, info(0), sets())
    assert model.groups.group_of.tolist() == [0, 0, 1]
    method.on_epoch_start(model, info(1), sets())
    assert model.groups.group_of.tolist() == [0, 0, 1]


def test_clusters_are_numbered_by_their_lowest_class_whatever_the_seed() -> None:
    means = np.array([[9.0, 0], [0, 0], [9.1, 0], [0.1, 0], [0, 50]])
    assert {tuple(clustered(means, 3, seed).tolist()) for seed in range(5)} == {(0, 1, 0, 1, 2)}


def test_given_groups_are_assigned() -> None:
    assert assignment(((0, 2), (3, 1)), 4).tolist() == [0, 1, 0, 1]


def test_groups_that_are_no_partition_of_the_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"MOS\.groups — found"):
        MOS(groups=[[0, 1], [1]])
    for groups, words in (([[0], [1]], "put every class from 0 to 2 in one group"), (4, "groups=4 for 3 classes")):
        with pytest.raises(ConfigError, match=words):
            MOS(groups=groups).prepare(nn.Identity(), FEATURES, CLASSES)
