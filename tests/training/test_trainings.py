"""Every training of configs/training, at its defaults and each of its choices, against one contract."""

import copy
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import openbench.training.methods
from openbench import paths
from openbench.config.build import build, target_of
from openbench.config.folders import shipped
from openbench.core.request import Field, Request
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop
from openbench.training.base import Batch, Selection, StepInfo, TrainingJob, TrainingMethod
from openbench.training.loop._loop import train
from openbench.training.loop.weights import Checkpoint, evaluated, find_checkpoint, folder_of
from openbench.training.recipe import Recipe

from .training_toys import CLASSES, FEATURES, QUIET, backbone, job, sets, train_until_killed, trained

NAMES = sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml"))
RECIPE = Recipe(batch_size=24, lr=0.1, augment=(RandomCrop(1), HorizontalFlip()))
# Sizes that fit 70 images of 8×8; nothing here changes what is computed.
SMALL = {
    "vos": {"queue": 8, "start": 0.3},
    "mcd": {"start": 0.5},
    "npos": {"queue": 12, "k": 4, "select": 6, "sample_from": 10, "keep_farthest": 4, "start": 0.3},
    "sngp": {"random_features": 64},
    "outlier_exposure": {"outliers_per_step": 20},
    "udg": {"outliers_per_step": 20, "groups": 8},
    "energy_bounded": {"outliers_per_step": 20, "m_in": -4.0, "m_out": -1.0},
}
# Fine-tunings that leave the first layers as they were.
FROZEN = {"csi", "cider_last_stage"}
# Evaluated are features that the training made of the network's: how many.
OWN_FEATURES = {"sngp": 64}


def literals(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) is Literal else []


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NAMES:
        yield name, {}
        node = shipped("training", name)
        hints = get_type_hints(target_of(node))
        for option in (key for key in node if not key.startswith("_")):
            yield from ((name, {option: value}) for value in literals(hints[option]) if value != node[option])


def label(variant: tuple[str, dict[str, Any]]) -> str:
    return variant[0] + "".join(f"[{key}={value}]" for key, value in variant[1].items())


def small(variant: tuple[str, dict[str, Any]]) -> TrainingMethod:
    name, options = variant
    method = build({**shipped("training", name), **SMALL.get(name, {}), **options}, "training")
    made = replace(method, recipe=replace(RECIPE, epochs=4 if name == "mcd" else 3))  # it begins late
    return replace(made, tuning=replace(made.tuning, epochs=3)) if hasattr(made, "tuning") else made


