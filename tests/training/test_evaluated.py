"""From checkpoints to what is evaluated: folded heads, named outputs, fine-tuning from a shared training."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from openbench.backbones.network import NetworkBackbone
from openbench.core.request import Field, Request
from openbench.training.base import TrainingMethod
from openbench.training.loop.weights import evaluated, get_or_train
from openbench.training.methods.cross_entropy import CrossEntropy, FineTuning
from openbench.training.methods.heads import ConfBranch, RotPred
from openbench.training.methods.outliers import MCD, EnergyBounded
from openbench.training.methods.virtual_outliers import VOS

from ..logged import logged  # noqa: TID252 — the tests are no package
from .training_toys import CLASSES, RECIPE, backbone, benchmark, job, reading, sets, setting, trained


def recipe_node(**changes: object) -> dict[str, object]:
    return {"_target_": "openbench.training.recipe.Recipe", "epochs": 2, "batch_size": 16, **changes}


def node(target: str, **changes: object) -> dict[str, object]:
    return {"_target_": f"openbench.training.methods.{target}", "recipe": recipe_node(), **changes}


TUNED = node(
    "outliers.EnergyBounded",
    tuning={"_target_": "openbench.training.methods.cross_entropy.FineTuning", "epochs": 3, "lr": 0.01},
    outliers_per_step=8,
)


def ensured(training: dict[str, object], root: Path, **changes: object):
    config = {"training": training, "seed": 5}
    with logged() as said:
        return get_or_train(backbone(), benchmark(), config, setting(root, **changes)), said


def test_fine_tuning_starts_from_the_very_checkpoint_of_plain_cross_entropy(tmp_path: Path) -> None:
    plain, _ = ensured(node("cross_entropy.CrossEntropy"), tmp_path)
    tuned, said = ensured(TUNED, tmp_path)
    assert len(said) == 1, "cross-entropy is not trained again"
    assert "3 epochs of 70 images" in said[0]
    assert tuned.checkpoint.info["epochs"] == 3
    assert tuned.backbone.digest != plain.backbone.digest


def test_force_trains_the_fine_tuning_anew_and_keeps_what_it_starts_from(tmp_path: Path) -> None:
    _, said = ensured(TUNED, tmp_path)
    assert ["CrossEntropy" in line for line in said] == [True, False]  # what it starts from was missing too
    stamps = {f: f.stat().st_mtime_ns for f in tmp_path.glob("*/finished.json")}
    _, said = ensured(TUNED, tmp_path, train="force")
    changed = [f for f, stamp in stamps.items() if f.stat().st_mtime_ns > stamp]
    assert len(said) == len(changed) == 1
    assert "training again" in said[0]


def test_a_tiny_rate_leaves_the_network_where_it_started(tmp_path: Path) -> None:
    method = EnergyBounded(RECIPE, FineTuning(epochs=1, lr=1e-9), outliers_per_step=8)
    made = job(method, backbone=backbone(dropout=0))
    before, after = (load_file(trained(one, tmp_path).weights) for one in (made.initial, made))
    for name in (n for n in before if "running" not in n and "tracked" not in n):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-5)


def test_schedule_of_a_fine_tuning_changes_epochs_rate_and_warm_up_alone() -> None:
    recipe = replace(RECIPE, epochs=40, lr=0.1, warmup_epochs=5, weight_decay=0.3)
    method = EnergyBounded(recipe, FineTuning(7, 1e-7))
    assert method.schedule == replace(recipe, epochs=7, lr=1e-7, final_lr=1e-7, warmup_epochs=0)
    assert method.initial == CrossEntropy(recipe)


def made_ready(method: TrainingMethod, root: Path) -> tuple[NetworkBackbone, Tensor]:
    """What is evaluated of a training, and images."""
    made = job(method)
    return evaluated(made, trained(made, root)), sets().train.images(torch.arange(40))


@pytest.mark.parametrize(
    ("method", "layer", "width"),
    [
        (ConfBranch(RECIPE), "confidence", 1),
        (MCD(RECIPE), "second_head", CLASSES),
        (RotPred(RECIPE), "rotations", 16),
        (VOS(RECIPE), "weighted_energy", 1),
    ],
)
def test_outputs_are_read_as_layers_and_independent_of_the_batch(tmp_path, method, layer: str, width: int) -> None:
    found, images = made_ready(method, tmp_path)
    request = reading(layer)
    whole = found.outputs(images, request)
    assert whole.maps[layer].shape == (len(images), width)
    parts = torch.cat([found.outputs(part, request).maps[layer] for part in images.split(7)])
    torch.testing.assert_close(whole.maps[layer], parts)
    # Features and logits are those of a pass that does not ask for the output.
    plain = found.outputs(images, Request(fields=frozenset({Field.LOGITS, Field.FEATURES})))
    torch.testing.assert_close(whole.logits, plain.logits)
    torch.testing.assert_close(whole.features, plain.features)


def test_rotations_are_those_of_the_turned_images(tmp_path: Path) -> None:
    found, images = made_ready(RotPred(RECIPE), tmp_path)
    head = found.module().rotation
    rotations = found.outputs(images, reading("rotations")).maps["rotations"].view(-1, 4, 4)
    for turns in range(4):
        turned = torch.rot90(images, turns, (2, 3))
        features = found.outputs(turned, Request(fields=frozenset({Field.FEATURES}))).features
        torch.testing.assert_close(rotations[:, turns], head(features).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", [CrossEntropy(RECIPE), ConfBranch(RECIPE)])
def test_making_what_is_evaluated_leaves_the_global_random_state(tmp_path: Path, method: TrainingMethod) -> None:
    made = job(method)
    checkpoint = trained(made, tmp_path)
    state = torch.get_rng_state()
    evaluated(made, checkpoint)
    assert torch.equal(torch.get_rng_state(), state)
