from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from openbench.core.benchmark import Split
from openbench.core.request import Request, Role
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.errors import ConfigError, MethodError, TrainingError
from openbench.training.augment.augmentations import Mixed, Mixing, RandomCrop
from openbench.training.base import Batch, TrainingJob
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import EMA, accuracy_of, train
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.recipe import Recipe

from .training_toys import PREPROCESS, QUIET, RECIPE, ToyEntropy, ToyNet, ToyPrototypes, backbone, job, split


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return load_file(folder / f"{name}.safetensors")


def hard(recipe: Recipe, seed: int = 0) -> TrainingJob:
    """A job whose validation accuracy goes up and down."""
    splits = {"id_train": split(Role.ID_TRAIN, 70, contrast=10), "id_val": split(Role.ID_VAL, 40, contrast=10)}
    return job(ToyEntropy(recipe), seed=seed, **splits)


def by_hand(epochs: int, recipe: Recipe) -> dict[str, Tensor]:
    """Full-batch training written out: normalisation, cosine, clipping, weight decay, Nesterov, one formula each."""
    data = split(Role.ID_TRAIN, 70)
    images = normalised(data, torch.arange(70))
    labels = torch.from_numpy(data.labels)
    net = backbone(dropout=0).initialise(3).module().train()
    velocity = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for t in range(epochs):
        rate = 1e-6 + (recipe.lr - 1e-6) * 0.5 * (1 + np.cos(np.pi * t / epochs))
        net.zero_grad()
        (-functional.log_softmax(net(images), 1)[torch.arange(70), labels]).mean().backward()
        norm = sum(float(p.grad.square().sum()) for p in net.parameters()) ** 0.5
        shrink = 1.0 if recipe.clip is None else min(1.0, recipe.clip / (norm + 1e-6))
        for name, p in net.named_parameters():
            gradient = shrink * p.grad + recipe.weight_decay * p.detach()
            velocity[name] = recipe.momentum * velocity[name] + gradient
            ahead = gradient + recipe.momentum * velocity[name] if recipe.nesterov else velocity[name]
            p.data -= rate * ahead
    return dict(net.state_dict())


@pytest.mark.parametrize(
    "changes", [{}, {"nesterov": False}, {"clip": 0.05}, {"weight_decay": 0.1}, {"channels_last": False}]
)
def test_full_batch_training_equals_the_formulas_written_out(tmp_path: Path, changes: dict[str, object]) -> None:
    recipe = Recipe(epochs=6, batch_size=70, lr=0.2, **changes)
    method = CrossEntropy(recipe)
    train(job(method, seed=3, backbone=backbone(dropout=0)), tmp_path, QUIET)
    expected = by_hand(6, recipe)
    for name, value in weights(tmp_path).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_precision_of_the_cpu_learns_and_keeps_float32_weights(tmp_path: Path, precision: str) -> None:
    result = train(job(CrossEntropy(replace(RECIPE, epochs=8, precision=precision))), tmp_path, QUIET)
    assert result.curve[-1].val_accuracy > 0.9
    assert {w.dtype for n, w in weights(tmp_path).items() if "tracked" not in n} == {torch.float32}


def test_a_precision_that_the_device_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.recipe.precision=fp16 needs a GPU — choose fp32, tf32 or bf16"):
        train(job(CrossEntropy(replace(RECIPE, precision="fp16"))), tmp_path, QUIET)