@pytest.fixture(scope="module", params=list(variants()), ids=label)
def variant(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Of the module, so that all tests of one variant follow each other and share `whole`."""
    return request.param


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all checkpoints: variants that start from the same first training find it there."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(variant, root: Path) -> tuple[TrainingJob, Checkpoint, Path]:
    """A job, trained to its end without a break, and the folder of its checkpoint."""
    made = job(small(variant), seed=1)
    return made, trained(made, root), root


def state_of(method: TrainingMethod, seed: int = 0) -> tuple[nn.Module, Batch]:
    """A prepared network, and a batch late in the training; queues and the like are filled."""
    torch.manual_seed(seed)
    network = backbone(dropout=0).initialise(seed).module()
    model, data = method.prepare(network, FEATURES, CLASSES).train(), sets()
    rows = torch.arange(16).repeat(method.views)
    out = torch.arange(method.outlier_batch_size) % 24
    epochs = method.schedule.epochs
    info = StepInfo(0, epochs, 0, epochs * 5, torch.Generator().manual_seed(seed))
    method.on_epoch_start(model, info, data)
    model.train()
    late = replace(info, epoch=epochs - 1, step=epochs * 5 - 1)
    batch = Batch(data.train.images(rows), data.train.labels[rows], rows, late)
    if method.uses_outliers:
        batch = replace(batch, outliers=data.outliers.images(out), outlier_rows=out)
    with torch.no_grad():
        for start in range(0, 64, 16):
            more = torch.arange(start, start + 16).repeat(method.views)
            method.loss(
                model, replace(batch, images=data.train.images(more), labels=data.train.labels[more], rows=more)
            )
    return model, batch


State = tuple[nn.Module, Batch]


@pytest.fixture(scope="module")
def prepared(variant) -> tuple[State, Tensor]:
    """The state of a variant, to be copied only, and that of the global generator then."""
    return state_of(small(variant)), torch.get_rng_state()


@pytest.fixture
def state(prepared) -> State:
    """As `state_of` would return it to each test."""
    (model, batch), random = prepared
    torch.set_rng_state(random)
    info = replace(batch.info, generator=batch.info.generator.clone_state())
    return copy.deepcopy(model), replace(batch, images=batch.images.clone(), info=info)


def optimised(method: TrainingMethod, model: nn.Module) -> dict[str, nn.Parameter]:
    chosen = {id(p) for group in method.parameter_groups(model) for p in group["params"]}
    return {name: p for name, p in model.named_parameters() if id(p) in chosen}


def test_training_tells_the_classes_apart(whole) -> None:
    assert whole[1].info["best_val_accuracy"] > 0.8


def test_gradients_reach_every_parameter_that_is_optimised_and_what_else_of_the_network_learns(
    variant, state: State
) -> None:
    method = small(variant)
    model, batch = state
    method.loss(model, batch).backward()
    for name, parameter in optimised(method, model).items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    network = next(m for m in model.modules() if type(m).__name__ == "ToyNet")
    if variant[0] in FROZEN:
        assert network.conv.weight.grad is None
    else:
        assert network.conv.weight.grad.abs().sum() > 0


def test_loss_is_a_finite_float32_scalar_that_changes_neither_images_nor_global_randomness(
    variant, state: State
) -> None:
    method = small(variant)
    model, batch = state
    images, random = batch.images.clone(), torch.get_rng_state()
    loss = method.loss(model, batch)
    assert (loss.shape, loss.dtype) == ((), torch.float32)
    assert torch.isfinite(loss)
    assert torch.equal(batch.images, images)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_same_seed_gives_the_same_bits_also_after_a_kill(whole, tmp_path: Path) -> None:
    made, through, root = whole
    first = None if made.initial is None else trained(made.initial, root).weights
    torch.rand(5)  # what happened before must not matter
    folder = folder_of(made, tmp_path / "cut")
    train_until_killed(made, folder, 2, start=first)
    assert train(made, folder, QUIET, first).resumed_after == 2
    again = find_checkpoint(made, tmp_path / "cut")
    assert (again.sha256, again.info["files"]) == (through.sha256, through.info["files"])


def test_a_batch_can_be_computed_in_bf16(variant, state: State) -> None:
    method = small(variant)
    model, batch = state
    fresh = [replace(batch, info=replace(batch.info, generator=torch.Generator().manual_seed(2))) for _ in range(2)]
    full = method.loss(copy.deepcopy(model), fresh[0])
    with torch.autocast("cpu", torch.bfloat16):
        half = method.loss(model, fresh[1])
    half.backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in optimised(method, model).values())
    assert float(half.detach()) == pytest.approx(float(full.detach()), rel=0.1, abs=0.05)


@pytest.fixture(scope="module")
def surfaces(whole) -> tuple[Any, nn.Module]:
    """What is evaluated, and the trained module itself, put together from the two files by hand."""
    made, checkpoint, _ = whole
    found = evaluated(replace(made, backbone=backbone()), checkpoint)
    network = backbone().load(checkpoint.weights).module()
    model = made.method.prepare(network, FEATURES, CLASSES)
    extras = {} if checkpoint.extras is None else load_file(checkpoint.extras)
    assert model.load_state_dict(extras, strict=False).unexpected_keys == []
    return found, model.eval()


def test_evaluated_logits_are_the_head_of_the_features_and_rank_classes_as_validation_did(surfaces) -> None:
    found, model = surfaces
    images = torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    outputs = found.outputs(images, Request(fields=frozenset({Field.LOGITS, Field.FEATURES})))
    torch.testing.assert_close(found.head(outputs.features), outputs.logits, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        ours = model(images)
    torch.testing.assert_close(outputs.logits.argmax(1), ours.argmax(1))
    torch.testing.assert_close(outputs.logits.softmax(1), ours.softmax(1), rtol=1e-4, atol=1e-5)


def test_what_is_evaluated_keeps_its_digest_and_its_stages(whole, surfaces, variant) -> None:
    (made, checkpoint, _), (first, _) = whole, surfaces
    assert first.digest == evaluated(replace(made, backbone=backbone()), checkpoint).digest
    assert set(backbone().layers) <= set(first.layers)
    assert (first.num_classes, first.feature_dim) == (CLASSES, OWN_FEATURES.get(variant[0], FEATURES))


def lacking(method: TrainingMethod) -> Iterator[str]:
    """What the metadata of a training lack."""
    doc = type(method).__doc__ or ""
    if not any(character.isdigit() for character in method.reference) or "Reference:" not in doc:
        yield "a reference"
    if method.version < 1:
        yield "a version"
    if method.selection not in get_args(Selection):
        yield f"selection {method.selection}: not one"
    yield from (f.name for f in fields(method) if f.name != "recipe" and f"{f.name}:" not in doc)


def test_metadata_is_complete() -> None:
    methods = {name: build(shipped("training", name), "training") for name in NAMES}
    assert [f"{name}: {what}" for name, method in methods.items() for what in lacking(method)] == []


def test_every_training_method_has_a_config() -> None:
    found = set()
    for file in Path(openbench.training.methods.__file__).parent.glob("*.py"):
        module = importlib.import_module(f"openbench.training.methods.{file.stem}")
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, TrainingMethod)]
        found |= {kind for kind in kinds if not inspect.isabstract(kind)}
    assert found == {target_of(shipped("training", name)) for name in NAMES}
