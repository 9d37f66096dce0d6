"""A small planted problem that every sensible OOD score solves: tight ID clusters and weak, scattered OOD samples.

It has columns, images with a network that finds these columns, and texts; `fitted` and `scored` run any method on it.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.anatomy import Anatomy, reduce_map
from openbench.backbones.network import NetworkBackbone
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Composite, LiveMethod, Method, StreamingMethod, leaves
from openbench.core.preprocess import Preprocess
from openbench.core.request import CLASSES, Field, Request, Role, Texts
from openbench.digest import digest

SAMPLES_PER_CLASS = 120
LAYERS = ("stage1", "stage2", "stage3", "stage4")
WORDS = 40  # of a corpus that is not the classes
_OWN = 4  # dimensions in which one class is active
_SIDE = 2  # height and width of maps


class PlantedTexts(Mapping[Texts, Tensor]):
    """Any corpus, made when it is read: (c, d) for the classes, (40, d) for a list of words.

    The classes lie along the rows of the head. Every second word lies close to a class, the others in any direction
    without negative parts. The `no` tower gives such words for the classes too.
    """

    def __init__(self, weight: Tensor) -> None:
        """Keep the rows (c, d) of the head."""
        self._rows = functional.normalize(weight, dim=1)

    def __getitem__(self, texts: Texts) -> Tensor:
        """Unit embeddings (m, d) float32; equal for equal corpora."""
        generator = torch.Generator().manual_seed(int(digest(texts), 16) % 2**31)
        classes, d = self._rows.shape
        if texts.words == CLASSES and texts.tower == "text":
            return functional.normalize(self._rows + 0.01 * torch.randn(classes, d, generator=generator), dim=1)
        count = classes if texts.words == CLASSES else WORDS
        words = torch.randn(count, d, generator=generator).relu() + 0.01
        if texts.words != CLASSES:
            near = self._rows[torch.arange(count) % classes] + 0.02 * torch.randn(count, d, generator=generator)
            words = torch.where(torch.arange(count)[:, None] % 2 == 0, near, words)
        return functional.normalize(words, dim=1)

    def __iter__(self) -> Iterator[Texts]:
        """No corpus is made before it is read."""
        return iter(())

    def __len__(self) -> int:
        """As many as `__iter__` yields."""
        return 0


@dataclass(frozen=True)
class Toy:
    """ID and OOD splits of one planted problem, with every column, and the head that made the logits.

    Args:
        train: ID training samples, labelled.
        val: ID validation samples, labelled.
        id_test: ID test samples, labelled.
        ood_test: OOD samples; their labels are −1.
        head: the classifier: `logits = head(features)` in every split.
    """

    train: FeatureSet
    val: FeatureSet
    id_test: FeatureSet
    ood_test: FeatureSet
    head: Head

    def for_fit(self, request: Request) -> FeatureSet | None:
        """The split that `request` names, with only what it declares; None if it names none."""
        splits = {Role.ID_TRAIN: self.train, Role.ID_VAL: self.val}
        return None if request.fit_on is None else declared(splits[request.fit_on], request)

    def head_for(self, request: Request) -> Head | None:
        """The head that `request` asks for, with the texts that it declares; None if it asks for none."""
        if not request.head:
            return None
        return replace(self.head, texts={texts: self.head.texts[texts] for texts in request.texts})


def planted(seed: int = 0, classes: int = 5, free: int = 12) -> Toy:
    """Return a planted problem with d = 4·classes + free rectified features.

    A sample of class c is active in its own four dimensions; an OOD sample is weakly active everywhere and more so in
    the free dimensions, where ID samples are nearly silent. The head weighs a class' own dimensions against the others.
    Each call returns new tensors.

    Args:
        seed: of the generator.
        classes: number of ID classes.
        free: number of dimensions that no class uses.
    """
    toy = _planted(seed, classes, free)
    weight = toy.head.weight.clone()
    head = Head(weight, toy.head.bias.clone(), texts=PlantedTexts(weight.clone()))
    return Toy(copied(toy.train), copied(toy.val), copied(toy.id_test), copied(toy.ood_test), head)


@lru_cache(maxsize=4)
def _planted(seed: int, classes: int, free: int) -> Toy:
    """Return the problem, drawn once in a process."""
    generator = torch.Generator().manual_seed(seed)
    d = _OWN * classes + free
    owned = torch.zeros(classes, d)
    for c in range(classes):
        owned[c, _OWN * c : _OWN * (c + 1)] = 1
    # Small unequal parts keep rows of W from summing to zero and biases from being equal.
    weight = 0.5 * owned - 0.1 + 0.02 * torch.randn(classes, d, generator=generator)
    head = Head(weight, 0.1 * torch.randn(classes, generator=generator))
    train, val, id_test = (_id_split(owned, head, generator) for _ in range(3))
    return Toy(train, val, id_test, _ood_split(owned, head, generator), head)


def copied(x: FeatureSet) -> FeatureSet:
    """Return columns and maps that share no memory with `x`."""
    return FeatureSet({k: v.clone() for k, v in x.columns.items()}, {k: v.clone() for k, v in x.maps.items()})


def declared(x: FeatureSet, request: Request) -> FeatureSet:
    """Only the columns and maps that `request` names, maps reduced as it asks."""
    columns = {name: tensor for name, tensor in x.columns.items() if name in request.fields}
    maps = {layer: reduce_map(x.maps[layer], request.pool) for layer in request.layers}
    return replace(x, columns=columns, maps=maps)


def _id_split(owned: Tensor, head: Head, generator: torch.Generator) -> FeatureSet:
    labels = torch.arange(len(owned) * SAMPLES_PER_CLASS) % len(owned)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    strength = 3 + 0.5 * torch.randn(len(labels), owned.shape[1], generator=generator)
    noise = 0.3 * torch.randn(len(labels), owned.shape[1], generator=generator)
    return _columns((strength * owned[labels] + noise).relu(), labels, head, generator)


def _ood_split(owned: Tensor, head: Head, generator: torch.Generator) -> FeatureSet:
    n = 2 * SAMPLES_PER_CLASS
    spread = torch.where(owned.sum(dim=0) > 0, 0.4, 0.9)
    features = (spread * torch.randn(n, owned.shape[1], generator=generator)).relu()
    return _columns(features, torch.full((n,), -1), head, generator)


def _columns(features: Tensor, labels: Tensor, head: Head, generator: torch.Generator) -> FeatureSet:
    columns = {Field.FEATURES: features, Field.LOGITS: head(features), Field.LABELS: labels}
    columns[Field.PERTURBED] = _perturbed(features, head)
    # Mixed with others, an image moves in some features more than in others.
    columns[Field.MIXED] = features + 0.5 * (features.mean() - features) * torch.linspace(0, 1, features.shape[1])
    columns[Field.PATCHES] = _patches(features)
    # Positive weights of mean one: pooling a map gives its features back, up to noise.
    texture = 0.5 + torch.rand(*features.shape, _SIDE, _SIDE, generator=generator)
    maps = dict.fromkeys(LAYERS, features[:, :, None, None] * texture)
    return FeatureSet(columns, {**maps, **_outputs_of_trainings(features, head)})


def _patches(features: Tensor) -> Tensor:
    """Unit features of four patches, (n, 4, d) float16: each sees a part of the image's."""
    seen = torch.rand(features.shape[0], 4, features.shape[1], generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.normalize(features[:, None] * (0.2 + seen), dim=2).half()


def _perturbed(features: Tensor, head: Head) -> Tensor:
    """Features after a small step of the input: they move further where the head is unsure."""
    logits = head(features)
    lead = logits.amax(dim=1) - logits.mean(dim=1)
    shift = torch.rand(features.shape, generator=torch.Generator().manual_seed(0))
    return features + (0.02 + torch.sigmoid(4 * (2 - lead)))[:, None] * shift


def _outputs_of_trainings(features: Tensor, head: Head) -> dict[str, Tensor]:
    """What trainings add to a network, (n, k, 1, 1): each is right where the head is sure, and unsure elsewhere."""
    logits = head(features)
    lead = logits.amax(dim=1) - logits.mean(dim=1)
    sure = torch.sigmoid(4 * (lead - 2))[:, None]
    second = sure * logits + (1 - sure) * 5 * logits.roll(1, dims=1)
    rotations = lead[:, None, None] * torch.eye(4) + 0.1
    outputs = {"confidence": lead[:, None], "second_head": second, "rotations": rotations.flatten(1)}
    outputs["weighted_energy"] = torch.logsumexp(logits, dim=1, keepdim=True)
    outputs |= {"turned": sure * logits, "others": -lead[:, None] * torch.tensor([1.0, 0.2]), "variance": 1 - sure}
    maps = {name: output[:, :, None, None] for name, output in outputs.items()}
    # Three members of an ensemble, which differ where the head is unsure.
    deviations = torch.tensor([-1.0, 0.0, 1.0])[:, None] * (1 - sure)[:, None] * logits.roll(1, dims=1)[:, None]
    return maps | {"members": (logits[:, None] + deviations)[..., None]}


class _Spread(nn.Module):
    """Pixels to maps (n, d, 2, 2) whose mean over positions is the first d pixels."""

    texture: Tensor

    def __init__(self, d: int) -> None:
        super().__init__()
        texture = 0.5 + torch.rand(d, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
        self.register_buffer("texture", texture / texture.mean(dim=(1, 2), keepdim=True))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : len(self.texture), None, None] * self.texture


def network_with(head: Head) -> NetworkBackbone:
    """Return a network that reads features off its images, and has stages `stage1` … `stage4` and a head.

    Args:
        head: weight (c, d) and bias (c,).
    """
    classes, d = head.weight.shape
    side = _side(d)

    def make() -> nn.Module:
        stages = {name: _Spread(d) if name == LAYERS[0] else nn.Identity() for name in LAYERS}
        classifier = {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(d, classes)}
        return nn.Sequential(OrderedDict(stages | classifier))

    anatomy, preprocess = Anatomy("fc", {n: n for n in LAYERS}), Preprocess(side, side, (0.0,) * 3, (1.0,) * 3)
    backbone = NetworkBackbone("toy", "toy network", make, lambda _: anatomy, preprocess=preprocess)
    planted_head = {"fc.weight": head.weight, "fc.bias": head.bias}
    return backbone.load_state({**backbone.module().state_dict(), **planted_head}, "the planted head")


def images_with(features: Tensor) -> Tensor:
    """Return images (n, 3, side, side) of which the network finds the features (n, d)."""
    n, d = features.shape
    side = _side(d)
    images = features.new_zeros(n, 3 * side * side)
    images[:, :d] = features
    return images.view(n, 3, side, side)


def _side(d: int) -> int:
    return math.ceil(math.sqrt(d / 3))


def fitted(method: Method, data: Toy) -> Method:
    """Fit a method on the columns that it declares, of the split that it names; return it, whatever `fit` returns."""
    returned_by_fit(method, data)
    return method


def returned_by_fit(method: Method, data: Toy) -> object:
    """Fit a method and return what its `fit` returns, which should be the method."""
    if not isinstance(method, Composite):
        return method.fit(data.for_fit(method.request), data.head_for(method.request))

    def score(part: Method) -> Tensor:
        return scored(part, declared(data.val, read_by(part)).without_labels(), data)

    return method.fit_parts(lambda part: fitted(part, data), score)


def scored(method: Method, x: FeatureSet, data: Toy) -> Tensor:
    """Return the scores (n,) of samples; a live method gets images, with a network that finds their features.

    To a streaming method the samples are a stream of their own.
    """
    if isinstance(method, StreamingMethod):
        return method.score_next(x, method.memory())
    if isinstance(method, LiveMethod):
        return method.score_images(images_with(x.features), network_with(data.head))
    # The planted copies of an image are the image itself.
    by_part = any(isinstance(leaf, LiveMethod) or leaf.request.corruption for leaf in leaves(method))
    if isinstance(method, Composite) and by_part:
        return method.combine({name: scored(part, x, data) for name, part in method.fitted_parts.items()})
    return method.score(x)


def read_by(method: Method) -> Request:
    """Return what scoring reads; for live methods the features from which the images are made."""
    if not any(isinstance(leaf, LiveMethod) for leaf in leaves(method)):
        return method.request
    return replace(method.request, fields=method.request.fields | {Field.FEATURES})


def samples_of(method: Method, data: Toy) -> FeatureSet:
    """Return ID and OOD samples alternating, without labels, with only the declared columns."""
    # The first ones before maps are reduced: those of the others would be thrown away.
    parts = [declared(split[:160], read_by(method)).without_labels() for split in (data.id_test, data.ood_test)]
    order = torch.arange(320).view(2, 160).T.reshape(-1)
    columns = {name: torch.cat([part.columns[name] for part in parts])[order] for name in parts[0].columns}
    maps = {name: torch.cat([part.maps[name] for part in parts])[order] for name in parts[0].maps}
    return FeatureSet(columns, maps)