def test_global_random_state_is_left_as_it_was(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    train(job(), tmp_path, QUIET)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_epoch_kept_is_the_last_of_the_most_accurate_with_its_weights(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=9, lr=1.0, final_lr=1.0)
    results = ((tmp_path / str(seed), train(hard(recipe, seed), tmp_path / str(seed), QUIET)) for seed in range(9))
    # In some the last epoch is the best, with another library in others.
    folder, result = next((folder, result) for folder, result in results if result.best["epoch"] < 9)
    accuracies = [row.val_accuracy for row in result.curve]
    assert result.best["epoch"] == max(range(1, 10), key=lambda e: (accuracies[e - 1], e))
    val = split(Role.ID_VAL, 40, contrast=10)
    for name, epoch in (("best", result.best["epoch"]), ("last", 9)):
        network = backbone().load(folder / f"{name}.safetensors")
        logits = torch.cat([network.outputs(x, Request()).logits for x in batches(val, PREPROCESS, 7)])
        right = (logits.argmax(1).numpy() == val.labels).mean()
        assert right == pytest.approx(accuracies[epoch - 1])


def test_a_method_may_choose_the_epoch_by_training_loss(tmp_path: Path) -> None:
    result = train(job(ToyPrototypes(replace(RECIPE, epochs=6, lr=0.8))), tmp_path, QUIET)
    losses = [row.loss for row in result.curve]
    assert result.best["epoch"] == 1 + int(np.argmin(losses))


def test_what_a_method_adds_is_kept_beside_the_network(tmp_path: Path) -> None:
    train(job(ToyPrototypes()), tmp_path, QUIET)
    extras = load_file(tmp_path / "last.extras.safetensors")
    assert set(extras) == {"projection.weight", "projection.bias", "prototypes", "epochs_seen"}
    assert int(extras["epochs_seen"]) == RECIPE.epochs
    backbone().load(tmp_path / "best.safetensors")


@dataclass(frozen=True)
class Recording(ToyEntropy):
    """Plain training that notes what it is given."""

    diverges_at: int = -1
    mixes: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        SEEN.append(batch)
        loss = functional.cross_entropy(model(batch.images), batch.labels)
        return loss * float("nan") if batch.info.step == self.diverges_at else loss


SEEN: list[Batch] = []


def normalised(data: Split, rows: Tensor) -> Tensor:
    """Images at some rows, (n, 3, h, w), by NumPy."""
    scaled = (data.items.pixels[rows.numpy()] / 255 - PREPROCESS.mean) / PREPROCESS.std
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).float()


def test_every_epoch_shows_every_image_once_with_its_label(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Recording(replace(RECIPE, augment=()))), tmp_path, QUIET)
    data = split(Role.ID_TRAIN, 70)
    orders = []
    for epoch in range(RECIPE.epochs):
        seen = [b for b in SEEN if b.info.epoch == epoch]
        rows = torch.cat([b.rows for b in seen])
        assert sorted(rows.tolist()) == list(range(70))
        assert torch.cat([b.labels for b in seen]).tolist() == data.labels[rows.numpy()].tolist()
        torch.testing.assert_close(torch.cat([b.images for b in seen]), normalised(data, rows), rtol=0, atol=1e-5)
        orders.append(rows.tolist())
    assert orders[0] != orders[1]
    assert [b.info.step for b in SEEN] == list(range(20))
    assert {(b.info.epochs, b.info.steps) for b in SEEN} == {(4, 20)}


def test_a_loss_that_is_not_finite_is_named_with_its_step(tmp_path: Path) -> None:
    method = Recording(replace(RECIPE, batch_size=2, epochs=3), diverges_at=39)
    with pytest.raises(TrainingError, match=r"loss is nan at step 40 of 105 \(epoch 2, batch 5, learning rate"):
        train(job(method), tmp_path, QUIET)
    assert not (tmp_path / "finished.json").exists()


@dataclass(frozen=True)
class Outlying(Recording):
    uses_outliers = True


def test_outliers_come_augmented_in_batches_that_cover_their_split(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Outlying(replace(RECIPE, augment=()))), tmp_path, QUIET)
    data = split(Role.OOD_TRAIN, 24)
    rows = torch.cat([b.outlier_rows for b in SEEN if b.info.epoch == 0])
    assert len(rows) == 5 * 16
    assert sorted(rows[:24].tolist()) == list(range(24))
    torch.testing.assert_close(SEEN[3].outliers, normalised(data, SEEN[3].outlier_rows), rtol=0, atol=1e-5)


@dataclass(frozen=True)
class Vector(Recording):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch.images), batch.labels, reduction="none")


@dataclass(frozen=True)
class Forgetful(Recording):
    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> nn.Module:
        return nn.Linear(feature_dim, num_classes)


@pytest.mark.parametrize(("method", "words"), [(Vector, r"of shape \(16,\)"), (Forgetful, "without the network")])
def test_a_method_that_breaks_the_contract_is_told_so(tmp_path: Path, method: type[Recording], words: str) -> None:
    with pytest.raises(MethodError, match=words):
        train(job(method()), tmp_path, QUIET)


@dataclass(frozen=True)
class Twice(Recording):
    views: ClassVar[int] = 2


