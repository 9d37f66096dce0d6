"""The contract of training methods: what they add to the network, the loss of a batch; and the job of a training."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.anatomy import Anatomy, last_linear, tapping
from openbench.backbones.base import Backbone
from openbench.config.constraints import Checked
from openbench.core.benchmark import Benchmark, Split
from openbench.digest import digest
from openbench.errors import ConfigError, DataError
from openbench.public import name_of
from openbench.source import code_digests
from openbench.training._images import ImageSet
from openbench.training.augment.augmentations import Mixing
from openbench.training.recipe import Recipe

# Raised when a change to the loop alters the weights that come out of an unchanged job.
LOOP_VERSION = 1
Selection = Literal["val_accuracy", "train_loss"]
Compat = Literal["paper", "openood"]  # which code a method follows where the two differ


@dataclass(frozen=True)
class StepInfo:
    """The place of a step in the training, and the random generator that a method uses there.

    Args:
        epoch: counted from 0.
        epochs: in all.
        step: counted from 0 over the whole training.
        steps: in all.
        generator: on the CPU; its state is part of the checkpoint, so a resumed training draws the same.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    generator: torch.Generator


@dataclass(frozen=True)
class Batch:
    """The input of a loss; tensors on the network's device.

    Args:
        images: (n, channels, h, w) float32, augmented and normalised.
        labels: (n,) int64.
        rows: (n,) int64 on the CPU, the images' positions in the training split.
        info: epoch, step and generator.
        outliers: (m, channels, h, w) float32, augmented and normalised, for methods with `uses_outliers`; else empty.
        outlier_rows: (m,) int64 on the CPU, the outliers' positions in their split.
        partners: (n,) int64, the labels of the images that were mixed into these; None without mixing.
        share: of the images' own labels, in [0, 1]; the rest belongs to the partners'.
        versions: further versions (n, channels, h, w) of the images, which `JensenShannon` compares.
        weight: the factor of its loss in that of the step.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    info: StepInfo
    outliers: Tensor = field(default_factory=lambda: torch.zeros(0))
    outlier_rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    partners: Tensor | None = None
    share: float = 1.0
    versions: tuple[Tensor, ...] = ()
    weight: float = 1.0

    def part(self, rows: slice, processes: int, info: StepInfo) -> "Batch":
        """Return the batch of one of several processes.

        Its weight turns the mean over processes of means over their parts into the mean over the batch, though parts
        may differ by one image.
        """
        images, labels, own = self.images[rows], self.labels[rows], self.rows[rows]
        partners = None if self.partners is None else self.partners[rows]
        versions = tuple(version[rows] for version in self.versions)
        weight = self.weight * len(own) * processes / len(self.rows)
        return replace(
            self, images=images, labels=labels, rows=own, info=info, partners=partners, versions=versions, weight=weight
        )

    def mixed(self, mixing: Mixing | None) -> "list[Batch]":
        """Return the batches whose losses are summed: this one, or its images mixed and, if they weigh, as they are."""
        if mixing is None:
            return [self]
        found = mixing(self.images, self.info.generator)
        partners = self.labels[found.partners.to(self.labels.device)]
        mixed = replace(self, images=found.images, partners=partners, share=found.share)
        return [mixed, replace(self, weight=mixing.clean_weight)] if mixing.clean_weight else [mixed]

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (n, c): λ·CE(z, y) + (1 − λ)·CE(z, y′) for partners y′, share λ."""
        unmixed = functional.cross_entropy(logits, self.labels)
        if self.partners is None:
            return unmixed
        return self.share * unmixed + (1 - self.share) * functional.cross_entropy(logits, self.partners)


@dataclass(frozen=True)
class TrainingData:
    """All images of a training, for methods that look at them between epochs."""

    train: ImageSet
    outliers: ImageSet | None


