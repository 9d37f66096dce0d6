"""Trainings: the losses and gradients of four steps of a tiny network, what it then is, and what is evaluated of it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from golden_cases import Case, Entry, classes_of, file_of, named, variants
from golden_inputs import Array, bell, single, whole
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import openbench.training
from openbench import paths
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.data.sources.base import ArrayItems
from openbench.errors import ConfigError
from openbench.training import base as jobs
from openbench.training._images import ImageSet
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop, RegMixup
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingJob, TrainingMethod
from openbench.training.loop._loop import train
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.recipe import Recipe

SIDE, CLASSES, FEATURES, IMAGES, OUTLIERS = 6, 3, 8, 48, 24
STEPS = 4
RECIPE = Recipe(epochs=6, batch_size=12, lr=0.05)
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
# Sizes that fit 48 images; nothing here changes what is computed.
SMALL: Mapping[str, dict[str, Any]] = {
    "vos": {"queue": 6, "start": 0.3, "sample_from": 200},
    "mcd": {"start": 0.5},
    "npos": {"queue": 8, "k": 3, "select": 5, "sample_from": 10, "keep_farthest": 4, "start": 0.3},
    "sngp": {"random_features": 16},
    "outlier_exposure": {"outliers_per_step": 12},
    "udg": {"outliers_per_step": 12, "groups": 6},
    "energy_bounded": {"outliers_per_step": 12, "m_in": -4.0, "m_out": -1.0},
}


class Tiny(nn.Module):
    """Two convolutions, batch norm, a linear layer; no dropout, whose mask would hide what it covers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, FEATURES, 3, padding=1)
        self.bn = nn.BatchNorm2d(FEATURES)
        self.last = nn.Conv2d(FEATURES, FEATURES, 3, padding=1)
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits."""
        x = functional.relu(self.bn(self.stem(x)))
        logits: Tensor = self.fc(functional.relu(self.last(x)).mean(dim=(2, 3)))
        return logits


def classes() -> list[type]:
    """Every training of openbench."""
    return classes_of(openbench.training, (TrainingMethod,))


def small() -> dict[str, TrainingMethod]:
    """The training of every config, with a recipe and sizes that fit 48 images."""
    found = {}
    for name in sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml")):
        method = build({**(shipped("training", name) or {}), **SMALL.get(name, {})}, "training")
        found[name] = replace(method, recipe=RECIPE)
    return found


def entries() -> Iterator[Entry]:
    """One entry per class, and one for the loop."""
    cases: dict[type, dict[str, Case]] = {cls: {} for cls in classes()}
    for name, method in small().items():
        given = {key: getattr(method, key) for key in method.__dataclass_fields__}
        cases[type(method)][name] = _case(method)
        for options in variants(type(method), given, {}):
            # Values that do not go with the others make no training; that is for other tests.
            with suppress(ConfigError):
                cases[type(method)][f"{name} {named(options)}"] = _case(replace(method, **options))
    for cls, found in cases.items():
        yield Entry(f"trainings/{cls.__qualname__}", file_of(cls), found)
    loop = {name: Case(jobs.LOOP_VERSION, partial(_looped, recipe)) for name, recipe in LOOPED.items()}
    yield Entry("trainings/loop", file_of(jobs), loop)


def _case(method: TrainingMethod) -> Case:
    return Case(type(method).version, lambda: _trained(method))


def _pixels(seed: int, n: int, labels: Array | None) -> Array:
    """Noise whose class makes one colour brighter; outliers are bright in all."""
    found = whole(seed, (n, SIDE, SIDE, 3), 150)
    bright = 60 if labels is None else 100 * (labels[:, None, None, None] == np.arange(3))
    return (found + bright).astype(np.uint8)


def _held(seed: int, n: int, known: bool) -> ImageSet:
    split = _split(Role.ID_TRAIN if known else Role.OOD_TRAIN, seed, n)
    return ImageSet(split, Preprocess(SIDE, SIDE, MEAN, STD), torch.device("cpu"))


@torch.no_grad()
def set_weights(module: nn.Module) -> None:
    """Give what was drawn numbers of ours; what begins with zeros or ones stays."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for i, name in enumerate(sorted(tensors)):
        tensor = tensors[name]
        drawn = len(np.unique(tensor.numpy())) > 1 or (tensor.shape == (1,) and float(tensor) not in (0.0, 1.0))
        if tensor.is_floating_point() and drawn:
            width = 2.0 ** -round(np.log2(max(tensor[0].numel(), 1)) / 2)
            shift = 1.0 if tensor.ndim == 1 and "bias" not in name else 0.0
            tensor.copy_(single(bell(200 + i, tuple(tensor.shape)) * width / 2 + shift))


def begun(method: TrainingMethod) -> tuple[nn.Module, TrainingData, StepInfo]:
    """A prepared network before its first step, the images, and that step."""
    torch.default_generator.manual_seed(0)
    network = Tiny()
    set_weights(network)
    model = method.prepare(network, FEATURES, CLASSES).train()
    set_weights(model)
    data = TrainingData(_held(300, IMAGES, True), _held(310, OUTLIERS, False) if method.uses_outliers else None)
    epochs = method.schedule.epochs
    first = StepInfo(0, epochs, 0, epochs * STEPS, torch.Generator().manual_seed(0))
    method.on_epoch_start(model, first, data)
    return model, data, first