@dataclass(frozen=True)
class Halves(Mixing):
    """Half of each image and half of the next."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        return Mixed(0.75 * images + 0.25 * images.roll(-1, 0), torch.arange(len(images)).roll(-1), 0.75)


def test_two_views_are_the_same_images_augmented_anew(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Twice(replace(RECIPE, epochs=1, augment=(RandomCrop(3),)))), tmp_path, QUIET)
    for batch in SEEN:
        first, second = batch.rows.chunk(2)
        assert torch.equal(first, second)
        assert len(batch.images) == len(batch.labels) == len(batch.rows)
        labels = split(Role.ID_TRAIN, 70).labels[batch.rows.numpy()]
        assert batch.labels.tolist() == labels.tolist()
        one, two = batch.images.chunk(2)
        assert not torch.equal(one, two)
    assert sorted(torch.cat([b.rows.chunk(2)[0] for b in SEEN]).tolist()) == list(range(70))


def test_mixed_images_come_with_the_labels_of_both(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Recording(replace(RECIPE, epochs=1, augment=(Halves(),)))), tmp_path, QUIET)
    data = split(Role.ID_TRAIN, 70)
    for batch in SEEN:
        own, other = batch.rows, batch.rows.roll(-1)
        assert batch.labels.tolist() == data.labels[own].tolist()
        assert batch.partners.tolist() == data.labels[other].tolist()
        assert batch.share == 0.75
        expected = 0.75 * normalised(data, own) + 0.25 * normalised(data, other)
        torch.testing.assert_close(batch.images, expected, rtol=0, atol=1e-5)


@dataclass(frozen=True)
class Sliding(ToyEntropy):
    """A loss with gradient 1 for every bias, one of them at a constant rate, another at a tenth of the rate."""

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        return [
            {"params": [model.conv.bias]},
            {"params": [model.fc.bias], "lr_constant": True},
            {"params": [model.bn.bias], "lr_scale": 0.1},
        ]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return sum(part.bias.sum() for part in (model.conv, model.bn, model.fc))


def test_groups_move_at_the_rates_that_they_ask_for(tmp_path: Path) -> None:
    recipe = Recipe(epochs=4, batch_size=16, lr=0.05, momentum=0, nesterov=False, weight_decay=0)
    made = job(Sliding(recipe))
    before = backbone().initialise(made.seed).module().state_dict()
    train(made, tmp_path, QUIET)
    after = load_file(tmp_path / "last.safetensors")
    total = sum(recipe.learning_rate(t, 5) for t in range(20))
    assert total < 0.6 * 20 * 0.05
    for name, way in (("conv.bias", total), ("fc.bias", 20 * 0.05), ("bn.bias", 0.1 * total)):
        torch.testing.assert_close(before[name] - after[name], torch.full_like(after[name], way), rtol=1e-4, atol=1e-6)


AVERAGED = replace(RECIPE, ema=0.9)


def walk(model: torch.nn.Module, steps: int):
    """Move every weight and statistic of a network at random, step by step."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.add_(torch.randn(value.shape, generator=generator).to(value.dtype))
        yield


def test_average_follows_its_recursion() -> None:
    model, decay = ToyNet(), 0.8
    average = EMA(model, decay)
    expected = {k: v.clone().double() for k, v in model.state_dict().items() if v.is_floating_point()}
    for step, _ in enumerate(walk(model, 60), start=1):
        average.update()
        d = min(decay, (1 + step) / (10 + step))
        for name, mean in expected.items():
            mean.mul_(d).add_(model.state_dict()[name].double(), alpha=1 - d)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with average.in_place():
        for name, mean in expected.items():
            torch.testing.assert_close(model.state_dict()[name].double(), mean, rtol=1e-5, atol=1e-5)
        assert torch.equal(model.bn.num_batches_tracked, before["bn.num_batches_tracked"])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_average_is_what_is_validated_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(model, *arguments):
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return accuracy_of(model, *arguments)

    monkeypatch.setattr(loop, "accuracy_of", noted)
    train(job(ToyEntropy(AVERAGED)), tmp_path, QUIET)
    last = load_file(tmp_path / "last.safetensors")
    assert last.keys() == seen[-1].keys()
    assert all(torch.equal(last[name], seen[-1][name]) for name in last)


def test_averaging_does_not_disturb_the_steps(tmp_path: Path) -> None:
    plain = train(job(), tmp_path / "plain", QUIET)
    averaged = train(job(ToyEntropy(AVERAGED)), tmp_path / "averaged", QUIET)
    assert [row.loss for row in averaged.curve] == [row.loss for row in plain.curve]
    assert averaged.files != plain.files


def test_a_recipe_without_average_keeps_its_name_and_one_with_has_another() -> None:
    older = {f: getattr(RECIPE, f) for f in RECIPE.__dataclass_fields__ if f != "ema"}
    assert digest(RECIPE) == digest({"__type__": "Recipe", **older})
    assert digest(AVERAGED) != digest(RECIPE)