@dataclass(frozen=True)
class EvalModel:
    """The module that is evaluated instead of the network, if a method scores with more parts or with another head.

    Args:
        module: images (n, channels, h, w) to logits (n, c), in eval mode a function of single images.
        head: the part of `module` whose input are the features and whose output the logits.
        network: the part of `module` that has the backbone's stages.
        outputs: name → the part of `module` whose output (n, k) a score may read as the layer of that name.
    """

    module: nn.Module
    head: nn.Linear
    network: nn.Module
    outputs: Mapping[str, nn.Module] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingMethod(Checked, ABC):
    """A way to train a classifier for OOD detection. Subclasses are frozen dataclasses.

    A method is a value: its fields are hyper-parameters and enter the checkpoint's digest. What it learns or counts
    (prototypes, queues, an adaptive weight) is a parameter or buffer of the module that `prepare` returns. The loop
    saves and restores that module, so a killed training can be resumed.

    Attributes:
        recipe: optimiser, schedule, augmentation.
        reference: the paper.
        version: raised when a change alters the weights that come out.
        scorer: the post-hoc method, a name in configs/method, that the paper evaluates it with.
        scorer_params: hyper-parameters in which that differs from the method's yaml.
        uses_outliers: whether `Batch.outliers` is filled from the benchmark's OOD training split.
        selection: how the best epoch is chosen: highest ID validation accuracy, or lowest mean training loss for
            methods that train no classifier. Of equals, the latest.
        views: how often each image comes in a batch, augmented separately each time; 2 for contrastive losses.
        mixes: whether the loss sees labels through `Batch.cross_entropy` alone, so that mixed images make sense.
        separable: whether the loss of a batch is the mean of losses of single images (batch norm aside) and changes no
            buffer, so that several processes may each take a share of the batch.
        fine_tunes: whether a backbone that comes with the weights of a classifier takes the place of `initial`.
        own_head: whether the module's part `network` has a classifier that nothing uses, so that it does not learn.
    """

    recipe: Recipe = field(default_factory=Recipe)

    reference: ClassVar[str]
    version: ClassVar[int] = 1
    scorer: ClassVar[str] = "msp"
    scorer_params: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    uses_outliers: ClassVar[bool] = False
    selection: ClassVar[Selection] = "val_accuracy"
    views: ClassVar[int] = 1
    mixes: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    fine_tunes: ClassVar[bool] = False
    own_head: ClassVar[bool] = False

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> nn.Module:
        """Return the module that is trained: the network itself, or a module that holds it and further parts.

        Its forward maps images (n, channels, h, w) to the logits (n, c) that validation accuracy is taken from.

        Args:
            model: the backbone's network, images to logits.
            feature_dim: d.
            num_classes: c.
        """
        return model

    @abstractmethod
    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            model: what `prepare` returned, in training mode.
            batch: images, labels, where in the training they come.
        """

    def eval_model(self, model: Any) -> EvalModel | None:
        """Return the module to evaluate, or None for the backbone's network with its own head.

        Args:
            model: what `prepare` returned, with the weights of the best epoch, in eval mode; not to be changed.
        """
        return None

    def on_epoch_start(self, model: Any, info: StepInfo, data: TrainingData) -> None:
        """Prepare for an epoch; by default nothing.

        Args:
            model: what `prepare` returned.
            info: the first step of the epoch.
            data: every image, for methods that cluster or mine them.
        """

    def on_step_end(self, model: Any, info: StepInfo) -> None:
        """Finish an optimiser's step, e.g. apply a constraint on weights; by default nothing.

        Args:
            model: what `prepare` returned.
            info: the step.
        """

    def parameter_groups(self, model: Any) -> list[dict[str, Any]]:
        """Return the optimiser's groups; by default one, without an unused classifier.

        Each has `params`, and may have `weight_decay`, `lr_scale` (a factor on the rate) and `lr_constant` (whether
        the rate stays at the recipe's highest).
        """
        unused = set(head_of(model.network).parameters()) if self.own_head else set()
        return [{"params": [p for p in model.parameters() if p.requires_grad and p not in unused]}]

    @property
    def initial(self) -> "TrainingMethod | None":
        """The training whose weights this one starts from; None: from random ones."""
        return None

    @property
    def schedule(self) -> Recipe:
        """The recipe of the epochs that this method itself takes; differs from `recipe` for a fine-tuning."""
        return self.recipe

    @property
    def outlier_batch_size(self) -> int:
        """Outliers per step: the field `outliers_per_step` of methods that have one, else as many as ID images."""
        return int(getattr(self, "outliers_per_step", self.schedule.batch_size))

    def identity(self) -> dict[str, Any]:
        """Return what identifies the method: its class, version and hyper-parameters, the recipe among them."""
        cls = type(self)
        params = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"target": name_of(cls), "version": cls.version, "params": params}


def features_and_logits(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the penultimate features (n, d) and logits (n, c) of one forward pass, with gradients.

    Args:
        network: the backbone's own network, as `prepare` received it; its last nn.Linear is the head.
        images: (n, channels, h, w).
    """
    with tapping(network, Anatomy(last_linear(network)), (), "none") as tapped:
        network(images)
    if tapped.features is None or tapped.logits is None:
        raise RuntimeError(f"{type(network).__name__}: its last nn.Linear was not used in the forward pass")
    return tapped.features, tapped.logits


def head_of(network: nn.Module) -> nn.Linear:
    """Return the classifier of a network as `prepare` received it: its last nn.Linear."""
    return Anatomy(last_linear(network)).linear(network)


def with_head(network: nn.Module, weight: Tensor, bias: Tensor | None) -> EvalModel:
    """Return a copy of a network with another classifier, to evaluate.

    Args:
        network: as `prepare` received it.
        weight: (c, d).
        bias: (c,); None leaves the network's.
    """
    network = copy.deepcopy(network)
    head = head_of(network)
    head.weight.copy_(weight)
    if bias is not None:
        head.bias = nn.Parameter(bias)
    return EvalModel(network, head, network)


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A network to train, the splits that training may see, how, and from which seed.

    Args:
        backbone: the network; its present weights do not matter: they are drawn again from the seed.
        benchmark: name of the benchmark, for messages.
        id_train: training images with labels.
        id_val: held-out ID images that choose the epoch.
        ood_train: outliers, None unless the method uses them.
        method: what is minimised, and the recipe.
        seed: fixes initial weights, order, augmentation and the method's own draws.
    """

    backbone: Backbone
    benchmark: str
    id_train: Split
    id_val: Split
    ood_train: Split | None
    method: TrainingMethod
    seed: int

    def __post_init__(self) -> None:
        """Check that there are images to learn from, and that the method can mix their labels if the recipe does."""
        if self.method.uses_outliers and self.ood_train is None:
            raise DataError(
                f"training '{type(self.method).__name__}' learns from outliers, and benchmark '{self.benchmark}' names "
                "none — choose some: dataset@outliers=NAME (python -m openbench list dataset)"
            )
        if self.method.schedule.steps_per_epoch(len(self.id_train)) == 0:
            raise DataError(f"split '{self.id_train.name}' has {len(self.id_train)} image — two or more are needed")
        if self.method.schedule.mixing is not None and not self.method.mixes:
            raise ConfigError(
                f"training '{type(self.method).__name__}' has no loss for mixed labels — leave "
                f"{type(self.method.schedule.mixing).__name__} out of training.recipe.augment"
            )

    @property
    def initial(self) -> "TrainingJob | None":
        """The job whose weights this one starts from; None: those that the network is initialised with."""
        first = self.method.initial
        if first is None or (self.backbone.starts_trained and self.method.fine_tunes):
            return None
        return replace(self, method=first, ood_train=self.ood_train if first.uses_outliers else None)

    @classmethod
    def of(cls, backbone: Backbone, benchmark: Benchmark, method: TrainingMethod, seed: int) -> "TrainingJob":
        """Return the job of training a backbone on a benchmark; validation and training splits are all it sees.

        Raises:
            ConfigError: the backbone has another number of classes than the benchmark, or a head to be fitted.
            DataError: outliers are needed and there are none.
        """
        if (kind := backbone.head_to_fit) is not None:
            found = f"head={kind} is fitted on features, and weights is null — name weights"
            raise ConfigError(f"backbone '{backbone.name}': {found}")
        if backbone.num_classes != len(benchmark.classes):
            raise ConfigError(
                f"backbone '{backbone.name}' has {backbone.num_classes} classes, benchmark '{benchmark.name}' "
                f"{len(benchmark.classes)} — leave backbone.num_classes null, or set it to {len(benchmark.classes)}"
            )
        outliers = benchmark.ood_train if method.uses_outliers else None
        return cls(backbone, benchmark.name, benchmark.id_train, benchmark.id_val, outliers, method, seed)

    def identity(self) -> dict[str, Any]:
        """Return what determines the weights."""
        splits = (self.id_train, self.id_val, self.ood_train)
        data = tuple(split.source for split in splits if split is not None)
        return {
            "loop": LOOP_VERSION,
            "id_train": self.id_train.digest,
            "id_val": self.id_val.digest,
            "ood_train": None if self.ood_train is None else self.ood_train.digest,
            "architecture": self.backbone.architecture,
            "preprocess": asdict(self.backbone.preprocess),
            "method": self.method.identity(),
            "seed": self.seed,
            **code_digests("openbench.training.loop._loop", self.method, self.backbone, data=data),
        }

    @cached_property
    def digest(self) -> str:
        """Names the checkpoint: equal digests, equal weights up to rounding."""
        return digest(self.identity())

    def __str__(self) -> str:
        return f"{self.backbone.name} on {self.benchmark} with {type(self.method).__name__}, seed {self.seed}"