def _trained(method: TrainingMethod) -> list[float]:
    """Losses and gradient norms step by step, then every tensor of the module, then what is evaluated."""
    model, data, first = begun(method)
    epochs = method.schedule.epochs
    optimiser = torch.optim.SGD(_plain(method.parameter_groups(model)), lr=0.02)
    found = []
    for step in range(STEPS):
        # Late enough for what begins late; before that, what fills queues.
        info = replace(first, epoch=epochs - 1 if step else 0, step=(epochs - 1) * STEPS + step if step else 0)
        model.train()
        if step == 1:
            _fill(method, model, data, info)
        rows = torch.arange(12 * step, 12 * step + 12).repeat(method.views)
        loss = method.loss(model, batch_of(method, data, rows, info))
        optimiser.zero_grad()
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found += [float(loss.detach()), float(torch.stack([g.double().norm() for g in grads]).norm())]
        optimiser.step()
        method.on_step_end(model, info)
    found += [x for name, tensor in sorted(model.state_dict().items()) for x in _projected(tensor)]
    return found + _evaluated(method, model.eval())


def _plain(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups as the optimiser of torch takes them: the loop's own keys become rates."""
    made = []
    for group in groups:
        scale = float(group.get("lr_scale", 1.0))
        made.append({"params": group["params"], "lr": 0.02 * scale, "weight_decay": group.get("weight_decay", 0.01)})
    return made


@torch.no_grad()
def _fill(method: TrainingMethod, model: nn.Module, data: TrainingData, info: StepInfo) -> None:
    for start in range(0, IMAGES, 12):
        method.loss(model, batch_of(method, data, torch.arange(start, start + 12).repeat(method.views), info))


def batch_of(method: TrainingMethod, data: TrainingData, rows: Tensor, info: StepInfo) -> Batch:
    """The batch of these images, with as many outliers as the method takes."""
    batch = Batch(data.train.images(rows), data.train.labels[rows], rows, info)
    if data.outliers is None:
        return batch
    out = torch.arange(method.outlier_batch_size) % OUTLIERS
    return replace(batch, outliers=data.outliers.images(out), outlier_rows=out)


def _projected(tensor: Tensor) -> list[float]:
    """Two sums with weights of our own: a tensor in short."""
    flat = tensor.detach().double().reshape(-1).numpy()
    weights = whole(400, (2, len(flat)), 7) - 2
    return [float(x) for x in weights @ flat / max(len(flat), 1) ** 0.5]


@torch.no_grad()
def _evaluated(method: TrainingMethod, model: nn.Module) -> list[float]:
    """Validation's logits, the evaluated ones, and the further outputs, of three images."""
    images = _held(320, 3, True).images(torch.arange(3))
    found = [model(images)]
    surface = method.eval_model(model)
    if surface is not None:
        seen: list[Tensor] = []
        hooks = [part.register_forward_hook(lambda _m, _i, out: seen.append(out)) for part in surface.outputs.values()]
        found += [surface.module(images), *seen]
        for hook in hooks:
            hook.remove()
    return [x for tensor in found for x in tensor.double().reshape(-1).tolist()]


LOOPED = {
    "plain": Recipe(epochs=2, batch_size=12, lr=0.05, warmup_epochs=1, augment=(RandomCrop(1), HorizontalFlip())),
    "every option": Recipe(
        epochs=2,
        batch_size=11,
        lr=0.05,
        nesterov=False,
        momentum=0.5,
        weight_decay=0.01,
        clip=0.5,
        ema=0.9,
        channels_last=False,
        augment=(RegMixup(),),
        final_lr=0.01,
    ),
}


def _split(role: Role, seed: int, n: int) -> Split:
    labels = np.arange(n) % CLASSES
    items, keys = (
        ArrayItems(_pixels(seed, n, labels if role.is_id else None), np.arange(n)),
        [f"golden/{i}" for i in range(n)],
    )
    return Split("golden", role, items, labels, keys, ("r", "g", "b"), digest=f"{role}-{seed}", expected=n)


def _looped(recipe: Recipe) -> list[float]:
    """The weights of a training from beginning to end, and its curve."""
    backbone = NetworkBackbone(
        "golden", "golden", _started, lambda _: Anatomy("fc"), preprocess=Preprocess(SIDE, SIDE, MEAN, STD)
    )
    splits = _split(Role.ID_TRAIN, 330, IMAGES), _split(Role.ID_VAL, 340, 12)
    job = TrainingJob(backbone, "golden", *splits, None, CrossEntropy(recipe), 0)
    with TemporaryDirectory() as folder:
        train(job, Path(folder), Runtime(device="cpu", progress=False))
        weights = load_file(next(f for f in Path(folder).glob("*.safetensors") if "extras" not in f.name))
        curve = np.genfromtxt(next(Path(folder).rglob("curve.csv")), delimiter=",", names=True)
    told = [float(x) for name in ("loss", "val_accuracy", "lr") for x in curve[name]]
    return told + [x for name in sorted(weights) for x in _projected(weights[name])]


def _started() -> nn.Module:
    """A network with weights of ours, whatever is drawn."""
    made = Tiny()
    set_weights(made)
    return made
